"""Means and deviations of data that need not be in memory, and data brought to mean 0 and deviation 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from psbench.arrays import Doubles, Floats

#: rows that are looked at at a time: 2 MB of 28 columns as 64-bit floats. Results depend on it in their last
#: bits, which is why it is no parameter
ROWS = 8192


class Moments:
    """Means and deviations of columns, taken block by block in 64-bit floats.

    Source
    ------
    Chan, Golub, LeVeque (1983), "Algorithms for Computing the Sample Variance", The American Statistician.

    Examples
    --------
    >>> moments = Moments()
    >>> for block in ([[0.0], [2.0]], [[4.0]]):
    ...     moments.add(np.array(block, dtype=np.float32))
    >>> moments.mean.tolist(), moments.count
    ([2.0], 3)
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self._squares: Any = 0.0

    def add(self, block: Floats) -> None:
        """Take in some rows, (rows, columns) or (rows,)."""
        values = block.astype(np.float64)
        mean = values.mean(axis=0)
        values -= mean
        total = self.count + len(block)
        apart = mean - self.mean
        self._squares = self._squares + (values**2).sum(axis=0) + apart**2 * (self.count * len(block) / total)
        self.mean = self.mean + apart * (len(block) / total)
        self.count = total

    @property
    def deviation(self) -> Any:
        """The standard deviation of each column; 1 where a column never changes."""
        deviation = np.sqrt(self._squares / self.count)
        return np.where(deviation > 0, deviation, 1.0)


def standardise(numbers: Floats, train: int) -> tuple[Doubles, Doubles]:
    """Bring each column to mean 0 and deviation 1 over the first `train` rows, in place, block by block.

    Parameters
    ----------
    numbers : ndarray of float32, (N, columns) or (N,)
        May be a file that is mapped to memory.
    train : int
        Rows that means and deviations are taken over.

    Returns
    -------
    (means, deviations) : two ndarrays of float64, (columns,) or ()
        What was subtracted, and then divided by.
    """
    moments = Moments()
    for begin, end in blocks(train):
        moments.add(numbers[begin:end])
    mean, deviation = np.asarray(moments.mean), np.asarray(moments.deviation)
    for begin, end in blocks(len(numbers)):
        numbers[begin:end] = (numbers[begin:end] - mean) / deviation
    return mean, deviation


def blocks(rows: int) -> Iterator[tuple[int, int]]:
    """Return where each block of rows begins and ends."""
    return ((begin, min(begin + ROWS, rows)) for begin in range(0, rows, ROWS))
