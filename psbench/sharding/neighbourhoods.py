"""The division of neighbourhoods, common to the rules that look for them."""

from __future__ import annotations

from typing import Literal

from psbench.arrays import Floats, Integers
from psbench.core import parameter
from psbench.sharding.base import Division, Rng, Sharding, deal, gather
from psbench.sharding.stratified import groups


class Neighbourhoods(Sharding):
    """Base of rules that deal dense neighbourhoods in turn and give sparse ones whole to every worker.

    So every worker sees each neighbourhood of the data, also those that labels hide. A subclass defines
    `cluster`.
    """

    partition = False

    sparse_rule: Literal["fewer", "at_most"] = parameter(
        "fewer",
        "a cluster is sparse with fewer samples than workers, or with at most as many",
        source="thesis 6.1.2",
    )

    def found(self, features: Floats, labels: Integers, num_workers: int, rng: Rng) -> Division:
        """Apply the rule; return the shards and the sizes of the neighbourhoods."""
        clusters = groups(self.cluster(features, labels, rng))
        sizes = [len(members) for members in clusters]
        sparse = [self.is_sparse(size, num_workers) for size in sizes]
        pieces = [
            [members] * num_workers if to_all else deal(members, num_workers)
            for members, to_all in zip(clusters, sparse, strict=True)
        ]
        return Division(gather(pieces), sizes, [s for s, to_all in zip(sizes, sparse, strict=True) if to_all])

    def is_sparse(self, size: int, num_workers: int) -> bool:
        """Return whether every worker is given all samples of a neighbourhood of that size."""
        return size < num_workers or (self.sparse_rule == "at_most" and size == num_workers)

    def cluster(self, features: Floats, labels: Integers, rng: Rng) -> Integers:
        """Return the neighbourhood of each sample, int64, (N,)."""
        raise NotImplementedError(f"{type(self).__name__} must define cluster")
