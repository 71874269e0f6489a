"""Commits and releases, as in the sources."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from psbench.core import Cancel, Commit, Discard, Hold, Push, Release, SetTimer, Tell
from psbench_fuzz.model.rule import Decisions, Rule, rule
from psbench_fuzz.model.view import ModelCluster


@rule("consistency", "asp")
class _ASP(Rule):
    """Commit every push alone, and let its worker go."""

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        return [Commit([push]), Release(push.worker)]


@rule("consistency", "hogwild")
class _Hogwild(Rule):
    """A push is a version once it has been written for `write_s`, or lost with its worker."""

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        if self.own.write_s == 0:
            return [Commit([push]), Release(push.worker)]
        return [SetTimer(c.now + self.own.write_s, f"{push.id}"), Hold(push.worker, "writing")]

    def on_timer(self, key: str, c: ModelCluster) -> Decisions:
        written = [push for number, push in c.pending.items() if f"{number}" == key]
        return [action for push in written for action in (Commit([push]), Release(push.worker))]

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        return [Discard(push, "left") for push in c.pending.values() if push.worker == worker]

    def on_drained(self, c: ModelCluster) -> Decisions:
        return [Commit([c.pending[number]]) for number in sorted(c.pending)]


@rule("consistency", "bsp")
class _BSP(Rule):
    """No action while a worker computes; then one commit of all pushes, and all continue."""

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        return self._open(c) or [Hold(push.worker, "barrier")]

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        return self._open(c) or [Hold(worker, "barrier")]

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        return self._open(c)

    def _open(self, c: ModelCluster) -> Decisions:
        if c.computing or c.voted:
            return []
        return self.on_drained(c) + [Release(worker) for worker in c.waiting]


#: how many pushes make a version, by the name of the part
_NEEDED: dict[str, Callable[[Any, ModelCluster], int]] = {
    **dict.fromkeys(("k_bsp", "k_asp"), lambda own, c: min(own.k, len(c.active))),  # all, if fewer are left
    "backup_workers": lambda own, c: min(c.num_workers - own.spares, len(c.active)),
    **dict.fromkeys(("k_batch_bsp", "k_batch_asp"), lambda own, c: own.k),
    "n_softsync": lambda own, c: c.num_workers // own.n,
}


def is_complete(own: Any, c: ModelCluster) -> bool:
    """Return whether there are enough pushes for a version."""
    return 0 < len(c.pending) >= _NEEDED[own.name](own, c)


def back(worker: int, c: ModelCluster, reason: str = "k pushes") -> Decisions:
    """Release a newcomer, or hold it if its last push is still pending."""
    waits = worker in [push.worker for push in c.pending.values()]
    return [Hold(worker, reason) if waits else Release(worker)]


@rule("consistency", "k_bsp", "backup_workers", "k_batch_bsp")
class _FirstPushes(Rule):
    """The first k pushes of the current version make the next; all other workers restart.

    They are of different workers, which wait; those of k-batch-BSP are whosever.
    """

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        if push.base_version != c.version:
            return [Discard(push, "late"), Release(push.worker)]
        if is_complete(self.own, c):
            return self.commit(c)
        return [Release(push.worker) if self.own.name == "k_batch_bsp" else Hold(push.worker, "k pushes")]

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        return [Release(worker)] if self.own.name == "k_batch_bsp" else back(worker, c)

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        return self.commit(c) if is_complete(self.own, c) else []

    def commit(self, c: ModelCluster) -> Decisions:
        """Commit, cancel late work if the part declares so, and release all."""
        cancelled = c.computing if self.own.cancel == "immediate" else []
        released = sorted(cancelled + c.waiting)
        return [Commit(c.buffered()), *map(Cancel, cancelled), *map(Release, released)]


@rule("consistency", "k_asp")
class _KASP(Rule):
    """A version takes k pushes of different workers, however stale; the contributors wait for the commit."""

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        return self._commit(c) or [Hold(push.worker, "k pushes")]

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        return back(worker, c)

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        return self._commit(c)

    def _commit(self, c: ModelCluster) -> Decisions:
        return [Commit(c.buffered()), *map(Release, c.waiting)] if is_complete(self.own, c) else []


@rule("consistency", "k_batch_asp", "n_softsync")
class _EveryPushes(Rule):
    """Every k pushes make a version, and no worker waits."""

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        return [*([Commit(c.buffered())] if is_complete(self.own, c) else []), Release(push.worker)]


@rule("consistency", "ringmaster")
class _Ringmaster(Rule):
    """Commit a push alone if fewer than R versions were made since its worker loaded its model.

    With `stops`, work that would reach a delay of R by a commit is cancelled with that commit.
    """

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        if c.version - push.base_version >= self.own.max_delay:
            return [Discard(push, "delay"), Release(push.worker)]
        computing = c.computing if self.own.stops else []
        cancelled = [worker for worker in computing if self._is_too_late(worker, c)]
        released = sorted([*cancelled, push.worker])
        return [Commit([push]), *map(Cancel, cancelled), *map(Release, released)]

    def _is_too_late(self, worker: int, c: ModelCluster) -> bool:
        """Return whether a worker's delay will be R or more at the next version."""
        return bool(c.version + 1 - c.workers[worker].base_version >= self.own.max_delay)


@rule("consistency", "malenia")
class _Malenia(Rule):
    """Commit once the harmonic mean of the workers' numbers of pushes is at least S/n; then all restart.

    The workers are those that are there or whose pushes are pending; each has pushed at least once.
    """

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        if push.base_version != c.version:
            return [Discard(push, "late"), Release(push.worker)]
        return self._commit(c) or [Release(push.worker)]

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        return self._commit(c)

    def _commit(self, c: ModelCluster) -> Decisions:
        if not self._is_complete(c):
            return []
        cancelled = c.computing
        released = sorted(cancelled + c.waiting)
        return [Commit(c.buffered()), *map(Cancel, cancelled), *map(Release, released)]

    def _is_complete(self, c: ModelCluster) -> bool:
        """Compare (1/n sum 1/B_i)^-1 with S/n, in fractions."""
        pushed = Counter(push.worker for push in c.pending.values())
        if not pushed or not pushed.keys() >= {*c.active}:
            return False
        inverses = sum(Fraction(1, count) for count in pushed.values())
        return bool(len(pushed) ** 2 >= self.own.total * inverses)


@rule("consistency", "ringleader")
class _Ringleader(Rule):
    """Ringleader ASGD: phase 1 collects until b_i >= 1 for all; phase 2 makes one version per worker."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.served: set[int] | None = None  # in phase 2; None in phase 1

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        made: Decisions = []
        if self.served is None:
            made = self._round(c, {push.worker})
        elif push.worker not in self.served:
            self.served.add(push.worker)
            made = [Commit([push])]
            self._end(c)
        return [*made, Release(push.worker)]

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        if self.served is not None:
            self.served.add(worker)  # its gradient is of the next table
        return [Release(worker)]

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        self._end(c)
        return self._round(c, set()) if self.served is None else []

    def _round(self, c: ModelCluster, served: set[int]) -> Decisions:
        pushed = {push.worker for push in c.pending.values()}
        if not c.active or any(worker not in pushed for worker in c.active):
            return []
        self.served = served
        self._end(c)
        return [Commit(c.buffered())]

    def _end(self, c: ModelCluster) -> None:
        if self.served is not None and self.served >= set(c.active):
            self.served = None


@rule("consistency", "ssp")
class _SSP(Rule):
    """Worker i may start a step iff c_i - min c_j <= s; tested for all whenever anything changes."""

    @property
    def bound(self) -> int:
        return int(self.own.staleness_bound)

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        free = [worker for worker in c.waiting if worker != push.worker and self.within(worker, c)]
        may = self.may_go_on(push.worker, c)
        released = sorted([*free, push.worker] if may else free)
        held = [] if may else [Hold(push.worker, "staleness bound")]
        return [Commit([push]), *map(Release, released), *held]

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        return [Release(each) for each in c.waiting if self.within(each, c)]

    def within(self, worker: int, c: ModelCluster) -> bool:
        return c.clock_lead(worker) <= self.bound

    def may_go_on(self, worker: int, c: ModelCluster) -> bool:
        """Return whether a worker that has pushed may continue."""
        return self.within(worker, c)


@rule("consistency", "dssp")
class _DSSP(_SSP):
    """Rules 1 to 4 of the paper, in order."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.extra: dict[int, int] = {}  # r_i

    @property
    def bound(self) -> int:
        return int(self.own.lower)

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        """Forget the steps granted before the worker left."""
        self.extra[worker] = 0
        return [Release(worker)]

    def may_go_on(self, worker: int, c: ModelCluster) -> bool:
        """Return whether one of rules 1 to 3 releases the worker."""
        if self.extra.get(worker, 0) > 0:  # rule 1
            self.extra[worker] -= 1
            return True
        if self.within(worker, c):  # rule 2
            return True
        fastest = max(each.clock for each in c.present)
        granted = self.controller(worker, c) if c.workers[worker].clock == fastest else 0  # rule 3
        self.extra[worker] = max(0, granted - 1)  # the step that starts now is one of them
        return granted > 0

    def controller(self, worker: int, c: ModelCluster) -> int:
        """Return r*."""
        slowest = [each for each in c.present if each.clock == min(other.clock for other in c.present)]
        p = c.workers[worker]
        if any(math.isnan(each.previous_push_s) for each in [p, *slowest]):  # nothing can be predicted
            return 0
        last = max(slowest, key=lambda each: 2 * each.last_push_s - each.previous_push_s)
        ours, theirs = p.last_push_s - p.previous_push_s, last.last_push_s - last.previous_push_s
        most = self.own.upper - self.own.lower
        pushes = [last.last_push_s + (k + 1) * theirs for k in range(most + 1)]
        best, least = 0, math.inf
        for r in range(most + 1):
            stop = p.last_push_s + r * ours
            if self.own.metric == "distance":
                cost = min(abs(at - stop) for at in pushes)
            else:
                cost = min((at - stop for at in pushes if at >= stop), default=math.inf)
            if cost < least:
                best, least = r, cost
        if self.own.clamp:
            best = max(0, min(best, self.own.upper - c.clock_lead(worker) + 1))
        return best


@rule("consistency", "psp")
class _PSP(Rule):
    """A worker may start a step iff it leads each of the active workers that it drew by at most s."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.drawn: dict[int, list[int]] = {}  # by each worker after its last push

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        self.drawn[push.worker] = self._draw(push.worker, c)
        released = self._free(c)
        held = [] if push.worker in released else [Hold(push.worker, "drawn workers")]
        return [Commit([push]), *map(Release, released), *held]

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        """Forget the workers drawn before the worker left."""
        self.drawn[worker] = []
        return [Release(worker)]

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        return [Release(each) for each in self._free(c)]

    def _draw(self, worker: int, c: ModelCluster) -> list[int]:
        others = [other for other in c.active if other != worker]
        count = min(self.own.sample, len(others))
        if count in (0, len(others)):  # no random number is used
            return others[:count]
        return [others[i] for i in c.rng.choice(len(others), count, replace=False).tolist()]

    def _free(self, c: ModelCluster) -> list[int]:
        return [worker for worker in c.waiting if self._may_go_on(worker, c)]

    def _may_go_on(self, worker: int, c: ModelCluster) -> bool:
        here = [c.workers[other] for other in self.drawn.get(worker, []) if other in c.active]
        return all(c.workers[worker].clock - other.clock <= self.own.lead for other in here)


@rule("consistency", "elastic_bsp")
class _ElasticBSP(Rule):
    """Workers run freely until each has pushed twice; then up to the pushes closest together."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.left: dict[int, int] = {}  # pushes that each has still to make in this phase
        self.monitoring = True

    def on_start(self, c: ModelCluster) -> Decisions:
        return self._superstep(c)

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        self.left[push.worker] = self.left.get(push.worker, 0) - 1
        commit = Commit([push])
        if self.monitoring:
            self._predict(c)
            return [commit, Release(push.worker)]
        if not self._missing():
            return [commit, *self._superstep(c)]
        waits = self.left[push.worker] <= 0
        return [commit, Hold(push.worker, "barrier") if waits else Release(push.worker)]

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        if len(c.active) == 1:
            return self._superstep(c)
        if not self.monitoring:
            return [Hold(worker, "barrier")]
        self.left[worker] = 2
        return [Release(worker)]

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        self.left.pop(worker, None)
        if self.monitoring:
            self._predict(c)
            return []
        return [] if self._missing() else self._superstep(c)

    def _missing(self) -> bool:
        return any(count > 0 for count in self.left.values())

    def _superstep(self, c: ModelCluster) -> Decisions:
        self.monitoring, self.left = True, dict.fromkeys(c.active, 2)
        return [Release(worker) for worker in c.waiting]

    def _predict(self, c: ModelCluster) -> None:
        """Choose, once every interval is known, the pushes with the least span, the first of equals."""
        if self._missing():
            return
        pushes = {}
        for worker in c.active:
            seen = c.workers[worker]
            interval = seen.last_push_s - seen.previous_push_s
            steps = range(1, self.own.lookahead + 1)
            pushes[worker] = [(seen.last_push_s + step * interval, worker, step) for step in steps]
        self.monitoring = False
        self.left = closest(pushes)


def closest(pushes: dict[int, list[tuple[float, int, int]]]) -> dict[int, int]:
    """Return the chosen step of each worker: for every candidate of a last push, the others' latest.

    `pushes`: of each worker (seconds, worker, step), ascending.
    """
    best, chosen = math.inf, dict.fromkeys(pushes, 1)
    reached = dict.fromkeys(pushes, 0)
    for last in sorted(push for own in pushes.values() for push in own):
        reached[last[1]] = last[2]
        if all(reached.values()):
            latest = {worker: own[reached[worker] - 1] for worker, own in pushes.items()}
            span = last[0] - min(latest.values())[0]
            if span < best:
                best, chosen = span, {worker: push[2] for worker, push in latest.items()}
    return chosen


@rule("consistency", "early_epoch_stop")
class _EarlyEpochStop(Rule):
    """Project Adam: an epoch ends for all once a share of the workers has finished its part."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.samples: dict[int, int] = {}

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        self.samples[push.worker] = self.samples.get(push.worker, 0) + push.samples
        commit = Commit([push])
        if not self._has_done(push.worker, c):
            return [commit, Release(push.worker)]
        return [commit, *(self._end(c) or [Hold(push.worker, "end of the epoch")])]

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        self.samples[worker] = 0
        return [Release(worker)]

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        self.samples[worker] = 0
        return self._end(c)

    def _has_done(self, worker: int, c: ModelCluster) -> bool:
        return self.samples.get(worker, 0) >= c.dataset_size / c.num_workers

    def _end(self, c: ModelCluster) -> Decisions:
        done = [worker for worker in c.active if self._has_done(worker, c)]
        if len(done) < self.own.fraction * len(c.active) - 1e-6:
            return []
        self.samples = {}
        return [Release(worker) for worker in done]


@rule("consistency", "grace")
class _Grace(Rule):
    """Async Local-SGD: the first push starts a period; at its end all pending pushes are applied."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.period = False

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        if self.own.grace_s == 0:
            return [Commit([push]), Release(push.worker)]
        timer = [] if self.period else [SetTimer(c.now + self.own.grace_s, "grace")]
        self.period = True
        return [*timer, Hold(push.worker, "grace period")]

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        return back(worker, c, "grace period")

    def on_timer(self, key: str, c: ModelCluster) -> Decisions:
        if key != "grace":
            return []
        self.period = False
        return self.on_drained(c) + [Release(worker) for worker in c.waiting]

    def on_drained(self, c: ModelCluster) -> Decisions:
        return [Commit([push]) for push in c.pending.values()]


@rule("consistency", "quorum")
class _Quorum(Rule):
    """Decoupled DiLoCo: K pushes of the newest version, then a grace period."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.first_s = 0.0
        self.of_round: list[Push] = []
        self.graced = -1

    def go(self, worker: int, c: ModelCluster) -> Release:
        """Release a worker, with the order to push if a round is in progress."""
        return Release(worker, orders={"asked": True} if c.pending and self.own.asks else {})

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        if push.base_version != c.version:
            return [Discard(push, "late"), self.go(push.worker, c)]
        if [*c.pending.values()] == [push]:
            self.first_s, self.of_round = c.now, []
        self.of_round.append(push)
        found = self.decide(c)
        if found and isinstance(found[0], Commit):
            return found
        asked = [Tell(worker, {"asked": True}) for worker in c.computing] if self.own.asks else []
        asked = asked if len(c.pending) == 1 else []
        reason = "grace for the others" if self.graced == c.version else "quorum"
        return [*found, *asked, Hold(push.worker, reason)]

    def decide(self, c: ModelCluster) -> Decisions:
        """Commit, start a grace period, or neither."""
        enough = min(self.own.quorum, len(c.present)) if self.own.quorum else len(c.present)
        if not c.pending or len(c.pending) < enough:
            return []
        if not c.computing:
            return self.open(c)
        if self.graced == c.version:
            return []
        stats = [push.stats or {} for push in self.of_round]
        grace = self.own.grace_s
        if self.own.grace_steps:
            slowest = max(s["compute_s"] / p.steps for s, p in zip(stats, self.of_round, strict=True))
            gone = c.now - self.first_s + max(s["send_s"] for s in stats)
            grace = min(grace, max(0.0, self.own.grace_steps * slowest - gone))
        if grace * self.own.grace_share <= 0:
            return self.open(c)
        self.graced = c.version
        at = c.now + grace * self.own.grace_share
        return [SetTimer(at, f"grace for the others {c.version}")]

    def open(self, c: ModelCluster) -> Decisions:
        return [Commit(c.buffered()), *(Release(worker) for worker in c.waiting)]

    def on_timer(self, key: str, c: ModelCluster) -> Decisions:
        return self.open(c) if key.split()[-1] == str(c.version) and c.pending else []

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        waits = worker in [push.worker for push in c.pending.values()]
        return [Hold(worker, "quorum") if waits else self.go(worker, c)]

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        return self.decide(c)
