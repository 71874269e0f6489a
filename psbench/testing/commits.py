"""Probes of an aggregation part's decisions: finite, repeatable, a function of its state, in any order."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Strategy
from psbench.core.events import Leave
from psbench.testing.invariants import BrokenContract
from psbench.testing.scripted_cluster import ScriptedCluster

#: commits of a run that are decided again, each of them several times
_COMMITS = 8
#: when the last worker leaves: after some versions of a barrier, as the longest step takes 1.5 s
_LEAVES_S = 4.6


def check_finite(where: str, actions: Sequence[Action]) -> None:
    """Check that weights and numbers of commits are finite.

    Raises
    ------
    BrokenContract
    """
    for apply in (action for action in actions if isinstance(action, Apply)):
        weights = {f"weight of push {p.id}": w for p, w in zip(apply.pushes, apply.weights, strict=True)}
        for what, value in (weights | {f"number {n!r}": v for n, v in apply.numbers.items()}).items():
            if not math.isfinite(value):
                raise BrokenContract(f"{where}: on_commit: the {what} is {value}; does it divide by 0?")


def probed_commits(strategy: Strategy, num_workers: int, events: int) -> list[Apply]:
    """Return the commits of a run in which a worker leaves, each of several pushes also with unequal samples.

    Raises
    ------
    BrokenContract
        If an equal part decides otherwise on the same pushes, or under a barrier in another order.
    """
    part, found = strategy.aggregation, list[Apply]()

    def on_commit(self: Aggregation, pushes: Sequence[Push], view: ClusterView) -> list[Action]:
        if len(found) >= _COMMITS:
            return type(part).on_commit(self, list(pushes), view)
        before, seen = self.state_dict(), copy.deepcopy(view)
        answer = type(part).on_commit(self, list(pushes), view)
        if len(answer) == 1 and isinstance(answer[0], Apply):
            decided = _Decisions(part, before, seen)
            decided.compare(answer[0], any_order=strategy.consistency.barrier and not part.needs_base)
            found.append(replace(answer[0], version=view.version + 1))
            if len(pushes) > 1 and part.weighs_samples:
                unequal = [replace(push, samples=4 * (1 + i)) for i, push in enumerate(pushes)]
                found.extend(replace(each, version=view.version + 1) for each in decided.of(unequal))
        return answer

    watched = type("Watched", (type(part),), {"on_commit": on_commit, "__module__": __name__})
    fields = {name: getattr(part, name) for name in type(part).model_fields}
    cluster = ScriptedCluster(
        strategy.model_copy(update={"aggregation": watched(**fields)}),
        lambda worker, number: 1.0 + 0.1 * worker,
        num_workers=num_workers,
        changes=[(_LEAVES_S, Leave(num_workers - 1))] if num_workers > 2 else [],
        epochs=20,
    )
    cluster.run(events=events)
    return found


class _Decisions:
    """Decisions of equal parts from the same state."""

    def __init__(self, part: Aggregation, state: dict[str, Any], view: ClusterView) -> None:
        self._part, self._state, self._view = part, state, view
        self._who = f"{type(part).__name__}.on_commit"

    def of(self, pushes: Sequence[Push]) -> list[Apply]:
        """Return the commit that a fresh part with that state decides on."""
        twin = self._part.fresh()
        twin.load_state_dict(self._state)
        answer = twin.on_commit(list(pushes), copy.deepcopy(self._view))
        return [each for each in answer if isinstance(each, Apply)]

    def compare(self, apply: Apply, *, any_order: bool) -> None:
        if not self._agrees(apply, apply.pushes):
            raise BrokenContract(
                f"{self._who}: a fresh part with the same state decides differently on the same pushes. "
                "Most likely it keeps values outside its PrivateAttrs, or draws random numbers without "
                "view.rng"
            )
        if any_order and not self._agrees(apply, apply.pushes[::-1]):
            raise BrokenContract(
                f"{self._who}: under a barrier its weights depend on the order in which the pushes "
                "arrived, which is random. Decide by worker or by samples, not by position"
            )

    def _agrees(self, apply: Apply, pushes: Sequence[Push]) -> bool:
        return [_plain(each) for each in self.of(pushes)] == [_plain(apply)]


def _plain(apply: Apply) -> list[Any]:
    """Return weights by push, unordered, and numbers, up to rounding."""
    weights = sorted((push.id, weight) for push, weight in zip(apply.pushes, apply.weights, strict=False))
    return [
        [(number, float(f"{weight:.9g}")) for number, weight in weights],
        {name: float(f"{value:.9g}") for name, value in apply.numbers.items()},
    ]
