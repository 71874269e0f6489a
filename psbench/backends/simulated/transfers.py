"""When the messages of one composition arrive in virtual time, and how much each carries."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeAlias

from psbench.backends.pushes import bytes_of_pushes
from psbench.backends.simulated.peer_links import PeerLinks
from psbench.backends.simulated.resources import Resources
from psbench.clusters import Network
from psbench.clusters.service import ServerQueues
from psbench.core.migration import Ranges, lost_entries
from psbench.core.parts import Placement
from psbench.core.strategy import Strategy
from psbench.core.view import Status

#: of a message of a worker, its bytes and the time of sending: the time of its arrival, seconds
Arrival: TypeAlias = Callable[[int, float, float], float]
#: the same of a message without a vector
ShortArrival: TypeAlias = Callable[[int, float], float]


class Transfers:
    """The messages between workers and servers, or among workers where they reduce by themselves.

    Between workers and servers every push and every model that is sent takes a message. In a collective
    none does: the pushers of a commit combine their vectors among themselves, which leaves the result with
    each of them when the collective ends, and takes what the placement's `reduce_s` says and nothing more.
    It begins when the last worker is ready, whose push arrives when it is over: so the version is there then,
    and not before. Only where the last one is lost meanwhile do the others begin theirs with the commit.
    Where the cluster's messages or its coordinator take times of their own (`link_time`, `service`), a
    collective is as it is live: each worker tells the coordinator that it is ready, which orders the
    collective, hears of its end, and releases them.
    A message of their own take the answer to a vote (one latency), and the model that a worker needs which
    has no replica: a newcomer, or any worker after a hand-over from servers. Replicas of the start are there
    already, as all workers build them from the same seed.

    Attributes
    ----------
    up, down : callable
        Arrival of a push, and of a release that brings a model; see `Arrival`.
    answer : callable
        Arrival of a release that brings none; see `ShortArrival`.
    bytes_of_push : callable
        See `bytes_of_pushes`.
    first_bytes_down : int
        Bytes of a release that brings a model whole.
    idle_until : float, seconds
        Until then a hand-over or a reassignment is under way, and nothing is sent.
    collective_ends : float, seconds
        When the last collective ends.
    queues : ServerQueues or None
        Where servers and the coordinator take time.
    links : PeerLinks
        From worker to worker, where there is no server.
    without_replica : set of int
        Workers that need the model before their first collective.
    """

    def __init__(self, composition: Strategy, resources: Resources, ranges: Ranges) -> None:
        placement, workload = composition.placement, resources.workload
        self._composition, self._resources, self._placement = composition, resources, placement
        self.network = network = _network(resources, placement, ranges)
        shares = [0.0] if placement.collective else _shares(ranges)
        service, serves = workload.profile.service, not placement.peer_to_peer
        takes_time = service.takes_time and serves
        self.queues: ServerQueues[Any] | None = ServerQueues(service, shares) if takes_time else None
        self.idle_until = self.collective_ends = 0.0
        self.without_replica: set[int] = set()
        self._exchanges = composition.aggregation.exchanges
        self.up: Arrival = network.up
        self.down: Arrival = network.down
        self.message: ShortArrival = network.message
        self.answer: ShortArrival = network.message
        if placement.collective:
            self.up, self.down = self._when_all_are_ready, self._in_collective
        elif placement.peer_to_peer:  # models pass over `links`, and the rest takes no message of its own
            self.up = self.down = lambda worker, num_bytes, now: now
            self.answer = lambda worker, now: now
        #: what the push that was sent last takes of its collective; None: all of its way
        self.collective_s: float | None = None
        #: whose pushes were combined, and are still to be decided about
        self._combined: list[int] = []
        #: workers that have reported since the last order, or are about to, and when the last report arrives
        self._reported_by: set[int] = set()
        self._reported_s = 0.0
        #: whether workers of a collective wait for the coordinator's word, as those of a live run do
        self._awaits_reports = takes_time or resources.link_times is not None
        self._set_ranges(ranges)
        self.links = PeerLinks(workload.profile, self._vector_bytes)

    def _set_ranges(self, ranges: Ranges) -> None:
        self.ranges = ranges
        composition, workload = self._composition, self._resources.workload
        size, n = workload.wire_size._replace(ranges=ranges), workload.profile.num_workers
        codec, placement = composition.communication.codec, composition.placement
        self._vector_bytes = size.of(codec, placement)
        self.bytes_of_push = bytes_of_pushes(composition, size, n)
        self.first_bytes_down = composition.bytes_down(size, n, whole=True)
        fragments = composition.communication.fragments(size.layout)
        self._bytes_down = [composition.bytes_down(size, n, fragment=each) for each in (*fragments, None)]
        whole = size.of(codec, placement, None, composition.vectors_of_a_push)
        self._summed_bytes = [*(size.of(codec, placement, each) for each in fragments), whole]

    def bytes_of_answer(self, fragment: int) -> int:
        """Return the bytes of a release that brings a fragment of the model, or all of it (-1)."""
        return self._bytes_down[fragment]

    # ---------------------------------------------------------------- collectives

    def collect(self, workers: list[int], now: float, fragment: int = -1) -> None:
        """Begin the collective of a commit's pushers, unless it has just ended."""
        over = self.collective_ends == now if self.queues is None else self._combined == sorted(workers)
        self._combined = []
        if over:
            return
        if self._exchanges:
            size, version = self._resources.workload.wire_size, self._resources.view.version
            sums = self._composition.sums(size, version)
        else:
            sums = [(self._summed_bytes[fragment], False)]
        network, placement = self.network, self._placement
        network.advance(now)
        self.collective_ends = now + sum(
            (placement.to_all_s if to_all else placement.reduce_s)(network, num_bytes, workers)
            for num_bytes, to_all in sums
        )

    def need_replica(self, workers: Collection[int]) -> None:
        """Note workers that come without the current model; a stateless worker is sent it with every job."""
        if self._placement.collective and not self._placement.stateless_workers:
            self.without_replica.update(workers)

    def _when_all_are_ready(self, worker: int, num_bytes: float, now: float) -> float:
        """Return when a push arrives: at once, or, if no other worker computes, after the collective."""
        view = self._resources.view
        if self._awaits_reports:
            return self._when_all_have_reported(worker, self.network.up(worker, 0, now))
        if view.num_computing == 1:
            pushers = sorted({worker, *(push.worker for push in view.pending.values())})
            self.collective_ends = -1.0
            self.collect(pushers, now)
            return self.collective_ends
        return now

    def _when_all_have_reported(self, worker: int, reported_s: float) -> float:
        """Return when the coordinator hears of a push, or, of the last, when the collective ends."""
        workers, self._reported_s = self._resources.view.workers, max(reported_s, self._reported_s)
        self.collective_s = 0.0
        self._reported_by = {each for each in self._reported_by if workers[each].status is Status.COMPUTING}
        self._reported_by.add(worker)
        if self._resources.view.num_computing > len(self._reported_by):
            return reported_s
        pushers = sorted(
            {*self._reported_by, *(push.worker for push in self._resources.view.pending.values())}
        )
        self.collective_ends = -1.0
        self.collect(pushers, self._reported_s + 2 * self._ordered_s(pushers))
        self._combined, self._reported_by = pushers, set()
        self.collective_s = self.collective_ends - self._reported_s
        return self.collective_ends

    def _ordered_s(self, workers: list[int]) -> float:
        """Return what the coordinator's order to begin a collective takes, and as long its confirmation."""
        return self.network.hop(0, workers)

    def _in_collective(self, worker: int, num_bytes: float, now: float) -> float:
        begins = max(now, self.collective_ends)
        if worker in self.without_replica:
            self.without_replica.discard(worker)
            begins = max(begins, self.network.down(worker, self._vector_bytes, now))
        elif self._awaits_reports:
            begins = self.network.down(worker, 0, begins)
        return begins + self._job_starts_s(worker, now)

    def _job_starts_s(self, worker: int, now: float) -> float:
        """Return the seconds from the start of a job to a worker's step, for workers without a state."""
        self.network.advance(now)
        placement, workload = self._placement, self._resources.workload
        if not placement.stateless_workers:
            return 0.0
        active = self._resources.view.active
        partition = len(workload.shards[worker]) if workload.shards else workload.dataset_size // len(active)
        self._resources.step_times.scanned(worker, placement.scan_s(partition))
        broadcast_s = placement.broadcast_s(self.network, self._vector_bytes, active)
        return placement.start_s(partition) + broadcast_s

    # ---------------------------------------------------------------- servers hold other entries

    def reassign(self, ranges: Ranges, now: float) -> None:
        """Move entries between servers, with what the optimizer keeps of them; no message is under way."""
        given, taken = lost_entries(self.ranges, ranges), lost_entries(ranges, self.ranges)
        entry_bytes = self._resources.workload.entry_bytes
        seconds = self.network.move([entry_bytes * n for n in given], [entry_bytes * n for n in taken])
        self.network.server_loads()  # loads so far say nothing of those to come
        self.use_ranges(ranges)
        self.idle_until = max(self.idle_until, now) + seconds

    def use_ranges(self, ranges: Ranges) -> None:
        """Have servers hold these entries from now on."""
        self.network.share(_shares(ranges))
        if self.queues is not None:
            self.queues.share(_shares(ranges))
        self._set_ranges(ranges)


def _network(resources: Resources, placement: Placement, ranges: Ranges) -> Network:
    """Return the links to servers that hold these entries, or add up; other collectives have none."""
    profile, times = resources.workload.profile, resources.link_times
    if placement.adding_servers:  # to each of which workers send, and which answers by itself
        return Network(replace(profile, server_latency_s=0.0), placement.adding_servers, None, times)
    links = profile.server_bandwidth_mbit_s
    if placement.collective and isinstance(links, tuple):
        return Network(replace(profile, server_bandwidth_mbit_s=max(links)), times=times)
    return Network(profile, placement.num_servers, _shares(ranges), times)


def _shares(ranges: Ranges) -> list[float]:
    """Return what part of the entries each server holds."""
    entries = [sum(stop - start for start, stop in own) for own in ranges]
    return [count / sum(entries) for count in entries]
