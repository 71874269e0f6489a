"""Events in virtual time, in a deterministic order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from heapq import heappush
from itertools import count
from typing import Any, TypeAlias

from psbench.core import events as ev

#: order of events at one instant: who leaves or joins, then work, then timers, then who computes on, then
#: requests to switch, so that one by hand and one at a set time come at the same place
MEMBERSHIP, WORK, TIMER, LATE, REQUEST = 0, 1, 2, 3, 4
#: orders events of workers with equal time after pushes, whose place is their ticket
_AFTER_TICKETS = 1 << 40
#: events that a checkpoint holds; all others belong to steps that are void
_KEPT: dict[str, Any] = {
    each.__name__: each for each in (ev.Join, ev.Leave, ev.Timer, ev.Evaluated, ev.SwitchRequested)
}

#: time, priority, worker, ticket of a push or else a sequence number, event
QueuedEvent: TypeAlias = tuple[float, int, int, int, Any]


class EventQueue:
    """Events ordered by (time, priority, worker, sequence).

    The simulation takes the first of `heap` and `arriving`, and adds pushes there, by itself: it does so at
    every step.
    """

    def __init__(self) -> None:
        self.heap: list[QueuedEvent] = []
        #: pushes on their way, the first to arrive first: a shared link makes that the order of sending
        self.arriving: deque[QueuedEvent] = deque()
        self._sequence = count()

    def add(self, time: float, priority: int, worker: int, event: Any) -> None:
        """Add an event after earlier ones of the same time, priority and worker."""
        heappush(self.heap, (time, priority, worker, next(self._sequence), event))

    def add_membership(self, events: Iterable[tuple[float, ev.Join | ev.Leave]]) -> None:
        """Add the joins and leaves of a profile."""
        for at_s, event in events:
            self.add(at_s, MEMBERSHIP, event.worker, event)

    def schedule(self, time: float, worker: int, event: Any, late: bool = False) -> None:
        """Add an event of a worker; a `late` event follows all others of that time."""
        place = next(self._sequence) + _AFTER_TICKETS
        heappush(self.heap, (time, LATE if late else WORK, worker, place, event))

    @property
    def expects_join(self) -> bool:
        """Return True if a worker has yet to join."""
        return any(isinstance(entry[4], ev.Join) for entry in self.heap)

    def state(self) -> list[list[Any]]:
        """Return the events of a checkpoint as plain data, in order."""
        entries = sorted(entry for entry in self.heap if type(entry[4]).__name__ in _KEPT)
        return [[*entry[:3], type(entry[4]).__name__, asdict(entry[4])] for entry in entries]

    def restore(self, state: Sequence[Sequence[Any]]) -> list[ev.Event]:
        """Add and return the events of a `state`."""
        events: list[ev.Event] = []
        for time, priority, worker, name, fields in state:
            events.append(_KEPT[name](**fields))
            self.add(time, priority, worker, events[-1])
        return events
