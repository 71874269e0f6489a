"""Dropping stragglers: drop a worker that is much slower than the others."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

from pydantic import PrivateAttr

from psbench.core import ClusterView, Push, Status, Stragglers, parameter
from psbench.core.actions import Action, Drop, Orders, Readmit, SetTimer
from psbench.core.rounding import floor

SOURCE = "Zhang et al. 2017 (Poseidon); thesis 3.2.5"
_KEY = "readmit "  # what the timers' keys begin with


class DropStragglers(Stragglers):
    """Drop a worker whose steps take much longer than the median worker's, for several pushes in a row.

    Notes
    -----
    Reduces to: equal work for all when no worker is slow, or `most` permits none.
    The work of the others is not increased: with a barrier an update is the mean over fewer samples, and the
    shard of a worker that is dropped for good is not trained on.
    Our reading: the source says only that stragglers are dropped; what makes one, and that a share of the
    workers always stays, are our rule. A step's time is its seconds of computing. The push by which a worker
    is found too slow still counts.
    The sources give no values.

    Examples
    --------
    >>> DropStragglers(most=0.25).allowed(8)
    2
    """

    name = "drop_stragglers"
    source = SOURCE
    reads = ("compute_s",)
    drops = True

    factor: float = parameter(
        2.0, "largest step time of a worker, in median step times", source="our choice", gt=1
    )
    window: int = parameter(
        5, "pushes over which a worker's step time is averaged", unit="pushes", ge=1, le=10_000
    )
    patience: int = parameter(3, "consecutive slow pushes before a worker is dropped", unit="pushes", ge=1)
    most: float = parameter(0.25, "largest share of the workers that may be dropped at a time", ge=0, le=1)
    readmit_after_s: float = parameter(
        0.0, "time after which a dropped worker is readmitted; 0: never", unit="s", ge=0, le=1e9
    )

    _times: dict[str, list[float]] = PrivateAttr(default_factory=dict)  # last step times by worker, seconds
    _slow: dict[str, int] = PrivateAttr(default_factory=dict)  # pushes in a row at which a worker was slow
    #: mean times of the members, by worker and in order, for one membership of the run
    _means: dict[str, float] = PrivateAttr(default_factory=dict)
    _ranked: list[float] = PrivateAttr(default_factory=list)
    _membership: int = PrivateAttr(-1)

    def allowed(self, num_workers: int) -> int:
        """Return the maximum number of workers dropped at a time."""
        return min(floor(self.most * num_workers), num_workers - 1)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Record the worker's step time, and drop the worker if it was too long too often."""
        assert push.stats is not None  # the backend sends what `reads` declares
        key = str(push.worker)
        times = self._times.setdefault(key, [])
        times.append(push.stats["compute_s"] / push.steps)
        del times[: -self.window]
        self._slow[key] = self._slow.get(key, 0) + 1 if self._is_slow(key, view) else 0
        if self._slow[key] < self.patience or not self._may_drop(view):
            return []
        return self._drop(push.worker, view)

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Forget the times from before a worker left."""
        if view.workers[worker].status == Status.NEW:
            self._forget(worker)
        return {}

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """Readmit a worker."""
        return [Readmit(int(key.removeprefix(_KEY)))] if key.startswith(_KEY) else []

    def _is_slow(self, key: str, view: ClusterView) -> bool:
        own = self._times[key]
        mean = sum(own) / len(own)
        if self._membership == view.membership:
            if (before := self._means.get(key)) is not None:
                del self._ranked[bisect_left(self._ranked, before)]
            self._means[key] = mean
            insort(self._ranked, mean)
        else:
            self._rank_all(view)
        middle = len(self._ranked) // 2
        median = (self._ranked[middle] + self._ranked[-1 - middle]) / 2
        return len(own) == self.window and mean > self.factor * median

    def _rank_all(self, view: ClusterView) -> None:
        times = {key: own for key in map(str, view.active) if (own := self._times.get(key))}
        self._means = {key: sum(own) / len(own) for key, own in times.items()}
        self._ranked, self._membership = sorted(self._means.values()), view.membership

    def _may_drop(self, view: ClusterView) -> bool:
        dropped = sum(worker.dropped for worker in view.workers.values())
        return dropped < self.allowed(view.num_workers) and view.num_active > 1

    def _drop(self, worker: int, view: ClusterView) -> list[Action]:
        self._forget(worker)
        back = [SetTimer(view.now + self.readmit_after_s, f"{_KEY}{worker}")] if self.readmit_after_s else []
        return [Drop(worker, f"over {self.factor:g} times the median step time"), *back]

    def _forget(self, worker: int) -> None:
        self._times.pop(str(worker), None)
        self._slow.pop(str(worker), None)
        self._membership = -1

    def state_dict(self) -> dict[str, Any]:
        """Return the times, from which the means follow."""
        return {
            "_times": {key: [*own] for key, own in self._times.items()},
            "_slow": {**self._slow},
        }
