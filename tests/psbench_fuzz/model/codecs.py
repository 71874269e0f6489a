"""Codecs whose settings change in the run: which one the next push has."""

from __future__ import annotations

from typing import Any

from psbench.core import Note, Orders, Push
from psbench_fuzz.model.rule import Decisions, Rule, rule
from psbench_fuzz.model.view import ModelCluster


class _Adaptive(Rule):
    """Settings are counted from the one of fewest bytes; workers begin with the last."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.last = len(own.settings) - 1

    def setting(self, worker: int) -> int:
        """Return the number of a worker's setting."""
        raise NotImplementedError

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        setting = self.setting(worker)
        return {} if setting == self.last else {"codec": setting}


@rule("codec", "send_share")
class _SendShare(_Adaptive):
    """The time that a push was under way would have been, with other bytes, longer in proportion."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.settings: dict[int, int] = {}

    def setting(self, worker: int) -> int:
        return self.settings.get(worker, self.last)

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        assert push.stats is not None
        entries = sum(size for _, size in c.layout)
        if not entries or push.stats["send_s"] <= 0:
            return []
        sizes = [each.num_bytes(entries) for each in self.own.settings]
        before = chosen = self.setting(push.worker)
        for chosen in range(self.last, -1, -1):
            send_s = push.stats["send_s"] * (sizes[chosen] / sizes[before])
            if send_s <= self.own.share * (send_s + push.stats["compute_s"]):
                break
        self.settings[push.worker] = chosen
        name = self.own.called(chosen)
        told = Note(f"worker {push.worker} sends with {name} from its next release on")
        return [] if chosen == before else [told]


@rule("codec", "mq_grad")
class _MQGrad(_Adaptive):
    """Every window of pushes is written down, and all is found from that list."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.heard: list[tuple[float, int]] = []  # loss and samples of the pushes of this window
        self.windows: list[tuple[float, float]] = []  # mean loss and end of each
        self.judged: list[tuple[int, float]] = []  # setting and reward of each but the first
        self.now = self.last

    def setting(self, worker: int) -> int:
        return self.now

    def on_push(self, push: Push, c: ModelCluster) -> Decisions:
        assert push.stats is not None
        self.heard.append((push.stats["loss"], push.samples))
        if len(self.heard) < self.own.window:
            return []
        total = 0.0
        for loss, samples in self.heard:
            total += samples * loss
        self.windows.append((total / sum(samples for _, samples in self.heard), c.now))
        self.heard = []
        if len(self.windows) < 2:
            return []
        (before, began), (mean, ends) = self.windows[-2:]
        if ends <= began:
            return []
        self.judged.append((self.now, (before - mean) / (ends - began)))
        last, self.now = self.now, self.next()
        if self.now == last:
            return []
        return [Note(f"workers send with {self.own.called(self.now)} from their next releases on")]

    def next(self) -> int:
        """Return the setting of the next window."""
        judged, settings = len(self.judged), self.last + 1
        if judged <= self.last:
            return self.last - judged
        if judged % self.own.explore == 0:
            turn: int = judged // self.own.explore % settings
            return turn
        means: dict[int, float] = {}
        for setting, reward in self.judged:
            known = means.get(setting, reward)
            means[setting] = known + self.own.forget * (reward - known)
        return max(sorted(means), key=lambda setting: means[setting])
