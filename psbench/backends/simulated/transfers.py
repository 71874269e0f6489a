"""Messages of one composition in virtual time: their links and their sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from psbench.backends.pushes import bytes_of_pushes
from psbench.backends.simulated.collective_links import CollectiveLinks
from psbench.backends.simulated.peer_links import PeerLinks
from psbench.backends.simulated.resources import Resources
from psbench.clusters import Network
from psbench.clusters.service import ServerQueues
from psbench.core.collective import Collective, servers_that_add
from psbench.core.migration import Ranges, lost_entries
from psbench.core.parts import Placement
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.shared_memory import SharedMemory
from psbench.core.strategy import Strategy


class Links(Protocol):
    """Arrival times of messages between workers and the engine, in seconds."""

    def up(self, worker: int, num_bytes: float, now: float) -> float:
        """Return the arrival time of a push that is sent now."""

    def down(self, worker: int, num_bytes: float, now: float) -> float:
        """Return the arrival time of a release with a model."""

    def answer(self, worker: int, now: float) -> float:
        """Return the arrival time of a release without a model."""


class ServerLinks(Network):
    """Links to servers: every push and every sent model is a message."""

    answer = Network.message


class NoLinks:
    """No server: models pass between workers or are in shared memory, and other messages take no time."""

    def up(self, worker: int, num_bytes: float, now: float) -> float:
        """See `Links`."""
        return now

    def down(self, worker: int, num_bytes: float, now: float) -> float:
        """See `Links`."""
        return now

    def answer(self, worker: int, now: float) -> float:
        """See `Links`."""
        return now


class Reports:
    """No server, and messages that take time: reports to the coordinator, and its orders.

    A worker reports a step when it is done with whoever has met it meanwhile. Reports and orders are small,
    but wait on a worker's link, and on the line of its rack, for the models that are on it.
    """

    def __init__(self, network: Network, peers: PeerLinks) -> None:
        self._network, self._peers = network, peers

    def up(self, worker: int, num_bytes: float, now: float) -> float:
        """See `Links`."""
        # the network is asked in the order of `now`, whoever waits
        waits_s = self._peers.reports(worker, now) - now
        return self._peers.report_arrives(worker, self._network.up(worker, 0, now) + waits_s)

    def down(self, worker: int, num_bytes: float, now: float) -> float:
        """See `Links`."""
        return self.answer(worker, now)

    def answer(self, worker: int, now: float) -> float:
        """See `Links`."""
        return self._peers.order_arrives(worker, self._network.down(worker, 0, now))


class Transfers:
    """The links of one composition, and the sizes of its messages in bytes.

    Attributes
    ----------
    links : Links
        Between workers and servers, or in their place.
    collective : CollectiveLinks or None
        The same, where workers add up among themselves.
    peers : PeerLinks or None
        From worker to worker, where there is no server.
    network : Network
        Carries reports, votes, orders and data.
    bytes_of_push : callable
        See `bytes_of_pushes`.
    bytes_down : list of int
        Bytes of a release that brings each fragment of the model, and, last, all of it.
    first_bytes_down : int
        Bytes of a release that brings a model whole.
    idle_until : float, seconds
        Until then a hand-over or a reassignment is under way, and nothing is sent.
    queues : ServerQueues or None
        Where servers and the coordinator take time.
    """

    def __init__(self, composition: Strategy, resources: Resources, ranges: Ranges) -> None:
        placement, workload = composition.placement, resources.workload
        self._composition, self._resources = composition, resources
        self._set_ranges(ranges)
        self.network = network = _network(resources, placement, ranges)
        self.links: Links = network
        self.collective: CollectiveLinks | None = None
        self.peers: PeerLinks | None = None
        self.queues: ServerQueues[Any] | None = None
        self.idle_until = 0.0
        shares, service = _shares(ranges), workload.profile.service
        if isinstance(placement, PeerToPeer):
            num_bytes = workload.wire_size.of(composition.communication.codec, placement)
            timed = resources.link_times is not None
            self.peers = PeerLinks(workload.profile, num_bytes, beside_orders=timed)
            self.links = Reports(network, self.peers) if timed else NoLinks()
            if timed and service.takes_time:  # the coordinator decides, and has no vector
                self.queues = ServerQueues(service, [0.0])
            return
        if isinstance(placement, SharedMemory):
            self.links = NoLinks()
            return
        if isinstance(placement, Collective):
            shares = [0.0]
            self.links = self.collective = CollectiveLinks(composition, placement, resources, network)
        if service.takes_time:
            self.queues = ServerQueues(service, shares)

    def _set_ranges(self, ranges: Ranges) -> None:
        self.ranges = ranges
        composition, workload = self._composition, self._resources.workload
        size, n = workload.wire_size._replace(ranges=ranges), workload.profile.num_workers
        self.bytes_of_push = bytes_of_pushes(composition, size, n)
        self.first_bytes_down = composition.bytes_down(size, n, whole=True)
        fragments = composition.communication.fragments(size.layout)
        self.bytes_down = [composition.bytes_down(size, n, fragment=each) for each in (*fragments, None)]

    def need_replica(self, workers: Collection[int]) -> None:
        """Add workers that need the current model."""
        if self.collective is not None:
            self.collective.need_replica(workers)

    def state_dict(self) -> dict[str, Any]:
        """Return busy times of links, servers and collectives, and workers without a replica: plain data."""
        queues, peers = self.queues, self.peers
        behind = set[int]() if self.collective is None else self.collective.without_replica
        state = {
            "network": self.network.state_dict(),
            "ring_ends_s": self.collective_ends,
            "handed_over_s": self.idle_until,
            "without_replica": sorted(behind),
        }
        state |= {} if queues is None else {"served_s": queues.state_dict()}
        return state | ({} if peers is None else {"links": peers.state_dict()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`; links are free after a live run."""
        self.network.load_state_dict(state["network"])
        self.idle_until = state["handed_over_s"]
        if self.collective is not None:
            self.collective.ends_s = state["ring_ends_s"]
            self.collective.without_replica.update(state.get("without_replica", ()))
        if self.queues is not None and "served_s" in state:
            self.queues.load_state_dict(state["served_s"])
        if self.peers is not None and "links" in state:
            self.peers.load_state_dict(state["links"])

    @property
    def collective_ends(self) -> float:
        """End of the last collective in seconds; 0 without collectives."""
        return 0.0 if self.collective is None else self.collective.ends_s

    # ---------------------------------------------------------------- servers hold other entries

    def reassign(self, ranges: Ranges, now: float) -> None:
        """Move entries and their optimizer state between servers; no message may be in transit."""
        given, taken = lost_entries(self.ranges, ranges), lost_entries(ranges, self.ranges)
        entry_bytes = self._resources.workload.entry_bytes
        seconds = self.network.move([entry_bytes * n for n in given], [entry_bytes * n for n in taken])
        self.network.server_loads()  # loads so far say nothing of those to come
        self.use_ranges(ranges)
        self.idle_until = max(self.idle_until, now) + seconds

    def use_ranges(self, ranges: Ranges) -> None:
        """Change the entry ranges of the servers."""
        self.network.share(_shares(ranges))
        if self.queues is not None:
            self.queues.share(_shares(ranges))
        self._set_ranges(ranges)


def _network(resources: Resources, placement: Placement, ranges: Ranges) -> ServerLinks:
    """Return the links to servers that hold or sum these entries; None for other collectives."""
    profile, times = resources.workload.profile, resources.link_times
    if adding := servers_that_add(placement):  # to each of which workers send, and which answers by itself
        return ServerLinks(replace(profile, server_latency_s=0.0), adding, None, times)
    links = profile.server_bandwidth_mbit_s
    if isinstance(placement, Collective) and isinstance(links, tuple):
        return ServerLinks(replace(profile, server_bandwidth_mbit_s=max(links)), times=times)
    return ServerLinks(profile, placement.num_servers, _shares(ranges), times)


def _shares(ranges: Ranges) -> list[float]:
    """Return each server's share of the entries."""
    entries = [sum(stop - start for start, stop in own) for own in ranges]
    return [count / sum(entries) for count in entries]
