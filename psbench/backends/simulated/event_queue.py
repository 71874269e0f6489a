"""What is to happen in virtual time, in the one order that the same experiment always has."""

from __future__ import annotations

from collections import deque
from heapq import heappush
from itertools import count
from typing import Any, TypeAlias

from psbench.clusters import Profile
from psbench.core import events as ev

#: order of happenings at one instant: who leaves or joins, then work, then timers, then who goes on
MEMBERSHIP, WORK, TIMER, LATE = 0, 1, 2, 3
#: orders happenings of workers with equal time after pushes, whose place is their ticket
_AFTER_TICKETS = 1 << 40

#: time, priority, worker, ticket of a push or else a sequence, what happens
Entry: TypeAlias = tuple[float, int, int, int, Any]


class EventQueue:
    """Happenings ordered by (time, priority, worker, sequence).

    The simulation takes the first of `heap` and `arriving`, and puts pushes there, by itself: it does so at
    every step.
    """

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        #: results on their way, the first to arrive first: a shared link makes that the order of sending
        self.arriving: deque[Entry] = deque()
        self._sequence = count()

    def plan(self, profile: Profile) -> None:
        """Let workers come and go as a profile says."""
        for join in profile.joins:
            self.add(join.at_s, MEMBERSHIP, join.worker, ev.Join(join.worker))
        for failure in profile.failures:
            self.add(failure.at_s, MEMBERSHIP, failure.worker, ev.Leave(failure.worker, "failed"))
            if failure.rejoin_s is not None:
                self.add(failure.rejoin_s, MEMBERSHIP, failure.worker, ev.Join(failure.worker))

    def add(self, time: float, priority: int, worker: int, event: Any) -> None:
        """Let an event happen, after those of its instant, priority and worker that were added before."""
        heappush(self.heap, (time, priority, worker, next(self._sequence), event))

    def schedule(self, time: float, worker: int, happening: Any, late: bool = False) -> None:
        """Let something happen to a worker; `late` is after all else of that instant."""
        place = next(self._sequence) + _AFTER_TICKETS
        heappush(self.heap, (time, LATE if late else WORK, worker, place, happening))

    @property
    def expects_somebody(self) -> bool:
        """Whether a worker is still to come."""
        return any(isinstance(entry[4], ev.Join) for entry in self.heap)
