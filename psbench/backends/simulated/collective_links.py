"""Messages of workers that sum their pushes among themselves (All-Reduce), in virtual time."""

from __future__ import annotations

from collections.abc import Collection

from psbench.backends.simulated.resources import Resources
from psbench.clusters import Network
from psbench.core.collective import Collective, Jobs, in_words
from psbench.core.strategy import Strategy
from psbench.core.view import Status


class CollectiveLinks:
    """Links of a collective placement: pushes are summed on the way, and other messages have no vector.

    The pushers of a commit combine their vectors among themselves, which leaves the result with each of them
    when the collective ends, and takes what the placement's `reduce_s` says and nothing more. It begins when
    the last worker is ready, whose push arrives when it is over: so the version is there then, and not
    before. Only where the last one is lost meanwhile do the others begin theirs with the commit.
    Where the cluster's messages or its coordinator take times of their own (`link_time`, `service`), a
    collective is as it is live: each worker tells the coordinator that it is ready, which orders the
    collective, hears of its end, and releases them.
    Messages of their own take the answer to a vote (one latency), and the model that a worker needs which
    has no replica: a newcomer, or any worker after a hand-over from servers. Replicas of the start are there
    already, as all workers build them from the same seed.

    Parameters
    ----------
    composition : Strategy
    placement : Collective
        The composition's.
    resources : Resources
    network : Network

    Attributes
    ----------
    ends_s : float
        When the last collective ends.
    took_s : float
        Seconds of a collective on the way of the push that was sent last; 0 if another's is to end it.
    without_replica : set of int
        Workers that need the model before their first collective.
    """

    def __init__(
        self, composition: Strategy, placement: Collective, resources: Resources, network: Network
    ) -> None:
        workload, codec = resources.workload, composition.communication.codec
        size = workload.wire_size
        self._composition, self._placement = composition, placement
        self._resources, self._network = resources, network
        self._exchanges = composition.aggregation.exchanges
        self._vector_bytes = size.of(codec, placement)
        fragments = composition.communication.fragments(size.layout)
        whole = size.of(codec, placement, None, composition.vectors_of_a_push)
        self._summed_bytes = [*(size.of(codec, placement, each) for each in fragments), whole]
        #: whether workers wait for the coordinator's word, as those of a live run do
        self._awaits_reports = workload.profile.service.takes_time or resources.link_times is not None
        self.ends_s = self.took_s = 0.0
        self.without_replica: set[int] = set()
        #: the worker whose push arrives with the end of the collective under way
        self._last: int | None = None
        #: workers that have reported since the last order, or are about to, and when the last report arrives
        self._reported_by: set[int] = set()
        self._reported_s = 0.0

    def need_replica(self, workers: Collection[int]) -> None:
        """Add workers that need the current model; a task of a job receives the model anyway."""
        if self._last in workers:
            self._last = None
        if not isinstance(self._placement, Jobs):
            self.without_replica.update(workers)

    # ---------------------------------------------------------------- pushes

    def up(self, worker: int, num_bytes: float, now: float) -> float:
        """Return the arrival time of a push: now, or the collective's end if no other worker computes."""
        if self._awaits_reports:
            return self._when_all_have_reported(worker, self._network.up(worker, 0, now))
        view = self._resources.view
        self.took_s = 0.0
        if view.num_computing > 1:
            return now
        self._begin(sorted({worker, *self._waiting()}), now)
        self._last, self.took_s = worker, self.ends_s - now
        return self.ends_s

    def _waiting(self) -> list[int]:
        """Return the workers whose pushes have arrived and await a commit."""
        return [push.worker for push in self._resources.view.pending.values()]

    def _when_all_have_reported(self, worker: int, reported_s: float) -> float:
        """Return when the coordinator receives a push's report; the last one comes as the collective ends."""
        workers, self._reported_s = self._resources.view.workers, max(reported_s, self._reported_s)
        self.took_s = 0.0
        self._reported_by = {each for each in self._reported_by if workers[each].status is Status.COMPUTING}
        self._reported_by.add(worker)
        if self._resources.view.num_computing > len(self._reported_by):
            return reported_s
        pushers = sorted({*self._reported_by, *self._waiting()})
        ordered_s = self._network.hop(0, pushers)  # the order to begin, and as long its confirmation
        self._begin(pushers, self._reported_s + 2 * ordered_s)
        self._last, self._reported_by = worker, set()
        self.took_s = self.ends_s - self._reported_s
        return self.ends_s

    def collect(self, workers: list[int], now: float, fragment: int = -1) -> None:
        """Start the collective of a commit's pushers, unless it ended with the last push."""
        last, self._last = self._last, None
        if last not in workers:
            self._begin(workers, now, fragment)

    def _begin(self, workers: list[int], now: float, fragment: int = -1) -> None:
        if self._exchanges:
            sums = self._composition.sums(self._resources.workload.wire_size, self._resources.view.version)
        else:
            sums = [(self._summed_bytes[fragment], False)]
        network, placement = self._network, self._placement
        network.advance(now)
        if placement.has_groups:
            most = max(num_bytes for num_bytes, _ in sums)
            said = in_words(placement, network, most, workers, network.hosts(workers))
            self._resources.said.setdefault(said)
        self.ends_s = now + sum(
            (placement.to_all_s if to_all else placement.reduce_s)(network, num_bytes, workers)
            for num_bytes, to_all in sums
        )

    # ---------------------------------------------------------------- releases

    def down(self, worker: int, num_bytes: float, now: float) -> float:
        """Return when a worker continues: after the collective, or after it receives the model."""
        begins = max(now, self.ends_s)
        if worker in self.without_replica:
            self.without_replica.discard(worker)
            begins = max(begins, self._network.down(worker, self._vector_bytes, now))
        elif self._awaits_reports:
            begins = self._network.down(worker, 0, begins)
        return begins + self._job_starts_s(worker, now)

    def answer(self, worker: int, now: float) -> float:
        """Return when the answer to a vote arrives."""
        return self._network.message(worker, now)

    def _job_starts_s(self, worker: int, now: float) -> float:
        """Return the seconds from the start of a job to a task's step; 0 where workers stay."""
        self._network.advance(now)
        placement, workload = self._placement, self._resources.workload
        if not isinstance(placement, Jobs):
            return 0.0
        active = self._resources.view.active
        partition = len(workload.shards[worker]) if workload.shards else workload.dataset_size // len(active)
        self._resources.step_times.scanned(worker, placement.scan_s(partition))
        broadcast_s = placement.broadcast_s(self._network, self._vector_bytes, active)
        return placement.start_s(partition) + broadcast_s
