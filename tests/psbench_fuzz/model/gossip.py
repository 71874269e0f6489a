"""Workers without a server, as the sources state it; the graph itself is taken from the placement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psbench.core import Action, Apply, Commit, Discard, Hold, Orders, Push, Release, Status
from psbench.core.actions import Mix
from psbench_fuzz.model.rule import Decisions, Rule, rule
from psbench_fuzz.model.view import ModelCluster


def senders(worker: int, exchange: int, c: ModelCluster) -> list[int]:
    """Return the active senders of a worker's exchange that took part in it."""
    return _there(c.graph.senders(worker, exchange, c.num_workers), exchange, c)


def receivers(worker: int, exchange: int, c: ModelCluster) -> list[int]:
    """Return the active receivers of a worker's exchange."""
    return _there(c.graph.receivers(worker, exchange, c.num_workers), exchange, c)


def _there(workers: Sequence[int], exchange: int, c: ModelCluster) -> list[int]:
    return [one for one in workers if one in c.active and c.workers[one].first_version <= exchange]


@rule("communication", "step_then_mix", "mix_then_step")
class _Gossiping(Rule):
    """SGP: a step's rate is divided by the worker's weight."""

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        weight = c.workers[worker].push_weight
        return {"lr_scale": 1 / weight} if weight != 1 else {}


@rule("consistency", "neighbours")
class _Neighbours(Rule):
    """D-PSGD: exchange k is made when the neighbours have sent their k-th models."""

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        """Release the worker if it is ready, and the workers that waited only for its push."""
        version = c.workers[push.worker].version
        first = [push.worker, *receivers(push.worker, version, c)]
        going = self.going(first, [], c)
        waits = not any(isinstance(each, Release) and each.worker == push.worker for each in going)
        return [*going, Hold(push.worker, "neighbours")] if waits else going

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        return [Release(worker), *self.going(c.active, [worker], c)]

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        return self.going(c.active, [], c)

    def going(self, order: list[int], begun: list[int], c: ModelCluster) -> Decisions:
        """Return all possible exchanges and releases."""
        done: list[int] = []
        pushes = {push.worker: push for push in c.pending.values()}
        while True:
            able = [one for one in order if one in pushes and self.may(one, done, begun, c)]
            if not able:  # none is left out, wherever it is
                order = c.active
                able = [one for one in order if one in pushes and self.may(one, done, begun, c)]
            if not able:
                break
            # where a model is sent first, one that goes on sends the next, and all are looked at again
            done += able[:1] if c.sends_first else able
            order = order[order.index(done[-1]) + 1 :] + c.active if c.sends_first else order
        commits: list[Action] = [Commit([pushes[one]]) for one in done]
        releases: list[Action] = [Release(one) for one in done]
        if c.sends_first:
            return [each for pair in zip(commits, releases, strict=True) for each in pair]
        return commits + releases

    def may(self, worker: int, done: list[int], begun: list[int], c: ModelCluster) -> bool:
        """Return whether all models for a waiting worker's exchange have arrived."""
        own = c.workers[worker]
        if own.status is not Status.PUSHED or worker in done:
            return False
        for other in senders(worker, own.version, c):
            seen = c.workers[other]
            version = seen.version + (other in done)
            if version < own.version:
                return False
            if version == own.version:
                here = seen.status is not Status.NEW or other in [*begun, *done]
                if not (here if c.sends_first else seen.status is Status.PUSHED and other not in done):
                    return False
        return True


@rule("aggregation", "neighbour_average")
class _NeighbourAverage(Rule):
    """W_ij = 1 / (1 + the larger degree of i and j); W_ii is the rest."""

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        (push,) = pushes
        exchange = c.workers[push.worker].version
        degrees = {one: len(receivers(one, exchange, c)) for one in c.active}
        row = {
            other: 1 / (1 + max(degrees[push.worker], degrees[other]))
            for other in senders(push.worker, exchange, c)
        }
        row[push.worker] = 1.0 - sum(row.values())
        mixed = Mix({push.worker: dict(sorted(row.items()))}, sent=True, push=push.id)
        return [mixed, Apply(pushes, [1.0])]


@rule("aggregation", "push_sum")
class _PushSum(Rule):
    """SGP: a worker shares a_j z_j and a_j out equally among itself and its receivers."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.parts: dict[tuple[int, int, int], float] = {}  # of a worker, in which of its lives, and when

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        (push,) = pushes
        exchange = c.workers[push.worker].version
        parts = {}
        for other in [push.worker, *senders(push.worker, exchange, c)]:
            key = other, c.workers[other].first_version, exchange
            if key not in self.parts:
                shared = 1 + len(receivers(other, exchange, c))
                self.parts[key] = c.workers[other].push_weight / shared
            parts[other] = self.parts[key]
        weight = sum(parts.values())
        row = {other: part / weight for other, part in sorted(parts.items())}
        mixed = Mix({push.worker: row}, sent=True, push=push.id, push_weights={push.worker: weight})
        return [mixed, Apply(pushes, [1.0])]


@rule("aggregation", "pair_average")
class _PairAverage(Rule):
    """AD-PSGD: a worker and one of its neighbours both take the mean of their models."""

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        (push,) = pushes
        worker = push.worker
        others = receivers(worker, c.workers[worker].version, c)
        if self.own.partners == "other_parity":
            others = [other for other in others if other % 2 != worker % 2]
        if not others:
            return [Mix({worker: {worker: 1.0}}, push=push.id), Apply(pushes, [1.0])]
        other = others[int(c.rng.integers(len(others)))]
        rows = {one: dict.fromkeys(sorted([worker, other]), 0.5) for one in (worker, other)}
        return [Mix(rows, push=push.id), Apply(pushes, [1.0])]


class _Groups(Rule):
    """Partial reduce: the members of a group wait for each other."""

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        lost = [push for push in c.pending.values() if push.worker == worker]
        rest = [push for push in c.buffered() if push.worker != worker]
        return [*(Discard(push, "left") for push in lost), *self.averages(rest, c)]

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        found = self.averages(c.buffered(), c)
        waits = not any(isinstance(each, Release) and each.worker == push.worker for each in found)
        return [*found, Hold(push.worker, "group")] if waits else found

    def averages(self, waiting: list[Push], c: ModelCluster) -> Decisions:
        """Return the groups that average now, of these pushes."""
        raise NotImplementedError

    def average(self, pushes: list[Push]) -> Decisions:
        return [Commit(pushes), *(Release(push.worker) for push in pushes)]


@rule("consistency", "arrival_groups")
class _ArrivalGroups(_Groups):
    """The first P that wait."""

    def averages(self, waiting: list[Push], c: ModelCluster) -> Decisions:
        enough = waiting and len(waiting) >= min(self.own.group_size, len(c.active))
        return self.average(waiting) if enough else []


@rule("consistency", "random_groups")
class _RandomGroups(_Groups):
    """Each worker has a queue of groups, and meets the group at its head."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.queues: dict[int, list[int]] = {}  # of each worker, the numbers of its groups
        self.groups: dict[int, list[int]] = {}
        self.count = 0

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        if not self.queues.get(push.worker):
            others = [one for one in c.active if one != push.worker]
            size = min(self.own.group_size - 1, len(others))
            drawn = c.rng.choice(len(others), size, replace=False) if size else []
            group = sorted([push.worker, *(others[place] for place in drawn)])
            self.groups[self.count] = group
            for one in group:
                self.queues.setdefault(one, []).append(self.count)
            self.count += 1
        return super().on_push(push, c)

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        for number in self.queues.pop(worker, []):
            self.groups[number].remove(worker)
            if not self.groups[number]:
                del self.groups[number]
        return super().on_leave(worker, c)

    def on_drained(self, c: ModelCluster) -> Decisions:
        self.queues, self.groups = {}, {}
        return super().on_drained(c)

    def averages(self, waiting: list[Push], c: ModelCluster) -> Decisions:
        pushes = {push.worker: push for push in waiting}
        heads = [
            number
            for number, group in self.groups.items()
            if all(self.queues[one][0] == number for one in group)
        ]
        found: Decisions = []
        for number in sorted(heads):
            group = self.groups[number]
            if all(one in pushes for one in group):
                found += self.average([pushes[one] for one in group])
                del self.groups[number]
                for one in group:
                    self.queues[one].pop(0)
        return found


@rule("aggregation", "group_average")
class _GroupAverage(Rule):
    """P-Reduce: each member takes the mean of the group's models."""

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        row = {push.worker: 1 / len(pushes) for push in sorted(pushes, key=lambda push: push.worker)}
        mixed = Mix({one: dict(row) for one in row}, meet=True, push=pushes[-1].id)
        return [mixed, *(Apply([push], [1.0]) for push in pushes)]
