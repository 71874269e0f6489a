"""Partial reduce: workers average in groups that are formed as they arrive."""

from __future__ import annotations

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

    _drawn: list[list[int]] = PrivateAttr(default_factory=list)  # groups that have not averaged, in order

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Draw a group for a worker without one; serve the groups that are complete."""
        worker = push.worker
        if not any(worker in group for group in self._drawn):
            others = [other for other in view.active if other != worker]
            count = min(self.group_size - 1, len(others))
            chosen = view.rng.choice(len(others), count, replace=False) if count else []
            self._drawn.append(sorted([worker, *(others[each] for each in chosen)]))
        served = self._serve(view)
        is_released = any(isinstance(each, Release) and each.worker == worker for each in served)
        return served if is_released else [*served, Hold(worker, REASON)]

    def _without(self, worker: int, view: ClusterView) -> list[Action]:
        left = [[member for member in group if member != worker] for group in self._drawn]
        self._drawn = [group for group in left if group]
        return self._serve(view)

    def on_drained(self, view: ClusterView) -> list[Action]:
        """Average all that wait, before a switch."""
        self._drawn = []
        return super().on_drained(view)

    def _serve(self, view: ClusterView) -> list[Action]:
        """Return the averages of groups whose members all wait, and wait for no older group."""
        pushes = {push.worker: push for push in view.buffered()}
        actions: list[Action] = []
        busy, kept = set[int](), []  # members of older groups that are not served
        for group in self._drawn:
            if busy.isdisjoint(group) and pushes.keys() >= set(group):
                actions += [Commit([pushes.pop(worker) for worker in group])]
                actions += [Release(worker) for worker in group]
            else:
                busy.update(group)
                kept.append(group)
        self._drawn = kept
        return actions
