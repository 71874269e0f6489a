"""Hash functions learned from samples, so that neighbours share a bucket and distant samples do not."""

from __future__ import annotations

import numpy as np

from psbench.arrays import Array, Floats, Integers
from psbench.errors import ParameterError

#: samples whose neighbours are looked for; pairs of these and all others suffice to learn a direction
ANCHORS = 256
#: principal components of the anchors that directions are looked for in: more are noise, and cost their cube
COMPONENTS = 64
#: quantiles of the samples between which a threshold is: beyond, a function would tell nearly none apart
OUTER = (0.1, 0.9)


class Family:
    """A family of binary hash functions h(x) = [a . x > b], learned one after the other by boosting.

    Parameters
    ----------
    who : str
        What errors name, as "sharding 'data_sensitive_hashing'".
    size : int
        Functions in the family.
    neighbours : int
        k: the samples that should share the bucket of a sample.
    far : int
        c: a sample beyond the c k nearest is distant.

    Raises
    ------
    ParameterError
        If no sample is distant.

    Source
    ------
    Gao et al. 2014, the hash family; thesis 5.2.3, App. B

    Notes
    -----
    Our reading, after the paper's abstract and the thesis: a direction maximises the weighted squared
    distance of distant pairs over that of neighbours, its threshold makes the fewest weighted errors, and
    the pairs that it gets wrong count more for the next function, as in AdaBoost.
    """

    def __init__(self, who: str, size: int, neighbours: int, far: int) -> None:
        self._who, self._size, self._neighbours, self._far = who, size, neighbours, far
        self.directions: Array = np.zeros((0, 0))
        self.thresholds: Array = np.zeros(0)

    def fit(self, samples: Floats, rng: np.random.Generator) -> Family:
        """Learn the functions from samples, (N, d)."""
        anchors = rng.choice(len(samples), min(len(samples), ANCHORS), replace=False)
        near, distant = self._pairs(samples, anchors, rng)
        basis = _principal(samples[anchors])
        differences = [(samples[p[:, 0]] - samples[p[:, 1]]) @ basis for p in (near, distant)]
        weights = [np.full(len(pairs), 0.5 / len(pairs)) for pairs in (near, distant)]
        directions, thresholds = [], []
        for _ in range(self._size):
            direction = basis @ _direction(differences, weights)
            along = samples @ direction
            threshold, wrong = _threshold(along, (near, distant), weights)
            directions.append(direction)
            thresholds.append(threshold)
            error = sum(float(w[bad].sum()) for w, bad in zip(weights, wrong, strict=True))
            error = min(max(error, 1e-6), 0.5)  # one that is no better than a coin changes no weight
            weights = [
                np.where(bad, w * (1 - error) / error, w) for w, bad in zip(weights, wrong, strict=True)
            ]
            total = sum(float(w.sum()) for w in weights)
            weights = [w / total for w in weights]
        self.directions, self.thresholds = np.array(directions), np.array(thresholds)
        return self

    def bits(self, samples: Floats) -> Integers:
        """Return the value of each function at each sample: int64, (N, size), 0 or 1."""
        return (samples @ self.directions.T > self.thresholds).astype(np.int64)

    def _pairs(
        self, samples: Floats, anchors: Integers, rng: np.random.Generator
    ) -> tuple[Integers, Integers]:
        """Return the anchors' pairs with neighbours and with distant samples: int64, (pairs, 2)."""
        size, beyond = len(samples), self._far * self._neighbours
        if size <= beyond + 1:
            raise ParameterError(
                f"{self._who}: no sample of {size} lies beyond the {self._far} x {self._neighbours} nearest; "
                f"set neighbours to {max(1, (size - 2) // self._far)} or less, or use more samples"
            )
        near, distant = [], []
        for anchor in anchors:
            away = ((samples - samples[anchor]) ** 2).sum(axis=1)
            away[anchor] = -1.0  # first, also where other samples coincide with it
            order = np.argsort(away, kind="stable")
            near.append(order[1 : self._neighbours + 1])
            distant.append(rng.choice(order[beyond + 1 :], self._neighbours))
        first = np.repeat(anchors, self._neighbours)
        return np.stack([first, np.concatenate(near)], axis=1), np.stack(
            [first, np.concatenate(distant)], axis=1
        )


def buckets(bits: Integers) -> Integers:
    """Return the bucket of each sample, whose number has the bits of all functions: int64, (N,).

    Source
    ------
    thesis App. B, definition 7 (AND-concatenation)

    >>> buckets(np.array([[0, 1], [1, 1], [0, 0]])).tolist()
    [1, 3, 0]
    """
    return bits @ (1 << np.arange(bits.shape[1], dtype=np.int64))[::-1]


def _principal(samples: Array) -> Array:
    """Return the leading principal components of samples as columns: (d, at most `COMPONENTS`)."""
    centred = np.asarray(samples, dtype=np.float64) - samples.mean(axis=0)
    return np.linalg.svd(centred, full_matrices=False)[2][:COMPONENTS].T


def _direction(differences: list[Array], weights: list[Array]) -> Array:
    """Return the direction along which distant pairs are farthest apart relative to neighbours."""
    from scipy.linalg import eigh

    near, distant = (d.T @ (d * w[:, None]) for d, w in zip(differences, weights, strict=True))
    # directions in which no sample differs would make the ratio 0 / 0
    ridge = 1e-3 * (np.trace(near) + np.trace(distant)) / len(near) + 1e-12
    _, vectors = eigh(distant, near + ridge * np.eye(len(near)))
    best = vectors[:, -1]
    return np.asarray(best * np.sign(best[np.abs(best).argmax()]) / np.linalg.norm(best))


def _threshold(
    along: Array, pairs: tuple[Integers, Integers], weights: list[Array]
) -> tuple[float, list[Array]]:
    """Return the threshold with the least weighted error, and the pairs of each kind that it gets wrong."""
    values = np.unique(along)
    between = (values[1:] + values[:-1]) / 2
    lowest, highest = np.quantile(along, OUTER)
    between = between[(between > lowest) & (between < highest)]
    if not len(between):  # nearly all samples coincide
        between = np.array([highest])
    ends = [np.sort(along[each], axis=1) for each in pairs]
    near, distant = (
        _weight_split(between, own[:, 0], own[:, 1], w) for own, w in zip(ends, weights, strict=True)
    )
    threshold = float(between[np.argmin(near - distant)])
    above = along > threshold
    split = [above[each[:, 0]] != above[each[:, 1]] for each in pairs]
    return threshold, [split[0], ~split[1]]


def _weight_split(thresholds: Array, low: Array, high: Array, weights: Array) -> Array:
    """Return for each threshold the weight of the pairs that it splits."""

    def below(values: Array) -> Array:
        order = np.argsort(values)
        sums = np.concatenate([[0.0], np.cumsum(weights[order])])
        return np.asarray(sums[np.searchsorted(values[order], thresholds)])

    return below(low) - below(high)
