"""Hermes' dual binary search: chunks of data so large that all workers take about as long."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from math import ceil
from typing import Any, Literal, NamedTuple

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Orders, Push, Report, Status, Stragglers, Tell, parameter
from psbench.core.needs import Need

SOURCE = "Hermes IV-A"
#: batches that are tried, in order
BATCHES = (2, 4, 8, 16, 32, 64, 128, 256)
#: a worker holds the chunk that it trains on and, prefetching, the next
CHUNKS_HELD = 2
#: seconds by which the code's search may miss its target
_SLACK_S = 1.0
#: equal workers' times differ in their last digits, since sums are taken in different orders
_ROUNDING = 1e-9


class Size(NamedTuple):
    """A chunk: its number of samples (DSS), and its batch size (MBS)."""

    samples: int
    batch_size: int


class DualBinarySearch(Stragglers):
    """Resize a worker's data chunk to take the median time if the worker's time is an outlier.

    A worker computes several passes over a chunk in time t. If t is outside of the box plot's fences
    [Q1 - 1.5 IQR, Q3 + 1.5 IQR] of all workers' last times, t = K passes samples / batch (eq. 3) is solved
    for its K, and searched for the samples and the batch that take the median time.

    Parameters
    ----------
    chunk_samples, chunk_batch : int, samples
        DSS and MBS at the beginning; the former at most a worker's share of the training set, N, and what the
        worker with the least memory can hold.
    max_samples : int, samples, >= 0
        N: the largest chunk of any worker; 0 is the training set.
    mode : "search" or "code"
        search: the most samples that take no longer than the median; the batch changes only if no number of
        samples does. code: what the published code comes to, the fewest samples within a second of it.

    Notes
    -----
    Reduces to: equal chunks for all while no time is out of line.
    Our reading: nothing is out of line before every worker has a time; a time on a fence is not. K is the
    time of a step, so a chunk has ceil(passes samples / batch) steps: batches continue from one pass to the
    next. The batch is kept if 1 <= samples < N for it, else the nearest of 2, 4, ... 256 for which that holds
    is taken, and if none is, the one that comes closest in time, then the one with more samples. A chunk may
    have fewer samples than a batch: by eq. (3) samples >= batch means target >= K passes, whatever the batch,
    so where a batch does not fit in the time, none does. Where not even one step fits, the chunk is as many
    samples as one step passes over. In "code" a target below a second, which makes an empty chunk there,
    makes one of a single sample.
    Memory: N of a worker is at most what its machine's memory holds beside the model, its gradient and the
    optimizer's state (`ClusterView.capacity`). Half of that is for the chunk being trained on, the other half
    for the one that travels meanwhile (prefetching).

    Examples
    --------
    >>> search(step_s=0.00768, passes=5, target_s=2.2, most=2500, batch_size=16)
    Size(samples=916, batch_size=16)
    """

    name = "dual_binary_search"
    source = SOURCE
    reads = ("compute_s",)
    varies_batch = True
    smallest_batch = BATCHES[0]
    sizes_chunks = True
    needs = (
        Need(
            "communication",
            lambda m: m.chunks,
            "{part} sets the sizes of data chunks, but {other} does not use chunks",
        ),
    )

    chunk_samples: int = parameter(
        2500, "initial number of samples in a chunk", unit="samples", source="Hermes, Fig. 12", ge=1
    )
    chunk_batch: Literal[2, 4, 8, 16, 32, 64, 128, 256] = parameter(
        16, "initial batch size", unit="samples", source="Hermes, Fig. 12"
    )
    passes: int = parameter(
        5, "passes over a chunk", unit="passes", source="Hermes' code; the paper is silent", ge=1, le=1000
    )
    max_samples: int = parameter(
        0, "largest chunk, if memory permits; 0: the training set", unit="samples", source=SOURCE, ge=0
    )
    fences: Literal["all", "others", "none"] = parameter(
        "all",
        "workers whose times set the outlier limits: all workers, or all others; none: sizes never change",
        source="our reading",
    )
    freeze_median: bool = parameter(False, "keep the first median as the target", source="our reading")
    mode: Literal["search", "code"] = parameter(
        "search", "search as in the paper, or compute the result of the paper's code", source="our reading"
    )

    _times: dict[str, float] = PrivateAttr(default_factory=dict)  # of each worker's last chunk, seconds
    _told: dict[str, list[float]] = PrivateAttr(default_factory=dict)  # seconds and steps since its last push
    _sizes: dict[str, list[int]] = PrivateAttr(default_factory=dict)  # last ordered, where not as at first
    _median: float = PrivateAttr(0.0)
    #: the times of the members, by worker and in order, for one membership of the run
    _ranks: dict[str, float] = PrivateAttr(default_factory=dict)
    _ranked: list[float] = PrivateAttr(default_factory=list)
    _membership: int = PrivateAttr(-1)
    _first: int = PrivateAttr(0)  # samples of a first chunk; 0: not computed yet

    def on_report(self, report: Report, view: ClusterView) -> list[Action]:
        """Record a chunk's time; order another chunk size if it changes."""
        key, before = str(report.worker), self._told.get(str(report.worker), [0.0, 0.0])
        seconds, steps = report.stats["compute_s"] - before[0], report.stats["chunk_steps"]
        if seconds <= 0:
            return []  # the same report once more, as a network may repeat it
        self._told[key] = [report.stats["compute_s"], before[1] + steps]
        if not self._resize(report.worker, seconds, steps, view):
            return []
        return [Tell(report.worker, self._orders(report.worker, view))]

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Record the time of a push's last chunk; the answer orders the size of the next."""
        assert push.stats is not None  # the backend sends what `reads` declares
        seconds, steps = self._told.pop(str(push.worker), [0.0, 0.0])
        self._resize(push.worker, push.stats["compute_s"] - seconds, push.steps - steps, view)
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the size of the next chunks."""
        # its push reported the rest, or it was cancelled and counts from zero
        self._told.pop(str(worker), None)
        if view.workers[worker].status == Status.NEW:
            self._times.pop(str(worker), None)
            self._sizes.pop(str(worker), None)
            self._membership = -1
        return self._orders(worker, view)

    def _orders(self, worker: int, view: ClusterView) -> Orders:
        return self._size(worker, view)._asdict() | {"passes": self.passes}

    def _most(self, held: int | None, view: ClusterView) -> int:
        """Return the largest chunk for a memory that holds so many samples; None: not known."""
        most = self.max_samples or view.dataset_size
        return most if held is None else min(most, max(1, held // CHUNKS_HELD))

    def _size(self, worker: int, view: ClusterView) -> Size:
        if ordered := self._sizes.get(str(worker)):
            return Size(*ordered)
        if not self._first:
            share = max(1, view.dataset_size // view.num_workers)
            self._first = min(self.chunk_samples, share, self._most(min(view.capacity, default=None), view))
        return Size(self._first, self.chunk_batch)

    def _resize(self, worker: int, seconds: float, steps: float, view: ClusterView) -> bool:
        """Record the time of a chunk, and return whether it changes the size of the next."""
        self._times[str(worker)] = seconds
        target = self._target(worker, seconds, view)
        if target is None:
            return False
        held = view.capacity[worker] if view.capacity else None
        before, most = self._size(worker, view), self._most(held, view)
        find = search if self.mode == "search" else search_of_the_code
        size = find(seconds / steps, self.passes, target, most, before.batch_size)
        self._sizes[str(worker)] = list(size)
        return size != before

    def _target(self, worker: int, seconds: float, view: ClusterView) -> float | None:
        """Return the median time if the worker's time is an outlier."""
        if self.fences == "none":
            return None
        self._rank(str(worker), seconds, view)
        ranked = self._ranked
        if len(ranked) < view.num_active:
            return None
        if not (self.freeze_median and self._median):
            self._median = (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2
        if self.fences == "others":
            place = bisect_left(ranked, seconds)
            ranked = ranked[:place] + ranked[place + 1 :]
        if not ranked:
            return None
        low, high = fences(ranked)
        slack = _ROUNDING * seconds
        return None if low - slack <= seconds <= high + slack else self._median

    def _rank(self, key: str, seconds: float, view: ClusterView) -> None:
        """Put a worker's time in its place, without a look at all others while the members are the same."""
        if self._membership == view.membership:
            if (before := self._ranks.get(key)) is not None:
                del self._ranked[bisect_left(self._ranked, before)]
            self._ranks[key] = seconds
            insort(self._ranked, seconds)
        else:
            self._ranks = {key: self._times[key] for key in map(str, view.active) if key in self._times}
            self._ranked, self._membership = sorted(self._ranks.values()), view.membership

    def state_dict(self) -> dict[str, Any]:
        """Return the times and sizes, from which the rest follows."""
        state = super().state_dict()
        return {name: state[name] for name in ("_times", "_told", "_sizes", "_median")}


def fences(ranked: list[float]) -> tuple[float, float]:
    """Return the fences of a box plot, quartiles interpolated linearly; the times are in order.

    Examples
    --------
    >>> fences([1.0, 2.0, 3.0, 4.0, 5.0])
    (-1.0, 7.0)
    """
    first, third = _quantile(ranked, 0.25), _quantile(ranked, 0.75)
    return first - 1.5 * (third - first), third + 1.5 * (third - first)


def _quantile(ranked: list[float], share: float) -> float:
    """Return a quantile of numbers in order, rounded as numpy rounds it, which looks at all."""
    place = share * (len(ranked) - 1)
    low, high = ranked[int(place)], ranked[min(int(place) + 1, len(ranked) - 1)]
    part = place - int(place)
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def search(step_s: float, passes: int, target_s: float, most: int, batch_size: int) -> Size:
    """Return the chunk for which `passes` passes take about the target time (eq. 3).

    Parameters
    ----------
    step_s : float, seconds
        K: the time of a step, taken to be that of any batch.
    passes, most : int
        E, and the largest chunk.
    target_s : float, seconds
    batch_size : int
        The present one, which is kept if it can be.

    Examples
    --------
    >>> search(step_s=1.0, passes=5, target_s=2.0, most=1000, batch_size=16)
    Size(samples=6, batch_size=16)
    """

    def samples(batch: int) -> int:
        """Return the most samples that take no longer than the target; 0 if even one takes longer."""
        return bisect_right(range(1, most + 1), target_s, key=lambda n: step_s * passes * n / batch)

    found = samples(batch_size)
    if not 0 < found < most:
        nearest = _nearest_batch(samples, most, below=found == 0)
        return nearest or _closest(samples, step_s, passes, target_s, most)
    return Size(found, batch_size)


def _nearest_batch(samples: Callable[[int], int], most: int, below: bool) -> Size | None:
    """Return the nearest batch with 1 <= samples < most, if there is one.

    A larger batch lets more samples pass in the same time.
    """
    place = bisect_left(BATCHES, 1, key=samples) if below else bisect_left(BATCHES, most, key=samples) - 1
    found = 0 <= place < len(BATCHES) and 0 < samples(BATCHES[place]) < most
    return Size(samples(BATCHES[place]), BATCHES[place]) if found else None


def _closest(samples: Callable[[int], int], step_s: float, passes: int, target_s: float, most: int) -> Size:
    """Return the feasible size whose time is closest to the target, even if none meets it.

    A chunk takes at least a step, and as many samples as that passes over take no longer than one.
    """
    found = [Size(min(max(1, batch // passes, samples(batch)), most), batch) for batch in BATCHES]

    def miss_s(size: Size) -> float:
        return abs(step_s * ceil(passes * size.samples / size.batch_size) - target_s)

    return min(found, key=lambda size: (miss_s(size), -size.samples))


def search_of_the_code(step_s: float, passes: int, target_s: float, most: int, batch_size: int) -> Size:
    """Return the smallest chunk that takes at least a second less than the target; the batch is kept.

    The published code goes through all numbers of samples and takes the first whose time is within a second.
    Batches are tried in the wrong direction, so that none but the present one ever fits.
    """
    least = (target_s - _SLACK_S) * (1.0 - _ROUNDING)
    found = bisect_left(range(1, most + 1), least, key=lambda n: step_s * passes * n / batch_size)
    return Size(min(found + 1, most), batch_size)
