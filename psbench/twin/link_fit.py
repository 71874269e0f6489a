"""Fit of links to measured messages: their latencies, and the rates that messages pass at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np

from psbench.arrays import Booleans, Doubles, Integers
from psbench.clusters.shared_link import SharedLink
from psbench.twin.codecs import mean_and_width
from psbench.twin.exchanges import SHORTEST_S, Exchanges, as_quick_both_ways
from psbench.twin.fitted import AT_ONCE, HOP, Fit, Fitted, company_of, latency_of, rate_of, rounded
from psbench.twin.links import (
    Ends,
    MeasuredLinks,
    Racks,
    Waits,
    Way,
    ends_of,
    parts_of,
    quick_seconds,
    racks_of,
    waits_of,
)
from psbench.twin.sharing import Passage, seconds_alone, shared_s
from psbench.twin.size_classes import MBIT, Z90, rate_at, size_classes
from psbench.twin.variation import kept

#: megabits per second that mean: what bytes cost is in the latency
NO_LIMIT = 1e6
#: values of each end of a link that a profile keeps
_KEPT_OF_LINK = 64
#: the shortest time on a shared link that differs from none
_NOTHING_S = 1e-9
#: rates of the server's link that are tried, and then beside the best of them
_RATES, _FINER = 8, 7
#: how messages may share it
_SHARINGS = "equal_up", "equal", "in_turn"
#: how often clocks are set, as who waits for whom depends on them
_CLOCKS = 3
#: a worker's quickest share of messages, which pass alone, and the least that they take of what is expected
_QUICKEST, _SLOWEST_SHARE = 0.1, 0.05


def fit_shared_link(found: Fit, measured: Sequence[Exchanges], passages: Sequence[Passage]) -> None:
    """Fit the rate of one link that all messages share, as those of processes of one machine do."""
    shared = _rate_at_once(found, measured, passages)
    passing = [
        [passing_s(begin, size, shared) for begin, size in _sent(*pair)]
        for pair in zip(measured, passages, strict=True)
    ]
    latencies = _fit_latencies(found, measured, passages, passing)
    hop_s = _fit_hop(found, passages, latencies)
    found.cluster |= {
        "latency_s": rounded(hop_s),
        "server_latency_s": rounded(hop_s),
        "link_sharing": "equal",
        "bandwidth_mbit_s": NO_LIMIT,
        "server_bandwidth_mbit_s": rounded(shared),
    }


def _sent(each: Exchanges, passage: Passage) -> Iterator[tuple[Doubles, Integers]]:
    """Yield when messages begin and their bytes: to the servers, and back."""
    yield from zip(passage.begin_s, (each.bytes_up, each.bytes_down), strict=True)


def _fit_latencies(
    found: Fit,
    measured: Sequence[Exchanges],
    passages: Sequence[Passage],
    passing: Sequence[Sequence[Doubles]],
) -> Sequence[Doubles]:
    """Fit latencies, separately for each end of each link, as blocks of measured times; return them.

    What a message took to pass (`passing`, of each run both ways) is taken off; what is left is latency, in
    which it keeps no other from passing.
    """
    workers = found.cluster["workers"]
    ends: list[list[Doubles]] = [[] for _ in range(2 * workers)]
    for each, passage, passes in zip(measured, passages, passing, strict=True):
        both = [took - less for took, less in zip(passage.took_s, passes, strict=True)]
        for worker in np.unique(each.worker).tolist():
            own = (each.worker == worker) & (each.bytes_down > 0)
            alone = own & passage.counts
            chosen = alone if alone.sum() > 2 else own
            up, down = as_quick_both_ways(both[0][chosen], both[1][chosen])
            ends[worker].append(up)
            ends[workers + worker].append(down)
    latencies = [np.maximum(np.concatenate(end), SHORTEST_S) for end in ends]
    for end, values in enumerate(latencies):
        found.fitted[latency_of(end, workers)] = Fitted(*mean_and_width(values), f"{len(values)} messages")
    seconds_of = [kept(end, _KEPT_OF_LINK) for end in latencies]
    found.cluster["link_time"] = {"name": "trace", "order": "blocks", "seconds": seconds_of}
    return latencies


def _fit_hop(found: Fit, passages: Sequence[Passage], latencies: Sequence[Doubles]) -> float:
    """Return an estimate of the latency between workers in seconds, with a wide interval.

    All workers of a ring send at once, on links that are each their own in virtual time. So a hop is taken to
    be as long as the typical message to a server, with what others under way at once cost it. It is in doubt
    by as much as the mean is beyond that, and by that cost: a ring may not use the link that servers share.
    """
    took = np.maximum(np.concatenate([each.took_s[0][each.counts] for each in passages]), SHORTEST_S)
    median, alone = float(np.median(took)), float(np.median(np.concatenate(latencies)))
    doubt = min(max(abs(float(took.mean()) - median), median - alone), 0.9 * median)
    found.fitted[HOP] = Fitted(median, median - doubt, median + doubt, "messages to the servers")
    found.unknown.append("latency between workers: not measured; assumed equal to the median to the servers")
    return median


def passage(each: Exchanges, service_s: tuple[float, float]) -> Passage:
    """Return a run's message times to the servers and back, without the servers' time."""
    message, decision = service_s
    served = message * (each.place + 2) + decision
    return Passage(
        (each.arrived_s - each.up_s, each.released_s + served),
        (each.up_s, each.down_s - served),
        each.worker,
        (each.bytes_down > 0) & ~_queued(each, 2 * message + decision),
    )


def _rate_at_once(found: Fit, measured: Sequence[Exchanges], passages: Sequence[Passage]) -> float:
    """Fit the rate of a link shared by all messages, Mbit/s."""
    largest = max(int(each.bytes_up.max()) for each in measured)
    alone = seconds_alone(passages)
    if alone is None:
        found.unknown.append(f"{AT_ONCE}: too few messages; assumed absent")
    value, low, high = (max(_NOTHING_S, each) for each in alone or (0.0, 0.0, 0.0))
    found.fitted[AT_ONCE] = Fitted(value, min(low, value), max(high, value), f"{len(passages)} runs")
    for way, whither in enumerate(("to the servers", "back")):
        passing = [shared_s(each.begin_s[way], value) / value for each in passages]
        company = float(np.concatenate(passing).mean())
        found.fitted[company_of(whither)] = Fitted(company, company, company, "when they begin to pass")
    bound = f"at least {MBIT * largest / min(float(each.up_s.min()) for each in measured):.3g} Mbit/s"
    found.unknown.append(
        f"bandwidth: all messages have one size; {bound}, and its cost is part of the latency"
    )
    return MBIT * largest / value


def passing_s(
    begin: Doubles,
    size: Integers,
    mbit_s: float,
    own_mbit_s: Doubles | None = None,
    rack: Integers | None = None,
    line_mbit_s: float = NO_LIMIT,
) -> Doubles:
    """Return the transfer times of messages that share a link with that rate equally.

    At most it had the rate of its own link, `own_mbit_s`, if given, and a share of the line to its rack.

    >>> passing_s(np.array([0.0, 0.5]), np.array([125_000, 125_000]), 1.0).tolist()
    [1.5, 1.5]
    """
    racks = [0] * len(begin) if rack is None else rack.tolist()
    own = np.full(len(begin), mbit_s) if own_mbit_s is None else own_mbit_s
    sent = zip(begin.tolist(), size.astype(float).tolist(), (own / MBIT).tolist(), racks, strict=True)
    found: Doubles = np.array(SharedLink(mbit_s / MBIT, line_mbit_s / MBIT).ends_of_all([*sent])) - begin
    return found


def passing_in_turn_s(
    begin: Doubles,
    size: Integers,
    mbit_s: float,
    own_mbit_s: Doubles,
    rack: Integers | None = None,
    line_mbit_s: float = NO_LIMIT,
) -> Doubles:
    """Return the transfer times of messages that a link serves one after another; see `Network`.

    The line to a rack other than 0 is a queue, too.

    >>> passing_in_turn_s(np.array([0.0, 0.5]), np.array([125_000] * 2), 1.0, np.array([1.0, 0.5])).tolist()
    [1.0, 2.5]
    """
    took, free_s, lines = np.zeros(len(begin)), -inf, dict[int, float]()
    racks = [0] * len(begin) if rack is None else rack.tolist()
    passes = MBIT * size / np.minimum(own_mbit_s, mbit_s)
    for each in np.argsort(begin, kind="stable").tolist():
        starts_s, passes_s = max(free_s, float(begin[each])), float(passes[each])
        free_s = starts_s + MBIT * float(size[each]) / mbit_s
        if of := racks[each]:
            starts_s, line_s = max(starts_s, lines.get(of, -inf)), MBIT * float(size[each]) / line_mbit_s
            lines[of], passes_s = starts_s + line_s, max(passes_s, line_s)
        took[each] = starts_s - begin[each] + passes_s
    return took


def _queued(each: Exchanges, busy_s: float) -> Booleans:
    """Return a mask of pushes that probably queued: they follow another one within its service time."""
    return np.diff(each.arrived_s, prepend=-np.inf) < 1.5 * busy_s


# -------------------------------------------------------------------- links by end


class _Links(NamedTuple):
    """The links of workers: Mbit/s up and down of each, seconds to the server, rates by bytes, and racks."""

    mbit_s: tuple[Sequence[float], Sequence[float]]
    latency_s: Sequence[float]
    by_size: Sequence[tuple[float, float]]
    rack: Sequence[int]
    line_mbit_s: float

    def own_mbit_s(self, worker: int, way: int, num_bytes: float) -> float:
        """Return the highest rate of a message of that size."""
        return min(self.mbit_s[way][worker], rate_at(self.by_size, num_bytes) or NO_LIMIT)

    def passing(self, each: Exchanges, passage: Passage, shared: float, sharing: str) -> list[Doubles]:
        """Return the transfer times of a run's messages in seconds, up and down, without latency."""
        found = []
        workers, rack = each.worker.tolist(), np.array(self.rack)[each.worker]
        for way, (begin, size) in enumerate(_sent(each, passage)):
            pairs = zip(workers, size.tolist(), strict=True)
            own = np.array([self.own_mbit_s(worker, way, num_bytes) for worker, num_bytes in pairs])
            if sharing == "equal" or (sharing == "equal_up" and way == 0):
                found.append(passing_s(begin, size, shared, own, rack, self.line_mbit_s))
            else:
                found.append(passing_in_turn_s(begin, size, shared, own, rack, self.line_mbit_s))
        return found

    def all_passing(
        self, measured: Sequence[Exchanges], passages: Sequence[Passage], shared: float, sharing: str
    ) -> list[list[Doubles]]:
        """Return the same of several runs."""
        return [self.passing(*pair, shared, sharing) for pair in zip(measured, passages, strict=True)]


def fit_ends(
    found: Fit, measured: Sequence[Exchanges], passages: Sequence[Passage], links: MeasuredLinks
) -> None:
    """Fit each worker's rates and latency, and the rate of the server's link, to timed messages.

    The server's rate, at least what single messages have of it, and how messages share it, are those with
    which messages take least more or less than what passes, twice the latency, and what a message of that
    size waits. Clocks tell who waits for whom, and are set in turns with them.
    """
    racks, machines = racks_of(links), links.workers
    within = racks.within(links.ways)
    ends, classes = ends_of(within, racks.within(links.at_once)), size_classes(quick_seconds(within))
    line_s = _line_s(links.ways, ends, racks)
    by_size = () if classes is None or len(classes.rates) < 2 else classes.rates
    rates = ([*map(ends.up_mbit_s.__getitem__, machines)], [*map(ends.down_mbit_s.__getitem__, machines)])
    to_server = [ends.latency(each, links.server) + line_s * bool(racks.of[each]) for each in machines]
    own = _Links(
        _as_quick_as_seen(rates, to_server, measured, passages),
        to_server,
        by_size,
        [racks.of[each] for each in machines],
        racks.mbit_s,
    )
    least = min(ends.up_mbit_s[links.server], ends.down_mbit_s[links.server])
    least = max(least, *map(_carried_mbit_s, measured))
    most = max(least, *map(sum, own.mbit_s))
    found.waits = waits = _waits(measured, own, ends, racks, links)
    beyond = [
        2 * latency_s + up + back
        for latency_s, up, back in zip(own.latency_s, waits.up, waits.back, strict=True)
    ]
    sharing, shared = _best_sharing(own, measured, passages, beyond, (least, most))
    for turn in range(_CLOCKS):
        passes = own.all_passing(measured, passages, shared, sharing)
        passages = [_with_clocks(*each) for each in zip(passages, passes, strict=True)]
        if turn < _CLOCKS - 1:
            sharing, shared = _best_sharing(own, measured, passages, beyond, (least, most))
    passes = own.all_passing(measured, passages, shared, sharing)
    _fit_latencies(found, measured, passages, passes)
    between = [way.latency_s for way in links.ways]
    found.cluster |= {
        "latency_s": [rounded(each) for each in own.latency_s],
        "peer_latency_s": [rounded(ends.latency_s[each]) for each in machines],
        "server_latency_s": rounded(float(np.median(between))),
        "link_sharing": sharing,
        "bandwidth_mbit_s": [rounded(each) for each in own.mbit_s[0]],
        "bandwidth_down_mbit_s": [rounded(each) for each in own.mbit_s[1]],
        "server_bandwidth_mbit_s": rounded(shared),
    }
    if any(own.rack):
        found.cluster |= {
            "racks": list(own.rack),
            "rack_bandwidth_mbit_s": rounded(racks.mbit_s),
            "rack_latency_s": rounded(line_s),
        }
    if by_size:
        found.cluster["achieved_rates"] = [list(each) for each in by_size]
    _say_ends(found, ends, links, within)
    if classes is not None:
        found.unknown += classes.unknown


def _best_sharing(
    own: _Links,
    measured: Sequence[Exchanges],
    passages: Sequence[Passage],
    beyond_s: Sequence[float],
    between: tuple[float, float],
) -> tuple[str, float]:
    """Return how messages share the server's link, and its rate, with the least misfit."""

    def misfit(sharing: str, rate: float) -> float:
        return _misfit(measured, passages, own.all_passing(measured, passages, rate, sharing), beyond_s)

    _, sharing, rate = min(_best_rate(partial(misfit, each), *between, each) for each in _SHARINGS)
    return sharing, rate


def _rates(least: float, most: float, count: int) -> list[float]:
    found: list[float] = np.unique(np.geomspace(least, most, count)).tolist()
    return found


def _best_rate(
    misfit: Callable[[float], float], least: float, most: float, sharing: str
) -> tuple[float, str, float]:
    """Return the smallest misfit, how the link is shared, and the rate that has it, to some percent."""
    tried = {rate: misfit(rate) for rate in _rates(least, most, _RATES)}
    best, rates = min(tried, key=tried.__getitem__), [*tried]
    below, above = (rates[max(0, min(rates.index(best) + way, len(rates) - 1))] for way in (-1, 1))
    tried |= {rate: misfit(rate) for rate in _rates(below, above, _FINER)}
    best = min(tried, key=tried.__getitem__)
    return tried[best], sharing, best


def _with_clocks(passage: Passage, passing: Sequence[Doubles]) -> Passage:
    """Return a run's messages with clocks by which each worker's quickest take as long both ways.

    Without what they waited for others, that is: behind a barrier every answer to a worker may have.
    """
    (up, back), (sent_s, answered_s) = passage.took_s, passage.begin_s
    ahead = np.zeros(len(up))
    for worker in np.unique(passage.worker):
        own = passage.worker == worker
        before = up[own] - passing[0][own]
        ahead[own] = as_quick_both_ways(before, back[own] - passing[1][own])[0] - before
    return passage._replace(begin_s=(sent_s - ahead, answered_s), took_s=(up + ahead, back - ahead))


def _carried_mbit_s(each: Exchanges) -> float:
    """Return a lower bound on the rate of the server's link: slightly more than a run's traffic, Mbit/s."""
    seconds = float(each.arrived_s.max() - each.released_s.min())
    return 1.2 * MBIT * float(max(each.bytes_up.sum(), each.bytes_down.sum())) / seconds


def _line_s(ways: Sequence[Way], ends: Ends, racks: Racks) -> float:
    """Return the latency that the line to a rack adds to those of the ends, seconds."""
    over = [way for way in ways if racks.of[way.start] != racks.of[way.end]]
    # between two racks other than the server's there are two lines
    lines = [bool(racks.of[way.start]) + bool(racks.of[way.end]) for way in over]
    beyond = [
        (way.latency_s - ends.latency(way.start, way.end)) / count
        for way, count in zip(over, lines, strict=True)
    ]
    return max(0.0, float(np.median(beyond))) if over else 0.0


def _as_quick_as_seen(
    mbit_s: tuple[Sequence[float], Sequence[float]],
    latency_s: Sequence[float],
    measured: Sequence[Exchanges],
    passages: Sequence[Passage],
) -> tuple[list[float], list[float]]:
    """Return rates with which no worker's quickest messages take longer than they did.

    Of a link of which only ways to slower ones were timed the rate is a lower bound.
    """
    up, down = ([*each] for each in mbit_s)
    for worker, one_way_s in enumerate(latency_s):
        took, alone = list[Doubles](), list[Doubles]()
        for each, passage in zip(measured, passages, strict=True):
            chosen = (each.worker == worker) & passage.counts
            took.append((passage.took_s[0] + passage.took_s[1])[chosen] - 2 * one_way_s)
            sizes = each.bytes_up / up[worker] + each.bytes_down / down[worker]
            alone.append(MBIT * sizes[chosen])
        shares = np.concatenate(took) / np.concatenate(alone)
        if len(shares) and (quickest := float(np.quantile(shares, _QUICKEST))) < 1.0:
            up[worker] /= max(quickest, _SLOWEST_SHARE)
            down[worker] /= max(quickest, _SLOWEST_SHARE)
    return up, down


def _waits(
    measured: Sequence[Exchanges], own: _Links, ends: Ends, racks: Racks, links: MeasuredLinks
) -> Waits:
    """Return the extra delay of messages of the model's size, from the timed messages."""
    num_bytes = max(int(each.bytes_down.max()) for each in measured)

    def rate(start: int, end: int) -> float:
        of_size = rate_at(own.by_size, num_bytes) or NO_LIMIT
        return min(ends.rate(start, end), of_size, inf if racks.of[start] == racks.of[end] else racks.mbit_s)

    waits, server = waits_of(links.ways, num_bytes, rate), links.server
    parts = parts_of(waits)
    return Waits(
        tuple(waits.get((each, server), 0.0) for each in links.workers),
        tuple(waits.get((server, each), 0.0) for each in links.workers),
        tuple(parts[each] for each in links.workers),
    )


def _misfit(
    measured: Sequence[Exchanges],
    passages: Sequence[Passage],
    passing: Sequence[Sequence[Doubles]],
    beyond_s: Sequence[float],
) -> float:
    """Return the deviation of messages, both ways together, from transfer time plus latency."""
    beyond, error = np.array(beyond_s), 0.0
    for each, passage, (up, down) in zip(measured, passages, passing, strict=True):
        took = passage.took_s[0] + passage.took_s[1] - up - down - beyond[each.worker]
        error += float(np.abs(took[passage.counts]).sum())
    return error


def _say_ends(found: Fit, ends: Ends, links: MeasuredLinks, within: Sequence[Way]) -> None:
    """Add the rates of each worker's link with their intervals, and who shares one."""
    for worker, machine in enumerate(links.workers):
        for whither, rates, of in (("up", ends.up_mbit_s, "start"), ("down", ends.down_mbit_s, "end")):
            ways = [way for way in within if getattr(way, of) == machine]
            ratios = [way.mbit_s / ends.rate(way.start, way.end) for way in ways]
            wide = Z90 * float(np.std(ratios)) / len(ratios) ** 0.5 * rates[machine]
            rate = Fitted(
                rates[machine], max(0.0, rates[machine] - wide), rates[machine] + wide, f"{len(ways)} links"
            )
            found.fitted[rate_of(worker, whither)] = rate
    beside = [worker for worker, machine in enumerate(links.workers) if machine == links.server]
    if beside:
        found.unknown.append(
            f"workers {beside} share the server's machine: their messages to it are taken to pass a link"
        )
    if len(set(links.workers)) < len(links.workers):
        found.unknown.append("some workers share a machine: each is taken to have its link alone")
