"""Events at known times of the run: joins and failures, switches, and timers that parts set."""

from __future__ import annotations

import heapq
import math
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
        self._profile = profile
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

    def is_away(self, worker: int, at: float) -> bool:
        """Return whether the profile has a worker away: it joins later, or has failed and is not back."""
        late = any(join.worker == worker and at < join.at_s for join in self._profile.joins)
        return late or any(
            failure.worker == worker and failure.at_s <= at < (failure.rejoin_s or math.inf)
            for failure in self._profile.failures
        )

    def expects_join(self, gone: Collection[int]) -> bool:
        """Return whether a worker that is not gone for good is still to join."""
        return any(isinstance(entry[2], ev.Join) and entry[2].worker not in gone for entry in self._heap)
