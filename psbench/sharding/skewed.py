"""Uneven sharding on purpose: by label or by size."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Floats, Integers
from psbench.core import parameter
from psbench.errors import ParameterError
from psbench.sharding.base import Rng, Sharding
from psbench.sharding.stratified import groups

#: draws before samples are moved instead; where a hundred fail, the skew is such that thousands would
MAX_DRAWS = 100


class _Drawn(Sharding):
    """Base of shardings by a Dirichlet distribution, with at least `min_size` samples per shard."""

    alpha: float = parameter(0.5, "concentration: small is skewed, large is even", gt=0)
    min_size: int = parameter(10, "smallest shard", unit="samples", ge=1)

    def check_size(self, num_workers: int, dataset_size: int) -> None:
        """Raise ParameterError if not every worker can have `min_size` samples."""
        super().check_size(num_workers, dataset_size)
        if num_workers * self.min_size > dataset_size:
            raise ParameterError(
                f"sharding {self.name!r}: {dataset_size} samples cannot give {num_workers} workers "
                f"{self.min_size} each; set min_size to {dataset_size // num_workers} or less, or use fewer "
                "workers"
            )


class Dirichlet(_Drawn):
    """Split each class among the workers in proportions drawn from a Dirichlet distribution.

    Parameters
    ----------
    alpha : float, > 0
        Concentration: the larger the more even. Towards 0 each class goes to one worker.

    Notes
    -----
    Reduces to: the class proportions of `stratified` as alpha grows.
    Our reading: proportions are drawn again until all shards reach `min_size`, at most 100 times; then
    samples chosen by chance move from the largest shard to those that are too small, so that it ends at any
    skew.
    """

    name = "dirichlet"
    source = "Hsu et al. 2019, drawn per class"

    def assign(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Draw until the smallest shard suffices, or repair the last draw."""
        shards: list[Integers] = []
        for _ in range(MAX_DRAWS):
            shards = self.draw(labels, num_workers, rng)
            if min(map(len, shards)) >= self.min_size:
                return shards
        return level(shards, self.min_size, rng)

    def draw(self, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Cut every class, shuffled, at drawn proportions."""
        pieces = [
            np.split(rng.permutation(members), cuts(rng.dirichlet([self.alpha] * num_workers), len(members)))
            for members in groups(labels)
        ]
        return [np.concatenate(own) for own in zip(*pieces, strict=True)]


class ShardPerClass(Sharding):
    """Sort by label, cut into equal pieces, and give each worker a few random ones.

    Raises
    ------
    ParameterError
        If there are more pieces than samples.
    """

    name = "shard_per_class"
    source = "McMahan et al. 2017, sec. 3"

    shards_per_worker: int = parameter(2, "pieces of the sorted data each worker gets", ge=1)

    def assign(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Cut the sorted samples and deal the pieces."""
        count = num_workers * self.shards_per_worker
        if count > len(labels):
            raise ParameterError(
                f"sharding {self.name!r}: {len(labels)} samples cannot be cut into {num_workers} x "
                f"{self.shards_per_worker} pieces; lower shards_per_worker or use fewer workers"
            )
        pieces = np.array_split(np.argsort(labels, kind="stable"), count)
        hands = rng.permutation(count).reshape(num_workers, self.shards_per_worker)
        return [np.concatenate([pieces[piece] for piece in sorted(hand)]) for hand in hands]


class LabelsPerWorker(Sharding):
    """Give each worker consecutive labels: worker j has labels j L / n to (j + 1) L / n - 1.

    Notes
    -----
    As in sahiltyagi4/SelSync f6910a7, selsync_py3/helper/noniid_datapartitioner.py, lines 92-99, where L is a
    multiple of n; what it leaves out otherwise is dealt out here.

    Raises
    ------
    ParameterError
        If there are more workers than classes.
    """

    name = "labels_per_worker"
    source = "SelSync, authors' code"

    def assign(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Cut the list of classes."""
        classes = groups(labels)
        if len(classes) < num_workers:
            raise ParameterError(
                f"sharding {self.name!r}: {len(classes)} classes cannot be shared by {num_workers} workers; "
                "use fewer workers, or 'shard_per_class'"
            )
        edges = [worker * len(classes) // num_workers for worker in range(num_workers + 1)]
        return [np.concatenate(classes[edges[worker] : edges[worker + 1]]) for worker in range(num_workers)]


class Quantity(_Drawn):
    """Give the workers different numbers of samples, drawn from a Dirichlet distribution."""

    name = "quantity"
    source = "Li et al. 2022, sec. IV-C (quantity skew); `min_size` is ours"

    def assign(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Cut a random permutation at drawn sizes."""
        spare = len(labels) - num_workers * self.min_size
        drawn = cuts(rng.dirichlet([self.alpha] * num_workers), spare)
        edges = drawn + self.min_size * np.arange(1, num_workers)
        return list(np.split(rng.permutation(len(labels)), edges))


def cuts(shares: np.ndarray, total: int) -> Integers:
    """Return the positions that cut `total` samples into pieces of about these shares.

    >>> cuts(np.array([0.5, 0.25, 0.25]), 8).tolist()
    [4, 6]
    """
    edges: Integers = np.rint(np.cumsum(shares)[:-1] * total).astype(np.int64)
    return edges


def level(shards: list[Integers], min_size: int, rng: Rng) -> list[Integers]:
    """Move random samples from the largest shard to shards below `min_size`."""
    shards = list(shards)
    for worker in range(len(shards)):
        while (missing := min_size - len(shards[worker])) > 0:
            giver = max(range(len(shards)), key=lambda other: len(shards[other]))
            pile = rng.permutation(shards[giver])
            moved = min(missing, len(pile) - min_size)
            shards[worker] = np.concatenate([shards[worker], pile[:moved]])
            shards[giver] = pile[moved:]
    return shards
