"""Mixing without a server: a worker's model with its neighbours' models."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PrivateAttr

from psbench.core import Action, Apply, ClusterView, Push, parameter
from psbench.core.actions import Mix
from psbench.core.peer_to_peer import GroupMixing, NeighbourMixing, PairMixing


class NeighbourAverage(NeighbourMixing):
    """Mix a worker's model with its neighbours': w_i <- sum_j W_ij w_j, as they were at the same exchange.

    Metropolis weights: an edge counts 1/(1 + the larger degree of its ends), the rest stays with the worker.
    In a regular graph that is 1/(degree + 1) for all. W is doubly stochastic, so exchanges keep the mean of
    the models.

    Notes
    -----
    Reduces to: the mean of all models, in the complete graph. In a graph whose edges have a direction the
    mean is kept only as long as no worker is missing; `push_sum` keeps it, weighted, in any.
    A neighbour that is gone leaves its weight with the worker.
    """

    name = "neighbour_average"
    source = "Lian et al. 2017 (D-PSGD), Alg. 1; Xiao and Boyd 2004"

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh the models of the active neighbours."""
        (push,) = pushes
        graph, worker = view.graph, push.worker
        version = view.workers[worker].version
        degree = graph.degree(worker, version)
        row = {
            other: 1.0 / (1.0 + max(degree, graph.degree(other, version))) for other in graph.senders(worker)
        }
        row[worker] = 1.0 - sum(row.values())
        return [Mix({worker: _ordered(row)}, sent=True, push=push.id), Apply(pushes, [1.0])]


class PushSum(NeighbourMixing):
    """Split a worker's model among itself and its receivers, and sum the received shares (push-sum).

    Each model has a weight. Model times weight is what is shared out, in equal parts, with the weight; the
    new model is the sum of the parts over the sum of their weights: z_i <- sum_j p_ij a_j z_j / a_i, with
    a_i <- sum_j p_ij a_j. The mean weighted by a is thereby kept in any graph. A worker's step is lr/a_i.

    Notes
    -----
    Reduces to: `neighbour_average` in a symmetric regular graph, where all weights stay 1. They always add up
    to the number of workers, less what was under way to workers that were lost.
    Our reading: workers hold z and the engine knows the weights, which depend on decisions alone; the
    paper's workers hold a z and send it with a, which is the same up to rounding.
    """

    name = "push_sum"
    source = "Assran et al. 2019 (SGP), Alg. 1; Kempe et al. 2003"
    #: of each worker, as pairs of version and what a part of its model weighs then, for those not yet done
    _parts: dict[int, dict[int, float]] = PrivateAttr(default_factory=dict)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Sum the shares of the worker's senders and its own remaining share."""
        (push,) = pushes
        graph, worker = view.graph, push.worker
        version = view.workers[worker].version
        parts = {other: self._part(view, other, version) for other in (worker, *graph.senders(worker))}
        weight = sum(parts.values())
        row = {other: part / weight for other, part in parts.items()}
        if view.committed % view.num_active == 0:  # looks at all workers, and need not do so each time
            self._forget(view)
        mix = Mix({worker: _ordered(row)}, sent=True, push=push.id, push_weights={worker: weight})
        return [mix, Apply(pushes, [1.0])]

    def _part(self, view: ClusterView, worker: int, version: int) -> float:
        """Return the weight of each share that a worker sends at a version, fixed at its first use."""
        known = self._parts.setdefault(worker, {})
        if version not in known:
            known[version] = view.workers[worker].push_weight / (1 + view.graph.degree(worker, version))
        return known[version]

    def _forget(self, view: ClusterView) -> None:
        """Forget parts of versions that all active workers have passed."""
        oldest = min(view.workers[other].version for other in view.active)
        for known in self._parts.values():
            for old in [number for number in known if number < oldest]:
                del known[old]

    def state_dict(self) -> dict[str, Any]:
        """Return the parts as lists, since keys of JSON are texts."""
        return {"_parts": [[w, sorted(known.items())] for w, known in sorted(self._parts.items())]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._parts = {worker: {int(v): part for v, part in known} for worker, known in state["_parts"]}


class PairAverage(PairMixing):
    """Average the models of a worker and one neighbour; the neighbour need not wait.

    What the neighbour computes meanwhile is a gradient of its model as it was, which it then takes from its
    model as it is: a gradient's staleness is the number of such averages since its step began.

    Notes
    -----
    Reduces to: D-PSGD on random pairs, when workers take turns. An average keeps the mean of the models.
    Our reading: the average counts from when its worker asks for it; only this worker waits for both
    models to travel. The paper was read in accounts of it only.
    """

    name = "pair_average"
    source = "Lian et al. 2018 (AD-PSGD)"

    partners: Literal["any", "other_parity"] = parameter(
        "any", "choice of the neighbour to average with", source="Lian et al. 2018 (AD-PSGD)"
    )

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Draw one of the neighbours that have a model."""
        (push,) = pushes
        worker, graph = push.worker, view.graph
        others = [other for other in graph.receivers(worker) if self._may(worker, other)]
        if not others:
            return [Mix({worker: {worker: 1.0}}, push=push.id), Apply(pushes, [1.0])]
        other = others[int(view.rng.integers(len(others)))]
        row = _ordered({worker: 0.5, other: 0.5})
        return [Mix({worker: row, other: dict(row)}, push=push.id), Apply(pushes, [1.0])]

    def _may(self, worker: int, other: int) -> bool:
        return self.partners == "any" or (worker + other) % 2 == 1


class GroupAverage(GroupMixing):
    """Replace the models of a group by their mean (partial reduce); all its workers wait for it.

    Notes
    -----
    Reduces to: the mean of all models after every step, with one group of all workers, which is All-Reduce. A
    mean of some keeps the mean of all.
    Our reading: a member that is lost while a live group adds up leaves those without the sum with their own
    models.
    """

    name = "group_average"
    source = "Luo et al. 2020 (Prague), P-Reduce; Miao et al. 2021"

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Give all models of the group the same weight."""
        share = 1.0 / len(pushes)
        row = _ordered({push.worker: share for push in pushes})
        mix = Mix({worker: dict(row) for worker in row}, meet=True, push=pushes[-1].id)
        return [mix, *(Apply([push], [1.0]) for push in pushes)]


def _ordered(row: dict[int, float]) -> dict[int, float]:
    """Return the weights by worker, in order: sums of floats depend on it."""
    return dict(sorted(row.items()))
