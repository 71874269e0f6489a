"""Robust aggregation by distances between pushes: Krum, the geometric median, and clipped norms.

All of them are weights of a weighted sum. The scalar products of the pushes are measured first; distances,
norms and weights follow from them, so that any number of servers decides alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement
from statistics import median
from typing import Any

from pydantic import PrivateAttr

from psbench.core import Action, Aggregation, Apply, ClusterView, Measure, Push, parameter
from psbench.core.arithmetic import Pushed, State, Step, Vector
from psbench.errors import ParameterError
from psbench.strategies.aggregation.mean import sample_shares

KRUM, RFA = "Blanchard et al. 2017", "Pillutla et al. 2022"

#: G[i][j] is the scalar product of pushes i and j; NaN where one of them is no number
Gram = list[list[float]]


class _ByProducts(Aggregation):
    """Weigh pushes by their scalar products; pushes with NaN or infinite entries are left out."""

    measures = ("dot",)
    linear = True
    withstands_nan = True

    _asked: list[int] = PrivateAttr(default_factory=list)  # pushes of the commit that is being measured

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        self._asked = [push.id for push in pushes]
        pairs = combinations_with_replacement(self._asked, 2)
        return [Measure("aggregation", {f"dot:{one}:{other}": None for one, other in pairs})]

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Weigh the pushes by their scalar products."""
        pushes = [view.pending[number] for number in self._asked]
        finite = [push for push in pushes if math.isfinite(facts[f"dot:{push.id}:{push.id}"])]
        if not finite:  # then the model becomes no number either, and the run ends as diverged
            return [Apply(pushes, sample_shares(pushes))]
        gram = [[_product(facts, one.id, other.id) for other in finite] for one in finite]
        weights = dict(zip((push.id for push in finite), self.weights(finite, gram), strict=True))
        return [Apply(pushes, [weights.get(push.id, 0.0) for push in pushes])]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Step along the weighted sum of the finite pushes: 0 times infinity is not a number."""
        step.move(step.sum(_counting(pushes)))

    def update_buffers(self, buffers: Vector, pushes: Sequence[Pushed], step: Step) -> None:
        """Update the running statistics from the finite pushes."""
        super().update_buffers(buffers, _counting(pushes), step)

    def weights(self, pushes: Sequence[Push], gram: Gram) -> list[float]:
        raise NotImplementedError


class Krum(_ByProducts):
    """Step along the push that is closest to its nearest neighbours, or along the mean of the best few.

    The score of a push is the sum of its squared distances to the n - f - 2 others that are nearest to it.

    Parameters
    ----------
    faulty : int, pushes, >= 0
        f, how many wrong pushes a commit may hold; it must take at least 2 f + 3.
    chosen : int, pushes, >= 1
        m of multi-Krum: the mean of so many pushes with the lowest scores.

    Notes
    -----
    Reduces to: the mean with m = n.
    Our reading: of equal scores the lower worker is taken. When fewer than 2 f + 3 pushes are there, because
    workers have left, as many neighbours count as there are, at least one.

    Examples
    --------
    >>> near = [[1.0, 1.0, -9.0], [1.0, 1.0, -9.0], [-9.0, -9.0, 81.0]]
    >>> Krum(faulty=0).weights([Push(i, i, 1, 0, samples=1) for i in range(3)], near)
    [1.0, 0.0, 0.0]
    """

    name = "krum"
    source = "Blanchard et al. 2017, sec. 4"
    weighs_samples = False

    faulty: int = parameter(0, "corrupted pushes that a commit may contain", unit="pushes", source=KRUM, ge=0)
    chosen: int = parameter(
        1, "number of pushes with the lowest scores to average", unit="pushes", source=KRUM, ge=1
    )

    def check(self, num_workers: int, global_batch: int) -> None:
        """Require the number of workers of the paper's guarantee."""
        if self.faulty and num_workers < 2 * self.faulty + 3:
            raise ParameterError(
                f"krum: detecting {self.faulty} faulty pushes needs at least {2 * self.faulty + 3} "
                f"workers, but there are {num_workers}"
            )

    def weights(self, pushes: Sequence[Push], gram: Gram) -> list[float]:
        """Share the weight among the pushes with the lowest scores."""
        count = len(pushes)
        neighbours = max(1, count - self.faulty - 2)
        scores = [
            sum(sorted(_distance_sq(gram, i, j) for j in range(count) if j != i)[:neighbours])
            for i in range(count)
        ]
        best = sorted(range(count), key=lambda i: (scores[i], i))[: self.chosen]
        return [1.0 / len(best) if i in best else 0.0 for i in range(count)]


class GeometricMedian(_ByProducts):
    """Step along the geometric median of the pushes, by Weiszfeld's algorithm.

    Notes
    -----
    Reduces to: the mean, when all pushes are at the same distance from it. Withstands fewer than half of the
    pushes, by weight, being anything.
    Our reading: the iteration begins at the weighted mean. All points that it visits are weighted means of
    the pushes, so that it runs on their scalar products: z = sum_j a_j v_j is at distance
    sqrt(-(e_i - a)' D (e_i - a) / 2) from v_i, with D the squared distances of the pushes. Of a point that a
    push nearly is, no digits are lost so, as they are in |z|^2 - 2 z v_i + |v_i|^2.

    Examples
    --------
    >>> part = GeometricMedian(iterations=50)
    >>> three = [Push(i, i, 1, 0, samples=1) for i in range(3)]
    >>> found = part.weights(three, [[0, 0, 0], [0, 1, 100], [0, 100, 1e4]])  # of 0, 1 and 100
    >>> round(sum(w * x for w, x in zip(found, (0, 1, 100))), 2)
    1.0
    """

    name = "geometric_median"
    source = "Pillutla et al. 2022, Alg. 2"

    iterations: int = parameter(10, "steps of Weiszfeld's algorithm", source="our choice", ge=1, le=1000)
    smoothing: float = parameter(
        1e-6, "nu: lower bound of the distances that divide the weights", source=RFA, gt=0
    )

    def weights(self, pushes: Sequence[Push], gram: Gram) -> list[float]:
        """Weigh each push by its share of the samples over its distance from the previous point."""
        shares = found = sample_shares(list(pushes))
        count = range(len(pushes))
        squares = [[_distance_sq(gram, i, j) for j in count] for i in count]
        for _ in range(self.iterations):
            inverse = [
                share / max(self.smoothing, distance)
                for share, distance in zip(shares, _distances_from(found, squares), strict=True)
            ]
            found = [each / sum(inverse) for each in inverse]
        return found


class ClippedMean(_ByProducts):
    """Step along the mean of the pushes, each shortened to a norm of at most `norm`.

    Notes
    -----
    Reduces to: the mean with a large norm. Bounds how far one push moves the model; it does not tell wrong
    from right.
    Our reading: norms are clipped around 0; the paper clips around the last aggregate.

    Examples
    --------
    >>> ClippedMean(norm=1.0).weights([Push(i, i, 1, 0, samples=1) for i in range(2)], [[1.0, 0], [0, 16.0]])
    [0.5, 0.125]
    """

    name = "clipped_mean"
    source = "Karimireddy et al. 2021, sec. 4; our variant"

    norm: float = parameter(0.0, "largest norm of a push; 0: the median norm", source="our choice", ge=0)

    def weights(self, pushes: Sequence[Push], gram: Gram) -> list[float]:
        """Weigh each push by its share of the samples, times the factor that clips its norm."""
        norms = [math.sqrt(max(0.0, row[i])) for i, row in enumerate(gram)]
        most = self.norm or median(norms)
        factors = [1.0 if norm <= most else most / norm for norm in norms]
        return [share * by for share, by in zip(sample_shares(list(pushes)), factors, strict=True)]


def _counting(pushes: Sequence[Pushed]) -> list[Pushed]:
    return [push for push in pushes if push.weight]


def _product(facts: dict[str, Any], one: int, other: int) -> float:
    """Return a scalar product, requested for one order of the pair."""
    key = f"dot:{one}:{other}"
    return float(facts[key] if key in facts else facts[f"dot:{other}:{one}"])


def _distance_sq(gram: Gram, i: int, j: int) -> float:
    """Return the squared distance from scalar products, at least 0; equal pushes have distance 0."""
    return max(0.0, math.fsum((gram[i][i], gram[j][j], -gram[i][j], -gram[i][j])))


def _distances_from(weights: Sequence[float], squares: Gram) -> list[float]:
    """Return the distance of each vector from the weighted mean, from their squared distances."""
    found = []
    for i in range(len(weights)):
        away = [-weight for weight in weights]
        away[i] = sum(weights[:i]) + sum(weights[i + 1 :])  # 1 less its own, to all digits
        form = math.fsum(
            one * sum(other * square for other, square in zip(away, row, strict=True))
            for one, row in zip(away, squares, strict=True)
        )
        found.append(math.sqrt(max(0.0, -form / 2)))
    return found
