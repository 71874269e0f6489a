"""Bit packing: small unsigned integers and floats as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from psbench.arrays import Booleans, Floats
from psbench.strategies.codecs.base import Packed


def pack_planes(planes: Iterable[Booleans]) -> Packed:
    """Pack the first bits of all entries, then the second bits, and so on.

    The whole bytes of each plane are packed by themselves, since that needs no shifting; the remaining
    entries of all planes (fewer than 8 each) follow together. So only the last byte has padding.

    Shapes
    ------
    planes : bool, (size,) each      returned : uint8, (ceil(num_planes * size / 8),)

    Examples
    --------
    >>> pack_planes([np.ones(10, bool), np.zeros(10, bool)])
    array([255,   0, 192], dtype=uint8)
    """
    packed, rests = [], []
    for plane in planes:
        whole = plane.size // 8 * 8
        packed.append(np.packbits(plane[:whole]))
        rests.append(plane[whole:])
    return np.concatenate([*packed, np.packbits(np.concatenate(rests))])


def unpack_planes(packed: Packed, size: int, num_planes: int) -> list[Booleans]:
    """Return the planes that `pack_planes` was given."""
    each = size // 8
    rest = size - 8 * each
    rests = np.unpackbits(packed[each * num_planes :], count=rest * num_planes).reshape(num_planes, rest)
    planes = np.empty((num_planes, size), dtype=np.uint8)
    for number, plane in enumerate(planes):
        plane[: 8 * each] = np.unpackbits(packed[each * number : each * (number + 1)])
        plane[8 * each :] = rests[number]
    return list(planes.view(np.bool_))


def planes_of(numbers: npt.NDArray[np.unsignedinteger], width: int) -> Iterator[Booleans]:
    """Return the bits of integers below 2^width, the lowest first."""
    bits = (numbers.dtype.type(1 << bit) for bit in range(width))
    return ((numbers & bit) != 0 for bit in bits)


def numbers_of(planes: Sequence[Booleans]) -> npt.NDArray[np.unsignedinteger]:
    """Return the integers with these bits (inverse of `planes_of`), in the smallest type that holds them."""
    numbers = np.zeros(len(planes[0]), dtype=np.min_scalar_type((1 << len(planes)) - 1))
    for bit, plane in enumerate(planes):
        numbers |= plane.astype(numbers.dtype) << numbers.dtype.type(bit)
    return numbers


def pack_numbers(numbers: npt.NDArray[np.uint32], width: int) -> Packed:
    """Pack integers below 2^width, one after another.

    Examples
    --------
    >>> pack_numbers(np.array([1, 2, 3], dtype=np.uint32), 4)
    array([33,  3], dtype=uint8)
    """
    bits = np.unpackbits(_as_bytes(numbers), axis=1, count=width, bitorder="little")
    return np.packbits(bits, bitorder="little")


def unpack_numbers(packed: Packed, size: int, width: int) -> npt.NDArray[np.uint32]:
    """Return the integers that `pack_numbers` was given."""
    bits = np.unpackbits(packed, count=size * width, bitorder="little").reshape(size, width)
    numbers = np.zeros(size, dtype="<u4")
    used = -(-width // 8)
    _as_bytes(numbers)[:, :used] = np.packbits(bits, axis=1, bitorder="little")
    return numbers.astype(np.uint32, copy=False)


def _as_bytes(numbers: npt.NDArray[np.uint32]) -> Packed:
    return numbers.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4)


def float_bytes(values: Floats) -> Packed:
    return np.ascontiguousarray(values, dtype="<f4").view(np.uint8)


def floats_of(packed: Packed) -> Floats:
    """Return the 32-bit floats of little-endian bytes, as a new array."""
    return packed.view("<f4").astype(np.float32)
