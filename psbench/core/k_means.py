"""Clusters of samples by k-means on principal components, for shardings and for neighbourhoods."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np

from psbench.arrays import Array, Floats, Integers
from psbench.errors import ParameterError

logger = logging.getLogger(__name__)

#: the published limit on KMeans' iterations
MAX_ITERATIONS = 150


class Clustering:
    """A clustering, before and after it is fitted to samples.

    One thread is used: several add in an order of their own, and rounding could move a sample.

    Parameters
    ----------
    who : str
        What errors name, as "sharding 'distribution_aware'".
    clusters : int
    components : float or None
        Principal components kept before clustering: a whole number of them, or below 1 the share of the
        variance to keep. None keeps all, which is a rotation and changes no cluster.
    restarts : int
        Runs of KMeans, of which the tightest counts.

    Raises
    ------
    ParameterError
        If there are more clusters or components than the data can have.

    Source
    ------
    thesis 6.1.2
    """

    def __init__(self, who: str, clusters: int, components: float | None = None, restarts: int = 1) -> None:
        self._who, self._clusters, self._components, self._restarts = who, clusters, components, restarts
        self._pca: Any = None
        self._kmeans: Any = None

    def fit(self, samples: Array, rng: np.random.Generator) -> Integers:
        """Find the clusters of samples, and return the number of each sample's.

        Shapes
        ------
        samples : (N, ...)      result : int64, (N,)
        """
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
        from threadpoolctl import threadpool_limits

        flat = _flat(samples)
        self._check_counts(*flat.shape)
        seed = int(rng.integers(2**31))
        self._kmeans = KMeans(
            self._clusters, max_iter=MAX_ITERATIONS, n_init=self._restarts, random_state=seed
        )
        with threadpool_limits(1), warnings.catch_warnings():
            # samples that coincide may make fewer clusters, of which scikit-learn warns; logged below
            warnings.simplefilter("ignore", ConvergenceWarning)
            ids = np.asarray(self._kmeans.fit_predict(self._reduced(flat, seed)), dtype=np.int64)
        if len(np.unique(ids)) < self._clusters:
            logger.warning("%s: only %d of %d clusters found", self._who, len(np.unique(ids)), self._clusters)
        return ids

    def nearest(self, samples: Array) -> Integers:
        """Return the cluster of other samples: the one with the nearest centre."""
        from threadpoolctl import threadpool_limits

        if not len(samples):
            return np.zeros(0, dtype=np.int64)
        flat = _flat(samples)
        with threadpool_limits(1):
            reduced = flat if self._pca is None else np.asarray(self._pca.transform(flat), dtype=np.float32)
            return np.asarray(self._kmeans.predict(reduced), dtype=np.int64)

    def _reduced(self, flat: Floats, seed: int) -> Floats:
        if self._components is None:
            return flat
        from sklearn.decomposition import PCA

        keep = int(self._components) if self._components >= 1 else self._components
        self._pca = PCA(keep, random_state=seed)
        return np.asarray(self._pca.fit_transform(flat), dtype=np.float32)

    def _check_counts(self, num_samples: int, num_features: int) -> None:
        if self._clusters > num_samples:
            raise ParameterError(
                f"{self._who}: cannot form {self._clusters} clusters from {num_samples} samples; "
                f"set clusters to {num_samples} or less"
            )
        most = min(num_samples, num_features)
        if self._components is not None and self._components > most:
            raise ParameterError(
                f"{self._who}: cannot keep {self._components:g} of {most} components; "
                f"set components to {most} or less"
            )


def _flat(samples: Array) -> Floats:
    return np.asarray(samples, dtype=np.float32).reshape(len(samples), -1)
