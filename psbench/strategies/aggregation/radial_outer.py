"""Decoupled DiLoCo's merge: averages lengths and directions of differences separately, per tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from pydantic import PrivateAttr

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.core.arithmetic import apart, end_to_end, weighted_sum
from psbench.strategies.aggregation.nesterov import nesterov

SOURCE = "Decoupled DiLoCo 2026"
_Merge: TypeAlias = Callable[[list[Vector], list[float]], Vector]
#: a mean direction shorter than this has no direction
_NOTHING = 1e-12


class RadialOuter(Aggregation):
    """Average lengths and directions of the differences separately, and take Nesterov's outer step.

    Of each tensor, with differences D_i and weights w_i that sum to 1: R = sum w_i |D_i|, u = sum w_i
    D_i/|D_i|, D = R u/|u|; the weighted mean if |u| < 1e-12, and for tensors of embeddings. w_i is in
    proportion to c_samples^2 / c_steps, of the worker's steps since it pushed this fragment last. Then v <-
    beta v + D; x <- x - lr (D + beta v).

    Notes
    -----
    Reduces to: `outer` with merge = mean and equal batches and steps; a difference itself with one worker.
    A mean of k orthogonal differences of one length is shorter by sqrt(k), and this one as long.
    Our readings: samples stand for tokens; steps whose push came too late are not counted; a tensor is of
    embeddings if its name has "embed" in it.

    Source
    ------
    Decoupled DiLoCo (2604.21428), known from two re-implementations. Unverified against the paper's text.
    """

    name = "radial_outer"
    source = SOURCE
    payload = "difference"
    per_tensor = True

    outer_lr: float = parameter(0.7, "rate of the outer step", source=SOURCE, gt=0)
    outer_momentum: float = parameter(0.9, "momentum of the outer step", source=SOURCE, ge=0, lt=1)
    merge: Literal["radial", "mean"] = parameter(
        "radial", "whether to average lengths and directions separately, or differences", source=SOURCE
    )

    #: steps and samples of each worker so far, and what they were when it pushed a fragment last
    _made: dict[str, list[float]] = PrivateAttr(default_factory=dict)
    _before: dict[str, list[float]] = PrivateAttr(default_factory=dict)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each push by its samples squared over its steps, and name the tensors of embeddings."""
        counts = [self._quality(push) for push in pushes]
        weights = [count / sum(counts) for count in counts]
        names = enumerate(name for name, _ in view.layout)
        return [Apply(pushes, weights, {f"mean:{i}": 1.0 for i, name in names if "embed" in name.lower()})]

    def _quality(self, push: Push) -> float:
        steps, samples = self._made.get(f"{push.worker}", [0.0, 0.0])
        now = self._made[f"{push.worker}"] = [steps + push.steps, samples + push.samples]
        place = f"{push.worker} {push.fragment}"
        before, self._before[place] = self._before.get(place, [0.0, 0.0]), now
        return (now[1] - before[1]) ** 2 / (now[0] - before[0])

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Take the outer step along the merged differences."""
        velocity = state.vector("velocity")
        merged = self._merged(pushes, step)
        x.sub_(nesterov(merged, velocity, self.outer_momentum), alpha=self.outer_lr)

    def _merged(self, pushes: Sequence[Pushed], step: Step) -> Vector:
        weights, sizes = [push.weight for push in pushes], [size for _, size in step.tensors]
        if self.merge == "mean":
            return weighted_sum([push.vector for push in pushes], weights)
        columns = zip(*(apart(push.vector, sizes) for push in pushes), strict=True)
        found = zip(step.tensors, columns, strict=True)
        return end_to_end([self._of_tensor(at, step.numbers)([*own], weights) for (at, _), own in found])

    def _of_tensor(self, tensor: int, numbers: Mapping[str, float]) -> _Merge:
        return weighted_sum if f"mean:{tensor}" in numbers else radial_mean


def radial_mean(vectors: list[Vector], weights: list[float]) -> Vector:
    """Return the mean direction of vectors times their mean length; the plain mean if it has no direction.

    Examples
    --------
    >>> import torch
    >>> merged = radial_mean([torch.tensor([2.0, 0.0]), torch.tensor([0.0, 2.0])], [0.5, 0.5])
    >>> round(merged.norm().item(), 4)
    2.0
    """
    norms = [float(vector.norm()) for vector in vectors]
    of_units = [w / norm if norm else 0.0 for w, norm in zip(weights, norms, strict=True)]
    direction = weighted_sum(vectors, of_units)
    length = float(direction.norm())
    if length < _NOTHING:
        return weighted_sum(vectors, weights)
    radius = sum(w * norm for w, norm in zip(weights, norms, strict=True))
    return direction * (radius / length)
