"""Messages between workers in virtual time, without a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psbench.clusters import Profile
from psbench.clusters.network import BYTES_PER_MBIT, Throttles, achieved, extra_round_trips


class PeerLinks:
    """Links of workers: each sends one model at a time and receives one at a time.

    A message leaves when its sender's link up is free, passes at the slower of the two rates, or at what its
    size achieves, and arrives the longer of both latencies later, as often as its window has it wait; a
    receiver's link down is not shared by two at once either. Call in the order of `now`.

    Parameters
    ----------
    profile : Profile
    num_bytes : int
        Of a model.

    Examples
    --------
    >>> from psbench.clusters import Homogeneous
    >>> links = PeerLinks(Homogeneous(workers=3, bandwidth_mbit_s=8, latency_s=0.5).profile(), 1_000_000)
    >>> links.send(0, 1, now=0.0), links.send(0, 2, now=0.0), links.send(1, 2, now=0.0)
    (1.5, 2.5, 3.5)
    """

    def __init__(self, profile: Profile, num_bytes: int) -> None:
        self._up_s = [num_bytes / (BYTES_PER_MBIT * mbit) for mbit in profile.bandwidth_mbit_s]
        self._down_s = [num_bytes / (BYTES_PER_MBIT * mbit) for mbit in profile.down_mbit_s]
        self._unthrottled = self._up_s, self._down_s
        self._throttles = Throttles(profile)
        self._num_bytes, self._profile = num_bytes, profile
        self._alone_s = num_bytes / achieved(profile.achieved_rates, num_bytes)
        self._latency = self._latencies(num_bytes)
        self._up_free = [0.0] * len(self._up_s)
        self._down_free = [0.0] * len(self._up_s)
        #: when what a worker sent at a version reaches whom: seconds by (sender, version, receiver)
        self._arrivals: dict[tuple[int, int, int], float] = {}

    def send(self, sender: int, receiver: int, now: float) -> float:
        """Return the arrival time in seconds of a model that is sent now."""
        self._advance(now)
        begins = max(now, self._up_free[sender])
        self._up_free[sender] = begins + self._up_s[sender]
        passed = begins + max(self._up_s[sender], self._down_s[receiver], self._alone_s)
        passed = max(passed, self._down_free[receiver] + self._down_s[receiver])
        self._down_free[receiver] = passed
        return passed + max(self._latency[sender], self._latency[receiver])

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
        passes_s = max(max(self._up_s[each], self._down_s[each]) for each in workers) / size
        passes_s = max(passes_s, part / achieved(self._profile.achieved_rates, part))
        latencies = self._latencies(part)
        ends = begins + 2 * (size - 1) * (passes_s + max(latencies[each] for each in workers))
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

    def _latencies(self, num_bytes: float) -> list[float]:
        """Return the latencies of messages of that size, which may wait for their window."""
        waits = 1 + 2 * extra_round_trips(num_bytes, self._profile.first_window_bytes)
        return [waits * latency for latency in self._profile.latency_s]

    def spread(self, sender: int, version: int, receivers: Iterable[int], now: float) -> None:
        """Send the model of a version to these workers."""
        for receiver in receivers:
            self._arrivals[sender, version, receiver] = self.send(sender, receiver, now)

    def arrival(self, sender: int, version: int, receiver: int, now: float) -> float:
        """Return and forget a model's arrival time; a model not yet sent (to a newcomer) is sent now."""
        known = self._arrivals.pop((sender, version, receiver), None)
        return self.send(sender, receiver, now) if known is None else known

    def both_ways(self, worker: int, other: int, now: float) -> float:
        """Return when a worker that sends its model to another has received the other's."""
        return self.send(other, worker, self.send(worker, other, now))

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
        return {"up_free_s": self._up_free, "down_free_s": self._down_free, "arrivals": arrivals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._up_free, self._down_free = list(state["up_free_s"]), list(state["down_free_s"])
        self._arrivals = {(s, version, r): at_s for s, version, r, at_s in state["arrivals"]}
