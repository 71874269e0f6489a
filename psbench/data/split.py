"""Split off validation samples, stratified by target."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Floats, Integers


def stratified_split(
    labels: Integers, val_fraction: float, rng: np.random.Generator
) -> tuple[Integers, Integers]:
    """Set a share of every class aside, chosen by chance.

    Walking through the samples class by class in random order, one is taken whenever the running share has
    grown by one; so the total is right to rounding, and so is every class to within one.

    Returns
    -------
    (training, validation) : two ndarrays of int64, ascending

    Examples
    --------
    >>> train, val = stratified_split(np.array([0, 0, 1, 1]), 0.5, np.random.default_rng(0))
    >>> len(train), len(val)
    (2, 2)
    """
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    quota = np.floor(np.arange(len(labels) + 1) * val_fraction + 0.5)
    taken = np.diff(quota) > 0
    return np.sort(by_class[~taken]), np.sort(by_class[taken])


def tenths(targets: Floats, mean: float = 0.0, deviation: float = 1.0) -> tuple[Integers, tuple[str, ...]]:
    """Cut numbers in ten groups of about the same size, from the smallest to the largest.

    Parameters
    ----------
    targets : ndarray of float32, (N,)
    mean, deviation : float
        What turns them into the unit that groups are called by.

    Returns
    -------
    groups : ndarray of int64, (N,)
        Of each target, from 0.
    names : tuple of str
        At most ten: equal targets are in one group, so that groups with the same end are one.

    Examples
    --------
    >>> groups, names = tenths(np.array([1, 1, 2, 3], dtype=np.float32))
    >>> groups.tolist(), names
    ([0, 0, 1, 2], ('up to 1', 'up to 2', 'above 2'))
    """
    largest = np.max(targets)
    ends = np.unique(np.quantile(targets, np.arange(1, 10) / 10, method="inverted_cdf"))
    ends = ends[ends < largest]
    shown = [f"{mean + deviation * float(end):.4g}" for end in ends]
    names = [f"up to {end}" for end in shown] + ([f"above {shown[-1]}"] if shown else ["all"])
    return np.searchsorted(ends, targets, side="left").astype(np.int64, copy=False), tuple(names)


def parts_in_order(count: int) -> tuple[Integers, tuple[str, ...]]:
    """Cut samples in ten parts of about the same size, in the order that they have.

    Returns
    -------
    parts : ndarray of int64, (count,)
        Of each sample, from 0.
    names : tuple of str

    Examples
    --------
    >>> parts_in_order(3)[0].tolist(), parts_in_order(20)[1][9]
    ([0, 1, 2], 'part 10 of 10')
    """
    parts = min(count, 10)
    names = tuple(f"part {part} of {parts}" for part in range(1, parts + 1))
    return np.arange(count, dtype=np.int64) * parts // count, names
