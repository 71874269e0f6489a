"""Plays a schedule on an engine, and checks after every event."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.engine import Engine
from psbench.core.log import EventLog
from psbench.core.switching_strategy import AnyStrategy
from psbench.core.view import Status
from psbench.core.wire_size import WireSize
from psbench.core.worker_loop import WorkerLoop
from psbench.seeds import Streams
from psbench.testing.fuzz.numbers import noise
from psbench.testing.fuzz.schedule import Choice, Schedule
from psbench.testing.fuzz.workers import Worker
from psbench.testing.invariants import BrokenContract, Invariants

#: samples of a worker's batch; the data set has ten times the global batch
_BATCH = 4
_LAYOUT = tuple((f"tensor {number}", 8 + number % 5) for number in range(64))


class Player:
    """A cluster in which every choice is made from outside.

    Parameters
    ----------
    schedule : Schedule
        Whose cluster to build; its choices are not made yet.
    strategy : Strategy or None
        The schedule's, if it has been built before.

    Attributes
    ----------
    events : int
        Events that the engine has handled.
    """

    def __init__(self, schedule: Schedule, strategy: AnyStrategy | None = None) -> None:
        self.schedule, self.seed = schedule, schedule.seed
        self.strategy = schedule.made() if strategy is None else strategy
        self.log, self.now, self.events, self._choices = EventLog(), 0.0, 0, 0
        self.engine = self._new_engine()
        self.workers = [Worker(number) for number in range(schedule.workers)]
        self.timers: list[tuple[float, int, ev.Timer]] = []
        self.measures: list[act.Measure] = []
        self.handovers = 0
        self._evaluations = 0
        self._open_votes: dict[int, int] = {}
        self._unseen_deaths: set[int] = set()  # which wait in the engine while it measures
        self._counted = 0  # samples that were committed, or kept after a vote
        starters = range(schedule.starters or schedule.workers)
        for number in starters:
            self.workers[number].alive = True
        actions = self.engine.begin(starters)
        self._invariants = Invariants(str(schedule.strategy.get("name", "strategy")), self.engine)
        self._perform(actions)

    @property
    def view(self) -> Any:
        """The engine's account of the cluster."""
        return self.engine.view

    def _new_engine(self) -> Engine:
        batch = _BATCH * self.schedule.workers
        return Engine(
            self.strategy,
            num_workers=self.schedule.workers,
            dataset_size=10 * batch,
            global_batch=batch,
            epochs=20.0,
            wire_size=WireSize(_LAYOUT),
            rng=Streams(self.seed).generator("strategy"),
            log=self.log,
        )

    # ---------------------------------------------------------------- choices

    def can(self, choice: Choice) -> bool:
        """Whether a choice makes sense now."""
        kind, number = choice
        if kind in "sadjrv":
            return number < len(self.workers) and self._worker_can(kind, self.workers[number])
        if kind == "t":
            return bool(self.timers)
        if kind == "m":
            return bool(self.measures)
        return kind not in "cx" or not self.engine.measuring

    def _worker_can(self, kind: str, worker: Worker) -> bool:
        if kind == "s":
            return worker.computing
        if kind == "a":
            return bool(worker.outbox)
        if kind == "d":
            return worker.alive and sum(other.alive for other in self.workers) > 1
        if kind == "j":
            return not worker.alive and worker.number not in self._unseen_deaths
        if kind == "r":
            return worker.alive and worker.last is not None
        return bool(worker.void)

    def make(self, choice: Choice) -> None:
        """Make a choice; one that makes no sense now is passed over.

        Raises
        ------
        ProtocolError
            If the engine or a part breaks the contract; anything else that they raise is their fault too.
        """
        if not self.can(choice):
            return
        if choice.kind != "c":  # saving takes no time: without it the log is the same
            self._choices += 1
            step = noise(self.seed, 101, self._choices)
            self.now += 0.0 if step < 0.3 else step  # many things happen at one instant
        _MAKE[choice.kind](self, choice.number)

    def _end_step(self, number: int) -> None:
        self.workers[number].end_step(self.engine.composition.reads, self.seed)

    def _arrive(self, number: int) -> None:
        worker = self.workers[number]
        worker.last = copy.copy(worker.outbox[0])
        self._handle(worker.outbox.popleft())

    def _die(self, number: int) -> None:
        worker = self.workers[number]
        worker.alive = False
        worker.forget()
        self._open_votes.pop(number, None)
        self._unseen_deaths.add(number)
        self._handle(ev.Leave(number, "lost"))

    def _join(self, number: int) -> None:
        self.workers[number].alive = True
        self._handle(ev.Join(number))

    def _repeat(self, number: int) -> None:
        self._handle(copy.copy(self.workers[number].last))

    def _void(self, number: int) -> None:
        if number in self.view.workers:
            self._handle(self.workers[number].void.pop(0))

    def _timer(self, _number: int) -> None:
        self.timers.sort(key=lambda timer: timer[:2])
        at, _, timer = self.timers.pop(0)
        self.now = max(self.now, at)
        self._handle(timer)

    def _evaluate(self, _number: int) -> None:
        self._evaluations += 1
        fresh = noise(self.seed, 102, self._evaluations)
        loss = 1.0 if noise(self.seed, 103) < 0.5 else fresh  # one that settles, or one that never does
        values = {"epoch": self.view.epoch, "val_loss": loss, "train_loss": loss, "val_accuracy": fresh}
        self._handle(ev.Evaluated(self._evaluations, self.view.version, values))

    def _switch(self, number: int) -> None:
        self._handle(ev.SwitchRequested(number if number < 2 else None))

    def _measured(self, _number: int) -> None:
        measure = self.measures.pop(0)
        facts = {name: noise(self.seed, 104, self.events, i) for i, name in enumerate(measure.needs)}
        self._handle(ev.Measured(facts))

    def _save_and_load(self, _number: int) -> None:
        state = json.loads(json.dumps(self.engine.state_dict()))
        self.engine = self._new_engine()
        self.engine.load_state_dict(state)
        self._invariants.engine = self.engine

    def _restart(self, _number: int) -> None:
        """Go on from a checkpoint: steps and messages under way are void."""
        self._save_and_load(0)
        for worker in self.workers:
            seen = self.view.workers.get(worker.number)
            if seen is not None and (seen.status in (Status.COMPUTING, Status.VOTED) or seen.overlapping):
                worker.forget()
            else:
                worker.drop_work()
        self._open_votes.clear()
        self._perform(self.engine.resume(epochs=self.view.epochs))

    # ---------------------------------------------------------------- the engine

    def _handle(self, event: Any) -> None:
        self.events += 1
        if isinstance(event, ev.Vote):
            seen = self.view.workers[event.worker]
            if seen.ticket == event.ticket and seen.status is Status.COMPUTING:
                self._open_votes[event.worker] = event.samples
        clock = self._expected_clock(event)
        actions = self.engine.handle(event, self.now)
        handed_over = any(isinstance(action, act.Handover) for action in actions)
        if clock is not None and not handed_over and self.view.workers[event.worker].clock != clock:
            raise BrokenContract(
                f"worker {event.worker} is at clock {self.view.workers[event.worker].clock}, not {clock}"
            )
        self._perform(actions)

    def _expected_clock(self, event: Any) -> int | None:
        """Return the clock that a worker has after a push that counts; None after anything else."""
        if not isinstance(event, ev.Push) or self.engine.measuring:
            return None
        seen = self.view.workers[event.worker]
        counts = seen.ticket == event.ticket and seen.status is Status.COMPUTING
        return seen.clock + 1 if counts else None

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            perform = _PERFORM.get(type(action))
            if perform is not None:
                perform(self, action)
        self._invariants.look()
        if not self.engine.measuring:
            self._unseen_deaths.clear()
        if not self.engine.measuring and self._counted != self.view.samples:
            raise BrokenContract(
                f"{self._counted} samples were committed or kept, but the view counts {self.view.samples}"
            )

    def _release(self, release: act.Release) -> None:
        worker, seen = self.workers[release.worker], self.view.workers[release.worker]
        kept = self._open_votes.pop(release.worker, 0)
        if release.then == "step":
            self._counted += kept
        if seen.ticket != release.ticket or seen.status is Status.GONE:
            return  # it left while numbers were being measured, and may be back
        if not worker.alive and not self.engine.measuring:  # else its death waits in the engine
            raise BrokenContract(f"worker {worker.number} is released, but it is dead")
        if not worker.alive:
            return
        if worker.loop is None:
            worker.loop = WorkerLoop(self.engine.composition, worker.number, seen.batch_size)
        worker.release(release)

    def _apply(self, apply: act.Apply) -> None:
        if any(not weight >= 0 for weight in apply.weights):
            raise BrokenContract(f"version {apply.version} weighs its pushes {list(apply.weights)}")
        self._counted += sum(push.samples for push in apply.pushes)

    def _cancel(self, cancel: act.Cancel | act.Drop) -> None:
        self.workers[cancel.worker].drop_work()
        self._open_votes.pop(cancel.worker, None)

    def _readmit(self, readmit: act.Readmit) -> None:
        self.workers[readmit.worker].forget()

    def _tell(self, tell: act.Tell) -> None:
        loop = self.workers[tell.worker].loop
        if loop is not None:
            loop.on_orders(tell.orders)

    def _set_timer(self, timer: act.SetTimer) -> None:
        event = ev.Timer(timer.key, timer.composition_id)
        self.timers.append((timer.at, len(self.timers), event))

    def _measure(self, measure: act.Measure) -> None:
        self.measures.append(measure)

    def _hand_over(self, _handover: act.Handover) -> None:
        self.handovers += 1
        for worker in self.workers:
            worker.forget()
        self._open_votes.clear()


_MAKE: dict[str, Callable[[Player, int], None]] = {
    "s": Player._end_step,
    "a": Player._arrive,
    "d": Player._die,
    "j": Player._join,
    "r": Player._repeat,
    "v": Player._void,
    "t": Player._timer,
    "e": Player._evaluate,
    "w": Player._switch,
    "m": Player._measured,
    "c": Player._save_and_load,
    "x": Player._restart,
}
_PERFORM: dict[type, Callable[[Player, Any], None]] = {
    act.Release: Player._release,
    act.Apply: Player._apply,
    act.Cancel: Player._cancel,
    act.Drop: Player._cancel,
    act.Readmit: Player._readmit,
    act.Tell: Player._tell,
    act.SetTimer: Player._set_timer,
    act.Measure: Player._measure,
    act.Handover: Player._hand_over,
}


def play(schedule: Schedule, strategy: AnyStrategy | None = None) -> Player:
    """Play a schedule, then let it heal and ask for progress; see `liveness.heal`.

    Raises
    ------
    PsbenchError
        If it breaks the contract, or makes no progress.
    """
    from psbench.testing.fuzz.liveness import heal

    player = Player(schedule, strategy)
    for choice in schedule.choices:
        player.make(choice)
    heal(player)
    return player
