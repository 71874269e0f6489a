"""The state of a live run: the attributes that all modules of the coordinator read and change.

`notebooks/site/explanations/live_run.md` has the states that these attributes describe. The sections
(`membership`, `pushes`, `evaluation`, `checkpointing` and so on) are modules of functions that are given a
`RunState` first; they keep nothing for themselves.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, TypeAlias, TypeVar

from psbench.backends.dask.coordinator.held_versions import HeldVersions
from psbench.backends.dask.coordinator.model_requests import ModelRequests
from psbench.backends.dask.coordinator.peers import LogStream, Peers, Replacements, Strangers
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import MeasureLoss
from psbench.backends.dask.server.introductions import Introductions
from psbench.backends.dask.server.store import ParameterStore
from psbench.backends.schedule import CheckpointSchedule, StopRules, UpdateSchedule, membership_events
from psbench.clusters import Profile
from psbench.core import events as ev
from psbench.core.ending import Ending
from psbench.core.engine import Engine
from psbench.core.log import EventLog
from psbench.core.replicas import keeps_on_workers
from psbench.core.strategy import Strategy
from psbench.training.build import Workload

_T = TypeVar("_T")


class RunState:
    """The state of one live run.

    Parameters
    ----------
    workload : Workload
    expected : sequence of str
        The names of all peers; training begins when each is ready.
    """

    def __init__(self, workload: Workload, expected: Sequence[str]) -> None:
        experiment = workload.experiment
        self.workload = workload
        #: instructions for the coordinator's process; empty between two calls of `LiveRun.handle`
        self.out = Outbox()
        #: numbers of rings and requests: none is used twice in a run
        self.numbers: Iterator[int] = count(1)

        # ------------------------------------------------------------ decisions
        self.log = EventLog()
        #: makes all decisions; is given an event only when the answer to the one before is performed
        self.engine = workload.engine(self.log)
        #: the engine's view: shows all events that the engine has handled, and none of `coming()`
        self.view = self.engine.view
        self.rules = StopRules(experiment.stop, experiment.evaluate_every, experiment.patience_is_for_less)
        #: true from the moment at which the run is to end; no event is given to the engine from then on
        self.ending = Ending()

        # ------------------------------------------------------------ time
        #: the coordinator's monotonic clock as of the current input, seconds; NaN before the first input
        self.clock_s = math.nan
        #: the clock at time 0 of the run: of the first input, and from the start of training on of that
        self.begin_s = 0.0
        #: the time of the run at which training starts: 0, or that of the checkpoint; `now` is never less
        self.start_s = 0.0
        #: time of the run, seconds: of the current input; changes between inputs, and when training starts
        self.now = 0.0

        # ------------------------------------------------------------ phase
        #: whether training has started; never false again, and true only once a composition has begun
        self.training = False
        #: the wait of the script of the run; None only before the first input
        self.wait: Wait | None = None
        #: number of answers to `Look` so far
        self.looks = 0
        self.client_has_outcome = False

        # ------------------------------------------------------------ stopping before the end
        #: when a requested stop waits no longer for a version, time of the run; infinity without a request
        self.stop_by_s = math.inf
        #: roles on Dask workers that are being retired; handled at the next answer to `Look`
        self.leaving: list[str] = []
        #: the server whose Dask worker is being retired; empty, or the run continues elsewhere when stopped
        self.retired = ""

        # ------------------------------------------------------------ members
        self.peers = Peers(expected)
        self.introductions = Introductions(self.out, self.peers.address_of)
        #: roles without a process, for which the client looks for another Dask worker
        self.replacements = Replacements(experiment, self.out, expected)
        self.strangers = Strangers(self.out)
        #: factors of speed set by hand, by worker; a process that takes a worker's place is sent its factor
        self.speeds: dict[int, float] = {}

        # ------------------------------------------------------------ events
        #: events in the order in which the engine is given them; all have happened
        self.events: deque[ev.Event] = deque()
        #: the event whose sum a ring is making: taken from `events`, and not given to the engine yet
        self.in_ring: ev.Event | None = None
        #: events at known times; each moves to `events` when it is due
        self.timers = Timers(workload.profile, experiment.strategy.requests)
        #: workers whose joins wait until no worker has a share of the model
        self.joins_put_off: set[int] = set()
        self.pushes = PushState()

        # ------------------------------------------------------------ the composition in force
        #: whether a composition has begun: `composition`, `store` and `averages` exist from then on, and
        #: change together
        self.has_store = False
        self.composition: Strategy
        self.store: ParameterStore
        #: whether the run's model is the mean of the workers' own models, which diverge between averages
        self.averages: bool
        #: the versions that servers keep for distances; None if `composition` measures none
        self.held: HeldVersions | None = None
        #: versions from which the pushes of the current answer's updates started, if servers keep any
        self.bases: set[int] = set()
        #: a second engine, loaded with the first one's state for each preview; None until it is needed
        self.spare_engine: Engine | None = None
        #: the spare engine while it is in the state of `engine`, or ahead of it by the event in the ring
        self.preview: Engine | None = None

        # ------------------------------------------------------------ models, evaluations, measurements
        #: requests for the workers' own models, where these diverge between averages
        self.models = ModelRequests(self.out, self.numbers)
        self.evaluations = EvaluationState(workload.model_bytes, experiment.plateau is not None)
        #: evaluates, or ends the run, when a version makes that due; see `evaluation.update_schedule`
        self.update_schedule: UpdateSchedule
        self.measurement = MeasurementState()

        # ------------------------------------------------------------ checkpoints, log, replica
        self.checkpoint_schedule = CheckpointSchedule(self.view, experiment.checkpoint_every)
        #: checkpoints with missing parts, by tag; a complete one is removed as it is sent
        self.unfinished: dict[int, UnfinishedCheckpoint] = {}
        #: the log on its way to the client; held while the replica takes the state that its rows led to
        self.log_stream = LogStream(self.out, self.log)
        # a residual outlives its composition
        self.replica = ReplicaState(any(map(keeps_on_workers, experiment.strategy.compositions)))

    # ---------------------------------------------------------------- queries, and the clock

    def at(self, clock_s: float) -> None:
        """Set the time to the time of an input."""
        self.clock_s = clock_s
        self.now = max(self.start_s, clock_s - self.begin_s)  # a difference may round to less than the start

    def began(self, begin_s: float) -> None:
        """Set the clock's time at which the run began."""
        self.begin_s = begin_s
        self.at(self.clock_s)

    def coming(self) -> Iterator[ev.Event]:
        """Return the pending events that the view does not reflect yet, in order."""
        yield from self.engine.waiting_events
        if self.in_ring is not None:
            yield self.in_ring
        yield from self.events


# -------------------------------------------------------------------- scripts


@dataclass(slots=True)
class Wait:
    """A condition that a script of the run waits for.

    `awaited` names the processes that it waits for at present, in words for the user.
    """

    done: Callable[[], bool]
    awaited: Callable[[], str]


#: steps of a run in their order; it yields where it has to wait, and is resumed when the wait is over
Script: TypeAlias = Generator[Wait, None, _T]


def answered(ask: Callable[[Callable[[_T], None]], None], awaited: str) -> Script[_T]:
    """Send a request, wait for the answer and return it; `awaited` names the processes for the user."""
    found: list[_T] = []
    ask(found.append)
    yield Wait(lambda: bool(found), lambda: awaited)
    return found[0]


# -------------------------------------------------------------------- parts of the state


@dataclass
class PushState:
    """The pushes that have arrived."""

    #: the number of the next push; a resumed run continues the numbers of the checkpoint
    next_number: int = 0
    #: samples and steps of all pushes of each worker that have arrived, in `events` or handled
    done: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: numbers of pushes without a finite payload; the run diverges if one of them is handled and not void
    not_finite: set[int] = field(default_factory=set)
    #: bytes of a push by its fragment, its version and its codec's setting, and the statistics that parts
    #: read; of `composition`
    bytes_up: Callable[[int, int, int], int] = lambda fragment, version, setting: 0
    reads: Sequence[str] = ()


class PendingEvaluation(NamedTuple):
    """An evaluation under way: its number, and the version and epoch that are evaluated."""

    number: int
    version: int
    epoch: float


#: bytes of models that may wait for the evaluator; beyond, training waits for it
_WAITING_BYTES = 1 << 28
_WAITING_AT_LEAST = 4


class EvaluationState:
    """The pending evaluations, which run concurrently with training.

    Parameters
    ----------
    model_bytes : int
    awaits_all : bool
        Whether training waits for each evaluation: the rate after it follows from it, as in a simulated run.
    """

    def __init__(self, model_bytes: int, awaits_all: bool = False) -> None:
        self.awaits_all = awaits_all
        #: number of evaluations that may be pending; with more, training waits
        self.room = max(_WAITING_AT_LEAST, _WAITING_BYTES // max(1, model_bytes))
        #: numbers of requests to the evaluator: none is used twice
        self.keys: Iterator[int] = count()
        #: evaluations whose result is awaited, by key, in the order of their versions; empty while `is_off`
        self.pending: dict[int, PendingEvaluation] = {}
        #: models that the evaluator has and has not answered; another evaluator is sent them again
        self.sent: dict[int, StateDict] = {}
        #: distances of the models whose mean was taken last, and of those whose mean is evaluated, by key
        self.spread: dict[str, float] = {}
        self.spreads: dict[int, dict[str, float]] = {}
        #: whether nothing is evaluated, as there is no place for an evaluator
        self.is_off = False
        #: the last version, and its samples, that were sent to the evaluator
        self.last = -1, -1
        #: distance by which the last update moved the model, if a rule reads that
        self.movement = math.inf
        #: the request for models during an answer, and the workers that send theirs with their release;
        #: None between answers, and in answers with which no evaluation can be due
        self.asked: tuple[int, set[int]] | None = None

    @property
    def is_full(self) -> bool:
        """Return True if training should wait for the evaluator."""
        return len(self.pending) > self.room


@dataclass
class MeasurementState:
    """The numbers of one `Measure`; while one is missing the engine requests no others."""

    #: names of the numbers that have not come; the event `Measured` is made when the last one comes
    missing: set[str] = field(default_factory=set)
    #: requests to the evaluator that it has not answered; another evaluator is sent them again
    asked: dict[str, MeasureLoss] = field(default_factory=dict)
    #: the numbers that have come
    numbers: dict[str, float] = field(default_factory=dict)
    #: number of samples that losses are computed on
    samples: int = 0


class WorkerPart(NamedTuple):
    """A worker's part of a checkpoint."""

    state: dict[str, Any]
    tensors: StateDict


@dataclass
class UnfinishedCheckpoint:
    """A checkpoint with missing parts."""

    #: called with the state and the tensors once no part is missing
    then: Callable[[dict[str, Any], StateDict], None]
    state: dict[str, Any]
    tensors: StateDict
    #: workers, and -1 for the servers, that have not sent their parts and are not lost; never empty
    missing: set[int]


@dataclass
class ReplicaState:
    """The replica's state, from the coordinator's messages with it."""

    #: whether workers keep more than their place in the data, so that they are asked for their parts
    asks: bool
    #: whether there is a replica; without one, nothing waits for it
    is_there: bool = False
    #: parts of workers as of their last release; empty when a replica begins
    parts: dict[int, WorkerPart] = field(default_factory=dict)
    #: the log on its way to the replica; None until the replica is sent its first state
    stream: LogStream | None = None
    #: rows and texts of the log before those that the replica was sent
    since: tuple[int, int] = (0, 0)
    #: the version of the last state that the replica was sent
    version: int = -1
    #: the tag of the state that the replica is to confirm; None if it has confirmed the last one
    awaited: int | None = None


class Timers:
    """Events with their times, in seconds of the run: joins and failures, switches, timers of parts.

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
        #: time of the next event, seconds of the run; infinity without one
        self.next_s = math.inf
        for at, event in membership_events(profile):
            self.add(at, event)
        for at, to in requests:
            self.add(at, ev.SwitchRequested(to))

    def entries(self) -> list[tuple[float, ev.Event]]:
        """Return the pending events with their times, in order."""
        return [(at, event) for at, _, event in sorted(self._heap, key=lambda entry: entry[:2])]

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: float, event: ev.Event) -> None:
        """Add an event at that time."""
        heapq.heappush(self._heap, (at, next(self._order), event))
        self.next_s = self._heap[0][0]

    def due(self, now: float) -> list[ev.Event]:
        """Remove and return the events that are due, in the order of their times."""
        events = []
        while self._heap and self._heap[0][0] <= now:
            events.append(heapq.heappop(self._heap)[2])
        self.next_s = self._heap[0][0] if self._heap else math.inf
        return events

    def is_away(self, worker: int, at: float) -> bool:
        """Return whether the profile has a worker away: it joins later, or has failed and not returned."""
        late = any(join.worker == worker and at < join.at_s for join in self._profile.joins)
        return late or any(
            failure.worker == worker and failure.at_s <= at < (failure.rejoin_s or math.inf)
            for failure in self._profile.failures
        )

    def expects_join(self, gone: Collection[int]) -> bool:
        """Return whether a worker has yet to join, except workers that are lost for good."""
        return any(isinstance(entry[2], ev.Join) and entry[2].worker not in gone for entry in self._heap)
