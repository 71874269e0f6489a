"""Elastic parallelism: an idle worker takes part of a straggler's batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Orders, Push, Status, Stragglers, parameter
from psbench.core.needs import NEEDS_BARRIER_TO_RECUT

SOURCE = "Zhou et al. 2019 (Falcon); thesis 3.2.5"


class ElasticParallelism(Stragglers):
    """Let the fastest workers compute part of the stragglers' batches.

    At a barrier a worker straggles if its whole batch would take `threshold` times as long as the median of
    the others' batches. The slowest straggler is helped by the fastest of the other workers, the next by the
    next, with so many samples that both end together. Without stragglers every worker has its own batch.

    Notes
    -----
    Reduces to: BSP without stragglers. The samples of a barrier sum to the global batch, and each gradient
    counts by its samples (aggregation `mean`), so an update is that of a whole batch. As under `flex_rr` a
    helper takes more of its own shard, since data is not moved.
    Our reading: Falcon was read in its abstracts only (its name for this is EPSP). Of its two means, more
    threads for the straggler and blocked tasks for "pioneers", this is the second: under virtual clusters of
    several cores a worker uses all cores of its machine. What their number means, and whether workers share
    them, is in the seconds that were measured for a sample.

    Examples
    --------
    >>> helped({0: 0.1, 1: 0.1, 2: 0.4}, {0: 20, 1: 20, 2: 20}, threshold=1.5)
    {0: 32, 1: 20, 2: 8}
    """

    name = "elastic_parallelism"
    source = SOURCE
    reads = ("compute_s",)
    needs = (NEEDS_BARRIER_TO_RECUT,)
    varies_batch = True

    threshold: float = parameter(
        1.5, "time of a straggler's batch over the median of the others'", source="our reading", gt=1
    )

    _seconds: dict[str, float] = PrivateAttr(default_factory=dict)  # of a sample, by worker
    _own: dict[str, int] = PrivateAttr(default_factory=dict)  # batches without help
    _batches: dict[str, int] = PrivateAttr(default_factory=dict)  # as of the last barrier

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Record the worker's time of a sample."""
        assert push.stats is not None  # the backend sends what `reads` declares
        self._seconds[str(push.worker)] = push.stats["compute_s"] / push.samples
        return []

    def on_applied(self, view: ClusterView) -> list[Action]:
        """Choose helpers again, as the barrier opens."""
        known = [worker for worker in view.active if str(worker) in self._seconds]
        seconds = {worker: self._seconds[str(worker)] for worker in known}
        own = {worker: self._own[str(worker)] for worker in known}
        sizes = helped(seconds, own, self.threshold)
        self._batches = {str(worker): size for worker, size in sizes.items()}
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the worker's batch size if it has changed."""
        seen, key = view.workers[worker], str(worker)
        if seen.status is Status.NEW:  # of its earlier life nothing is known to hold
            self._own[key] = seen.batch_size
            self._seconds.pop(key, None)
            self._batches.pop(key, None)
        size = self._batches.get(key, seen.batch_size)
        return {} if size == seen.batch_size else {"batch_size": size}


def helped(seconds: dict[int, float], own: dict[int, int], threshold: float) -> dict[int, int]:
    """Return the samples of each worker, given the seconds of a sample and the batches without help."""
    times = {worker: seconds[worker] * own[worker] for worker in own}
    ranked = sorted(times.values())
    late = {each for each, time_s in times.items() if time_s > threshold * _median_of_others(ranked, time_s)}
    slow = sorted(late, key=lambda worker: (-times[worker], worker))
    idle = sorted(times.keys() - late, key=lambda worker: (times[worker], worker))
    sizes = dict(own)
    for straggler, helper in zip(slow, idle, strict=False):
        even = (times[straggler] - times[helper]) / (seconds[straggler] + seconds[helper])
        moved = min(round(even), own[straggler] - 1)
        sizes[straggler] -= moved
        sizes[helper] += moved
    return sizes


def _median_of_others(ranked: Sequence[float], own: float) -> float:
    """Return the median of these numbers in order without one of them, or that one if it is alone."""
    place, count = bisect_left(ranked, own), len(ranked) - 1
    if not count:
        return own
    low, high = ((middle + (middle >= place)) for middle in ((count - 1) // 2, count // 2))
    return (ranked[low] + ranked[high]) / 2
