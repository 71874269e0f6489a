"""Every worker reads all samples, each beginning elsewhere."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Floats, Integers
from psbench.sharding.base import Rng, Sharding


class SelDP(Sharding):
    """Cut the shuffled data in n chunks; worker j reads chunks j, j + 1, ..., n - 1, 0, ..., j - 1.

    At any chunk the workers read n different ones, and each reads the whole set: an epoch of a worker is n
    times as long as with a partition.

    Notes
    -----
    Our reading: the data is shuffled once before it is cut, so that chunks are alike. The order matters:
    `ordered` asks the trainer to keep it. The authors' code shuffles the whole set per worker.
    """

    name = "seldp"
    source = "SelSync, Tyagi and Swany 2023"
    partition = False
    ordered = True

    def assign(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> list[Integers]:
        """Join the chunks in circular order."""
        chunks = np.array_split(rng.permutation(len(labels)), num_workers)
        return [np.concatenate(chunks[worker:] + chunks[:worker]) for worker in range(num_workers)]
