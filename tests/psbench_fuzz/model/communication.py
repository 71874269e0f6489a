"""Synchronisation and orders of workers, as in the sources."""

from __future__ import annotations

import math
from typing import Any

from psbench.core import Hold, Measure, Orders, Push, Release, Status, Vote
from psbench_fuzz.model.rule import Decisions, Rule, rule
from psbench_fuzz.model.view import ModelCluster

#: the server tells these workers nothing
rule("communication", "every_step", "gradient_differences", "osp", "hermes_gup")(Rule)


@rule("communication", "micro_steps")
class _MicroSteps(Rule):
    """A round is named by its version, and begins with the worker's whole batch."""

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        return {"round": c.version, "batch": c.workers[worker].batch_size}


@rule("communication", "local_sgd", "corrected_sgd", "answered_sgd", "elastic")
class _LocalSGD(Rule):
    """A worker takes always as many steps."""

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        return {"local_steps": self.own.local_steps}


@rule("communication", "eager")
class _Eager(_LocalSGD):
    """The orders of local SGD, and the number of workers."""

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        return {**super().on_release(worker, c), "workers": len(c.present)}


@rule("communication", "fragments", "asked_fragments")
class _Fragments(Rule):
    """Streaming DiLoCo, Alg. 2: fragment p is sent at t = p H/P (mod H), from H steps on or from H/P.

    A worker that joins, or whose push was dropped, goes on with the fragment that the furthest is at.
    """

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.taken: list[int] = []  # the worker of each push that was part of a version
        self.ahead: dict[int, int] = {}  # of each worker, what others had done when it came
        self.most = 0
        self.fresh: set[int] = set()  # those with pushes since the last version

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        self.fresh.add(push.worker)
        return []

    def on_applied(self, c: ModelCluster) -> Decisions:
        self.taken += sorted(self.fresh)
        self.fresh.clear()
        self.most = max([self.most, *map(self.pushed, self.ahead)])
        return []

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        self.taken = [other for other in self.taken if other != worker]
        self.ahead.pop(worker, None)
        self.fresh.discard(worker)
        return []

    def pushed(self, worker: int) -> int:
        """Return the number of a worker's turns."""
        return self.ahead[worker] + self.taken.count(worker)

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        if worker in self.fresh:  # its push was dropped
            self.on_leave(worker, c)
        self.ahead.setdefault(worker, self.most)
        pushed = self.pushed(worker)
        whole, count = self.own.local_steps, self.own.num_fragments
        share = whole // count
        first = whole if self.own.first_push == "after_all" else share
        step = first + pushed * share
        return {"fragment": step // share % count, "local_steps": share if pushed else first}


@rule("communication", "dynamic_local_sgd", "regional_sgd")
class _DynamicLocalSGD(Rule):
    """Async Local-SGD, sec. 5: h_i = floor(v_i / v_max * H), at least 1, by the last push of all workers.

    HALoS rounds up, in utnslab/halos 4b5bf73, src/halos/simulation/common.py, line 508:
    `max(1, math.ceil(args.num_local_steps * ws))`, with ws the speed over that of the fastest.
    """

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.step_s: dict[int, float] = {}  # of the last push

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        assert push.stats is not None
        self.step_s[push.worker] = push.stats["compute_s"] / push.steps
        return []

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        self.step_s.pop(worker, None)
        return []

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        new = c.workers[worker].status is Status.NEW
        own = None if new else self.step_s.get(worker)
        if not own:
            return {"local_steps": self.own.local_steps}
        # an exact ratio of two measured times is one to eight places
        steps = round(min(self.step_s.values()) / own * self.own.local_steps, 8)
        return {"local_steps": max(1, math.ceil(steps) if self.own.rounding == "up" else math.floor(steps))}


@rule("communication", "adacomm")
class _AdaComm(Rule):
    """With the first averaging of each interval, eq. 6 and its refinement; as the part reads it."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.period: int = own.initial_steps
        self.began_s = self.began_epoch = self.first = 0.0
        self.interval = 0
        self.rates: list[float] = []
        self.losses: list[tuple[float, int]] = []

    def start(self, c: ModelCluster) -> Decisions:
        self.began_s, self.began_epoch = c.now, c.epoch
        self.rates = [c.rate(c.epoch)]
        return self._measure() if self.own.loss == "measured" and not self._final() else []

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        return {"local_steps": self.period}

    def rate_epoch(self, c: ModelCluster) -> float:
        """Return the epoch for the rate's schedule, which waits for a period of 1 (A5)."""
        return self.began_epoch if self._deferred() else c.epoch

    def rate_epochs_per_step(self, c: ModelCluster) -> float:
        return 0.0 if self._deferred() else super().rate_epochs_per_step(c)

    def _deferred(self) -> bool:
        return self.own.lr_coupling == "defer" and self.period > 1

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        if self.own.loss == "workers":
            assert push.stats is not None
            self.losses.append((push.stats["first_loss"], push.samples))
        return []

    def on_applied(self, c: ModelCluster) -> Decisions:
        """Choose with the first averaging at or after each multiple of the interval."""
        number = math.floor(round((c.now - self.began_s) / self.own.interval_s, 8))
        measured = self.own.loss == "measured"
        if self._final() or (number == self.interval and (measured or self.first)):
            return []
        if measured:
            return self._measure()
        samples = sum(count for _, count in self.losses)
        if not samples:  # all pushes of this version were known at the last choice
            return []
        loss = sum(value * count for value, count in self.losses) / samples
        self.losses = []
        self._choose(loss, c)
        return []

    def on_measured(self, facts: dict[str, float], c: ModelCluster) -> Decisions:
        self._choose(facts["train_loss"], c)
        return []

    def _final(self) -> bool:
        return self.period == 1 and self.own.lr_coupling == "defer"

    def _measure(self) -> Decisions:
        return [Measure("communication", {"train_loss": None}, self.own.loss_samples)]

    def _choose(self, loss: float, c: ModelCluster) -> None:
        if not self.first:
            self.first = loss
            return
        self.interval = math.floor(round((c.now - self.began_s) / self.own.interval_s, 8))
        self.rates.append(c.rate(self.rate_epoch(c)))
        formula = math.sqrt(self.rates[0] / self.rates[-1] * loss / self.first) * self.own.initial_steps
        wanted = max(1, math.ceil(formula * (1 - 1e-9)))
        same_rate = self.rates[-1] == self.rates[-2]
        if not same_rate or wanted + self.own.slack < self.period:
            self.period = wanted
        elif self.own.gamma < 1:
            smaller = math.ceil(self.own.gamma * self.period * (1 - 1e-9))
            self.period = max(1, min(smaller, self.period - 1))


@rule("communication", "selsync")
class _SelSync(Rule):
    """All push if one flag is set, or if a worker waits already, without which no common step begins."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.flags: dict[int, bool] = {}
        self.sharing: list[int] = []
        self.served: list[int] = []  # workers let go since they were drawn

    def on_vote(self, vote: Vote, c: ModelCluster) -> Decisions:
        self.flags[vote.worker] = vote.value > 0
        return self._all(c) or [Hold(vote.worker, "vote")]

    def on_leave(self, worker: int, c: ModelCluster) -> Decisions:
        """Answer the votes if only this worker's vote was missing."""
        self.flags[worker] = False
        return self._all(c)

    def _all(self, c: ModelCluster) -> Decisions:
        if c.computing or not c.voted:
            return []
        together = any(self.flags.values()) or len(c.waiting) > 0
        self.flags = {}
        return [Release(worker, then="push" if together else "step") for worker in c.voted]

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        """Order the smoothing once, and the sharing workers of the step that begins."""
        orders: Orders = {}
        if self.own.smoothing == 0 and c.workers[worker].status is Status.NEW:
            orders["smoothing"] = min(1.0, c.num_workers / 100)
        alpha, beta = self.own.sharing_workers, self.own.shared_fraction
        if alpha > 0 and beta > 0:
            if worker in self.served or not self.served:
                count = math.floor(round(alpha * len(c.active) + 0.5, 8))
                self.sharing = sorted(map(int, c.rng.choice(c.active, count, replace=False)))
                self.served = []
            self.served.append(worker)
            own_samples = c.workers[worker].batch_size / (1 + beta * len(self.sharing))
            each = math.floor(round(beta * own_samples, 8))
            others = [other for other in self.sharing if other != worker and each > 0]
            orders["injection"] = {"workers": others, "each": each}
        return orders
