"""Setting samples aside for validation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def stratified_split(
    labels: Indices, val_fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
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
