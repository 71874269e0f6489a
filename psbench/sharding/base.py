"""The contract of a sharding, and the checks of every division."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from psbench.arrays import Array, Floats, Integers
from psbench.core import Part
from psbench.errors import ParameterError

Rng = np.random.Generator


class ShardedData(Protocol):
    """The part of a data set that a sharding may use; implemented by `psbench.data.Dataset`."""

    @property
    def train_x(self) -> Any:
        """Samples, a tensor, (N, ...)."""

    @property
    def strata(self) -> tuple[Integers, tuple[str, ...]]:
        """The class or other stratum of each sample, and the names of the strata."""

    @property
    def shards(self) -> tuple[Integers, ...] | None:
        """The samples of each worker, if the data is already divided."""

    def column(self, name: str) -> Array:
        """Return a column, (N,)."""


class Division(NamedTuple):
    """The samples of each worker, and the sizes of the neighbourhoods if the rule finds any.

    `sparse` are the sizes of those that every worker was given whole. Both are None where the rule looks for
    no neighbourhoods.
    """

    shards: list[Integers]
    neighbourhoods: list[int] | None = None
    sparse: list[int] | None = None


class Sharding(Part):
    """Decides, before training begins, which samples each worker owns.

    A subclass defines `assign`; `divide` checks what goes in and what comes out.

    Source
    ------
    Thesis 6.1: an offline system that gives every sample the number of its worker.
    """

    domain = "sharding"
    #: whether a process of a live run is sent its shard, as it cannot divide the data
    travels: ClassVar[bool] = False
    #: whether every sample goes to exactly one worker
    partition: ClassVar[bool] = True
    #: whether a worker must read its samples in the order given, without shuffling them each epoch
    ordered: ClassVar[bool] = False

    def split(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Return one array of sample indices per worker; see `divide`."""
        return self.divide(features, labels, num_workers, rng).shards

    def of_data(self, data: ShardedData, num_workers: int, rng: Rng) -> Division:
        """Divide the training samples of a data set; see `divide`."""
        labels = self.labels_of(data)
        return self.divide(data.train_x.numpy().reshape(len(labels), -1), labels, num_workers, rng)

    def labels_of(self, data: ShardedData) -> Integers:
        """Return the integer of each sample by which the rule divides: the classes."""
        return data.strata[0]

    def check_data(self, name: str, num_shards: int | None, num_workers: int) -> None:
        """Raise ParameterError if the rule cannot divide data of that name, or if it is divided already."""
        if num_shards is not None:
            raise ParameterError(
                f"sharding {self.name!r}: data {name!r} is already divided among the workers; remove sharding"
            )

    def divide(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> Division:
        """Return the samples of each worker, and the rule's intermediate results.

        Parameters
        ----------
        features : ndarray of float32, (N, ...)
            Only `distribution_aware` looks at the values.
        labels : ndarray of int64, (N,)
        num_workers : int, >= 1
        rng : numpy.random.Generator
            The only source of chance.

        Returns
        -------
        Division
            Its `shards` are `num_workers` arrays of sample indices, none empty.

        Raises
        ------
        ParameterError
            If the samples do not suffice, or the rule leaves a worker with none.
        """
        labels = np.asarray(labels, dtype=np.int64)
        if len(features) != len(labels):
            raise ParameterError(f"sharding {self.name!r}: {len(features)} samples but {len(labels)} labels")
        self.check_size(num_workers, len(labels))
        division = self.found(features, labels, num_workers, rng)
        self.check_none_empty(division.shards, len(labels))
        return division

    def check_none_empty(self, shards: list[Integers], dataset_size: int) -> None:
        """Raise ParameterError if a worker has no sample."""
        for worker, shard in enumerate(shards):
            if len(shard) == 0:
                raise ParameterError(
                    f"sharding {self.name!r}: worker {worker} of {len(shards)} gets no sample of "
                    f"{dataset_size}; {self.remedy}"
                )

    def found(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> Division:
        """Apply the rule; return the shards, and the neighbourhoods if it looks for any."""
        return Division(self.assign(features, labels, num_workers, rng))

    def check_size(self, num_workers: int, dataset_size: int) -> None:
        """Raise ParameterError if there are fewer samples than workers."""
        if num_workers < 1:
            raise ParameterError(f"sharding {self.name!r}: num_workers must be at least 1, got {num_workers}")
        if dataset_size < num_workers:
            raise ParameterError(
                f"sharding {self.name!r}: {dataset_size} samples do not suffice for {num_workers} workers; "
                "use fewer workers or more samples"
            )

    def bare(self) -> Sharding:
        """Return the sharding without its Python object, as its specification describes it."""
        return self

    @property
    def remedy(self) -> str:
        """Advice for a worker left without samples."""
        return "use fewer workers or more samples"

    def assign(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Apply the rule; `num_workers` is at most the number of samples."""
        raise NotImplementedError(f"{type(self).__name__} must define assign")


def deal(indices: Integers, num_workers: int, first: int = 0) -> list[Integers]:
    """Deal indices to workers in turn, beginning with worker `first`.

    >>> [part.tolist() for part in deal(np.arange(5), 2)]
    [[0, 2, 4], [1, 3]]
    """
    return [indices[(worker - first) % num_workers :: num_workers] for worker in range(num_workers)]


def gather(pieces: list[list[Integers]]) -> list[Integers]:
    """Join each worker's samples of several deals, in ascending order."""
    return [np.sort(np.concatenate(own)).astype(np.int64) for own in zip(*pieces, strict=True)]
