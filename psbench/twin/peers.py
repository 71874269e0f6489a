"""Messages of workers that talk to each other: their times, and the clusters that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Peers(NamedTuple):
    """Times of messages where workers talk to each other, in seconds.

    `seconds`: of each worker's reports to the coordinator, then of its orders, as blocks of measured times;
    `beyond_s`: of a message between two workers beyond its link.
    """

    seconds: tuple[tuple[float, ...], ...]
    beyond_s: float

    def of(self, places: Sequence[int]) -> Peers:
        """Return those of the workers at these places."""
        workers = len(self.seconds) // 2
        ends = [*places, *(workers + place for place in places)]
        return self._replace(seconds=tuple(self.seconds[end] for end in ends))

    def times(self, factor: float, beyond: float) -> Peers:
        """Return the times multiplied by a factor, those beyond links by another one."""
        seconds = tuple(tuple(factor * each for each in end) for end in self.seconds)
        return Peers(seconds, beyond * self.beyond_s)

    def plain(self) -> dict[str, Any]:
        """Return both as plain data."""
        return {"seconds": [*map(list, self.seconds)], "beyond_s": self.beyond_s}

    def on(self, cluster: Mapping[str, Any]) -> dict[str, Any]:
        """Return a cluster whose messages are those of workers that talk to each other."""
        found = {**cluster, "link_time": {**cluster["link_time"], "seconds": [*map(list, self.seconds)]}}
        return with_beyond(found, self.beyond_s)


def with_beyond(cluster: Mapping[str, Any], beyond_s: float) -> dict[str, Any]:
    """Return a cluster on which each message between workers takes so much more, half of it at each end.

    That is time of the workers' processes; if it is negative, the links have less latency.
    """
    if "peer_latency_s" not in cluster:
        return dict(cluster)
    if beyond_s > 0:
        return {**cluster, "peer_message_s": beyond_s / 2}
    latencies = [max(0.0, each + beyond_s / 2) for each in cluster["peer_latency_s"]]
    return {**cluster, "peer_latency_s": latencies}
