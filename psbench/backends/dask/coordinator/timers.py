"""Events at known times of the run: joins and failures, switches, and timers that parts set."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from itertools import count

from psbench.backends.schedule import membership_events
from psbench.clusters import Profile
from psbench.core import events as ev


class Timers:
    """Events with their times, in seconds of the run.

    Parameters
    ----------
    profile : Profile
        Whose joins, failures and returns are emulated.
    requests : iterable of (seconds, int or None)
        Switches at set times; see `SwitchingStrategy.requests`.
    """

    def __init__(self, profile: Profile, requests: Iterable[tuple[float, int | None]] = ()) -> None:
        self._heap: list[tuple[float, int, ev.Event]] = []
        self._order = count()
        #: workers that the profile has fail: those that are gone may be so for this reason
        self.failing = {failure.worker for failure in profile.failures}
        for at, event in membership_events(profile):
            self.add(at, event)
        for at, to in requests:
            self.add(at, ev.SwitchRequested(to))

    def entries(self) -> list[tuple[float, ev.Event]]:
        """Return the events to come with their times, in order."""
        return [(at, event) for at, _, event in sorted(self._heap, key=lambda entry: entry[:2])]

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: float, event: ev.Event) -> None:
        """Add an event at that time."""
        heapq.heappush(self._heap, (at, next(self._order), event))

    def due(self, now: float) -> list[ev.Event]:
        """Remove and return the events that are due, in the order of their times."""
        events = []
        while self._heap and self._heap[0][0] <= now:
            events.append(heapq.heappop(self._heap)[2])
        return events

    def expects(self, worker: int) -> bool:
        """Return whether that worker is still to join."""
        return any(isinstance(entry[2], ev.Join) and entry[2].worker == worker for entry in self._heap)

    def expects_join(self, gone: Collection[int]) -> bool:
        """Return whether a worker that is not gone for good is still to join."""
        return any(isinstance(entry[2], ev.Join) and entry[2].worker not in gone for entry in self._heap)
