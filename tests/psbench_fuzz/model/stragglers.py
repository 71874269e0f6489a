"""The amount of work for each worker, as in the sources."""

from __future__ import annotations

import math
from statistics import fmean, median
from typing import Any

import numpy as np

from psbench.core import Action, Drop, Orders, Push, Readmit, Report, SetTimer, Status, Tell
from psbench_fuzz.model.rule import Decisions, Rule, rule
from psbench_fuzz.model.view import ModelCluster


def compute_s(message: Push | Report) -> float:
    """Return the computing seconds in a message."""
    assert message.stats is not None
    return float(message.stats["compute_s"])


#: every worker keeps its batch
rule("stragglers", "fixed")(Rule)


@rule("stragglers", "dbs_sgd")
class _DBS(Rule):
    """The batch times S, the ratio of worker 0's last times to its own, if S is far enough from 1."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.times: dict[int, list[float]] = {}  # since the batch changed, where that counts
        self.firsts: dict[int, list[float]] = {}  # worker 0's pushes since then
        self.all_firsts: list[float] = []
        self.pushes_of_first = 0
        self.batches: dict[int, int] = {}

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        worker, m = push.worker, self.own.window
        self.times.setdefault(worker, []).append(compute_s(push) / push.steps)
        if worker == 0:
            self.all_firsts.append(self.times[0][-1])
            self.pushes_of_first += 1
            for own in self.firsts.values():
                own.append(0.0)
            return []
        since = len(self.firsts[worker]) if worker in self.firsts else self.pushes_of_first
        first = self.times.get(0, [])
        if min(len(self.times[worker]), len(first), since) < m:
            return []
        s = math.fsum(first[-m:]) / math.fsum(self.times[worker][-m:])
        if abs(1 - s) < self.own.tolerance:
            return []
        literal = self.own.mode == "literal"
        batch = c.workers[0 if literal else worker].batch_size * s
        self.batches[worker] = min(max(1, math.floor(round(batch + 0.5, 8))), c.dataset_size)
        if not literal:
            self.times[worker], self.firsts[worker] = [], []
        return []

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        """Order a batch that differs; a newcomer begins with its first."""
        if c.workers[worker].status is Status.NEW:
            for own in (self.times, self.firsts, self.batches):
                own.pop(worker, None)
        batch = self.batches.get(worker, c.workers[worker].batch_size)
        return {"batch_size": batch} if batch != c.workers[worker].batch_size else {}


@rule("stragglers", "elastic_parallelism")
class _ElasticParallelism(Rule):
    """The k-th slowest straggler is evened out with the k-th fastest of the others."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.cost: dict[int, float] = {}  # seconds of a sample
        self.firsts: dict[int, int] = {}
        self.batches: dict[int, int] = {}

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        self.cost[push.worker] = compute_s(push) / push.samples
        return []

    def on_applied(self, c: ModelCluster) -> Decisions:
        there = [one for one in c.active if one in self.cost]
        whole = {one: self.cost[one] * self.firsts[one] for one in there}
        self.batches = {one: self.firsts[one] for one in there}
        ordered = sorted(there, key=lambda one: (whole[one], one))
        lags = {
            one
            for one in there
            if len(there) > 1
            and whole[one] / median(whole[other] for other in there if other != one) > self.own.threshold
        }
        fast = [one for one in ordered if one not in lags]
        for slow in sorted(lags, key=lambda one: (-whole[one], one)):
            if fast:
                one = fast.pop(0)
                # cost_1 (b_1 + x) = cost_2 (b_2 - x)
                x = (whole[slow] - whole[one]) / (self.cost[one] + self.cost[slow])
                x = min(round(x), self.firsts[slow] - 1)
                self.batches[one] += x
                self.batches[slow] -= x
        return []

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        if c.workers[worker].status is Status.NEW:
            self.firsts[worker] = c.workers[worker].batch_size
            for own in (self.cost, self.batches):
                own.pop(worker, None)
        batch = self.batches.get(worker, c.workers[worker].batch_size)
        return {"batch_size": batch} if batch != c.workers[worker].batch_size else {}


@rule("stragglers", "lb_bsp")
class _LBBSP(Rule):
    """At each barrier b_i = X v_i / sum v_j, by largest remainder, each at least 1."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.speeds: dict[int, list[float]] = {}
        self.batches: dict[int, int] = {}

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        self.speeds.setdefault(push.worker, []).append(push.samples / compute_s(push))
        return []

    def predicted(self, worker: int) -> float | None:
        """Return the speed that a worker is expected to have."""
        past = self.speeds.get(worker)
        if not past:
            return None
        if self.own.predictor == "last":
            return past[-1]
        if self.own.predictor == "mean":
            return fmean(past[-self.own.window :])
        mean = past[0]
        for speed in past[1:]:
            mean = self.own.smoothing * speed + (1 - self.own.smoothing) * mean
        return mean

    def on_applied(self, c: ModelCluster) -> Decisions:
        """Divide the global batch; a worker without a push counts with the others' mean speed."""
        known = {one: speed for one in c.active if (speed := self.predicted(one)) is not None}
        if not known:
            return []
        speeds = {one: known.get(one, fmean(known.values())) for one in c.active}
        exact = {one: c.global_batch * speed / math.fsum(speeds.values()) for one, speed in speeds.items()}
        batches = {one: math.floor(share) for one, share in exact.items()}
        while sum(batches.values()) < c.global_batch:
            most_missing = max(exact, key=lambda one: (exact[one] - batches[one], -one))
            batches[most_missing] += 1
        for one in batches:
            if batches[one] == 0 and max(batches.values()) > 1:
                batches[max(batches, key=lambda other: (batches[other], -other))] -= 1
                batches[one] = 1
        self.batches = batches
        return []

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        before = c.workers[worker].batch_size
        batch = self.batches.get(worker, before)
        return {} if batch == before else {"batch_size": batch}


@rule("stragglers", "flex_rr")
class _FlexRR(Rule):
    """Rapid reassignment: samples move from the worker that is least far to the one that is furthest.

    Only what a worker cannot have begun before it reads the order is moved: not the piece that it is at, nor
    the one after.
    """

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.quota: dict[int, int] = {}
        self.done: dict[int, float] = {}
        self.piece: dict[int, float] = {}

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        self.quota[worker], self.done[worker] = c.workers[worker].batch_size, 0.0
        return {}

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        """Move samples that late orders left undone, or did twice, to another worker's quota."""
        undone = self.quota[push.worker] - push.samples
        self.quota[push.worker] = push.samples
        if undone == 0 or not c.computing:
            return []
        other = min(c.computing, key=lambda one: (-self.free(one), one))
        if undone < 0:
            undone = -min(-undone, max(0, self.free(other)))
        self.quota[other] += undone
        return [self.order(other, c)] if undone != 0 else []

    def on_report(self, report: Report, c: ModelCluster) -> Decisions:
        self.done[report.worker], self.piece[report.worker] = report.stats["done"], report.stats["piece"]
        at = {}
        for one in c.computing:
            begun = 0.0 if one == report.worker else 0.5 * self.size_of_piece(one)
            at[one] = min(self.done[one] + begun, self.quota[one])
        progress = {one: at[one] / self.quota[one] for one in at}
        slow = min(at, key=lambda one: (progress[one], one))
        able = [one for one in at if one != slow and self.free(one) > 0]
        if not able:
            return []
        fast = min(able, key=lambda one: (-progress[one], one))
        if progress[fast] - progress[slow] <= self.own.threshold:
            return []
        # at[fast] / (quota + x) = at[slow] / (quota - x)
        x = (at[fast] * self.quota[slow] - at[slow] * self.quota[fast]) / (at[fast] + at[slow])
        samples = min(round(x), self.free(slow))
        if samples < 1:
            return []
        self.quota[slow] -= samples
        self.quota[fast] += samples
        return [self.order(slow, c), self.order(fast, c)]

    def size_of_piece(self, worker: int) -> float:
        """Return the size of a worker's piece; before its first report, the largest known."""
        return self.piece[worker] if worker in self.piece else max([*self.piece.values(), 0.0]) or 1.0

    def free(self, worker: int) -> int:
        """Return the samples that a worker cannot have begun."""
        return int(self.quota[worker] - self.done[worker] - 2 * self.size_of_piece(worker))

    def order(self, worker: int, c: ModelCluster) -> Tell:
        return Tell(worker, {"round": c.workers[worker].base_version, "quota": self.quota[worker]})


@rule("stragglers", "drop_stragglers")
class _DropStragglers(Rule):
    """Ours: drop a worker whose step time exceeds factor times the median for several pushes in a row."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.times: dict[int, list[float]] = {}
        self.streak: dict[int, int] = {}

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        worker, own = push.worker, self.own
        self.times.setdefault(worker, []).append(compute_s(push) / push.steps)
        means = {one: fmean(self.times[one][-own.window :]) for one in c.active if self.times.get(one)}
        enough = len(self.times[worker]) >= own.window
        slow = enough and means[worker] > own.factor * median(means.values())
        self.streak[worker] = self.streak.get(worker, 0) + 1 if slow else 0
        away = [each.id for each in c.workers.values() if each.dropped]
        most = min(math.floor(own.most * c.num_workers + 1e-6), c.num_workers - 1)
        if self.streak[worker] < own.patience or len(away) >= most or len(c.active) < 2:
            return []
        self.times[worker], self.streak[worker] = [], 0
        drops: list[Action] = [Drop(worker, f"over {own.factor:g} times the median step time")]
        if own.readmit_after_s > 0:
            drops.append(SetTimer(c.now + own.readmit_after_s, f"readmit {worker}"))
        return drops

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        if c.workers[worker].status is Status.NEW:
            self.times[worker], self.streak[worker] = [], 0
        return {}

    def on_timer(self, key: str, c: ModelCluster) -> Decisions:
        return [Readmit(int(key.split()[1]))] if key.startswith("readmit ") else []


@rule("stragglers", "dual_binary_search")
class _DualBinarySearch(Rule):
    """Hermes: a worker whose time is outside of the fences gets a chunk that takes the median time."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.times: dict[int, float] = {}
        self.reported: dict[int, tuple[float, float]] = {}  # seconds and steps since its last push
        self.sizes: dict[int, tuple[int, int]] = {}
        self.target = 0.0

    def on_report(self, report: Report, c: ModelCluster) -> Decisions:
        seconds, steps = self.reported.get(report.worker, (0.0, 0.0))
        spent, made = compute_s(report) - seconds, report.stats["chunk_steps"]
        if spent <= 0:
            return []
        self.reported[report.worker] = compute_s(report), steps + made
        before = self.size(report.worker, c)
        self.look(report.worker, spent, made, c)
        changed = self.size(report.worker, c) != before
        return [Tell(report.worker, self.orders(report.worker, c))] if changed else []

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        seconds, steps = self.reported.pop(push.worker, (0.0, 0.0))
        self.look(push.worker, compute_s(push) - seconds, push.steps - steps, c)
        return []

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        self.reported.pop(worker, None)
        if c.workers[worker].status is Status.NEW:
            self.times.pop(worker, None)
            self.sizes.pop(worker, None)
        return self.orders(worker, c)

    def orders(self, worker: int, c: ModelCluster) -> Orders:
        samples, batch = self.size(worker, c)
        return {"samples": samples, "batch_size": batch, "passes": self.own.passes}

    def size(self, worker: int, c: ModelCluster) -> tuple[int, int]:
        share = max(1, c.dataset_size // c.num_workers)
        first = min(self.own.chunk_samples, share, *(self.most(one, c) for one in range(c.num_workers)))
        return self.sizes.get(worker, (first, self.own.chunk_batch))

    def most(self, worker: int, c: ModelCluster) -> int:
        """Return N of a worker: its memory holds two chunks."""
        return min(int(self.own.max_samples) or c.dataset_size, max(1, c.capacity[worker] // 2))

    def look(self, worker: int, seconds: float, steps: float, c: ModelCluster) -> None:
        self.times[worker] = seconds
        if any(other not in self.times for other in c.active):
            return
        times = {other: self.times[other] for other in c.active}
        if not (self.own.freeze_median and self.target):
            self.target = median(times.values())
        if self.own.fences == "none":
            return None
        fencing = [t for one, t in times.items() if self.own.fences == "all" or one != worker]
        if not fencing:
            return
        q1, q3 = np.quantile(fencing, [0.25, 0.75])
        beyond = 1.5 * (q3 - q1) + 1e-9 * seconds
        if q1 - beyond <= seconds <= q3 + beyond:
            return
        self.sizes[worker] = self.chunk(seconds / steps, self.size(worker, c)[1], self.most(worker, c))

    def chunk(self, k: float, batch: int, most: int) -> tuple[int, int]:
        """Return the chunk for which E passes take the target time, by exhaustive search."""
        e = self.own.passes

        def fitting(mbs: int) -> int:
            return max((dss for dss in range(1, most + 1) if k * e * dss / mbs <= self.target), default=0)

        if self.own.mode == "code":
            least = (self.target - 1.0) * (1 - 1e-9)
            return next((dss for dss in range(1, most) if k * e * dss / batch >= least), most), batch
        found = fitting(batch)
        if 0 < found < most:
            return found, batch
        batches = [2, 4, 8, 16, 32, 64, 128, 256]
        possible = [mbs for mbs in batches if 0 < fitting(mbs) < most]
        # a larger batch lets more samples pass: of those that fit, the nearest to the one that does not
        if possible:
            mbs = min(possible) if found == 0 else max(possible)
            return fitting(mbs), mbs
        whole = [(min(max(1, mbs // e, fitting(mbs)), most), mbs) for mbs in batches]
        miss = {size: abs(k * math.ceil(e * size[0] / size[1]) - self.target) for size in whole}
        return min(whole, key=lambda size: (miss[size], -size[0]))
