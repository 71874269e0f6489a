"""Sharding by buckets of hash functions that are learned from the samples."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Floats, Integers
from psbench.core import parameter
from psbench.sharding.base import Rng
from psbench.sharding.hash_family import Family, buckets
from psbench.sharding.neighbourhoods import Neighbourhoods


class DataSensitiveHashing(Neighbourhoods):
    """Hash similar samples into one bucket; deal buckets in turn, give sparse ones to every worker.

    A bucket is a neighbourhood, as a cluster of `distribution_aware` is. Hashing reads the samples once; the
    functions are learned from the neighbours of some of them.

    Parameters
    ----------
    bits : int or None
        Functions whose values make the number of a bucket, drawn from the family with replacement; none of
        them makes one bucket. None: as many as have a bucket for twice the number of classes, which is what
        `distribution_aware` looks for.

    Raises
    ------
    ParameterError
        If there are too few samples for distant ones.

    Notes
    -----
    Reduces to: `modular` with 0 bits; a partition when no bucket is sparse.
    Our reading: the thesis only names the hashing, so dense and sparse buckets are divided by the rule of its
    clusters; that of the family is in `Family`.

    Examples
    --------
    >>> points = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]], dtype=np.float32)
    >>> sharding = DataSensitiveHashing(bits=1, neighbours=1, family=1)
    >>> [shard.tolist() for shard in sharding.split(points, np.zeros(6), 2, np.random.default_rng(0))]
    [[0, 2, 3, 5], [1, 4]]
    """

    name = "data_sensitive_hashing"
    source = "Gao et al. 2014; thesis 5.2.3, App. B"

    bits: int | None = parameter(
        None, "hash functions of a bucket; none: buckets for twice the number of classes", ge=0, le=32
    )
    family: int = parameter(
        16, "number of learned hash functions, from which each bucket draws its own", ge=1
    )
    neighbours: int = parameter(
        10, "nearest samples that should share a sample's bucket", ge=1, source="Gao et al. 2014"
    )
    far: int = parameter(
        4, "samples beyond this many times the neighbours should not share it", ge=1, source="Gao et al. 2014"
    )

    def cluster(self, features: Floats, labels: Integers, rng: Rng) -> Integers:
        """Return the bucket of each sample, int64, (N,)."""
        from threadpoolctl import threadpool_limits

        bits = int(np.ceil(np.log2(2 * len(np.unique(labels))))) if self.bits is None else self.bits
        if bits == 0:
            return np.zeros(len(labels), dtype=np.int64)
        samples = np.asarray(features, dtype=np.float32).reshape(len(labels), -1)
        samples = samples - samples.mean(axis=0)
        family = Family(f"sharding {self.name!r}", self.family, self.neighbours, self.far)
        with threadpool_limits(1):  # several threads add in an order of their own
            drawn = family.fit(samples, rng).bits(samples)[:, rng.integers(self.family, size=bits)]
        return np.unique(buckets(drawn), return_inverse=True)[1].astype(np.int64)
