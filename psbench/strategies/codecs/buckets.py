"""Buckets: consecutive entries of a vector that share a scale."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Array, Booleans, Doubles, Floats, Integers
from psbench.core import parameter
from psbench.strategies.codecs.base import Lossy


class Bucketed(Lossy):
    """A codec with a scale for every bucket of entries."""

    bucket: int = parameter(
        0, "entries that share a scale; 0: the whole vector", unit="entries", source="QSGD 4", ge=0
    )

    def num_scales(self, size: int) -> int:
        """Return the number of buckets of a vector."""
        return -(-size // (self.bucket or size))

    def num_sharing(self, size: int) -> int:
        """Return the largest number of entries that share a scale."""
        return min(self.bucket or size, size)


class Buckets:
    """The buckets of one vector; the last may be shorter.

    Parameters
    ----------
    size : int, entries
    bucket : int, entries
        0 for one bucket.

    Examples
    --------
    >>> buckets = Buckets(5, 2)
    >>> buckets.total(np.arange(5, dtype=np.float32))
    array([1., 5., 4.])
    >>> buckets.expand(np.array([1, 2, 3]))
    array([1, 1, 2, 2, 3])
    """

    def __init__(self, size: int, bucket: int) -> None:
        self._starts = np.arange(0, size, bucket or size)
        self.counts = np.diff(self._starts, append=size)

    def total(self, values: Array) -> Doubles:
        """Return the sum of each bucket, in 64-bit floats."""
        if len(self.counts) == 1:
            return np.array([values.sum(dtype=np.float64)])
        sums: Doubles = np.add.reduceat(values, self._starts, dtype=np.float64)
        return sums

    def count(self, booleans: Booleans) -> Integers:
        """Return the number of true entries in each bucket."""
        if len(self.counts) == 1:
            return np.array([np.count_nonzero(booleans)])
        counts: Integers = np.add.reduceat(booleans, self._starts, dtype=np.int64)
        return counts

    def maximum(self, values: Floats) -> Floats:
        return np.maximum.reduceat(values, self._starts)

    def norm(self, values: Floats) -> Doubles:
        """Return the Euclidean norm of each bucket; squares neither overflow nor underflow (64 bits)."""
        if len(self.counts) == 1:
            squares = np.array([np.einsum("i,i->", values, values, dtype=np.float64)])
        else:
            squares = self.total(np.square(values, dtype=np.float64))
        norms: Doubles = np.sqrt(squares)
        return norms

    def expand(self, numbers: Array) -> Array:
        """Repeat each bucket's number for all of its entries; a single number is left to broadcasting."""
        return numbers if len(numbers) == 1 else np.repeat(numbers, self.counts)
