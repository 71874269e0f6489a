"""Changes of the composition, as in the sources."""

from __future__ import annotations

import math
from statistics import fmean, pstdev
from typing import Any

from psbench.core import Drop, Evaluated, Note, Push, Readmit, SwitchRequested, SwitchTo
from psbench_fuzz.model.rule import Decisions, Rule, rule
from psbench_fuzz.model.view import ModelCluster


@rule("switching", "manual", "at_time")
class _Manual(Rule):
    """Switch when the user asks; to the next composition, unless it is named."""

    done = False  # whether the rule itself has had its switch, or the user took it over

    def on_switch_requested(self, event: SwitchRequested, c: ModelCluster) -> Decisions:
        self.done = True
        return [SwitchTo(1 - c.composition if event.to is None else event.to, "asked by hand")]


@rule("switching", "after")
class _After(_Manual):
    """After alpha % of the epochs, rounded to the nearest whole one, or to the sample."""

    def start(self, c: ModelCluster) -> Decisions:
        """Switch before the first step, if the first strategy gets no share."""
        return self.on_applied(c)

    def on_applied(self, c: ModelCluster) -> Decisions:
        assert c.epochs is not None
        share = self.own.fraction * c.epochs
        if self.own.whole_epochs and c.epochs >= 2:
            share = math.floor(round(share + 0.5, 8))
        if self.done or share >= c.epochs or c.samples < share * c.dataset_size - 1e-6:
            return []
        self.done = True
        return [SwitchTo(1, f"after {100 * self.own.fraction:.4g}% of the epochs")]


class _OfLosses(_Manual):
    """Base of rules on losses: one loss per epoch, the first at or after its end."""

    fewest = 2

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.losses: list[tuple[int, float]] = []  # epochs that had ended, loss

    def on_evaluated(self, event: Evaluated, c: ModelCluster) -> Decisions:
        ended = math.floor(event.values["epoch"] + 1e-9)
        if ended <= max((epoch for epoch, _ in self.losses), default=0):
            return []
        self.losses.append((ended, event.values["val_loss"]))
        window = self.own.window
        starts = [
            start
            for start in range(len(self.losses))
            if ended - self.losses[start][0] >= window and len(self.losses) - start >= self.fewest
        ]
        if not starts or self.done:
            return []
        used = self.losses[starts[-1] :]
        value, threshold, settled, reason = self.judge([loss for _, loss in used], ended - used[0][0])
        note = Note(f"rule {self.own.name} value={value:.6g} threshold={threshold:.6g} epoch={ended}")
        if not settled:
            return [note]
        self.done = True
        return [note, SwitchTo(1, reason)]

    def judge(self, losses: list[float], epochs: int) -> tuple[float, float, bool, str]:
        """Return the value, its threshold, whether to switch, and the reason."""
        raise NotImplementedError


@rule("switching", "empirical")
class _Empirical(_OfLosses):
    """Switch when s = mean over epochs of abs(v_k - v_(k-1)) / v_(k-1) < threshold."""

    def judge(self, losses: list[float], epochs: int) -> tuple[float, float, bool, str]:
        s = sum(abs(losses[i] - losses[i - 1]) / losses[i - 1] for i in range(1, len(losses))) / epochs
        least = self.own.threshold
        return s, least, s < least, f"loss changed by {s:.2%} an epoch, below {least:.2%}"


@rule("switching", "noise_adaptive")
class _NoiseAdaptive(_OfLosses):
    """Our design: switch when noise of the losses explains their net change an epoch."""

    fewest = 4

    def judge(self, losses: list[float], epochs: int) -> tuple[float, float, bool, str]:
        d = [(losses[i] - losses[i - 1]) / losses[i - 1] for i in range(1, len(losses))]
        sigma = math.sqrt(fmean((d[i + 1] - d[i]) ** 2 for i in range(len(d) - 1)) / 6)
        net, noise = abs(sum(d)) / epochs, self.own.factor * math.sqrt(2) * sigma / epochs
        why = f"loss changed by {net:.2%} an epoch, of which noise explains {noise:.2%}"
        return net, noise, net <= noise, why


@rule("switching", "stragglers")
class _OnStragglers(_Manual):
    """Sync-Switch, greedy or elastic, while a worker's throughput is below the line."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.spent = self.seen = self.composition = 0
        self.window: list[tuple[int, int, float]] = []  # worker, samples, seconds of each push
        self.speeds: dict[int, float] = {}
        self.streaks: dict[int, int] = {}
        self.slow: list[int] = []

    def start(self, c: ModelCluster) -> Decisions:
        return self._for_good(c)

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        assert push.stats is not None
        seconds = push.stats["compute_s"]
        seconds += push.stats["send_s"] if self.own.seconds == "compute_and_send" else 0.0
        self.window.append((push.worker, push.samples, seconds))
        return []

    def on_applied(self, c: ModelCluster) -> Decisions:
        """Count the first strategy's samples; look at the workers when each has pushed often enough."""
        self.spent += c.samples - self.seen if c.composition == 0 else 0
        self.seen = c.samples
        if c.composition != self.composition:
            self.composition, self.window, self.streaks = c.composition, [], {}
        if self.done:
            return []
        return self._for_good(c) or self._look(c)

    def on_switch_requested(self, event: SwitchRequested, c: ModelCluster) -> Decisions:
        return super().on_switch_requested(event, c) + self._back(c)

    def _for_good(self, c: ModelCluster) -> Decisions:
        assert c.epochs is not None
        share = self.own.fraction * c.epochs * c.dataset_size
        if c.composition != 0 or self.own.fraction >= 1 or self.spent < share - 1e-6:
            return []
        self.done = True
        return [SwitchTo(1, f"after {100 * self.own.fraction:.4g}% of the epochs"), *self._back(c)]

    def _back(self, c: ModelCluster) -> Decisions:
        return [Readmit(worker) for worker in self.slow if c.workers[worker].dropped]

    def _look(self, c: ModelCluster) -> Decisions:
        pushers = [worker for worker, _, _ in self.window]
        often = [worker for worker in set(pushers) if pushers.count(worker) >= self.own.window]
        if not c.active or len(often) < len(c.active) or not set(c.active) <= set(often):
            return []
        now = {}
        for worker in c.active:
            samples = sum(count for one, count, _ in self.window if one == worker)
            seconds = sum(spent for one, _, spent in self.window if one == worker)
            if seconds > 0:
                now[worker] = samples / seconds
        away = {worker: speed for worker, speed in self.speeds.items() if c.workers[worker].dropped}
        self.speeds, self.window = away | now, []
        least = fmean(self.speeds.values()) - pstdev(self.speeds.values())
        for worker in now:
            is_low = self.speeds[worker] < least * (1 - 1e-9)
            contradicts = is_low != (worker in self.slow)
            self.streaks[worker] = self.streaks.get(worker, 0) + 1 if contradicts else 0
        changes = [worker for worker in now if self.streaks[worker] >= self.own.patience]
        self.streaks = {worker: n for worker, n in self.streaks.items() if worker in now}
        for worker in changes:
            self.streaks[worker] = 0
        self.slow = [worker for worker in self.speeds if (worker in self.slow) != (worker in changes)]
        why = {
            worker: f"worker {worker} computes {self.speeds[worker]:.4g} samples/s, below {least:.4g}"
            for worker in self.slow
        }
        if self.own.policy == "elastic":
            here = [worker for worker in self.slow if not c.workers[worker].dropped]
            return [Drop(worker, why[worker]) for worker in here] if c.composition == 0 else []
        if self.slow:
            return [SwitchTo(1, why[self.slow[0]])] if c.composition == 0 else []
        return [SwitchTo(0, "no worker is a straggler any more")]
