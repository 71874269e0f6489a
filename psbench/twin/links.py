"""Links by end: each machine's rates up and down and its latency, from timed messages between machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from psbench.twin.size_classes import MBIT

#: latencies of ends that explain as much are small and alike: weight of that, beside the measured ones
_ALIKE = 1e-3
#: an end is known from the ways that it limits: those whose other end has at least this share of its rate
_LIMITS, _ROUNDS = 0.9, 5
#: ways of at least this share of the highest rate tell what software makes of a message's size
_QUICK = 0.8
#: a way between racks has at most this share of what its ends have, and a shared line at once of its rate
_ACROSS = 0.6
#: quantile of the ways between racks that had the line alone
_ALONE = 0.9


class Way(NamedTuple):
    """Messages from one machine to another, one at a time; `seconds` one way, by their bytes."""

    start: int
    end: int
    latency_s: float
    mbit_s: float
    seconds: tuple[tuple[int, float], ...] = ()


class MeasuredLinks(NamedTuple):
    """Timed messages between machines, and the machines on which a run would have its roles.

    `server`: of the coordinator and first server; `workers`: of each worker; `ways`: each alone between its
    two machines; `at_once`: those to the server's machine and back, all at the same time.
    """

    server: int
    workers: tuple[int, ...]
    ways: tuple[Way, ...]
    at_once: tuple[Way, ...] = ()


class Ends(NamedTuple):
    """The link of each machine: rates up and down in Mbit/s, and one-way latency in seconds."""

    up_mbit_s: Mapping[int, float]
    down_mbit_s: Mapping[int, float]
    latency_s: Mapping[int, float]

    def rate(self, start: int, end: int) -> float:
        """Return the Mbit/s of a message that has both links alone."""
        return min(self.up_mbit_s[start], self.down_mbit_s[end])

    def latency(self, start: int, end: int) -> float:
        """Return the latency from one machine to another in seconds; 0 within one."""
        return 0.0 if start == end else self.latency_s[start] + self.latency_s[end]


def ends_of(ways: Sequence[Way], at_once: Sequence[Way] = ()) -> Ends:
    """Fit rates and latencies by end: a way is as fast as the slower of its ends, and latencies add up.

    Of the fastest ends, which limit no way, the rate is a lower bound, as is what an end has beside others at
    once. Latencies are the least squares that are not negative.

    Examples
    --------
    >>> rates = {0: (9.0, 9.0), 1: (2.0, 4.0), 2: (5.0, 6.0)}
    >>> ways = [
    ...     Way(a, b, 0.01 * (a + b), min(rates[a][0], rates[b][1])) for a in rates for b in rates if a != b
    ... ]
    >>> ends = ends_of(ways)
    >>> ends.up_mbit_s, ends.down_mbit_s
    ({0: 6.0, 1: 2.0, 2: 5.0}, {0: 5.0, 1: 4.0, 2: 6.0})
    >>> [round(each, 4) for each in ends.latency_s.values()]
    [0.0, 0.01, 0.02]
    """
    machines, all_ways = _machines(ways), [*ways, *at_once]
    ups = {each: max(way.mbit_s for way in all_ways if way.start == each) for each in machines}
    downs = {each: max(way.mbit_s for way in all_ways if way.end == each) for each in machines}
    for _ in range(_ROUNDS):
        out = {
            each: [w.mbit_s for w in ways if w.start == each and downs[w.end] >= _LIMITS * ups[each]]
            for each in machines
        }
        into = {
            each: [w.mbit_s for w in ways if w.end == each and ups[w.start] >= _LIMITS * downs[each]]
            for each in machines
        }
        ups = {each: _rate_of(out[each] or [ups[each]]) for each in machines}
        downs = {each: _rate_of(into[each] or [downs[each]]) for each in machines}
    return Ends(ups, downs, parts_of(_by_pair(ways, [way.latency_s for way in ways])))


def _rate_of(mbit_s: Sequence[float]) -> float:
    """Return the upper quartile: what else a machine does makes messages slower, and never faster."""
    return float(np.quantile(mbit_s, 0.75))


def _machines(ways: Sequence[Way]) -> list[int]:
    return sorted({each for way in ways for each in (way.start, way.end)})


def _by_pair(ways: Sequence[Way], seconds: Sequence[float]) -> dict[tuple[int, int], float]:
    """Return the mean seconds from each machine to each other: a way may have been timed from both ends."""
    found: dict[tuple[int, int], list[float]] = {}
    for way, each in zip(ways, seconds, strict=True):
        found.setdefault((way.start, way.end), []).append(each)
    return {pair: fmean(each) for pair, each in found.items()}


def parts_of(seconds: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """Return each machine's part, not negative, of the seconds between machines, as both parts add up.

    >>> {each: round(part, 3) for each, part in parts_of({(0, 1): 1.0, (0, 2): 2.0, (1, 2): 3.0}).items()}
    {0: 0.0, 1: 1.0, 2: 2.0}
    """
    machines = sorted({each for pair in seconds for each in pair})
    rows = np.zeros((len(seconds) + len(machines), len(machines)))
    for row, pair in enumerate(seconds):
        rows[row, [machines.index(each) for each in pair]] = 1.0
    rows[len(seconds) :] = _ALIKE * np.eye(len(machines))
    parts, _ = nnls(rows, np.array([*seconds.values(), *[0.0] * len(machines)]))
    return dict(zip(machines, parts.tolist(), strict=True))


def waits_of(
    ways: Sequence[Way], num_bytes: int, rate: Callable[[int, int], float]
) -> dict[tuple[int, int], float]:
    """Return the extra delay of a message each way, beyond latency and transfer time, in seconds.

    A connection that does not know its link sends with pauses, which are longer the longer a round trip is.
    Between sizes that were timed it is interpolated.

    Parameters
    ----------
    ways : sequence of Way
    num_bytes : int
    rate : callable
        Mbit/s from one machine to another.

    Examples
    --------
    >>> way = Way(0, 1, 0.5, 8.0, ((1_000_000, 1.75), (3_000_000, 4.25)))
    >>> waits_of([way], 2_000_000, lambda start, end: 8.0)
    {(0, 1): 0.5}
    """
    waits = []
    for way in ways:
        sizes = [(0, way.latency_s), *way.seconds]
        beyond = [s - way.latency_s - MBIT * size / rate(way.start, way.end) for size, s in sizes]
        waits.append(float(np.interp(num_bytes, [size for size, _ in sizes], beyond)))
    return {pair: max(0.0, wait_s) for pair, wait_s in _by_pair(ways, waits).items()}


def quick_seconds(ways: Sequence[Way]) -> dict[int, list[float]]:
    """Return the seconds of messages by their bytes on the fastest ways; 0: latencies of next to none.

    They tell what software makes of a message's size, which links do not.
    """
    least = _QUICK * max(way.mbit_s for way in ways)
    found: dict[int, list[float]] = {}
    for way in ways:
        if way.mbit_s >= least:
            found.setdefault(0, []).append(way.latency_s)
            for num_bytes, seconds in way.seconds:
                found.setdefault(num_bytes, []).append(seconds)
    return found


class Racks(NamedTuple):
    """The rack of each machine, 0 for the server's, and the Mbit/s of the line to each other rack."""

    of: Mapping[int, int]
    mbit_s: float

    def within(self, ways: Sequence[Way]) -> list[Way]:
        """Return the ways that pass no line; who is alone in a rack has those of its line."""
        alone = {rack for rack, count in Counter(self.of.values()).items() if count == 1}
        pairs = [(way, {self.of[way.start], self.of[way.end]}) for way in ways]
        return [way for way, both in pairs if len(both) == 1 or both & alone]


def racks_of(links: MeasuredLinks) -> Racks:
    """Return racks with a line that their machines share; one rack without any.

    Machines are of one rack if a way between them has what the quickest ways of both have. Ways between racks
    have less, and still less at once: else each connection has its own limit, and no line is shared.

    Examples
    --------
    >>> rack = {0: 0, 1: 0, 2: 1, 3: 1}
    >>> pairs = [(a, b) for a in rack for b in rack if a != b]
    >>> ways = tuple(Way(a, b, 0.001, 90.0 if rack[a] == rack[b] else 9.0) for a, b in pairs)
    >>> shared = tuple(Way(each, 0, 0.001, {1: 80.0, 2: 4.5, 3: 4.4}[each]) for each in (1, 2, 3))
    >>> racks_of(MeasuredLinks(0, (1, 2, 3), ways, shared))
    Racks(of={0: 0, 1: 0, 2: 1, 3: 1}, mbit_s=9.0)
    >>> alone = tuple(Way(each, 0, 0.001, {1: 80.0, 2: 8.9, 3: 8.8}[each]) for each in (1, 2, 3))
    >>> racks_of(MeasuredLinks(0, (1, 2, 3), ways, alone))
    Racks(of={0: 0, 1: 0, 2: 0, 3: 0}, mbit_s=inf)
    """
    machines = sorted({each for way in links.ways for each in (way.start, way.end)})
    most = {
        (each, of): max((way.mbit_s for way in links.ways if getattr(way, of) == each), default=0.0)
        for each in machines
        for of in ("start", "end")
    }
    whole = {way: min(most[way.start, "start"], most[way.end, "end"]) for way in links.ways}
    rack = {each: each for each in machines}
    for way, mbit_s in whole.items():
        if way.mbit_s > _ACROSS * mbit_s:
            rack = {each: rack[way.start] if of == rack[way.end] else of for each, of in rack.items()}
    across = [way for way in links.ways if rack[way.start] != rack[way.end]]
    one = Racks(dict.fromkeys({*machines, *links.workers, links.server}, 0), inf)
    if not across or links.server not in rack:
        return one
    # ways that were timed at the same time had the line together
    line = float(np.quantile([way.mbit_s for way in across], _ALONE))
    there = [way for way in links.at_once if way.end == links.server and rack[way.start] != rack[way.end]]
    if len(there) < 2 or median(way.mbit_s for way in there) > _ACROSS * line:
        return one
    numbers = [rack[links.server], *sorted(set(rack.values()) - {rack[links.server]})]
    return Racks({each: numbers.index(of) for each, of in rack.items()}, line)


class Waits(NamedTuple):
    """The extra delay of a model's message, beyond latency and transfer time, by worker in seconds.

    `up` and `back`: to the servers and back; `peers`: each worker's part between two of them.
    """

    up: tuple[float, ...]
    back: tuple[float, ...]
    peers: tuple[float, ...]

    def of(self, places: Sequence[int]) -> Waits:
        """Return the delays of the workers at these places."""
        return Waits(*(tuple(own[place] for place in places) for own in self))

    def times(self, factor: float) -> Waits:
        """Return the delays multiplied by a factor."""
        return Waits(*(tuple(factor * each for each in own) for own in self))

    def of_models(self, cluster: Mapping[str, Any]) -> dict[str, Any]:
        """Return a cluster on which messages between workers are models, which wait."""
        return {**cluster, "peer_pause_s": list(self.peers)}


def without_vectors(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cluster with the measured latencies, for messages that carry no vector.

    What models take beyond them is not the links' alone: it grows with the bytes.
    """
    links, latencies = cluster["link_time"], 2 * cluster["latency_s"]
    seconds = [
        [each * latency_s / fmean(end) for each in end]
        for end, latency_s in zip(links["seconds"], latencies, strict=True)
    ]
    return {**cluster, "link_time": {**links, "seconds": seconds}}
