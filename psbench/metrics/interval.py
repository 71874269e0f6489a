"""Means over seeds, with their intervals and standard deviations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psbench.arrays import Doubles


def interval(values: Sequence[float] | Doubles, level: float = 0.95) -> tuple[float, float | None]:
    """Return the mean and the half-width of its confidence interval, by Student's t distribution.

    Parameters
    ----------
    values : sequence of float, one per seed
    level : float, 0 to 1

    Returns
    -------
    tuple of float and (float or None)
        None with fewer than two values: one run says nothing about how runs vary.

    Examples
    --------
    >>> mean, half = interval([1.0, 2.0, 3.0])
    >>> round(mean, 3), round(half, 3)  # 4.303 * 1 / sqrt(3)
    (2.0, 2.484)
    """
    sample = np.asarray(values, dtype=float)
    n = len(sample)
    if n < 2:
        return float(sample.mean()) if n else float("nan"), None
    from scipy.special import stdtrit  # here: one run needs none

    error = sample.std(ddof=1) / np.sqrt(n)
    return float(sample.mean()), float(stdtrit(n - 1, (1 + level) / 2) * error)


def standard_deviation(values: Sequence[float] | Doubles) -> float | None:
    """Return the standard deviation of a sample (n - 1 in the denominator); None with fewer than two values.

    Examples
    --------
    >>> standard_deviation([1.0, 2.0, 3.0])
    1.0
    """
    sample = np.asarray(values, dtype=float)
    return float(sample.std(ddof=1)) if len(sample) > 1 else None
