"""Shardings given by the data: divided already, or grouped by a column."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Floats, Integers
from psbench.core import parameter
from psbench.errors import ParameterError
from psbench.sharding.base import Division, Rng, ShardedData, Sharding
from psbench.sharding.stratified import groups


class Given(Sharding):
    """The division of the data itself: a list of data sets, one per worker."""

    name = "given"
    source = "data that is already on the workers"
    registered = False

    def check_data(self, name: str, num_shards: int | None, num_workers: int) -> None:
        """Raise ParameterError unless there is a data set for each worker."""
        if num_shards is None:
            raise ParameterError(
                f"sharding 'given': data {name!r} is not divided among the workers; name a sharding, such as "
                "'stratified', or give a list of data sets"
            )
        if num_shards != num_workers:
            raise ParameterError(
                f"data: a list of {num_shards} data sets, but the cluster has {num_workers} "
                "workers; give one for each worker"
            )

    def of_data(self, data: ShardedData, num_workers: int, rng: Rng) -> Division:
        shards = list(data.shards or ())
        self.check_data("own", len(shards), num_workers)
        return Division(shards)


class Column(Sharding):
    """Samples with the same value in a column belong to the same worker: hospitals, users, days.

    Values are dealt whole, the most frequent first, each to the worker that has the fewest samples; of equal
    ones to the first. With as many values as workers each has one.

    Raises
    ------
    ParameterError, UnknownName
        If there is no such column, or it has fewer different values than there are workers.

    Notes
    -----
    The largest shard has at most a third more samples than that of the best division.
    """

    name = "column"
    source = "Graham 1969, largest first"

    column: str = parameter("", "the column whose values stay together")

    @property
    def remedy(self) -> str:
        """Advice for a worker left without samples."""
        return f"column {self.column!r} has too few different values; use fewer workers, or another column"

    def labels_of(self, data: ShardedData) -> Integers:
        """Return a number for each value of the column."""
        if not self.column:
            raise ParameterError("sharding 'column': no column given; set column to its name")
        return np.unique(data.column(self.column), return_inverse=True)[1].astype(np.int64)

    def assign(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Deal the values, the most frequent first."""
        shards: list[list[Integers]] = [[] for _ in range(num_workers)]
        sizes = [0] * num_workers
        for members in sorted(groups(labels), key=len, reverse=True):
            worker = sizes.index(min(sizes))
            shards[worker].append(members)
            sizes[worker] += len(members)
        return [np.sort(np.concatenate(own)) if own else np.zeros(0, dtype=np.int64) for own in shards]
