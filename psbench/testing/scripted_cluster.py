"""Scripted clusters: an engine driven through virtual time by given step times and membership changes.

A backend without tensors, network and data: only decisions matter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import count
from typing import Any

import numpy as np

from psbench.core import Action, ClusterView, Directive, Engine, EventLog, Status
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.driver import PromptDriver, timer_of
from psbench.core.ending import Ending
from psbench.core.wire_size import WireSize
from psbench.core.worker_loop import WorkerLoop
from psbench.errors import Deadlock, ParameterError
from psbench.seeds import Streams
from psbench.strategies import make_strategy

#: order of what happens at the same instant, as in the simulated backend
_MEMBERSHIP, _WORK, _TIMER = 0, 1, 2
_MEASURE_S = 0.25  # duration of a `Measure`
_BYTES = 100  # of a push; appears in the log, and nothing depends on it
#: the model's tensors: enough that each of a few servers has some under every assignment
LAYOUT = tuple((f"tensor {number}", 8 + number % 5) for number in range(64))
SHAPES = tuple((2, size // 2) if size % 2 == 0 else (size,) for _, size in LAYOUT)


class Undeclared(Exception):
    """A part requested a statistic that it does not declare in `reads`."""


class Statistics(dict[str, float]):
    """The declared statistics of a step; access to any other raises `Undeclared`."""

    def __missing__(self, name: str) -> float:
        raise Undeclared(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a declared statistic, without a default, which would hide an undeclared one."""
        return self[name]


@dataclass
class _Worker:
    """A worker under one composition."""

    loop: WorkerLoop
    answer: act.Release | None = None  # one that came while it computed


@dataclass
class _Step:
    """A step in progress."""

    worker: int
    of: _Worker
    began: float
    ticket: int
    version: int
    samples: int


@dataclass(eq=False)
class ScriptedCluster(PromptDriver):
    """A cluster with given step times.

    Parameters
    ----------
    strategy : anything that `make_strategy` takes
    step_s : sequence of float, or callable (worker, number) -> float; seconds
        The time of each worker's steps, or of its step of that number.
    num_workers : int
        Size of the cluster; 0 for the length of `step_s`, if that is a sequence.
    changes : iterable of (seconds, event)
        `Join`, `Leave` and `SwitchRequested` events. A worker with a `Join` that follows no `Leave` is not
        active at the start.
    samples : int
        Samples of a step; the data set has as many as ten steps of all workers.
    epochs : float or None
        The run's number of epochs, for rules that use it.
    val_loss : callable epoch -> float, or None
        The validation loss at each whole epoch; None evaluates nothing.
    deliver_void : bool
        Whether pushes of cancelled work and of failed workers still arrive, as on a live cluster.
    disguise : float
        Added to what a push carries for the log alone (times, loss); no decision may depend on it.
    seed : int

    Attributes
    ----------
    engine, log, now
    history : list of (seconds, event or None, list of Action)
        All events and their answers; the first has no event.

    Examples
    --------
    >>> cluster = ScriptedCluster("bsp", step_s=[1, 4])
    >>> cluster.run(events=2)
    >>> cluster.now, cluster.engine.view.version
    (4.0, 1)
    """

    strategy: Any
    step_s: Sequence[float] | Callable[[int, int], float]
    _: KW_ONLY
    num_workers: int = 0
    changes: Iterable[tuple[float, ev.Event]] = ()
    samples: int = 4
    epochs: float | None = None
    val_loss: Callable[[int], float] | None = None
    deliver_void: bool = False
    disguise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.strategy = make_strategy(self.strategy)
        if not self.num_workers:
            if callable(self.step_s):
                raise ParameterError("scripted cluster: give num_workers along with a callable step_s")
            self.num_workers = len(self.step_s)
        self._evaluations = 0
        self.log, self.now = EventLog(), 0.0
        self.engine = self.new_engine(self.log)
        super().__init__(self.engine.view, Ending())
        self._streams = Streams(self.seed)
        self._generators: dict[int, np.random.Generator] = {}
        self._heap: list[tuple[float, int, int, int, Any]] = []
        self._sequence, self._ids = count(), count()
        self._workers: dict[int, _Worker] = {}
        self._busy: dict[int, _Step] = {}
        self._taken = [0] * self.num_workers
        self.history: list[tuple[float, ev.Event | None, list[Action]]] = []
        requests = ((at_s, ev.SwitchRequested(to)) for at_s, to in self.strategy.requests)
        late = self._schedule_changes([*self.changes, *requests])
        self.starters = [worker for worker in range(self.num_workers) if worker not in late]
        self._take(None, self.engine.begin(self.starters))

    def new_engine(self, log: EventLog | None = None) -> Engine:
        """Return an engine like this cluster's, in its initial state."""
        batch = self.samples * self.num_workers
        rng = Streams(self.seed).generator("strategy")
        view = ClusterView(self.num_workers, 10 * batch, batch, self.epochs, rng=rng)
        return Engine(self.strategy, view, wire_size=WireSize(LAYOUT, shapes=SHAPES), log=log)

    # ---------------------------------------------------------------- time

    @property
    def done(self) -> bool:
        """Return True if all workers have left and none will join."""
        if self.engine.view.num_active:
            return False
        return not any(isinstance(entry[4], ev.Join) for entry in self._heap)

    def run(self, *, events: int | None = None, until: float = float("inf")) -> None:
        """Handle a number of events, or all events up to a time; fewer if all workers leave.

        Raises
        ------
        Deadlock
            If no worker can ever continue.
        """
        if events is None and until == float("inf"):
            raise ParameterError("scripted cluster: give an end: run(events=...) or run(until=...)")
        last = None if events is None else len(self.history) + events
        while len(self.history) != last and not self.done and self._next_at() <= until:
            self.step()

    def step(self) -> list[Action]:
        """Advance to the next entry of the queue; return the engine's answer, empty if it gets no event."""
        if not self._heap:
            raise Deadlock(f"at {self.now:g} s no worker can ever continue; {self.engine.view.waits()}")
        self.now, _, _, _, entry = heapq.heappop(self._heap)
        event = self._after_step(entry) if isinstance(entry, _Step) else entry
        if isinstance(event, ev.Leave):
            self.leave(event.worker)
        return [] if event is None else self._take(event, self.engine.handle(event, self.now))

    def _next_at(self) -> float:
        return self._heap[0][0] if self._heap else self.now

    def _schedule(self, at: float, priority: int, worker: int, entry: Any) -> None:
        heapq.heappush(self._heap, (float(at), priority, worker, next(self._sequence), entry))

    def _schedule_changes(self, changes: Iterable[tuple[float, ev.Event]]) -> set[int]:
        late: set[int] = set()
        seen: set[int] = set()
        for at, event in sorted(changes, key=lambda change: change[0]):
            worker = getattr(event, "worker", -1)
            if isinstance(event, ev.Join) and worker not in seen:
                late.add(worker)
            seen.add(worker)
            self._schedule(at, _MEMBERSHIP, worker, event)
        return late

    # ---------------------------------------------------------------- workers

    def release(self, release: act.Release, now: float) -> None:
        """Apply a release to a worker at once, or after its step if it computes although it has pushed."""
        worker = release.worker
        own = self._workers.get(worker) or self._new_worker(worker)
        if worker in self._busy:
            own.answer = release
            return
        message = self._follow(worker, own, self._answered(own, release))
        if message is not None:
            self._schedule(self.now, _WORK, worker, message)

    def _answered(self, own: _Worker, release: act.Release) -> Directive:
        rate = release.epoch, release.epochs_per_step
        return own.loop.release(
            release.then, release.ticket, release.load, release.orders, release.allowance, *rate
        )

    def _new_worker(self, worker: int) -> _Worker:
        batch = self.engine.view.workers[worker].batch_size
        own = self._workers[worker] = _Worker(WorkerLoop(self.engine.composition, worker, batch))
        return own

    def _follow(self, worker: int, own: _Worker, directive: Directive) -> ev.Event | None:
        """Follow a directive of the worker loop; returns the message that the worker sends now, if any."""
        if directive in ("continue", "report"):
            # before the next step, which may begin a new chunk
            report = own.loop.report() if directive == "report" else None
            self._work(worker, own)
            return report
        if directive == "wait":
            return None
        if directive == "vote":
            return own.loop.vote()
        push = self._push(own, overlapping=directive == "push_and_continue")
        if directive == "push_and_continue":
            self._work(worker, own)
        return push

    def _work(self, worker: int, own: _Worker) -> None:
        number = self._taken[worker]
        self._taken[worker] += 1
        seconds = self.step_s(worker, number) if callable(self.step_s) else self.step_s[worker]
        loop = own.loop
        step = _Step(worker, own, self.now, loop.ticket, loop.version, loop.batch_size)
        self._busy[worker] = step
        self._schedule(self.now + seconds, _WORK, worker, step)

    def _after_step(self, step: _Step) -> ev.Event | None:
        """Return the message that a worker sends after its step; None if it continues, or has left."""
        worker, own = step.worker, step.of
        if self._busy.get(worker) is not step:
            return self._void_push(step) if self.deliver_void else None
        del self._busy[worker]
        answer = own.answer
        if answer is not None and own.loop.takes_answer(stepped=True):
            own.answer = None
            self._answered(own, answer)
        seconds = self.now - step.began
        directive = own.loop.stepped(step.samples, seconds, 1.0, self._statistics(worker))
        return self._follow(worker, own, directive)

    def _push(self, own: _Worker, overlapping: bool = False) -> ev.Push:
        push = own.loop.push(next(self._ids), bytes=_BYTES, overlapping=overlapping)
        push.send_s = self.disguise
        push.compute_s += self.disguise
        push.loss += self.disguise
        push.stats = Statistics(push.stats or {})
        if "send_s" in self.engine.composition.reads:
            push.stats["send_s"] = float(self._rng(push.worker).random())
        return push

    def _void_push(self, step: _Step) -> ev.Push:
        return ev.Push(next(self._ids), step.worker, step.ticket, step.version, step.samples, bytes=_BYTES)

    def void(self, worker: int) -> None:
        """Cancel a worker's computation; with `deliver_void` its push still arrives."""
        self._busy.pop(worker, None)
        own = self._workers.get(worker)
        if own is not None:
            own.answer = None

    def forget(self, worker: int) -> None:
        """Discard a worker's loop; if the worker returns, it starts over."""
        self._workers.pop(worker, None)

    def _statistics(self, worker: int) -> Statistics:
        names = self.engine.composition.reads
        return Statistics({name: float(self._rng(worker).random()) for name in names})

    def _rng(self, worker: int) -> np.random.Generator:
        if worker not in self._generators:
            self._generators[worker] = self._streams.generator("statistics", worker)
        return self._generators[worker]

    # ---------------------------------------------------------------- actions

    def _take(self, event: ev.Event | None, actions: list[Action]) -> list[Action]:
        """Perform an answer, and keep it in the history."""
        self.history.append((self.now, event, actions))
        self.perform(actions, self.now)
        return actions

    def tell(self, tell: act.Tell, now: float) -> None:
        """Send orders to a worker, unless it has left."""
        if self.view.workers[tell.worker].status is not Status.GONE:
            self._workers[tell.worker].loop.on_orders(tell.orders)

    def set_timer(self, timer: act.SetTimer, now: float) -> None:
        self._schedule(timer.at, _TIMER, 0, timer_of(timer))

    def measure(self, measure: act.Measure, now: float) -> None:
        """Draw the numbers."""
        facts = {name: float(self._rng(-1 % 2**31).random()) for name in measure.needs}
        self._schedule(now + _MEASURE_S, _MEMBERSHIP, -1, ev.Measured(facts))

    def hand_over(self, handover: act.Handover, now: float) -> None:
        """Restart all workers."""
        self._workers.clear()

    def discard(self, discard: act.Discard, now: float) -> None:
        """Do nothing: pushes have no payload here, and servers no entries."""

    def reassign(self, change: act.Reassign, now: float) -> None:
        """Do nothing, as for `discard`."""

    def mix(self, mix: act.Mix, now: float) -> None:
        """Do nothing, as for `discard`."""

    def apply(self, apply: act.Apply, now: float) -> None:
        """Evaluate the version, if an epoch has ended."""
        view = self.engine.view
        epoch = int(view.epoch + 1e-9)
        if self.val_loss is not None and epoch > self._evaluations:
            self._evaluations = epoch
            values = {"val_loss": self.val_loss(epoch)}
            self._schedule(self.now, _MEMBERSHIP, -1, ev.Evaluated(epoch, apply.version, values))
