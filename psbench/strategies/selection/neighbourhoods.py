"""Divisions of samples into neighbourhoods, the same for training and validation."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Array, Integers
from psbench.core import Neighbourhoods, SampleGroups, parameter
from psbench.core.k_means import Clustering
from psbench.core.selection import GroupedData, Rng
from psbench.errors import ParameterError


class ByClass(Neighbourhoods):
    """One neighbourhood for each class."""

    name = "classes"
    source = "thesis 5.2.2"

    def groups(self, data: GroupedData, rng: Rng) -> SampleGroups:
        """Return the classes."""
        if data.train_y.is_floating_point() or data.train_y.ndim != 1 or not data.classes:
            raise ParameterError(
                f"neighbourhoods 'classes': data {data.name!r} has no classes; use 'k_means' or 'column'"
            )
        return SampleGroups(data.train_y.numpy(), data.val_y.numpy(), data.classes)


class KMeansNeighbourhoods(Neighbourhoods):
    """k-means clusters of the training samples, regardless of class.

    Validation samples are in the cluster with the nearest centre.

    Notes
    -----
    The clustering is that of sharding `distribution_aware`; with as many clusters and components and the same
    random stream the training samples are divided alike.
    """

    name = "k_means"
    source = "thesis 5.2.3, 6.1.2"

    clusters: int | None = parameter(None, "clusters; none: two for each class", source="thesis 6.4", ge=1)
    components: float | None = parameter(
        None, "principal components kept (below 1: share of the variance); none: all", gt=0
    )

    def groups(self, data: GroupedData, rng: Rng) -> SampleGroups:
        """Return the clusters."""
        count = self.clusters or 2 * len(data.classes)
        if not count:
            raise ParameterError(
                f"neighbourhoods 'k_means': data {data.name!r} has no classes to set the default from; set "
                "clusters"
            )
        clustering = Clustering("neighbourhoods 'k_means'", count, self.components)
        train = clustering.fit(_rows(data.train_x), rng)
        val = clustering.nearest(_rows(data.val_x))
        return SampleGroups(train, val, tuple(f"cluster {number}" for number in range(count)))


class ByColumn(Neighbourhoods):
    """One neighbourhood for each value of a column of the data, such as the hidden clouds of `mixture`."""

    name = "column"
    source = "thesis 5.2.3"

    column: str = parameter("cloud", "column whose values are the neighbourhoods")

    def groups(self, data: GroupedData, rng: Rng) -> SampleGroups:
        """Return the values of the column."""
        values, train = np.unique(data.column(self.column), return_inverse=True)
        val = _places(values, data.val_column(self.column), self.column, data.name)
        return SampleGroups(train.astype(np.int64), val, tuple(f"{self.column} {value}" for value in values))


def _places(values: Array, found: Array, column: str, name: str) -> Integers:
    unknown = found[~np.isin(found, values)]
    if len(unknown):
        raise ParameterError(
            f"neighbourhoods 'column': {column} {unknown[0]} of data {name!r} has validation samples, but "
            "no training samples"
        )
    return np.searchsorted(values, found).astype(np.int64)


def _rows(samples: object) -> Array:
    found: Array = samples.numpy()  # type: ignore[attr-defined]
    return found.reshape(len(found), -1)
