"""Varying latencies of messages, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from psbench.clusters.profile import Profile
from psbench.seeds import Streams

#: times of messages that are drawn at once
_BLOCK = 64


class LinkTimes:
    """Draws the latency of each message between workers and servers, one stream for each end of a link.

    A run has one, under whichever composition: a link's times go on where they were before a switch.

    Parameters
    ----------
    profile : Profile
        With a `link_time`.
    streams : Streams
        Worker i draws those to the servers from the stream ("link_time", i), and those back from the one of
        number n + i.

    Examples
    --------
    >>> from psbench.clusters import Homogeneous
    >>> trace = {"name": "trace", "seconds": [[0.1, 0.2], [0.3]], "order": "in_order"}
    >>> times = LinkTimes(Homogeneous(workers=1, link_time=trace).profile(), Streams(0))
    >>> times.next(0), times.next(1), times.next(0)
    (0.1, 0.3, 0.2)
    """

    def __init__(self, profile: Profile, streams: Streams) -> None:
        assert profile.link_time is not None
        self._link_time, self._streams = profile.link_time, streams
        self._scale = [1.0 if self._link_time.in_seconds else each for each in profile.latency_s] * 2
        self.load_state_dict({"used": [0] * len(self._scale)})

    def next(self, end: int) -> float:
        """Return the latency of the next message from one end of a worker's link to the other, seconds."""
        self._used[end] += 1
        return self._scale[end] * next(self._factors[end])

    def _series(self, end: int) -> Iterator[float]:
        series = self._link_time.series(end, self._streams.generator("link_time", end))
        return chain.from_iterable(iter(lambda: series(_BLOCK).tolist(), []))

    def state_dict(self) -> dict[str, Any]:
        """Return the number of latencies drawn for each end, as plain data."""
        return {"used": list(self._used)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`: the streams are advanced to their positions."""
        self._used = list(state["used"])
        self._factors = [self._series(end) for end in range(len(self._scale))]
        for used, factors in zip(self._used, self._factors, strict=True):
            for _ in range(used):
                next(factors)
