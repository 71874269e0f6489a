"""A link that concurrent messages share equally, like packets of several TCP flows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf


class SharedLink:
    """One direction of the servers' link.

    Every message gets an equal share of the link, or as much as its worker's own link takes, or an equal
    share of the line that it has in common with others of its rack; what that leaves goes to the others
    (max-min fairness). A message that begins later makes those under way later too, so `ends` may grow until
    that time has come, and is final then.

    Parameters
    ----------
    rate : float, bytes per second
    rack_rate : float, bytes per second
        Of the line to each rack; messages of rack 0, the servers' own, pass none.

    Source
    ------
    Bertsekas and Gallager (1992), sec. 6.5.2 (max-min flow control).

    Examples
    --------
    >>> link = SharedLink(10.0)
    >>> link.begin("a", 10.0, rate=10.0, now=0.0), link.begin("b", 10.0, rate=10.0, now=0.5)
    (1.0, 2.0)
    >>> link.ends("a")
    1.5

    Two messages share the line of their rack, and a third one has the rest of the link.

    >>> link = SharedLink(10.0, rack_rate=4.0)
    >>> link.begin("a", 2.0, 9.0, 0.0, rack=1), link.begin("b", 2.0, 9.0, 0.0, rack=1)
    (0.5, 1.0)
    >>> link.begin("c", 6.0, 9.0, 0.0)
    1.0
    """

    def __init__(self, rate: float, rack_rate: float = inf) -> None:
        self.rate, self._rack_rate = rate, rack_rate
        self._racks: dict[object, int] = {}
        self._left: dict[object, float] = {}
        self._limits: dict[object, float] = {}
        self._ends: dict[object, float] = {}
        self._now = 0.0

    def begin(self, what: object, num_bytes: float, rate: float, now: float, rack: int = 0) -> float:
        """Start a message with a maximum rate; return its end if no other message starts."""
        self._advance(max(now, self._now))
        if rack:
            self._racks[what] = rack
        self._left[what], self._limits[what] = float(num_bytes), rate
        left, at = dict(self._left), self._now
        while left:
            rates = self._rates(list(left))
            step = min(left[each] / rates[each] for each in left)
            at += step
            for each in list(left):
                left[each] -= rates[each] * step
                if left[each] <= 1e-9 * (1.0 + num_bytes):
                    self._ends[each] = at
                    del left[each]
        return self._ends[what]

    def ends_of_all(self, sent: Sequence[tuple[float, float, float, int]]) -> list[float]:
        """Return the ends of messages that are all known: (begin, bytes, maximum rate, rack) of each.

        It takes one step for each begin and end, where `begin` foresees all ends again.

        >>> SharedLink(10.0).ends_of_all([(0.0, 10.0, 10.0, 0), (0.5, 10.0, 10.0, 0)])
        [1.5, 2.0]
        """
        todo = sorted(range(len(sent)), key=lambda each: sent[each][0], reverse=True)
        ends, left = [0.0] * len(sent), dict[int, float]()
        now = sent[todo[-1]][0] if todo else 0.0
        while todo or left:
            rates = self._rates(list(left))
            least_s = min((left[each] / rates[each] for each in left), default=inf)
            begins_s = sent[todo[-1]][0] if todo else inf
            step_s = min(least_s, begins_s - now)
            if least_s <= step_s:  # by seconds that are left: a message may take less than the clock resolves
                now += least_s
                done = [each for each in left if left[each] / rates[each] <= least_s * (1 + 1e-9)]
            else:
                now, done = begins_s, []
            for each in left:
                left[each] -= rates[each] * step_s
            for each in done:
                ends[each] = now
                del left[each], self._limits[each]
                self._racks.pop(each, None)
            if not done:
                each = todo.pop()
                _, left[each], self._limits[each], rack = sent[each]
                if rack:
                    self._racks[each] = rack
        return ends

    def ends(self, what: object) -> float:
        """Return the end of a message that was begun, as far as it is known."""
        return self._ends[what]

    def _advance(self, now: float) -> None:
        """Advance the transfers to `now`, and remove the finished ones."""
        while self._left:
            until = min(now, min(self._ends[each] for each in self._left))
            rates = self._rates(list(self._left))
            for each in self._left:
                self._left[each] -= rates[each] * (until - self._now)
            self._now = until
            for each in [each for each in self._left if self._ends[each] <= until]:
                del self._left[each], self._limits[each]
                self._racks.pop(each, None)
            if until >= now:
                break
        self._now = now

    def _rates(self, under_way: Sequence[object]) -> dict[object, float]:
        """Return the rate of each transfer: the smallest limits first, the rest in equal shares."""
        if self._racks:
            return self._rates_over_lines(under_way)
        rest, rates = self.rate, {}
        waiting = sorted(under_way, key=lambda each: self._limits[each])
        for place, each in enumerate(waiting):
            rates[each] = min(self._limits[each], rest / (len(waiting) - place))
            rest -= rates[each]
        return rates

    def _rates_over_lines(self, under_way: Sequence[object]) -> dict[object, float]:
        """Return the rate of each transfer where some share a line: all grow until one is at a limit."""
        rest, rates, waiting = self.rate, dict[object, float](), list(under_way)
        lines = dict.fromkeys(self._racks.values(), self._rack_rate)
        while waiting:
            inside = Counter(self._racks[each] for each in waiting if each in self._racks)
            shares = {rack: lines[rack] / count for rack, count in inside.items()}
            most = {
                each: min(self._limits[each], rest / len(waiting), shares.get(self._racks.get(each, 0), inf))
                for each in waiting
            }
            least = min(most.values())
            for each in [each for each in waiting if most[each] <= least * (1 + 1e-9)]:
                rates[each] = least
                rest -= least
                waiting.remove(each)
                if each in self._racks:
                    lines[self._racks[each]] -= least
        return rates
