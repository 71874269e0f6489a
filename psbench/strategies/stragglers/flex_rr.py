"""FlexRR's rapid reassignment: a worker that lags hands part of its batch to one that is ahead."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Orders, Push, Report, Stragglers, Tell, parameter
from psbench.core.needs import NEEDS_BARRIER_TO_RECUT, Need

SOURCE = "Harlap et al. 2016, FlexRR; thesis 3.2.5"


class FlexRR(Stragglers):
    """Move samples from the worker with the least progress to the worker with the most progress.

    At every report the two are compared. If their progress, done over quota, differs by more than
    `threshold`, the slower's quota is cut and the faster's raised by as much, so that at their speeds until
    now they finish together.

    Notes
    -----
    Reduces to: BSP (to rounding) when no worker lags by the threshold.
    The samples of a barrier sum to the global batch, and each gradient counts by its samples (aggregation
    `mean`), so an update is that of a whole batch. Which samples those are does change: a
    helper takes more of its own shard, since data is not moved. Samples that were moved to a worker that
    leaves are lost with it.
    Our reading: the paper's workers compare progress among themselves and begin with a small share of the
    work (2.5 %, then more); here the server compares, and what is moved is what evens out. A worker between
    two reports is taken to be halfway through its piece. Orders never change a piece that may have begun, so
    that they come in time if a message takes less than a micro-step. Those that come later do no harm:
    samples that their worker leaves out are ordered from another, as long as one is under way; if none is,
    the barrier has a few samples less, with the right weights. Under other consistency than a barrier
    progress cannot be compared like this.

    Examples
    --------
    >>> moved(fast=(50, 100), slow=(25, 100))
    33
    """

    name = "flex_rr"
    source = SOURCE
    needs = (
        NEEDS_BARRIER_TO_RECUT,
        Need(
            "communication",
            lambda m: m.reports_progress,
            "{part} uses the workers' progress within a batch, which {other} does not report",
        ),
    )
    varies_batch = True

    threshold: float = parameter(
        0.2,
        "smallest difference in progress that moves work, as a share of the batch",
        source=SOURCE,
        gt=0,
        le=1,
    )

    _quotas: dict[str, int] = PrivateAttr(default_factory=dict)  # samples to do in this round, by worker
    _done: dict[str, float] = PrivateAttr(default_factory=dict)  # samples done, as of the last report
    _pieces: dict[str, float] = PrivateAttr(default_factory=dict)  # samples of a micro-step

    #: progress of each computing worker, between two reports; the same in order, and of those with work left
    _progress: dict[int, tuple[float, bool]] = PrivateAttr(default_factory=dict)
    _by_progress: list[tuple[float, int]] = PrivateAttr(default_factory=list)
    _with_work: list[tuple[float, int]] = PrivateAttr(default_factory=list)
    #: ranked workers whose pieces are not known yet, and are taken to be as large as the largest
    _guessed: set[int] = PrivateAttr(default_factory=set)
    _largest: float | None = PrivateAttr(None)  # None: not looked for yet
    _membership: int = PrivateAttr(-1)  # for which the workers were ranked

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Record the start of a worker's round, with its whole batch."""
        key = str(worker)
        self._quotas[key] = view.workers[worker].batch_size
        self._done[key] = 0.0
        self._rank(worker)
        return {}

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Compensate for late orders: another worker processes the missing samples."""
        key = str(push.worker)
        missing = self._quotas[key] - push.samples
        self._quotas[key] = push.samples
        self._unrank(push.worker)
        others = view.computing if missing else []
        if not others:
            return []
        least_far = max(others, key=lambda w: (self._unbegun(w), -w))
        # samples done twice are taken off another's quota, as far as it has not begun them
        missing = max(missing, -max(0, self._unbegun(least_far)))
        self._quotas[str(least_far)] += missing
        self._rank(least_far)
        return [self._tell(least_far, view)] if missing else []

    def on_report(self, report: Report, view: ClusterView) -> list[Action]:
        """Record the worker's progress, and move work if another worker is far behind or ahead."""
        key, reporter = str(report.worker), report.worker
        self._done[key] = report.stats["done"]
        self._set_piece(key, report.stats["piece"])
        if self._membership == view.membership:
            self._rank(reporter)
        else:
            self._rank_all(view)
        own = self._at(reporter, reporter) / self._quotas[key]
        behind = [each for each in self._by_progress[:2] if each[1] != reporter]
        slow = min([(own, reporter), *behind])
        with_work = [(share, -place) for share, place in self._with_work[-3:] if -place != reporter]
        with_work += [(own, reporter)] if self._unbegun(reporter) > 0 else []
        ahead = [(share, -worker) for share, worker in with_work if worker != slow[1]]
        if not ahead:
            return []
        fast, slowest = -max(ahead)[1], slow[1]
        at = {worker: self._at(worker, reporter) for worker in (fast, slowest)}
        return self._move(fast, slowest, at, view)

    def _at(self, worker: int, reporter: int) -> float:
        """Return an estimate of the samples that a worker has finished, at the report of one."""
        key = str(worker)
        halfway = 0.0 if worker == reporter else self._piece(key) / 2
        return min(self._done[key] + halfway, self._quotas[key])

    def _rank_all(self, view: ClusterView) -> None:
        """Rank the computing workers, as others are active or their pieces may be of any size."""
        self._progress, self._by_progress, self._with_work = {}, [], []
        self._guessed, self._largest, self._membership = set(), None, view.membership
        for worker in view.computing:
            self._rank(worker)

    def _rank(self, worker: int) -> None:
        """Rank a worker by its progress, as another reports."""
        self._unrank(worker)
        key, has_work = str(worker), self._unbegun(worker) > 0
        share = self._at(worker, reporter=-1) / self._quotas[key]
        self._progress[worker] = share, has_work
        insort(self._by_progress, (share, worker))
        if has_work:
            insort(self._with_work, (share, -worker))
        if not self._pieces.get(key):
            self._guessed.add(worker)

    def _unrank(self, worker: int) -> None:
        if worker not in self._progress:
            return
        self._guessed.discard(worker)
        share, has_work = self._progress.pop(worker)
        del self._by_progress[bisect_left(self._by_progress, (share, worker))]
        if has_work:
            del self._with_work[bisect_left(self._with_work, (share, -worker))]

    def _move(self, fast: int, slow: int, at: dict[int, float], view: ClusterView) -> list[Action]:
        quotas, ours, theirs = self._quotas, str(fast), str(slow)
        if at[fast] / quotas[ours] - at[slow] / quotas[theirs] <= self.threshold:
            return []
        even = moved((at[fast], quotas[ours]), (at[slow], quotas[theirs]))
        samples = min(even, self._unbegun(slow))
        if samples < 1:
            return []
        quotas[theirs] -= samples
        quotas[ours] += samples
        self._rank(slow)
        self._rank(fast)
        return [self._tell(slow, view), self._tell(fast, view)]

    def state_dict(self) -> dict[str, Any]:
        """Return quotas and progress, from which the order follows."""
        names = "_quotas", "_done", "_pieces"
        return {name: {**getattr(self, name)} for name in names}

    def _tell(self, worker: int, view: ClusterView) -> Tell:
        orders = {"round": view.workers[worker].base_version, "quota": self._quotas[str(worker)]}
        return Tell(worker, orders)

    def _unbegun(self, worker: int) -> int:
        """Return the samples that a worker cannot have begun before it reads orders sent now."""
        key = str(worker)
        return int(self._quotas[key] - self._done[key] - 2 * self._piece(key))

    def _piece(self, key: str) -> float:
        """Return the samples of a worker's micro-step; before its first report as large as the largest."""
        if known := self._pieces.get(key):
            return known
        if self._largest is None:
            self._largest = max(self._pieces.values(), default=1.0)
        return self._largest

    def _set_piece(self, key: str, piece: float) -> None:
        """Set the samples of a worker's micro-step; if the largest changes, rank the guessed ones again."""
        before, self._pieces[key] = self._pieces.get(key), piece
        is_first = len(self._pieces) == 1
        if self._largest is None or piece == before:
            return
        if piece <= self._largest != before and not is_first:
            return
        self._largest = None
        for worker in sorted(self._guessed):
            self._rank(worker)


def moved(fast: tuple[float, float], slow: tuple[float, float]) -> int:
    """Return the number of samples to move so that two workers' progress is equal.

    Parameters
    ----------
    fast, slow : (float, float), samples
        What each has done, and its quota.

    Returns
    -------
    int
        x such that fast / (its quota + x) = slow / (its quota - x), rounded; what the slow one has left, if
        it has done nothing.
    """
    done = fast[0] + slow[0]
    return round((fast[0] * slow[1] - slow[0] * fast[1]) / done) if done else 0
