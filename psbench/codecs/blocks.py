"""A codec for each of several blocks of a vector, such as a model's layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from psbench.codecs.base import Codec, Floats, Packed
from psbench.errors import CodecError

_Array = TypeVar("_Array", Floats, Packed)


class Blockwise:
    """Encode every block by itself: a scale for every layer, k entries of every layer.

    Parameters
    ----------
    codec : Codec
    sizes : sequence of int, entries
        Of the blocks, in the order in which they lie in the vector.

    Notes
    -----
    Every block begins with a byte of its own, which may cost 7 bits each beyond what `protocols` counts.

    Examples
    --------
    >>> from psbench.codecs import TernGrad
    >>> Blockwise(TernGrad(), [600, 400]).num_bytes(1000) - TernGrad().num_bytes(1000)
    4
    """

    def __init__(self, codec: Codec, sizes: Sequence[int]) -> None:
        if not sizes or min(sizes) < 1:
            raise CodecError(f"blocks must have at least one entry each, got sizes {list(sizes)}")
        self.codec, self.sizes = codec, tuple(sizes)

    @property
    def has_memory(self) -> bool:
        """Whether the codec's sender has a memory."""
        return self.codec.has_memory

    def num_bytes(self, size: int) -> int:
        """Return the sum over the blocks, which must be those of a vector of `size` entries."""
        self._expect(size)
        return sum(map(self.codec.num_bytes, self.sizes))

    def encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        """Return the blocks' encodings, one after the other."""
        self._expect(vector.size)
        blocks = _cut(vector, self.sizes)
        return np.concatenate([self.codec.encode(block, rng) for block in blocks])

    def decode(self, packed: Packed, size: int) -> Floats:
        """Return what arrives."""
        lengths = list(map(self.codec.num_bytes, self.sizes))
        if len(packed) != self.num_bytes(size):
            raise CodecError(f"these blocks take {sum(lengths):,} bytes, got {len(packed):,}")
        pieces = zip(_cut(packed, lengths), self.sizes, strict=True)
        return np.concatenate([self.codec.decode(piece, block) for piece, block in pieces])

    def _expect(self, size: int) -> None:
        if size != sum(self.sizes):
            raise CodecError(f"blocks of {sum(self.sizes):,} entries for a vector of {size:,}")


def _cut(array: _Array, lengths: Sequence[int]) -> Iterator[_Array]:
    for end, length in zip(itertools.accumulate(lengths), lengths, strict=True):
        yield array[end - length : end]
