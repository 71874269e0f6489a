"""What the decisions of a live run share, as plain data, and how they wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias, TypeVar

from psbench.backends.dask.coordinator.log_stream import LogStream
from psbench.backends.dask.coordinator.peers import Peers
from psbench.backends.dask.coordinator.replica_averaging import ReplicaAveraging
from psbench.backends.dask.coordinator.strangers import Strangers
from psbench.backends.dask.coordinator.timers import Timers
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.server.store import ParameterStore
from psbench.backends.schedule import StopRules
from psbench.core import events as ev
from psbench.core.ending import Ending
from psbench.core.engine import Engine
from psbench.core.log import EventLog
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView
from psbench.training.build import Workload

_T = TypeVar("_T")


@dataclass
class RunState:
    """One live run, as the coordinator knows it.

    Attributes
    ----------
    out : Outbox
        Takes what the process of the run is to do.
    events : deque
        Where events wait for the engine.
    in_ring : Event or None
        The one at whose ring the run is: it was taken from `events`, and the engine hears of it afterwards.
    numbers : iterator of int
        Numbers for rings and requests that no other had before in this run.
    log_stream : LogStream
        Sends the client the log as it grows.
    averaging : ReplicaAveraging
        Asks workers for their own models.
    clock_s, begin_s : float
        The clock of this process, in seconds, as of the last input, and when the run began on it.
    start_s : float
        The time of the run at which it began here: that of the checkpoint it goes on from.
    now : float
        Seconds of the run, as of `at`.
    view : ClusterView
        The engine's.
    training : bool
        Whether training has begun.
    strangers : Strangers
        Connections that were closed because they did not begin with the run's key.
    has_store : bool
        Whether a composition has begun.
    store : ParameterStore
        Of the current composition.
    """

    workload: Workload
    log: EventLog
    engine: Engine
    rules: StopRules
    peers: Peers
    timers: Timers
    out: Outbox = field(default_factory=Outbox)
    events: deque[ev.Event] = field(default_factory=deque)
    in_ring: ev.Event | None = None
    ending: Ending = field(default_factory=Ending)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    clock_s: float = 0.0
    begin_s: float = 0.0
    start_s: float = 0.0
    now: float = 0.0
    training: bool = False
    has_store: bool = False
    store: ParameterStore = field(init=False)
    composition: Strategy = field(init=False)
    view: ClusterView = field(init=False)
    log_stream: LogStream = field(init=False)
    averaging: ReplicaAveraging = field(init=False)
    strangers: Strangers = field(init=False)

    def __post_init__(self) -> None:
        self.view = self.engine.view
        self.log_stream = LogStream(self.out, self.log)
        self.averaging = ReplicaAveraging(self.out, self.numbers)
        self.strangers = Strangers(self.out)

    def at(self, clock_s: float) -> None:
        """Take note of what the clock says."""
        self.clock_s = clock_s
        self.now = max(self.start_s, clock_s - self.begin_s)  # a difference may round to less than the start

    def coming(self) -> Iterator[ev.Event]:
        """Return the events that have happened and that the view does not show yet, in their order."""
        yield from self.engine.waiting_events
        if self.in_ring is not None:
            yield self.in_ring
        yield from self.events

    def began(self, begin_s: float) -> None:
        """Take note of when the run began, by the clock."""
        self.begin_s = begin_s
        self.at(self.clock_s)


@dataclass(slots=True)
class Wait:
    """What a script of the run waits for, before it goes on.

    `whom` says, in words and as of now, who is waited for, for the user.
    """

    done: Callable[[], bool]
    whom: Callable[[], str]


#: steps of a run in their order; it yields where it has to wait, and is resumed when the wait is over
Script: TypeAlias = Generator[Wait, None, _T]


def answered(ask: Callable[[Callable[[_T], None]], None], whom: str) -> Script[_T]:
    """Ask, wait for the answer, and return it; `whom` says in words who is asked."""
    found: list[_T] = []
    ask(found.append)
    yield Wait(lambda: bool(found), lambda: whom)
    return found[0]
