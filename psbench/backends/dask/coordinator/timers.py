"""What is to happen at a known time of the run: comings and goings of the profile, and calls to be woken."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from itertools import count

from psbench.clusters import Profile
from psbench.core import events as ev


class Timers:
    """Events with their times, in seconds of the run.

    Parameters
    ----------
    profile : Profile
        Whose joins, failures and returns are played.
    after_s : float, seconds of the run
        What is earlier has happened already.
    """

    def __init__(self, profile: Profile, after_s: float = -1.0) -> None:
        self._heap: list[tuple[float, int, ev.Event]] = []
        self._order = count()
        for join in profile.joins:
            self.add(join.at_s, ev.Join(join.worker))
        for failure in profile.failures:
            self.add(failure.at_s, ev.Leave(failure.worker, "failed"))
            if failure.rejoin_s is not None:
                self.add(failure.rejoin_s, ev.Join(failure.worker))
        self._heap = [entry for entry in self._heap if entry[0] > after_s]
        heapq.heapify(self._heap)

    def entries(self) -> list[tuple[float, ev.Event]]:
        """Return what is to happen, with its times, in order."""
        return [(at, event) for at, _, event in sorted(self._heap, key=lambda entry: entry[:2])]

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: float, event: ev.Event) -> None:
        """Let an event happen at that time."""
        heapq.heappush(self._heap, (at, next(self._order), event))

    def due(self, now: float) -> list[ev.Event]:
        """Return what is due, each once, in the order of its time."""
        events = []
        while self._heap and self._heap[0][0] <= now:
            events.append(heapq.heappop(self._heap)[2])
        return events

    def expects_more_than(self, gone: Collection[int]) -> bool:
        """Whether somebody who is not gone for good is still to come."""
        return any(isinstance(entry[2], ev.Join) and entry[2].worker not in gone for entry in self._heap)
