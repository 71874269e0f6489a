"""Switch while a worker is slow: the online policies of Sync-Switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Literal

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Drop, Readmit, Switching, SwitchTo, parameter
from psbench.core.events import Evaluated, Push, SwitchRequested
from psbench.strategies.switching.once import without_epochs

SOURCE = "Sync-Switch, ICDCS 2021 (online policies)"


class OnStragglers(Switching):
    """Use the first strategy for its share of the epochs, except while a worker is slow.

    A worker whose throughput is below the cluster's mean less its standard deviation for `patience` windows
    in a row is a straggler, until it has not been for as many. The policy says what follows under the first
    strategy. *greedy*: change to the second, and come back when no worker is a straggler. *elastic*: go on
    without the stragglers, and take them back for the second. Once the first strategy has had its share of
    the epochs, the second runs to the end.

    Parameters
    ----------
    seconds : "compute" or "compute_and_send"
        What throughput counts: the time a worker computes, or also the time its pushes travel. Travelling
        includes the queue at the servers, which under a barrier is always longest for the same worker.

    Notes
    -----
    Reduces to: `after` with `whole_epochs` off while none is a straggler, as with workers equally fast or
    with two of them, of whom neither is ever below.
    Our reading: throughput is a worker's samples over its own seconds, because under a barrier all push
    equally often; the cluster includes those dropped, as they last were, or else dropping the slowest would
    make a straggler of the next; the last worker is kept; the number of windows is our choice.

    Examples
    --------
    >>> sorted(below({"0": 1.0, "1": 1.0, "2": 1.0, "3": 0.5})), below({"0": 1.0, "1": 1.0})
    (['3'], set())
    """

    name = "stragglers"
    source = SOURCE
    needs_epochs = True
    reads = ("compute_s", "send_s")

    fraction: float = parameter(
        0.0625, "share of the epochs under the first strategy", source="Sync-Switch, ICDCS 2021", ge=0, le=1
    )
    policy: Literal["greedy", "elastic"] = parameter(
        "greedy", "use the second strategy meanwhile, or continue without the stragglers", source=SOURCE
    )
    window: int = parameter(5, "pushes of every worker in a window", unit="steps", ge=1)
    patience: int = parameter(3, "consecutive windows that mark or clear a straggler", unit="windows", ge=1)
    seconds: Literal["compute", "compute_and_send"] = parameter(
        "compute", "time in a worker's throughput: computation only, or also sending"
    )

    _over: bool = PrivateAttr(default=False)  # the second strategy stays
    _spent: int = PrivateAttr(default=0)  # samples under the first strategy
    _seen: int = PrivateAttr(default=0)  # samples at the last version
    _composition: int = PrivateAttr(default=0)  # under which the window began
    # pushes, samples and seconds in the window, by worker
    _work: dict[str, list[float]] = PrivateAttr(default_factory=dict)
    _ready: int = PrivateAttr(default=0)  # workers who have pushed often enough
    _speeds: dict[str, float] = PrivateAttr(default_factory=dict)  # of the last window, samples/s
    _streaks: dict[str, int] = PrivateAttr(default_factory=dict)  # windows that contradict `_slow`
    _slow: list[str] = PrivateAttr(default_factory=list)

    @property
    def drops(self) -> bool:  # pyrefly: ignore[bad-override]
        """Return True if the run continues without stragglers."""
        return self.policy == "elastic"

    def start(self, view: ClusterView) -> list[Action]:
        """Switch at once if the first strategy gets no share."""
        if view.epochs is None:
            raise without_epochs(self.name)
        return self._once_spent(view)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Record the worker's samples and seconds."""
        assert push.stats is not None  # the backend sends what `reads` declares
        seconds = push.stats["compute_s"]
        if self.seconds == "compute_and_send":
            seconds += push.stats["send_s"]
        work = self._work.setdefault(str(push.worker), [0, 0, 0.0])
        work[0] += 1
        work[1] += push.samples
        work[2] += seconds
        self._ready += work[0] == self.window
        return []

    def on_applied(self, view: ClusterView) -> list[Action]:
        """Switch for good when the share is spent; look at the workers when a window is over."""
        self._count(view)
        if self._over:
            return []
        return self._once_spent(view) or self._look(view)

    def on_switch_requested(self, event: SwitchRequested, view: ClusterView) -> list[Action]:
        """Switch with all workers; the rule never switches by itself after that."""
        self._over = True
        return super().on_switch_requested(event, view) + self._take_back(view)

    def why_not(self, evaluations: Sequence[Evaluated], trained: float, planned: float | None) -> str:
        """Return that the first strategy's share was not reached, and that no worker was a straggler."""
        share = self.fraction * (planned or 0.0)
        if trained >= share or self.fraction == 1:
            return ""
        end = f"the run ended after {trained:.4g} epochs, before the first strategy had had {share:.4g}"
        return f"no worker was a straggler, and {end}" if self.policy == "greedy" else end

    # ---------------------------------------------------------------- the share

    def _count(self, view: ClusterView) -> None:
        if view.composition == 0:
            self._spent += view.samples - self._seen
        self._seen = view.samples
        if view.composition != self._composition:
            self._composition = view.composition
            self._begin_window()
            self._streaks = {}

    def _once_spent(self, view: ClusterView) -> list[Action]:
        # a run's end comes before the switch that would be due with it
        quota = self.fraction * (view.epochs or 0.0) * view.dataset_size
        if view.composition or self.fraction == 1 or self._spent < quota * (1 - 1e-9):
            return []
        self._over = True
        return [SwitchTo(1, f"after {100 * self.fraction:.4g}% of the epochs"), *self._take_back(view)]

    def _take_back(self, view: ClusterView) -> list[Action]:
        return [Readmit(int(worker)) for worker in self._slow if view.workers[int(worker)].dropped]

    # ---------------------------------------------------------------- stragglers

    def _look(self, view: ClusterView) -> list[Action]:
        here = [str(worker) for worker in view.active] if self._ready >= view.num_active else []
        if not here or any(self._work.get(worker, [0])[0] < self.window for worker in here):
            return []
        self._close_window(here, view)
        return self._follow(view)

    def _close_window(self, here: list[str], view: ClusterView) -> None:
        dropped = {w: speed for w, speed in self._speeds.items() if view.workers[int(w)].dropped}
        now = {w: samples / s for w in here for _, samples, s in [self._work[w]] if s > 0}
        self._speeds = dropped | now
        self._begin_window()
        low = below(self._speeds)
        slow = [w for w in self._slow if w in self._speeds]
        changed = {w: self._streaks.get(w, 0) + 1 for w in now if (w in low) != (w in slow)}
        settled = {w for w, streak in changed.items() if streak >= self.patience}
        self._streaks = {w: streak for w, streak in changed.items() if w not in settled}
        self._slow = [w for w in self._speeds if (w in slow) != (w in settled)]

    def _begin_window(self) -> None:
        self._work, self._ready = {}, 0

    def _follow(self, view: ClusterView) -> list[Action]:
        if self.policy == "greedy":
            if view.composition == 0 and self._slow:
                return [SwitchTo(1, self._why(self._slow[0]))]
            return [SwitchTo(0, "no worker is a straggler any more")] if not self._slow else []
        if view.composition:
            return []
        out = [w for w in self._slow if not view.workers[int(w)].dropped]
        return [Drop(int(w), self._why(w)) for w in out]

    def _why(self, worker: str) -> str:
        speeds = self._speeds
        return f"worker {worker} computes {speeds[worker]:.4g} samples/s, below {line(speeds):.4g}"


def line(speeds: Mapping[str, float]) -> float:
    """Return the mean speed minus the (population) standard deviation."""
    return fmean(speeds.values()) - pstdev(speeds.values())


def below(speeds: Mapping[str, float]) -> set[str]:
    """Return the workers below the line; none if all are equally fast, or if there are two."""
    # with equal speeds, and with two, the slowest is on the line: rounding must not push it below
    least = line(speeds) * (1 - 1e-9) if speeds else 0.0
    return {worker for worker, speed in speeds.items() if speed < least}
