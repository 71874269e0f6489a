"""The cluster of a schedule: its workers follow the engine's answers, and every answer is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from psbench.core import Action, AnyStrategy, ClusterView, Engine, EventLog, Status
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.driver import is_void, timer_of
from psbench.core.wire_size import WireSize
from psbench.core.worker_loop import WorkerLoop
from psbench.seeds import Streams
from psbench.testing.invariants import BrokenContract, Invariants
from psbench.testing.scripted_cluster import LAYOUT, SHAPES
from psbench_fuzz.model import Interpreter
from psbench_fuzz.model.compare import unequal_answers, unequal_rows, unequal_views
from psbench_fuzz.model.rule import Rule, rule_of
from psbench_fuzz.schedule import Schedule
from psbench_fuzz.vectors import Vectors, can_carry
from psbench_fuzz.workers import FuzzedWorker

#: samples that a worker's memory holds
_CAPACITY = (90, 300, 40)


def rate(epoch: float) -> float:
    """Return the optimizer's rate: 1, and half as much after two epochs and after four."""
    return 0.5 ** min(2, int(epoch / 2))


class FuzzedCluster:
    """An engine and the workers that it releases; time and all events come from outside.

    Parameters
    ----------
    schedule : Schedule
        Whose cluster to build.
    strategy : Strategy or None
        The schedule's, if it has been built before.

    Attributes
    ----------
    events, handovers : int
        Events that the engine has handled, and switches that it has made.
    timers : list of (seconds, order, Timer)
    measures : list of Measure
        What the engine waits for.
    """

    def __init__(self, schedule: Schedule, strategy: AnyStrategy | None = None) -> None:
        self.schedule, self.seed = schedule, schedule.seed
        self.strategy = schedule.made() if strategy is None else strategy
        self.log, self.now, self.events = EventLog(), 0.0, 0
        self.engine = self._new_engine()
        has_vectors = schedule.momentum is not None and can_carry(self.strategy)
        self.vectors = Vectors(schedule, self.strategy) if has_vectors else None
        payloads = {} if self.vectors is None else self.vectors.payloads
        numbers, ties = range(schedule.workers), schedule.ties
        self.workers = [FuzzedWorker(number, payloads=payloads, ties=ties) for number in numbers]
        self.timers: list[tuple[float, int, ev.Timer]] = []
        self.measures: list[act.Measure] = []
        self.handovers = 0
        self.open_votes: dict[int, int] = {}
        self.unseen_deaths: set[int] = set()  # which wait in the engine while it measures
        self._read = 0  # rows of the log that were compared
        self._counted = 0  # samples that were committed, or kept after a vote
        starters = range(schedule.starters or schedule.workers)
        for number in starters:
            self.workers[number].alive = True
        firsts = [schedule.batch_of(number) for number in range(schedule.workers)]
        self.model = Interpreter(self.strategy, batch_sizes=firsts, **self._sizes())
        rules = [rule_of(each.aggregation) for each in self.strategy.compositions]
        self._tolerance = max(getattr(rule, "tolerance", Rule.tolerance) for rule in rules)
        actions = self.engine.begin(starters)
        self._check(self.model.begin(starters), actions)
        self._invariants = Invariants(str(schedule.strategy.get("name", "strategy")), self.engine)
        self.perform(actions)

    @property
    def view(self) -> Any:
        """The engine's account of the cluster."""
        return self.engine.view

    @property
    def switching(self) -> tuple[int, bool]:
        """Number of hand-overs so far, and whether another is in progress."""
        return self.handovers, self.model.switch is not None

    def _sizes(self) -> dict[str, Any]:
        """Return the sizes of the cluster for the engine and the model."""
        workers, batch = self.schedule.workers, self.schedule.global_batch
        return {
            "num_workers": workers,
            "dataset_size": 10 * batch,
            "global_batch": batch,
            "epochs": 20.0,
            "capacity": [_CAPACITY[number % len(_CAPACITY)] for number in range(workers)],
            "rate": rate,
            "wire_size": WireSize(LAYOUT, shapes=SHAPES),
            "rng": Streams(self.seed).generator("strategy"),
        }

    def _new_engine(self) -> Engine:
        own, sizes = self.schedule.batches, self._sizes()
        batches = [own[number % len(own)] for number in range(self.schedule.workers)] if own else []
        size = sizes.pop("wire_size")
        view = ClusterView(**sizes)
        return Engine(self.strategy, view, log=self.log, batch_sizes=batches, wire_size=size)

    def _check(self, expected: list[Action], actions: list[Action]) -> None:
        """Compare an answer, the rows that it writes, and the view after it, with the model's."""
        start, self._read = self._read, len(self.log)
        tolerance = self._tolerance
        wrong = unequal_answers(expected, actions, tolerance)
        wrong = wrong or unequal_rows(self.model.log.rows, self.log, start, tolerance)
        if not self.engine.measuring:
            wrong = wrong or unequal_views(self.model.cluster, self.view)
        if wrong:
            raise BrokenContract(
                f"{self.schedule.strategy.get('name', 'strategy')}, at {self.now:g} s: {wrong}"
            )

    def save_and_load(self) -> None:
        """Replace the engine by a new one with the same state."""
        state = json.loads(json.dumps(self.engine.state_dict()))
        self.engine = self._new_engine()
        self.engine.load_state_dict(state)
        if json.loads(json.dumps(self.engine.state_dict())) != state:
            raise BrokenContract("a state that was saved and loaded is another")
        if wrong := unequal_views(self.model.cluster, self.view):
            raise BrokenContract(f"after saving and loading: {wrong}")
        self._invariants.engine = self.engine
        if self.vectors is not None:
            self.vectors.save_and_load()

    def handle(self, event: Any) -> None:
        """Let the engine handle an event, and perform its answer."""
        self.events += 1
        if isinstance(event, ev.Vote):
            seen = self.view.workers[event.worker]
            if seen.ticket == event.ticket and seen.status is Status.COMPUTING:
                self.open_votes[event.worker] = event.samples
        clock = self._expected_clock(event)
        actions = self.engine.handle(event, self.now)
        self._check(self.model.handle(event, self.now), actions)
        handed_over = any(isinstance(action, act.Handover) for action in actions)
        if clock is not None and not handed_over and self.view.workers[event.worker].clock != clock:
            raise BrokenContract(
                f"worker {event.worker} is at clock {self.view.workers[event.worker].clock}, not {clock}"
            )
        self.perform(actions)

    def _expected_clock(self, event: Any) -> int | None:
        """Return the clock that a worker has after a push that counts; None after anything else."""
        if not isinstance(event, ev.Push) or self.engine.measuring:
            return None
        seen = self.view.workers[event.worker]
        counts = seen.ticket == event.ticket and seen.status is Status.COMPUTING
        return seen.clock + 1 if counts else None

    def perform(self, actions: list[Action]) -> None:
        """Perform the engine's answer, and check all invariants.

        Raises
        ------
        BrokenContract
            If something does not.
        """
        for action in actions:
            perform = _PERFORM.get(type(action))
            if perform is not None:
                perform(self, action)
        self._invariants.look()
        if not self.engine.measuring:
            self.unseen_deaths.clear()
        if not self.engine.measuring and self._counted != self.view.samples:
            raise BrokenContract(
                f"{self._counted} samples were committed or kept, but the view counts {self.view.samples}"
            )

    def _release(self, release: act.Release) -> None:
        worker, seen = self.workers[release.worker], self.view.workers[release.worker]
        kept = self.open_votes.pop(release.worker, 0)
        if release.then == "step":
            self._counted += kept
        if is_void(release, self.view):
            return
        if not worker.alive and not self.engine.measuring:  # else its death waits in the engine
            raise BrokenContract(f"worker {worker.number} is released, but it is dead")
        if not worker.alive:
            return
        if worker.loop is None:
            worker.loop = WorkerLoop(self.engine.composition, worker.number, seen.batch_size)
            worker.half = self.vectors.half(worker.number) if self.vectors is not None else None
        if self.vectors is None or worker.half is None:
            worker.release(release, ())
            return
        waits = not worker.computing
        worker.release(release, self.vectors.carried(release))
        if waits:
            self.vectors.check_sum(worker.number, worker.half.own.numpy())

    def _apply(self, apply: act.Apply) -> None:
        if any(not weight >= 0 for weight in apply.weights):
            raise BrokenContract(f"version {apply.version} weighs its pushes {list(apply.weights)}")
        self._counted += sum(push.samples for push in apply.pushes)
        if self.vectors is not None:
            seen = self.view.workers
            self.vectors.apply(apply, {number for number in seen if seen[number].status is Status.GONE})

    def _cancel(self, cancel: act.Cancel | act.Drop) -> None:
        self.workers[cancel.worker].drop_work()
        self.open_votes.pop(cancel.worker, None)

    def _readmit(self, readmit: act.Readmit) -> None:
        self.workers[readmit.worker].forget()
        if self.vectors is not None:
            self.vectors.wire.leave(readmit.worker)

    def _tell(self, tell: act.Tell) -> None:
        loop = self.workers[tell.worker].loop
        if loop is not None:
            loop.on_orders(tell.orders)

    def _set_timer(self, timer: act.SetTimer) -> None:
        self.timers.append((timer.at, len(self.timers), timer_of(timer)))

    def _reassign(self, _: act.Reassign) -> None:
        if self.vectors is not None:
            self.vectors.wire.move()

    def _measure(self, measure: act.Measure) -> None:
        self.measures.append(measure)

    def _hand_over(self, handover: act.Handover) -> None:
        self.handovers += 1
        if self.vectors is not None:
            self.vectors.hand_over(handover)
        for worker in self.workers:
            worker.forget()
        self.open_votes.clear()


_PERFORM: dict[type, Callable[[FuzzedCluster, Any], None]] = {
    act.Release: FuzzedCluster._release,
    act.Apply: FuzzedCluster._apply,
    act.Cancel: FuzzedCluster._cancel,
    act.Drop: FuzzedCluster._cancel,
    act.Readmit: FuzzedCluster._readmit,
    act.Tell: FuzzedCluster._tell,
    act.SetTimer: FuzzedCluster._set_timer,
    act.Reassign: FuzzedCluster._reassign,
    act.Measure: FuzzedCluster._measure,
    act.Handover: FuzzedCluster._hand_over,
}
