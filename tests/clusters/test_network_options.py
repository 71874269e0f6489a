"""Every pair of the options of a network, against the definitions of the options written down once more."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from math import inf

import numpy as np
import pytest

from psbench.backends.simulated.peer_links import PeerLinks
from psbench.backends.simulated.transfers import Reports
from psbench.clusters import Custom, Network
from psbench.clusters.link_times import LinkTimes
from psbench.clusters.shared_link import SharedLink
from psbench.seeds import Streams

WORKERS = 3
BASE = {"workers": WORKERS, "bandwidth_mbit_s": 8.0, "server_bandwidth_mbit_s": 12.0, "latency_s": 0.5}
BASE |= {"server_latency_s": 0.25}
TRACE = {"name": "trace", "order": "in_order", "seconds": [[0.1 * end + 0.2] for end in range(2 * WORKERS)]}
#: what differs from a cluster of equal links, an option each
OPTIONS = {
    "unequal links": {"bandwidth_mbit_s": [8.0, 2.0, 20.0]},
    "equal links, slower down": {"bandwidth_down_mbit_s": 4.0},
    "slower down": {"bandwidth_down_mbit_s": [4.0, 1.0, 3.0]},
    "faster down": {"bandwidth_down_mbit_s": [40.0, 10.0, 30.0]},
    "unequal latencies": {"latency_s": [0.5, 0.0, 2.0]},
    "latencies that add up": {"peer_latency_s": [0.5, 0.0, 2.0]},
    "equal latencies that add up": {"peer_latency_s": [0.5] * WORKERS},
    "pauses": {"peer_pause_s": [0.25, 0.0, 0.125]},
    "processes take time": {"peer_message_s": [0.5, 0.0, 0.125]},
    "latencies that vary": {"link_time": TRACE},
    "a window": {"first_window_bytes": 50_000},
    "small messages are slow": {"achieved_rates": [(0, 1.0), (200_000, 3.0), (400_000, 50.0)]},
    "throttles": {"throttles": [{"worker": 1, "from_s": 0.5, "to_s": 3.0, "factor": 4}]},
    "equal shares up": {"link_sharing": "equal_up"},
    "equal shares": {"link_sharing": "equal"},
    "two racks in turn": {"racks": [0, 1, 1], "rack_bandwidth_mbit_s": 3.0},
    "two racks": {"link_sharing": "equal", "racks": [0, 1, 1], "rack_bandwidth_mbit_s": 3.0},
    "two servers": {"servers": [0.5, 0.5]},
    "uneven servers": {"servers": [0.75, 0.25], "server_bandwidth_mbit_s": [4.0, 12.0]},
    "a server without entries": {"servers": [1.0, 0.0]},
}
#: (worker, bytes, seconds): in order, some at once, some while others pass, and in a throttle or none
SENT = [(0, 300_000, 0.0), (1, 100_000, 0.0), (2, 900_000, 0.25), (1, 500_000, 2.0), (0, 500_000, 5.0)]
SENT += [(1, 500_000, 5.0), (2, 20_000, 5.0), (1, 100_000, 9.0)]


class Defined:
    """The seconds of messages, by what the options say."""

    def __init__(self, options):
        sharing = options.get("link_sharing")
        self.is_equal = sharing in ("equal", "equal_up"), sharing == "equal"
        self.shares = options.get("servers", [1.0])
        links = options["server_bandwidth_mbit_s"]
        links = [links] * len(self.shares) if isinstance(links, float) else links
        # a message is through when the server with most to carry for its link has its slice
        self.server = min(125e3 * r / s for r, s in zip(links, self.shares, strict=True) if s)
        each = lambda value: value if isinstance(value, list) else [value] * WORKERS  # noqa: E731
        self.rates = [each(options["bandwidth_mbit_s"])] * 2
        if "bandwidth_down_mbit_s" in options:
            self.rates = [self.rates[0], each(options["bandwidth_down_mbit_s"])]
        self.latency, self.options = each(options["latency_s"]), options
        self.racks = options.get("racks", [0] * WORKERS)
        self.line = 125e3 * options.get("rack_bandwidth_mbit_s", inf)

    def rate(self, worker, back, now):
        part = 1.0
        for spell in self.options.get("throttles", ()):
            if spell["worker"] == worker and spell["from_s"] <= now < spell["to_s"]:
                part /= spell["factor"]
        return 125e3 * self.rates[back][worker] * part

    def achieved(self, size):
        """Of the slices that pass side by side, the one that takes longest counts."""
        table = self.options.get("achieved_rates", [])

        def of(piece):
            return [125e3 * mbit for begin, mbit in table if piece >= begin][-1] if table else inf

        return size / max(share * size / of(share * size) for share in self.shares if share) if table else inf

    def delay(self, worker, size, back):
        """Return the latency, with the round trips of a window that doubles, and the hop of an answer."""
        window, trips, sent = self.options.get("first_window_bytes", 0), 0, 0
        while window:
            sent += window * 2**trips
            if sent >= size * max(self.shares):
                break
            trips += 1
        one_way = self.latency[worker]
        varies = "link_time" in self.options
        first = TRACE["seconds"][worker + back * WORKERS][0] if varies else one_way
        hop = 0.25 if back and len(self.shares) > 1 else 0.0
        return first + 2 * trips * one_way + hop

    def between(self, one, other, size):
        """Return the latency from worker to worker: the longer of both, or the sum of their parts."""
        longest = max(self.delay(worker, size, 0) for worker in (one, other))
        if "peer_latency_s" not in self.options:
            return longest
        parts, latency = self.options["peer_latency_s"], max(self.latency[one], self.latency[other])
        return longest * (parts[one] + parts[other]) / latency

    def ends(self, one, other):
        """Return what the processes of two workers take for a message between them."""
        own = self.options.get("peer_message_s", [0.0] * WORKERS)
        return own[one] + own[other]

    def lines(self, one, other):
        """Return the lines of racks between two workers, by direction."""
        out, into = self.racks[one], self.racks[other]
        return [] if out == into else [way for way in (("out", out), ("into", into)) if way[1]]

    def arrivals(self, sent, back):
        """Return when these arrive: (worker, bytes, seconds) in the order of sending."""
        limits = [min(self.rate(w, back, now), self.achieved(size)) for w, size, now in sent]
        if self.is_equal[back]:
            starts, sizes = [now for *_, now in sent], [size for _, size, _ in sent]
            racks = [self.racks[worker] for worker, *_ in sent]
            passed = fluid(starts, sizes, limits, self.server, racks, self.line)
        else:
            free, passed, lines = 0.0, [], {}
            for (worker, size, now), limit in zip(sent, limits, strict=True):
                begins, rack = max(free, now), self.racks[worker]
                free = begins + size / self.server
                if rack:  # one more queue
                    begins, limit = max(begins, lines.get(rack, 0.0)), min(limit, self.line)
                    lines[rack] = begins + size / self.line
                passed.append(begins + size / min(limit, self.server))
        pairs = zip(passed, sent, strict=True)
        return [at + self.delay(worker, size, back) for at, (worker, size, _) in pairs]


def capped(caps, rate):
    """Return the level that caps flows so that all together have a rate; infinite if they need none."""
    if sum(caps) <= rate:
        return inf
    low, high = 0.0, rate
    for _ in range(200):
        level = (low + high) / 2
        low, high = (low, level) if sum(min(cap, level) for cap in caps) > rate else (level, high)
    return low


def fluid(begins, sizes, limits, rate, racks, line):
    """Return when messages have passed a link that all share: at each moment one level caps them all.

    Those of a rack have a line in common, and a level of their own.
    """
    left, ends, now = list(sizes), [inf] * len(sizes), 0.0
    while any(left):
        under = [i for i, begin in enumerate(begins) if begin <= now and left[i] > 0]
        inside = {rack: [limits[i] for i in under if racks[i] == rack] for rack in racks if rack}
        own = {i: min(limits[i], capped(inside[racks[i]], line) if racks[i] else inf) for i in under}
        level = capped(own.values(), rate)
        speeds = {i: min(own[i], level) for i in under}
        until = min([now + left[i] / speeds[i] for i in under] + [b for b in begins if b > now])
        for i in under:
            left[i] -= speeds[i] * (until - now)
            if left[i] < 1e-6 * sizes[i]:
                left[i], ends[i] = 0.0, until
        now = until
    return ends


def pairs():
    ones = [(), *((name,) for name in OPTIONS)]
    twos = [(a, b) for a, b in combinations(OPTIONS, 2) if not OPTIONS[a].keys() & OPTIONS[b].keys()]
    all_at_once = [
        name
        for name in OPTIONS
        if name
        not in {
            *("equal links, slower down", "faster down", "equal latencies that add up"),
            *("two servers", "a server without entries"),
        }
    ]
    return [*ones, *twos, ("unequal links", "unequal latencies", "equal shares"), tuple(all_at_once)]


def made(names):
    options = BASE | {key: value for name in names for key, value in OPTIONS[name].items()}
    if (
        isinstance(options["server_bandwidth_mbit_s"], float) is False
        and len(options.get("servers", [1])) != 2
    ):
        options["server_bandwidth_mbit_s"] = 12.0
    plain = {key: value for key, value in options.items() if key != "servers"}
    return options, Custom(**plain).profile()


@pytest.mark.parametrize("back", [0, 1], ids=["up", "down"])
@pytest.mark.parametrize("names", pairs(), ids=" + ".join)
def test_messages_take_what_every_pair_of_options_says(names, back):
    options, profile = made(names)
    shares = options.get("servers", [1.0])
    times = LinkTimes(profile, Streams(0)) if "link_time" in options else None
    network = Network(profile, len(shares), shares, times)
    said = []
    for worker, size, now in SENT:
        said.append((network.down if back else network.up)(worker, size, now))
        later = [network.contention_delay(w, back) for w in range(WORKERS)]  # of the last message of each
        for w, by in enumerate(later):
            of = max((i for i, (each, *_) in enumerate(SENT[: len(said)]) if each == w), default=None)
            if of is not None:
                said[of] += by
    assert said == pytest.approx(Defined(options).arrivals(SENT, back), rel=1e-6)


@pytest.mark.parametrize("names", pairs(), ids=" + ".join)
def test_rings_and_stars_take_what_every_pair_of_options_says(names):
    """A ring's pieces go up one link and down another; to servers that add up all push at once.

    Latencies that vary are of messages to servers, and drawn for those alone.
    """
    if "latencies that vary" in names:
        names = tuple(name for name in names if name != "latencies that vary")
    options, profile = made(names)
    shares = options.get("servers", [1.0])
    network, by = Network(profile, len(shares), shares), Defined(options)
    now, size = 0.75, 900_000
    network.advance(now)
    alone = Defined(options | {"servers": [1.0], "server_bandwidth_mbit_s": 12.0})
    for members in ([0, 1, 2], [0, 2], [1]):
        one_ring = pytest.approx(pieces_go_round(by, alone, members, size, now))
        assert network.ring(size, members) == one_ring
        for groups in ([members], [[each] for each in members]):  # of all, and of one each
            assert network.two_levels(size, groups, local=False) == one_ring
        up, down = ([(worker, each, now) for worker in members] for each in (size, 2 * size))
        hop = 0.25 if len(shares) > 1 else 0.0  # between servers, of which each answers here
        took = [max(by.arrivals(up, 0)) - now, max(by.arrivals(down, 1)) - now - hop]
        assert network.star(size, 2 * size, members) == pytest.approx(sum(took))


def pieces_go_round(by, alone, members, size, now):
    """Return when each of n members has 2 (n - 1) pieces, which it passes on one by one as they come."""
    n, came = len(members), {}
    hops = [*zip(members, [*members[1:], members[0]], strict=True)]
    lines = {hop: by.lines(*hop) for hop in hops}
    all_lines = [line for each in lines.values() for line in each]
    for step in range(2 * (n - 1)):
        for place, (one, other) in enumerate(hops):
            over = [by.line / all_lines.count(line) for line in lines[one, other]]
            rate = min(by.rate(one, 0, now), by.rate(other, 1, now), alone.achieved(size / n), *over)
            last = alone.between(one, other, size / n) + alone.ends(one, other)
            queued = came.get((place, step - 1), 0.0) - last if step else 0.0
            begins = max(came.get(((place - 1) % n, step - 1), 0.0), queued)
            came[place, step] = begins + size / n / rate + last
    return max(came.values(), default=0.0)


def test_links_between_workers_go_on_where_they_were():
    """Two models are on their way; each link, up and down, is busy until they are through."""
    _, profile = made(("unequal links", "slower down"))
    links, again = PeerLinks(profile, 300_000), PeerLinks(profile, 300_000)
    links.send(0, 1, 0.0)
    links.spread(2, 7, [0], 0.0)
    again.load_state_dict(json.loads(json.dumps(links.state_dict())))
    for each in (links, again):
        assert each.send(2, 1, 1.0) == pytest.approx(2 * 300_000 / 125e3 + 0.5)  # after the first, down at 1
        assert each.arrival(2, 7, 0, 5.0) == pytest.approx(300_000 / 500e3 + 0.5)
        assert each.send(0, 2, 1.0) == pytest.approx(1.0 + 300_000 / 375e3 + 0.5)


def test_lines_to_racks_go_on_where_they_were():
    """A push is on its way over a line, and an answer, which is longer, back over another."""
    _, profile = made(("two racks in turn",))
    network, again = Network(profile), Network(profile)
    for worker in range(WORKERS):
        network.up(worker, 900_000 * (1 + worker), 0.0)
        network.down(worker, 4_000_000 * (1 + worker), 0.0)
    again.load_state_dict(json.loads(json.dumps(network.state_dict())))
    for worker in range(WORKERS):
        for way in ("up", "down"):
            assert getattr(again, way)(worker, 1000, 0.5) == getattr(network, way)(worker, 1000, 0.5)


def test_a_model_pauses_while_it_waits_for_its_link():
    """The first is 300 ms on the link up; of the second's pauses of 500 ms the first 300 pass meanwhile."""
    _, profile = made(())
    _, paused = made(("pauses",))
    for each, first, second in ((profile, 0.0, 0.0), (paused, 0.25, 0.075)):
        links = PeerLinks(each, 300_000)
        assert links.send(0, 1, 1.0) == pytest.approx(1.0 + 0.3 + 0.5 + first)
        assert links.send(0, 2, 1.0) == pytest.approx(1.0 + 0.6 + 0.5 + second)


def test_reports_and_orders_wait_for_models_on_the_same_link():
    """Two models, a second each, come to worker 2 at once: it has them after 1.5 and 2.5 s."""
    profile = Custom(workers=WORKERS, bandwidth_mbit_s=8.0, latency_s=0.5).profile()
    links, again = (PeerLinks(profile, 1_000_000, beside_orders=True) for _ in range(2))
    assert [links.send(0, 2, 0.0), links.send(1, 2, 0.0)] == [1.5, 2.5]
    again.load_state_dict(json.loads(json.dumps(links.state_dict())))
    for each in (links, again):
        assert [each.reports(worker, 0.25) for worker in range(WORKERS)] == [1.0, 1.0, 0.25]
        # half of each is there before 1.0, and half of the second has waited for the first
        assert [each.order_arrives(2, at_s) for at_s in (0.25, 1.0, 1.75, 2.75)] == [0.25, 2.0, 2.5, 2.75]
        assert each.order_arrives(1, 1.0) == 1.0
    # nor do they overtake models on the line of a rack, which is half as fast, whoever those are for
    racks = replace(profile, racks=(0, 1, 1), rack_bandwidth_mbit_s=4.0)
    links, again = (PeerLinks(racks, 1_000_000, beside_orders=True) for _ in range(2))
    assert [links.send(0, 2, 0.0), links.send(1, 0, 0.0)] == [2.5, 2.5]
    again.load_state_dict(json.loads(json.dumps(links.state_dict())))
    for each in (links, again):
        # worker 1 reports when its own model has left, at 1.0
        messages = Reports(Network(racks), each)
        assert (messages.down(1, 0, 0.5), messages.up(2, 0, 0.5), messages.up(1, 0, 0.5)) == (1.5, 1.5, 2.5)
        assert [each.order_arrives(1, at_s) for at_s in (0.5, 1.0, 2.75)] == [0.5, 1.5, 2.75]
        assert [each.report_arrives(worker, 1.0) for worker in range(WORKERS)] == [1.0, 1.5, 1.5]
    # a model's pauses come after its first bytes, which an order waits for, and the receiver's process later
    busy = replace(profile, peer_pause_s=(0.25,) * WORKERS, peer_message_s=(0.125,) * WORKERS)
    links = PeerLinks(busy, 1_000_000, beside_orders=True)
    assert [links.send(0, 2, 0.0), links.send(1, 2, 0.0)] == [2.25, 3.25]
    assert links.order_arrives(2, 0.625 + 1.5 / 2) == 1.625 + 0.5


@pytest.mark.parametrize("names", pairs(), ids=" + ".join)
def test_messages_between_workers_take_what_every_pair_of_options_says(names):
    """Each link, up and down, passes one at a time; servers, and how they share, do not count."""
    names = tuple(name for name in names if name != "latencies that vary")
    options, profile = made(names)
    alone = Defined(options | {"servers": [1.0], "server_bandwidth_mbit_s": 12.0})
    size, now = 300_000, 0.75
    for sender, receiver in ((0, 1), (1, 0), (1, 2), (2, 0)):
        rate = min(alone.rate(sender, 0, now), alone.rate(receiver, 1, now), alone.achieved(size))
        rate = min(rate, *(alone.line for _ in alone.lines(sender, receiver)), inf)
        waits, pauses = alone.between(sender, receiver, size), options.get("peer_pause_s", [0.0] * WORKERS)
        links, more = PeerLinks(profile, size), pauses[sender] + pauses[receiver]
        more += alone.ends(sender, receiver)
        assert links.send(sender, receiver, now) == pytest.approx(now + size / rate + waits + more)
    shares = options.get("servers", [1.0])
    rings = PeerLinks(profile, size), Network(profile, len(shares), shares)
    rings[1].advance(now)
    assert rings[0].ring([0, 1, 2], now) == pytest.approx(now + rings[1].ring(size, [0, 1, 2]))


def test_a_process_sends_and_takes_in_one_model_after_another():
    """Of 300 ms on a link and 500 ms of latency; worker 0 takes 500 ms for each, and worker 2 125 ms."""
    _, profile = made(("processes take time",))
    links = PeerLinks(profile, 300_000)
    links.spread(0, 7, [1, 2], 1.0)
    assert links.arrival(0, 7, 1, 1.0) == pytest.approx(1.0 + 0.5 + 0.3 + 0.5)
    assert links.arrival(0, 7, 2, 1.0) == pytest.approx(1.0 + 2 * 0.5 + 0.3 + 0.5 + 0.125)
    # of two that it would have at the same time, each alone, it has the second one 125 ms later
    assert links.taken_in(2, [4.0, 4.0, 3.0]) == 4.125
    assert links.taken_in(2, []) == links.process_s(1, 3) == 0.0


def test_messages_that_are_all_known_end_as_one_by_one():
    """With lines of racks, limits of their own, and messages of less than the clock resolves."""
    rng, count = np.random.default_rng(0), 60
    begins, sizes = np.sort(rng.uniform(0, 1, count)), rng.integers(5_000, 30_000, count)
    limits, racks = rng.uniform(60_000, 600_000, count), rng.integers(0, 3, count)
    sent = list(zip(begins.tolist(), sizes.tolist(), limits.tolist(), racks.tolist(), strict=True))
    link = SharedLink(250_000.0, rack_rate=125_000.0)
    for number, (begin, size, limit, rack) in enumerate(sent):
        link.begin(number, size, limit, begin, rack)
    known = SharedLink(250_000.0, rack_rate=125_000.0).ends_of_all(sent)
    assert known == pytest.approx([link.ends(number) for number in range(count)], rel=1e-6)
    quick = [(1e4 + begin, size, 1e21, 0) for begin, size, *_ in sent]
    assert SharedLink(1e20).ends_of_all(quick) == pytest.approx(1e4 + begins, abs=1e-9)
    assert SharedLink(1.0).ends_of_all([]) == []
