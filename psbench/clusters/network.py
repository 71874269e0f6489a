"""Costs of messages in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from math import inf
from typing import Any

from psbench.clusters.link_times import LinkTimes
from psbench.clusters.profile import Profile
from psbench.clusters.ring import Hops, ring_s, two_levels_s
from psbench.clusters.shared_link import SharedLink
from psbench.errors import ParameterError

BYTES_PER_MBIT = 125_000.0


def extra_round_trips(num_bytes: float, first_window: int) -> int:
    """Return the round trips before the last part of a message leaves an idle connection.

    It sends a first window, and after each round trip twice as much as before (slow start): w (2^r - 1)
    bytes in r flights. Without a window, any message is one flight.

    Source
    ------
    Allman et al. (2009), sec. 3.1 and 4.1 (restart after idle); Chu et al. (2013): a first window of ten
    segments.

    Examples
    --------
    >>> [extra_round_trips(size, 14_480) for size in (14_480, 19_240, 43_440, 43_441)]
    [0, 1, 1, 2]
    """
    flights, sent = 1, first_window
    while first_window and sent < num_bytes:
        sent += first_window << flights
        flights += 1
    return flights - 1


def achieved(rates: Sequence[tuple[float, float]], num_bytes: float) -> float:
    """Return the bytes per second that a message of that size gets at most, by a cluster's `achieved_rates`.

    >>> achieved([(0, 8), (4000, 16)], 3999), achieved([(0, 8), (4000, 16)], 4000), achieved([], 4000)
    (1000000.0, 2000000.0, inf)
    """
    return next((BYTES_PER_MBIT * mbit for begin, mbit in reversed(rates) if num_bytes >= begin), inf)


class Network:
    """Arrival times of messages between workers and parameter servers, and the time of a ring.

    A message begins at once, or when the servers' link is free: the link serves messages one after another,
    in the order of the calls, separately up and down. It keeps the link for bytes / server bandwidth, takes
    bytes / (the slower of the two bandwidths) to pass, since bits flow through both links at once, and
    arrives one latency later. A worker's own link is not a queue: a worker has one message at a time under
    way in each direction.

    With `link_sharing: equal` the servers' link is no queue: its messages pass at once, each with an equal
    share (`SharedLink`). A message may then be later than was said when it was sent; see `contention_delay`.
    With `equal_up` that is so for messages to the servers, and the link back is a queue.

    The line to a rack is shared as the servers' link is: equally, or it is one more queue, which a message
    passes while it passes the servers' link.

    Call in the order of `now`: a message that is asked for with an earlier `now` than one before it queues
    behind that one.

    Parameters
    ----------
    profile : Profile
    servers : int, >= 1
        Servers that share the parameters: each message is cut into as many slices, which pass side by side,
        and it is as late as the latest of them. An answer from several servers takes one more hop between
        them, because only one of them decides.
    shares : sequence of float, (servers,), sum 1; or None
        What part of each message each server carries; even shares if not given.
    times : LinkTimes or None
        Where latencies vary: of each message.

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> from psbench.clusters import Homogeneous
    >>> slow = Homogeneous(workers=2, bandwidth_mbit_s=8, server_bandwidth_mbit_s=8, latency_s=0.5)
    >>> network = Network(slow.profile())
    >>> network.up(0, 1_000_000, now=0.0), network.up(1, 1_000_000, now=0.0)
    (1.5, 2.5)
    """

    def __init__(
        self,
        profile: Profile,
        servers: int = 1,
        shares: Sequence[float] | None = None,
        times: LinkTimes | None = None,
    ) -> None:
        if servers < 1:
            raise ParameterError(f"cluster {profile.name!r}: servers must be at least 1, got {servers!r}")
        self._throttles = Throttles(profile)
        self._up_rates = [BYTES_PER_MBIT * mbit for mbit in profile.bandwidth_mbit_s]
        self._down_rates = [BYTES_PER_MBIT * mbit for mbit in profile.down_mbit_s]
        self._unthrottled = self._up_rates, self._down_rates
        # between workers a message goes up one link and down another; all pass both ways at once
        self._rates = worker_rates = list(map(min, self._up_rates, self._down_rates))
        self._server_rates = [BYTES_PER_MBIT * mbit for mbit in profile.server_links(servers)]
        self._links: list[SharedLink] = []
        self.share(shares or [1.0 / servers] * servers)
        self._latency, self._between = list(profile.latency_s), profile.between_s
        self._ends = profile.ends_s
        self._hop = profile.server_latency_s if servers > 1 else 0.0
        self._workers_per_host = profile.workers_per_host
        self._host_rate = BYTES_PER_MBIT * profile.host_bandwidth_mbit_s
        self._host_latency = profile.host_latency_s
        own = profile.peer_latency_s, profile.peer_message_s
        self._alike = not profile.racks and own == (None, None) and len({*self._latency}) == 1
        self._equal = len(set(worker_rates)) == 1 and self._alike
        #: seconds of rings over links that differ, by bytes and workers, or groups of them
        self._rings: dict[tuple[Any, ...], float] = {}
        self._up_free = self._down_free = self._carried = 0.0
        self._achieved, self._window = profile.achieved_rates, profile.first_window_bytes
        self._times = times
        self._fixed = not self._window and times is None
        #: whether messages share the servers' link: to them, and back
        self._is_shared = profile.link_sharing != "in_turn", profile.link_sharing == "equal"
        self._racks, self._rack_rates = profile.racks or (0,) * profile.num_workers, profile.rack_rates
        self._rack_rate = BYTES_PER_MBIT * profile.rack_bandwidth_mbit_s
        self._has_racks = bool(profile.racks)
        #: of racks whose lines are queues, to the servers and back: when they are free
        self._line_free: tuple[dict[int, float], dict[int, float]] = ({}, {})
        self._links = [SharedLink(1.0 / self._slot, self._rack_rate) for _ in range(2)]
        #: of each worker, up or back: when its last message arrives as was last known, its latency, and the
        #: time for which its arrival is scheduled
        self._last: dict[tuple[int, int], tuple[float, float, float]] = {}
        self._flows = count()
        self._flow_of: dict[tuple[int, int], int] = {}

    def _latency_of(self, worker: int, num_bytes: float, back: bool) -> float:
        """Return the latency of a push, or of a model back: as drawn, and with the round trips it takes."""
        latency = self._latency[worker]
        if self._fixed:
            return latency
        waits = 2.0 * latency * extra_round_trips(num_bytes * max(self._shares), self._window)
        if self._times is not None:
            latency = self._times.next(worker + back * len(self._latency))
        return waits + latency

    def _achieves(self, num_bytes: float, shares: Sequence[float] = (1.0,)) -> float:
        """Return the highest rate in bytes per second of a message whose slices are sent concurrently."""
        return min(achieved(self._achieved, share * num_bytes) / share for share in shares if share)

    def share(self, shares: Sequence[float]) -> None:
        """Set each server's share of every message."""
        self._shares = shares
        self._busy = [share / rate for share, rate in zip(shares, self._server_rates, strict=True)]
        server_rate = min(
            rate / share for rate, share in zip(self._server_rates, shares, strict=True) if share
        )
        self._slot = 1.0 / server_rate
        for link in self._links:
            link.rate = server_rate
        self._pass_up = [1.0 / min(rate, server_rate) for rate in self._up_rates]
        self._pass_down = [1.0 / min(rate, server_rate) for rate in self._down_rates]

    def advance(self, now: float) -> None:
        """Apply the throttles of the links up to `now`; query earlier messages first."""
        if now < self._throttles.next_s:
            return
        parts = self._throttles.at(now)
        self._up_rates, self._down_rates = (
            [rate * part for rate, part in zip(rates, parts, strict=True)] for rates in self._unthrottled
        )
        self._rates = list(map(min, self._up_rates, self._down_rates))
        self._equal = len(set(self._rates)) == 1 and self._alike
        self._rings.clear()
        self.share(self._shares)

    def server_loads(self) -> list[float]:
        """Return the seconds that each server's link was busy, both ways, since this was asked last."""
        carried, self._carried = self._carried, 0.0
        return [carried * busy for busy in self._busy]

    def move(self, given: Sequence[float], taken: Sequence[float]) -> float:
        """Return the seconds for concurrent transfers of `given` and `taken` bytes between servers."""
        links = zip(given, taken, self._server_rates, strict=True)
        return max(max(out, into) / rate for out, into, rate in links) + self._hop

    def up(self, worker: int, num_bytes: float, now: float) -> float:
        """Return when a message that a worker sends now has arrived at the servers, seconds."""
        if now >= self._throttles.next_s:
            self.advance(now)
        if self._is_shared[0]:
            latency = self._latency_of(worker, num_bytes, False)
            rate = min(self._up_rates[worker], self._achieves(num_bytes, self._shares))
            return self._share(worker, 0, num_bytes, rate, now, latency)
        start = self._up_free if self._up_free > now else now
        self._carried += num_bytes
        self._up_free = start + num_bytes * self._slot
        passes = num_bytes * self._pass_up[worker]
        if self._achieved:
            passes = max(passes, num_bytes / self._achieves(num_bytes, self._shares))
        if self._has_racks:
            start, passes = self._over_line(self._line_free[0], worker, num_bytes, start, passes)
        latency = self._latency[worker] if self._fixed else self._latency_of(worker, num_bytes, False)
        return start + passes + latency

    def down(self, worker: int, num_bytes: float, now: float) -> float:
        """Return when a message that the servers send now has arrived at a worker, seconds."""
        if now >= self._throttles.next_s:
            self.advance(now)
        if self._is_shared[1]:
            latency = self._latency_of(worker, num_bytes, True) + self._hop
            rate = min(self._down_rates[worker], self._achieves(num_bytes, self._shares))
            return self._share(worker, 1, num_bytes, rate, now, latency)
        start = self._down_free if self._down_free > now else now
        self._carried += num_bytes
        self._down_free = start + num_bytes * self._slot
        passes = num_bytes * self._pass_down[worker]
        if self._achieved:
            passes = max(passes, num_bytes / self._achieves(num_bytes, self._shares))
        if self._has_racks:
            start, passes = self._over_line(self._line_free[1], worker, num_bytes, start, passes)
        latency = self._latency[worker] if self._fixed else self._latency_of(worker, num_bytes, True)
        return start + passes + latency + self._hop

    def _over_line(
        self, free: dict[int, float], worker: int, num_bytes: float, start: float, passes: float
    ) -> tuple[float, float]:
        """Return when a message begins to pass the line of a worker's rack, a queue, and how long it takes.

        `free`: of each rack, when its line is free; without an entry at any time.
        """
        rack, line_s = self._racks[worker], num_bytes / self._rack_rate
        if not rack:
            return start, passes
        begins = max(start, free.get(rack, 0.0))
        free[rack] = begins + line_s
        return begins, max(passes, line_s)

    def _share(
        self, worker: int, back: int, num_bytes: float, rate: float, now: float, latency: float
    ) -> float:
        """Begin a message on a link that is shared; see `contention_delay`."""
        self._carried += num_bytes
        flow = self._flow_of[worker, back] = next(self._flows)
        arrives = self._links[back].begin(flow, num_bytes, rate, now, self._racks[worker]) + latency
        self._last[worker, back] = arrives, latency, arrives
        return arrives

    def contention_delay(self, worker: int, back: int) -> float:
        """Return the delay in seconds that transfers started since then add to a worker's last message.

        Call it at the time for which the message, up (0) or back (1), was scheduled; the message is then
        scheduled again, so a second call returns 0 unless further transfers have started.
        """
        if (worker, back) not in self._last:
            return 0.0
        before, latency, scheduled = self._last[worker, back]
        arrives = self._links[back].ends(self._flow_of[worker, back]) + latency
        delay = max(0.0, arrives - before)
        self._last[worker, back] = arrives, latency, scheduled + delay
        return delay

    def scheduled_arrival(self, worker: int) -> float:
        """Return the time for which the arrival of the last message to a worker is scheduled; seconds.

        It is the sum of the same numbers as the times of events that wait for the message, so that the two
        can be compared without a tolerance.
        """
        return self._last.get((worker, 1), (0.0, 0.0, 0.0))[2]

    def message(self, worker: int, now: float) -> float:
        """Return when a small control message, to or from a worker, has arrived: latency only."""
        return now + self._latency[worker]

    def ring(self, num_bytes: float, workers: Sequence[int]) -> float:
        """Return the seconds of a ring All-Reduce among workers.

        2 (n - 1) rounds, in which each sends bytes / n to its neighbour, up its own link and down the
        neighbour's. Over equal links they take 2 (n - 1) / n * bytes / bandwidth + 2 (n - 1) * latency; see
        `ring_s` for others.

        Source
        ------
        Patarasuk and Yuan (2009).
        """
        n = len(workers)
        if n < 2:
            return 0.0
        if self._equal:
            return 2 * (n - 1) * self.hop(num_bytes / n, workers)
        of = num_bytes, tuple(workers)
        if of not in self._rings:
            (ring,) = self._at_once([workers], num_bytes / n)
            self._rings[of] = ring_s(ring.passes_s, ring.latencies_s)
        return self._rings[of]

    def two_levels(self, num_bytes: float, groups: Sequence[Sequence[int]], local: bool) -> float:
        """Return the seconds of an All-Reduce in rings of groups, and in rings between groups.

        2 (k - 1) rounds within groups of bytes / m, with the k workers of the largest group and the m of the
        smallest, and 2 (g - 1) rounds of bytes / (m g) between g groups; over links that differ as in `ring`.
        If groups are `local`, each on one host, the first ones pass over its links.

        Source
        ------
        Sergeev and Del Balso (2018), as Horovod does it since; Mikami et al. (2018), 2D-Torus.
        """
        pieces, size = min(map(len, groups)), max(map(len, groups))
        within, between = num_bytes / pieces, num_bytes / (pieces * len(groups))
        if self._equal:
            host_s = within / self._host_rate + self._host_latency
            within_s = host_s if local else self.hop(within, groups[0])
            return 2 * (size - 1) * within_s + 2 * (len(groups) - 1) * self.hop(between, groups[0])
        of = num_bytes, local, *map(tuple, groups)
        if of not in self._rings:
            # the sum of a piece is with the member before its place
            across = [[group[(piece - 1) % len(group)] for group in groups] for piece in range(pieces)]
            first = self._at_once(groups, within, local=local)
            self._rings[of] = two_levels_s(first, self._at_once(across, between), pieces)
        return self._rings[of]

    def _at_once(
        self, rings: Sequence[Sequence[int]], num_bytes: float, *, local: bool = False
    ) -> list[Hops]:
        """Return the hops of rings of workers that send pieces of so many bytes at the same time.

        Those of `local` rings pass the links within hosts.
        """
        hops = [[*zip(ring, [*ring[1:], ring[0]], strict=True)] for ring in rings]
        every = [hop for each in hops for hop in each]
        if local:
            rates, latencies = [self._host_rate] * len(every), [self._host_latency] * len(every)
        else:
            achieved = self._achieves(num_bytes)
            waits = 1 + 2 * extra_round_trips(num_bytes, self._window)
            rates = [
                min(self._up_rates[one], self._down_rates[other], achieved, BYTES_PER_MBIT * over_lines)
                for (one, other), over_lines in zip(every, self._rack_rates(every), strict=True)
            ]
            latencies = [waits * self._between(*hop) for hop in every]
        costs = iter(
            [
                (num_bytes / rate, latency + self._ends(*hop))
                for hop, rate, latency in zip(every, rates, latencies, strict=True)
            ]
        )
        return [Hops(ring, *zip(*(next(costs) for _ in ring), strict=True)) for ring in rings]

    def hosts(self, workers: Sequence[int]) -> list[int]:
        """Return the host of each worker."""
        return [worker // self._workers_per_host for worker in workers]

    def hop(self, num_bytes: float, workers: Sequence[int]) -> float:
        """Return the seconds of a message over the slowest link, with the longest latency, of `workers`."""
        if self._equal:
            rate, latency = self._rates[0], self._latency[0]
        else:
            rate = min([self._rates[worker] for worker in workers])
            latency = max([self._latency[worker] for worker in workers])
        rate = min(rate, self._achieves(num_bytes))
        return num_bytes / rate + latency * (1 + 2 * extra_round_trips(num_bytes, self._window))

    def star(self, up: float, down: float, workers: Sequence[int]) -> float:
        """Return the seconds in which each of these workers pushes `up` bytes and receives `down` bytes.

        The servers' links are free, and serve or share as ever; the answers begin when all pushes are there.
        Latencies that vary are not drawn.
        """
        seconds = 0.0
        ways = (up, self._up_rates, self._pass_up), (down, self._down_rates, self._pass_down)
        for (num_bytes, rates, passes), is_shared in zip(ways, self._is_shared, strict=True):
            achieves, slot = self._achieves(num_bytes, self._shares), num_bytes * self._slot
            waits = 1 + 2 * extra_round_trips(num_bytes * max(self._shares), self._window)
            link, free = SharedLink(1.0 / self._slot, self._rack_rate), dict[int, float]()
            for worker in workers if is_shared else ():
                link.begin(worker, num_bytes, min(rates[worker], achieves), 0.0, self._racks[worker])
            ends = list[float]()
            for place, worker in enumerate(workers):
                own_s = max(num_bytes * passes[worker], num_bytes / achieves)
                begins, passes_s = self._over_line(free, worker, num_bytes, place * slot, own_s)
                passed = link.ends(worker) if is_shared else begins + passes_s
                ends.append(passed + self._latency[worker] * waits)
            seconds += max(ends)
        return seconds

    def injection(self, worker: int, injection: Mapping[str, Any], sample_bytes: int) -> float:
        """Return the time in which a worker receives the injected samples of others (`SelSync`).

        One message over the slowest link among them; 0 without any.
        """
        others = injection.get("workers", ())
        return self.hop(len(others) * injection["each"] * sample_bytes, [worker, *others]) if others else 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return until when the servers' link is busy in each direction, and its traffic: plain data."""
        carried = self._carried
        state = {"up_free_s": self._up_free, "down_free_s": self._down_free, "carried_bytes": carried}
        lines = [sorted(free.items()) for free in self._line_free]
        return state | ({"lines": lines} if any(lines) else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._up_free, self._down_free = state["up_free_s"], state["down_free_s"]
        self._carried = state["carried_bytes"]
        up, down = state.get("lines", ((), ()))
        self._line_free = dict(up), dict(down)


class Throttles:
    """Share of its bandwidth that each worker's link has over time.

    Parameters
    ----------
    profile : Profile

    Attributes
    ----------
    next_s : float, seconds
        When that changes next; infinite without any throttle.
    """

    def __init__(self, profile: Profile) -> None:
        self._spells, self._workers = profile.throttles, profile.num_workers
        self._changes = sorted({time_s for each in self._spells for time_s in (each.from_s, each.to_s)})
        self.next_s = self._changes[0] if self._changes else inf

    def at(self, now: float) -> list[float]:
        """Return the available share of each link at a time, and find the next change."""
        self.next_s = next((time_s for time_s in self._changes if time_s > now), inf)
        parts = [1.0] * self._workers
        for each in self._spells:
            if each.from_s <= now < each.to_s:
                parts[each.worker] /= each.factor
        return parts
