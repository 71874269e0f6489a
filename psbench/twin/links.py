"""Links by end: each machine's rates up and down and its latency, from timed messages between machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from statistics import median
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

#: latencies of ends that explain as much are small and alike: weight of that, beside the measured ones
_ALIKE = 1e-3
#: an end is known from the ways that it limits: those whose other end has at least this share of its rate
_LIMITS, _ROUNDS = 0.9, 5
#: ways of at least this share of the highest rate tell what software makes of a message's size
_QUICK = 0.8
#: a way between racks has at most this share of what its ends have, and a shared line at once of its rate
_ACROSS = 0.6


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
    """What each machine's link has: Mbit/s of what leaves it and of what comes, and seconds one way."""

    up_mbit_s: Mapping[int, float]
    down_mbit_s: Mapping[int, float]
    latency_s: Mapping[int, float]

    def rate(self, start: int, end: int) -> float:
        """Return the Mbit/s of a message that has both links alone."""
        return min(self.up_mbit_s[start], self.down_mbit_s[end])

    def latency(self, start: int, end: int) -> float:
        """Return the latency from one machine to another in seconds; 0 within one."""
        return 0.0 if start == end else self.latency_s[start] + self.latency_s[end]


def ends_of(ways: Sequence[Way]) -> Ends:
    """Fit rates and latencies by end: a way is as fast as the slower of its ends, and latencies add up.

    Of the fastest ends, which limit no way, the rate is a lower bound. Latencies are the least squares that
    are not negative.

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
    machines = sorted({each for way in ways for each in (way.start, way.end)})
    ups = {each: max(way.mbit_s for way in ways if way.start == each) for each in machines}
    downs = {each: max(way.mbit_s for way in ways if way.end == each) for each in machines}
    for _ in range(_ROUNDS):
        out = {
            each: [w.mbit_s for w in ways if w.start == each and downs[w.end] >= _LIMITS * ups[each]]
            for each in machines
        }
        into = {
            each: [w.mbit_s for w in ways if w.end == each and ups[w.start] >= _LIMITS * downs[each]]
            for each in machines
        }
        ups = {each: median(out[each] or [ups[each]]) for each in machines}
        downs = {each: median(into[each] or [downs[each]]) for each in machines}
    rows = np.zeros((len(ways) + len(machines), len(machines)))
    for row, way in enumerate(ways):
        rows[row, machines.index(way.start)] = rows[row, machines.index(way.end)] = 1.0
    rows[len(ways) :] = _ALIKE * np.eye(len(machines))
    latencies, _ = nnls(rows, np.array([way.latency_s for way in ways] + [0.0] * len(machines)))
    return Ends(ups, downs, dict(zip(machines, latencies.tolist(), strict=True)))


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
    line = median(way.mbit_s for way in across)
    there = [way for way in links.at_once if way.end == links.server and rack[way.start] != rack[way.end]]
    if len(there) < 2 or median(way.mbit_s for way in there) > _ACROSS * line:
        return one
    numbers = [rack[links.server], *sorted(set(rack.values()) - {rack[links.server]})]
    return Racks({each: numbers.index(of) for each, of in rack.items()}, line)
