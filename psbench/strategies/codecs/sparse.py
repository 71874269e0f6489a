"""Sparse codecs: few entries of a vector are sent; the others arrive as 0."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from psbench.arrays import Floats, Integers
from psbench.core import parameter
from psbench.errors import CodecError
from psbench.strategies.codecs.base import Lossy, Packed
from psbench.strategies.codecs.bits import float_bytes, floats_of, pack_numbers, unpack_numbers

SOURCE = "Stich et al. 2018"
#: largest relative rounding error of ratio * size: 0.07 * 100 must give 7, not 8
_ROUNDING = 1e-12


class Sparse(Lossy):
    """Base of top-k and random-k, with the number of sent entries."""

    # 0.01: some 65 times fewer bytes, indices included; a larger share costs more, a smaller one delays more
    ratio: float = parameter(0.01, "share of the entries to send", source=SOURCE, gt=0, le=1)
    error_feedback: bool = parameter(True, "add the error of one message to the next", source=SOURCE)

    def num_kept(self, size: int) -> int:
        """Return k = max(1, ceil(ratio size)).

        Examples
        --------
        >>> TopK(ratio=0.07).num_kept(100), TopK(ratio=0.01).num_kept(1)
        (7, 1)
        """
        return max(1, math.ceil(self.ratio * size * (1.0 - _ROUNDING)))


class TopK(Sparse):
    """Send the entries with the largest magnitudes, each with its index.

    Parameters
    ----------
    error_feedback : bool
        Without it the small entries of every vector are never sent.

    Notes
    -----
    Reduces to: `none`, if ratio = 1.
    With k of d entries sent, ||x - C(x)||^2 <= (1 - k/d) ||x||^2. Of equal entries the one with the lower
    index is sent.

    Examples
    --------
    >>> codec, rng = TopK(ratio=0.5), np.random.default_rng(0)
    >>> codec.decode(codec.encode(np.array([1, -3, 2, 0.5], dtype=np.float32), rng), 4)
    array([ 0., -3.,  2.,  0.], dtype=float32)
    >>> TopK(ratio=0.01).num_bits(1000)
    420
    """

    name = "top_k"
    source = "Stich et al. 2018, Def. 2.2, Alg. 1"

    def num_bits(self, size: int) -> int:
        return self.num_kept(size) * (32 + index_bits(size))

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        where = largest(vector, self.num_kept(vector.size))
        indices = pack_numbers(where.astype(np.uint32), index_bits(vector.size))
        return np.concatenate([float_bytes(vector[where]), indices])

    def _decode(self, packed: Packed, size: int) -> Floats:
        kept = self.num_kept(size)
        where = unpack_numbers(packed[4 * kept :], kept, index_bits(size))
        if where.max() >= size:
            raise CodecError(
                f"codec 'top_k': a message has index {where.max():,}, but the vector has {size:,} "
                "entries; were both sides given the same model?"
            )
        vector = np.zeros(size, dtype=np.float32)
        vector[where] = floats_of(packed[: 4 * kept])
        return vector


class RandomK(Sparse):
    """Send randomly drawn entries of each vector; the receiver draws the same entries from the sent seed.

    Parameters
    ----------
    error_feedback : bool
        Without it the entries are multiplied by d/k, so that the codec is unbiased.

    Notes
    -----
    Reduces to: `none`, if ratio = 1.
    k of d entries are sent. With error feedback, E ||x - C(x)||^2 = (1 - k/d) ||x||^2; without, C is unbiased
    and the error is (d/k - 1) ||x||^2. Both sides must run the same version of NumPy, whose draws may change
    between versions.

    Examples
    --------
    >>> RandomK(ratio=0.01).num_bits(1000)
    384
    """

    name = "random_k"
    source = "Stich et al. 2018, Def. 2.2"

    @property
    def unbiased(self) -> bool:  # pyrefly: ignore[bad-override]
        """True without error feedback."""
        return not self.error_feedback

    def shift_rate(self, size: int) -> float:
        """Return k/d without error feedback, which undoes the factor d/k of the entries sent; else 1."""
        return self.num_kept(size) / size if self.unbiased else 1.0

    def num_bits(self, size: int) -> int:
        return 32 * self.num_kept(size) + 64

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        seed = rng.integers(1 << 64, size=1, dtype=np.uint64)
        values = vector[self._drawn(int(seed[0]), vector.size)]
        if not self.error_feedback:
            values = self._rescaled(values, vector.size)
        return np.concatenate([seed.astype("<u8").view(np.uint8), float_bytes(values)])

    def _decode(self, packed: Packed, size: int) -> Floats:
        vector = np.zeros(size, dtype=np.float32)
        vector[self._drawn(int(packed[:8].view("<u8")[0]), size)] = floats_of(packed[8:])
        return vector

    def _drawn(self, seed: int, size: int) -> Integers:
        rng = np.random.Generator(np.random.PCG64(seed))
        return rng.choice(size, self.num_kept(size), replace=False, shuffle=False)

    def _rescaled(self, values: Floats, size: int) -> Floats:
        rescaled = values.astype(np.float64) * (size / self.num_kept(size))
        if np.abs(rescaled).max() > np.finfo(np.float32).max:
            raise CodecError(
                "codec 'random_k': an entry times d/k is too large for a 32-bit float; use a larger ratio or "
                "error feedback, or a lower learning rate if the run diverges"
            )
        return rescaled.astype(np.float32)


def index_bits(size: int) -> int:
    """Return ceil(log2 size), the bits of an index.

    Examples
    --------
    >>> index_bits(1000), index_bits(1024), index_bits(1)
    (10, 10, 0)
    """
    return (size - 1).bit_length()


def largest(vector: Floats, count: int) -> npt.NDArray[np.intp]:
    """Return the indices of the largest magnitudes, in order; ties are broken by lower index.

    Examples
    --------
    >>> largest(np.array([1, -2, 1, 1], dtype=np.float32), 2)
    array([0, 1])
    """
    # without the sign bit, the bits of floats read as integers are in the order of magnitudes, and integers
    # are partitioned in half the time
    magnitudes = vector.view(np.uint32) & np.uint32(0x7FFF_FFFF)
    least = np.partition(magnitudes, -count)[-count]
    where = np.flatnonzero(magnitudes >= least)
    if len(where) > count:
        equal = np.flatnonzero(magnitudes[where] == least)
        where = np.delete(where, equal[count - len(where) :])
    return where
