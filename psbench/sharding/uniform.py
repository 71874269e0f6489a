"""Sharding that looks at neither features nor labels."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Floats, Integers
from psbench.sharding.base import Rng, Sharding, deal


class Random(Sharding):
    """Shuffle, then deal in turn: sizes differ by at most one, and classes are mixed at random.

    Notes
    -----
    Our reading: the thesis calls its baseline both random and modular; its class counts change from run to
    run (Fig. 6.8), so the order is shuffled.

    Examples
    --------
    >>> shards = Random().split(np.zeros((5, 1)), np.zeros(5), 2, np.random.default_rng(0))
    >>> sorted(np.concatenate(shards).tolist())
    [0, 1, 2, 3, 4]
    """

    name = "random"
    source = "thesis 6.1, the baseline"

    def assign(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Deal a random permutation."""
        return deal(rng.permutation(len(labels)), num_workers)


class Modular(Sharding):
    """Sample i goes to worker i mod n, so shards keep the order of the data.

    Examples
    --------
    >>> Modular().split(np.zeros((5, 1)), np.zeros(5), 2, np.random.default_rng(0))[0].tolist()
    [0, 2, 4]
    """

    name = "modular"
    source = "TensorFlow's Dataset.shard; thesis 5.1, 6.1"

    def assign(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Deal the samples in the order they have."""
        return deal(np.arange(len(labels)), num_workers)
