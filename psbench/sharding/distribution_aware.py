"""Sharding by neighbourhoods of samples, independent of labels."""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import model_validator

from psbench.arrays import Floats, Integers
from psbench.core import parameter
from psbench.core.k_means import Clustering
from psbench.errors import ParameterError
from psbench.sharding.base import Rng
from psbench.sharding.neighbourhoods import Neighbourhoods


class DistributionAware(Neighbourhoods):
    """Find clusters; deal dense ones in turn like a class, give sparse ones whole to every worker.

    So every worker sees each neighbourhood of the data, also those that labels hide.

    Parameters
    ----------
    sparse_rule : "fewer" or "at_most"
        A cluster is sparse if it has fewer samples than there are workers (the text), or at most as many (the
        pseudo-code). They differ for a cluster of exactly that size.
    components : float or None
        Principal components kept before clustering: a whole number of them, or below 1 the share of the
        variance to keep. None keeps all.

    Raises
    ------
    ParameterError
        If there are more clusters or components than the data can have.

    Notes
    -----
    Reduces to: `modular` with one cluster that is not sparse; a partition when no cluster is. Otherwise
    the shards hold N + (workers - 1) * sparse samples in all.
    Our reading: keeping all components is a rotation, which changes no distance and so no cluster; it is left
    out then.

    Examples
    --------
    >>> points = np.array([[0.0], [0.1], [0.2], [9.0]], dtype=np.float32)
    >>> shards = DistributionAware(clusters=2).split(points, np.zeros(4), 2, np.random.default_rng(0))
    >>> [shard.tolist() for shard in shards]
    [[0, 2, 3], [1, 3]]
    """

    name = "distribution_aware"
    source = "thesis 6.1.2, 6.1.3, Fig. 6.7"

    clusters: int | None = parameter(
        None, "number of neighbourhoods; none: twice the number of classes", source="thesis 6.4", ge=1
    )
    components: float | None = parameter(
        None, "principal components kept (below 1: share of the variance); none: all", gt=0
    )
    restarts: int = parameter(1, "restarts of k-means; the tightest result counts", ge=1)

    @model_validator(mode="after")
    def _whole_or_share(self) -> Self:
        if self.components is not None and self.components >= 1 and self.components % 1:
            raise ParameterError(
                f"sharding {self.name!r}: components: a whole number, or a share of the variance below 1, "
                f"got {self.components!r}"
            )
        return self

    def cluster(self, features: Floats, labels: Integers, rng: Rng) -> Integers:
        """Return the cluster of each sample, int64, (N,)."""
        count = self.clusters or 2 * len(np.unique(labels))
        return Clustering(f"sharding {self.name!r}", count, self.components, self.restarts).fit(features, rng)
