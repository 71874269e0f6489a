"""Partial reduce: workers average in groups that are formed as they arrive."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Commit, Discard, Hold, Push, Release, parameter
from psbench.core.peer_to_peer import FormsGroups
from psbench.errors import ParameterError

#: why a worker waits
REASON = "group"


class _Groups(FormsGroups):
    """Base of rules that form groups of a given size."""

    group_size: int = parameter(
        2, "workers that average at a time", unit="workers", source="Luo et al. 2020 (Prague)", ge=2
    )

    def check(self, num_workers: int, global_batch: int) -> None:
        """Raise ParameterError if there are fewer workers than a group has."""
        if self.group_size > num_workers:
            raise ParameterError(
                f"consistency {self.name!r}: a group of {self.group_size} cannot be formed from "
                f"{num_workers} workers; set group_size to {num_workers} or less"
            )

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Discard the push of a lost worker, whose model is lost too, and continue without it."""
        lost: list[Action] = [
            Discard(push, "left") for push in view.pending.values() if push.worker == worker
        ]
        return [*lost, *self._without(worker, view)]

    def _without(self, worker: int, view: ClusterView) -> list[Action]:
        """Return the averages that become possible when a worker has left."""
        raise NotImplementedError


class ArrivalGroups(_Groups):
    """Average the models of the first P waiting workers, without waiting for the others.

    Notes
    -----
    Reduces to: All-Reduce, with groups of all workers. Whoever waits is in one group alone, so no two groups
    conflict.
    Our reading: groups are smaller where fewer workers are left. The paper was read in accounts of it only.
    """

    name = "arrival_groups"
    source = "Miao et al. 2021 (partial reduce); thesis 3.4"

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Average if enough wait."""
        return self._average(view) or [Hold(push.worker, REASON)]

    def _without(self, worker: int, view: ClusterView) -> list[Action]:
        return self._average(view, worker)

    def _average(self, view: ClusterView, gone: int = -1) -> list[Action]:
        group = [push for push in view.buffered() if push.worker != gone]
        if not group or len(group) < min(self.group_size, view.num_active):
            return []
        return [Commit(group), *[Release(push.worker) for push in group]]


class RandomGroups(_Groups):
    """Draw a group when a worker without one arrives; its members may still compute, or be in other groups.

    Groups with a common member conflict and are served one after the other, in the order in which they were
    drawn: a worker that arrives waits for the oldest of its groups. So no circle of groups waits.

    Notes
    -----
    Reduces to: All-Reduce, with groups of all workers.
    Our reading: the group generator draws from all active workers, and the paper's filter of slow workers,
    which a user of this rule may leave to chance, is left out. The paper was read in accounts of it only.
    """

    name = "random_groups"
    source = "Luo et al. 2020 (Prague); thesis 3.4"

    #: groups that have not averaged, in order, by number; the numbers of each worker's, the oldest first
    _drawn: dict[int, list[int]] = PrivateAttr(default_factory=dict)
    _numbers: dict[int, list[int]] = PrivateAttr(default_factory=dict)
    _next: int = PrivateAttr(0)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Draw a group for a worker without one; average the oldest group of the worker if it is complete.

        No other group can be: each has members that do not wait, or that wait for an older one.
        """
        worker = push.worker
        if not self._numbers.get(worker):
            here = view.active
            place, others = bisect_left(here, worker), len(here) - 1
            count = min(self.group_size - 1, others)
            chosen = view.rng.choice(others, count, replace=False) if count else []
            self._add(sorted([worker, *(here[int(each) + (int(each) >= place)] for each in chosen)]))
        return self._average(self._numbers[worker][0], view) or [Hold(worker, REASON)]

    def _add(self, group: list[int]) -> None:
        self._drawn[self._next] = group
        for worker in group:
            self._numbers.setdefault(worker, []).append(self._next)
        self._next += 1

    def _average(self, number: int, view: ClusterView) -> list[Action]:
        """Return the average of a group whose members all wait, and wait for no older group."""
        group, pushes = self._drawn[number], list[Push]()
        for worker in group:
            push = view.pending.get(view.workers[worker].last_push)
            if push is None or self._numbers[worker][0] != number:
                return []
            pushes.append(push)
        del self._drawn[number]
        for worker in group:
            del self._numbers[worker][0]
        return [Commit(pushes), *(Release(worker) for worker in group)]

    def _without(self, worker: int, view: ClusterView) -> list[Action]:
        self._set([[member for member in group if member != worker] for group in self._drawn.values()])
        actions, gone_on = list[Action](), set[int]()
        for number, group in list(self._drawn.items()):
            if gone_on.isdisjoint(group) and (average := self._average(number, view)):
                actions += average
                gone_on.update(group)  # their pushes are pending until the answer is performed
        return actions

    def _set(self, groups: list[list[int]]) -> None:
        self._drawn, self._numbers = {}, {}
        for group in filter(None, groups):
            self._add(group)

    def on_drained(self, view: ClusterView) -> list[Action]:
        """Average all that wait, before a switch."""
        self._set([])
        return super().on_drained(view)

    def state_dict(self) -> dict[str, Any]:
        """Return the groups in order."""
        return {"_drawn": [[*group] for group in self._drawn.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._set([[*group] for group in state["_drawn"]])
