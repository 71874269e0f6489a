"""Messages between workers in virtual time, without a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from psbench.clusters import Profile
from psbench.clusters.network import BYTES_PER_MBIT, Throttles, achieved, extra_round_trips
from psbench.clusters.ring import ring_s

#: what a model passes: a receiver's link down, or the line of a rack, one way
_Place: TypeAlias = int | tuple[str, int]


class _Passage(NamedTuple):
    """A model that a link or line passes on, as the receiver sees it, in seconds.

    `comes_s`, `within_s`: when its first byte would be there if all were free, and its last one after that;
    `served_s`, `takes_s`: the same as the link or line is.
    """

    comes_s: float
    within_s: float
    served_s: float
    takes_s: float

    def precedes_s(self, at_s: float) -> float:
        """Return when what comes of it before a time has passed."""
        share = 1.0 if at_s >= self.comes_s + self.within_s else (at_s - self.comes_s) / self.within_s
        return self.served_s + share * self.takes_s if share > 0 else 0.0

    @property
    def ends_s(self) -> float:
        return max(self.comes_s + self.within_s, self.served_s + self.takes_s)


class PeerLinks:
    """Links of workers: each sends one model at a time and receives one at a time.

    A message leaves when its sender's link up is free, passes at the slower of the two rates, or at what its
    size achieves, and arrives the latency between the two later, as often as its window has it wait. It comes
    later by its pauses but for those that pass while it waits to leave. A receiver's link down, and the line
    of a rack, are not shared by two at once either. The processes at both ends take their time for each
    message, one after another. Call in the order of `now`.

    Parameters
    ----------
    profile : Profile
    num_bytes : int
        Of a model.
    beside_orders : bool
        Whether reports and orders pass the same links; see `report_arrives` and `order_arrives`.

    Examples
    --------
    >>> from psbench.clusters import Homogeneous
    >>> links = PeerLinks(Homogeneous(workers=3, bandwidth_mbit_s=8, latency_s=0.5).profile(), 1_000_000)
    >>> links.send(0, 1, now=0.0), links.send(0, 2, now=0.0), links.send(1, 2, now=0.0)
    (1.5, 2.5, 3.5)
    """

    def __init__(self, profile: Profile, num_bytes: int, beside_orders: bool = False) -> None:
        self._up_s = [num_bytes / (BYTES_PER_MBIT * mbit) for mbit in profile.bandwidth_mbit_s]
        self._down_s = [num_bytes / (BYTES_PER_MBIT * mbit) for mbit in profile.down_mbit_s]
        self._unthrottled = self._up_s, self._down_s
        self._throttles = Throttles(profile)
        self._num_bytes, self._profile = num_bytes, profile
        self._alone_s = num_bytes / achieved(profile.achieved_rates, num_bytes)
        self._waits = self._waits_of(num_bytes)
        self._up_free = [0.0] * len(self._up_s)
        self._down_free = [0.0] * len(self._up_s)
        self._line_s = num_bytes / (BYTES_PER_MBIT * profile.rack_bandwidth_mbit_s)
        self._line_free: dict[tuple[str, int], float] = {}
        self._rack = profile.racks or (0,) * len(self._up_s)
        #: models on their way, where reports and orders may have to wait for them
        self._coming: dict[_Place, list[_Passage]] | None = {} if beside_orders else None
        #: when what a worker sent at a version reaches whom: seconds by (sender, version, receiver)
        self._arrivals: dict[tuple[int, int, int], float] = {}
        #: until when each worker's process sends its model
        self._sent_s = [0.0] * len(self._up_s)
        #: until when workers that were met wait for the other's model, before they report their step
        self._held_s: dict[int, float] = {}

    def send(self, sender: int, receiver: int, now: float) -> float:
        """Return when a receiver has taken in a model that is sent now; seconds."""
        self._advance(now)
        leaves = now + self._profile.message_s(sender)
        begins = max(leaves, self._up_free[sender])
        self._up_free[sender] = begins + self._up_s[sender]
        passed = begins + max(self._up_s[sender], self._down_s[receiver], self._alone_s)
        pauses_s = max(0.0, self._profile.pause_s(sender, receiver) - (begins - leaves))
        latency_s = self._waits * self._profile.between_s(sender, receiver)
        comes = begins + latency_s, max(self._up_s[sender], self._alone_s) + pauses_s
        for line in self._profile.lines(sender, receiver):
            served = max(begins, self._line_free.get(line, 0.0))
            self._line_free[line] = passed = max(passed, served + self._line_s)
            self._note(line, _Passage(*comes, served + latency_s, self._line_s))
        served = max(begins, self._down_free[receiver])
        passed = max(passed, self._down_free[receiver] + self._down_s[receiver])
        self._down_free[receiver] = passed
        self._note(receiver, _Passage(*comes, served + latency_s, self._down_s[receiver]))
        return passed + latency_s + pauses_s + self._profile.message_s(receiver)

    def _note(self, place: _Place, passage: _Passage) -> None:
        if self._coming is not None:
            self._coming.setdefault(place, []).append(passage)

    def taken_in(self, worker: int, times: Iterable[float]) -> float:
        """Return when a worker has taken in models that it would have at these times, each alone; seconds."""
        own_s, ends_s = self._profile.message_s(worker), 0.0
        for time_s in sorted(times):
            ends_s = max(ends_s + own_s, time_s)
        return ends_s

    def sent_s(self, worker: int) -> float:
        """Return until when a worker sends, or has sent, its model, in seconds."""
        return self._sent_s[worker]

    def process_s(self, worker: int, messages: int) -> float:
        """Return the time for which a worker sends or takes in so many messages, in seconds."""
        return messages * self._profile.message_s(worker)

    def ring(self, workers: Sequence[int], now: float) -> float:
        """Return when workers have added up their models in a ring, seconds; see `Network.ring`.

        It begins when the links of all are free, and takes them until its end.
        """
        size = len(workers)
        if size == 1:
            return now
        self._advance(now)
        begins = max(now, *(self._up_free[each] for each in workers))
        begins = max(begins, *(self._down_free[each] for each in workers))
        part = self._num_bytes / size
        waits, alone_s = self._waits_of(part), part / achieved(self._profile.achieved_rates, part)
        hops = [*zip(workers, [*workers[1:], workers[0]], strict=True)]
        lines = [part / (BYTES_PER_MBIT * rate) for rate in self._profile.rack_rates(hops)]
        passes = [
            max(self._up_s[one] / size, self._down_s[other] / size, alone_s, line_s)
            for (one, other), line_s in zip(hops, lines, strict=True)
        ]
        between, of_ends = self._profile.between_s, self._profile.ends_s
        ends = begins + ring_s(passes, [waits * between(*hop) + of_ends(*hop) for hop in hops])
        for worker in workers:
            self._up_free[worker] = self._down_free[worker] = ends
        return ends

    def _advance(self, now: float) -> None:
        """Update the link rates to the current time."""
        if now >= self._throttles.next_s:
            parts = self._throttles.at(now)
            self._up_s, self._down_s = (
                [seconds / part for seconds, part in zip(all_, parts, strict=True)]
                for all_ in self._unthrottled
            )

    def _waits_of(self, num_bytes: float) -> int:
        """Return how many latencies a message of that size takes, which may wait for its window."""
        return 1 + 2 * extra_round_trips(num_bytes, self._profile.first_window_bytes)

    def spread(self, sender: int, version: int, receivers: Iterable[int], now: float) -> None:
        """Send the model of a version to these workers, one after another."""
        for place, receiver in enumerate(receivers):
            begins_s = now + self.process_s(sender, place)
            self._arrivals[sender, version, receiver] = self.send(sender, receiver, begins_s)
            self._sent_s[sender] = begins_s + self.process_s(sender, 1)

    def arrival(self, sender: int, version: int, receiver: int, now: float) -> float:
        """Return and forget a model's arrival time; a model not yet sent (to a newcomer) is sent now."""
        known = self._arrivals.pop((sender, version, receiver), None)
        return self.send(sender, receiver, now) if known is None else known

    def both_ways(self, worker: int, other: int, now: float) -> float:
        """Return when a worker that sends its model to another has received the other's."""
        return self.send(other, worker, self.send(worker, other, now))

    def meet(self, worker: int, other: int, from_s: float, other_from_s: float) -> float:
        """Return when a worker has the model of another one, if they send theirs at these times.

        The other one waits for the worker's, too; see `goes_on`.
        """
        done_s = other_from_s + self.process_s(other, 2)
        self._held_s[other] = max(done_s, self.send(worker, other, from_s))
        return self.send(other, worker, other_from_s)

    def goes_on(self, worker: int, now: float) -> float:
        """Return when a worker that is done with its step has the model of whoever has met it meanwhile."""
        return max(now, self._held_s.pop(worker, now))

    def reports(self, worker: int, now: float) -> float:
        """Return when a worker's report leaves: after the models that it has sent, on the same link up."""
        return max(self.goes_on(worker, now), self._up_free[worker])

    def report_arrives(self, worker: int, at_s: float) -> float:
        """Return when a report arrives, at a time or behind what its rack's line has before it of models."""
        return self._behind(("out of", self._rack[worker]), at_s)

    def order_arrives(self, worker: int, at_s: float) -> float:
        """Return when an order reaches a worker, at a time or behind what comes before it of models."""
        return self._behind(worker, self._behind(("into", self._rack[worker]), at_s))

    def _behind(self, place: _Place, at_s: float) -> float:
        if self._coming is None or place not in self._coming:
            return at_s
        coming = [each for each in self._coming.pop(place) if each.ends_s > at_s]
        self._coming[place] = coming
        return max([at_s, *(each.precedes_s(at_s) for each in coming)])

    @property
    def num_arrivals(self) -> int:
        """Number of messages that no worker has asked for yet."""
        return len(self._arrivals)

    def forget(self, before: int) -> None:
        """Remove the messages sent before a version."""
        self._arrivals = {key: at_s for key, at_s in self._arrivals.items() if key[1] >= before}

    def state_dict(self) -> dict[str, Any]:
        """Return the busy times of the links and the messages in transit, as plain data."""
        arrivals = [[*key, at_s] for key, at_s in sorted(self._arrivals.items())]
        busy = {"up_free_s": self._up_free, "down_free_s": self._down_free}
        lines = [[*line, free_s] for line, free_s in sorted(self._line_free.items())]
        state: dict[str, Any] = {
            **busy,
            "arrivals": arrivals,
            "held_s": sorted(self._held_s.items()),
            "lines": lines,
        }
        state["sent_s"] = self._sent_s
        if self._coming is not None:
            state["coming"] = [[place, *each] for place, own in self._coming.items() for each in own]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._up_free, self._down_free = list(state["up_free_s"]), list(state["down_free_s"])
        self._arrivals = {(s, version, r): at_s for s, version, r, at_s in state["arrivals"]}
        self._held_s = dict(state.get("held_s", ()))
        self._sent_s = list(state.get("sent_s", self._sent_s))
        self._line_free = {(way, rack): free_s for way, rack, free_s in state.get("lines", ())}
        for place, *passage in state.get("coming", ()):
            self._note(place if isinstance(place, int) else tuple(place), _Passage(*passage))
