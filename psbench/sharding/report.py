"""Report of a sharding in numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psbench.arrays import Integers
from psbench.sharding.base import Division, Rng, ShardedData, Sharding


def label_counts(shards: Sequence[Integers], labels: Integers, num_classes: int) -> Integers:
    """Count the samples of each class that each worker owns.

    Returns
    -------
    ndarray of int64, (num_workers, num_classes)

    Examples
    --------
    >>> label_counts([np.array([0, 1]), np.array([2])], np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    rows = [np.bincount(np.asarray(labels)[shard], minlength=num_classes) for shard in shards]
    return np.array(rows, dtype=np.int64).reshape(len(rows), num_classes)


@dataclass(frozen=True)
class ShardingReport:
    """Time, sparse neighbourhoods and their mean size, as reported in the thesis (ch. 6, table 6.4).

    Parameters
    ----------
    seconds : float
        Wall time that the division took; the only value that is another one each time.
    sizes : list of int, samples
        Of the shards, by worker.
    neighbourhoods : int or None
        Clusters that the rule found; None where it looks for none.
    sparse : int or None
        How many of them are sparse, so that every worker has them whole.
    sparse_mean_size : float or None, samples
        Mean size of the sparse ones; None without any.
    """

    seconds: float
    sizes: list[int]
    neighbourhoods: int | None = None
    sparse: int | None = None
    sparse_mean_size: float | None = None


def measure_data(
    sharding: Sharding, data: ShardedData, num_workers: int, rng: Rng
) -> tuple[Division, ShardingReport]:
    """Divide the training samples of a data set, and return the division with its report."""
    begin = time.perf_counter()
    division = sharding.of_data(data, num_workers, rng)
    seconds, sizes, sparse = time.perf_counter() - begin, list(map(len, division.shards)), division.sparse
    if division.neighbourhoods is None or sparse is None:
        return division, ShardingReport(seconds, sizes)
    mean = sum(sparse) / len(sparse) if sparse else None
    return division, ShardingReport(seconds, sizes, len(division.neighbourhoods), len(sparse), mean)
