"""Sharding that gives every worker the same mix of classes."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Floats, Integers
from psbench.core import parameter
from psbench.sharding.base import Rng, Sharding, deal, gather


class Stratified(Sharding):
    """Deal each class in turn, so that no two workers differ by more than one sample of any class.

    Parameters
    ----------
    rotate : bool
        Off, as published: every class begins with worker 0, so low-numbered workers collect the remainders
        (with 12 workers, 8 have 4,170 images of CIFAR-10 and 4 have 4,160). On: a class begins where the one
        before ended, and sizes differ by at most one.

    Examples
    --------
    >>> labels = np.array([0, 0, 0, 1, 1, 1])
    >>> shards = Stratified().split(np.zeros((6, 1)), labels, 2, np.random.default_rng(0))
    >>> [shard.tolist() for shard in shards]
    [[0, 2, 3, 5], [1, 4]]
    """

    name = "stratified"
    source = "thesis 6.1.1, Fig. 6.5; `rotate` is ours"

    rotate: bool = parameter(False, "start each class where the previous one ended, for equal sizes")

    @property
    def remedy(self) -> str:
        """Advice for a worker left without samples."""
        return "use fewer workers" if self.rotate else "set rotate to true, or use fewer workers"

    def assign(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Deal class after class, each in the order the data has."""
        pieces, dealt = [], 0
        for members in groups(labels):
            pieces.append(deal(members, num_workers, dealt % num_workers if self.rotate else 0))
            dealt += len(members)
        return gather(pieces)


def groups(labels: Integers) -> list[Integers]:
    """Return the indices of each label that occurs, labels and indices ascending.

    >>> [group.tolist() for group in groups(np.array([1, 0, 1]))]
    [[1], [0, 2]]
    """
    # one array as long as the data, and views of it: the labels may be those of a file beyond memory
    order = np.argsort(labels, kind="stable")
    lengths = np.bincount(labels)
    return np.split(order, np.cumsum(lengths[lengths > 0])[:-1])
