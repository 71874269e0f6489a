"""Means and deviations of data that need not be in memory, and standardised data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from psbench.arrays import Doubles, Floats

#: rows that are looked at at a time: 2 MB of 28 columns as 64-bit floats. Results depend on it in their last
#: bits, which is why it is no parameter
ROWS = 8192
#: values that 32-bit floats should have between the ends of a column
_FEWEST = 1000


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
        self._mean: Any = 0.0
        self._squares: Any = 0.0
        self._least: Any = np.inf
        self._largest: Any = -np.inf

    def add(self, block: Floats | Doubles) -> None:
        """Add rows of shape (rows, columns) or (rows,) to the statistics."""
        values = block.astype(np.float64)
        self._least = np.minimum(self._least, values.min(axis=0))
        self._largest = np.maximum(self._largest, values.max(axis=0))
        mean = values.mean(axis=0)
        values -= mean
        total = self.count + len(block)
        apart = mean - self._mean
        self._squares = self._squares + (values**2).sum(axis=0) + apart**2 * (self.count * len(block) / total)
        self._mean = self._mean + apart * (len(block) / total)
        self.count = total

    @property
    def mean(self) -> Any:
        """The mean of each column, exact for a constant column."""
        return np.where(self._varies, self._mean, self._least)

    @property
    def deviation(self) -> Any:
        """The standard deviation of each column; 1 for a constant column."""
        return np.where(self._varies, np.sqrt(self._squares / self.count), 1.0)

    @property
    def _varies(self) -> Any:
        # a sum of squares does not tell: the mean of equal 64-bit floats may differ from them in the last bit
        return (self._least < self._largest) & (self._squares > 0)


def standardise(numbers: Floats | Doubles, train: int, to: Floats | None = None) -> tuple[Doubles, Doubles]:
    """Bring each column to mean 0 and deviation 1 over the first `train` rows, block by block.

    Parameters
    ----------
    numbers : ndarray of float32 or float64, (N, columns) or (N,)
        May be a file that is mapped to memory.
    train : int
        Rows that means and deviations are taken over.
    to : ndarray of float32, of the same shape, or None
        Receives the result; None: `numbers` is changed in place.

    Returns
    -------
    (means, deviations) : two ndarrays of float64, (columns,) or ()
        The means were subtracted, and the deviations then divided by.
    """
    moments = Moments()
    for begin, end in blocks(train):
        moments.add(numbers[begin:end])
    mean, deviation = np.asarray(moments.mean), np.asarray(moments.deviation)
    result = numbers if to is None else to
    for begin, end in blocks(len(numbers)):
        result[begin:end] = (numbers[begin:end] - mean) / deviation
    return mean, deviation


def warn_of_coarse(
    where: str, least: Doubles | float, largest: Doubles | float, names: Sequence[str] = ()
) -> None:
    """Warn of the first column whose range contains few 32-bit floats.

    Parameters
    ----------
    where : str
        Begins the message.
    least, largest : float64, (columns,)
        The ends of each column.
    names : sequence of str
        Of the columns; may be empty.
    """
    least, largest = (np.atleast_1d(np.asarray(each, dtype=np.float64)) for each in (least, largest))
    with np.errstate(over="ignore"):
        steps = np.spacing(np.maximum(np.abs(least), np.abs(largest)).astype(np.float32)).astype(np.float64)
    coarse = (largest > least) & (largest - least < _FEWEST * steps)
    if coarse.any():
        place = int(np.argmax(coarse))
        column = f"column {names[place]!r}" if names else f"column {place}"
        warnings.warn(
            f"{where}, {column}: runs from {least[place]:.10g} to {largest[place]:.10g}, where 32-bit floats "
            f"are {steps[place]:g} apart; subtract its mean, or set standardise: true",
            UserWarning,
            stacklevel=2,
        )


def blocks(rows: int) -> Iterator[tuple[int, int]]:
    return ((begin, min(begin + ROWS, rows)) for begin in range(0, rows, ROWS))
