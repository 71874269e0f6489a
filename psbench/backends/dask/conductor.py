"""The conductor: holds the engine, takes events off the wire, and has its actions performed.

It runs in the process of the first server shard, or, under All-Reduce, in one of its own without tensors.
One thread does everything in turn, so nothing needs a lock; a worker that is held is simply not answered.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from psbench.backends.base import Ending, why_diverged, with_stats
from psbench.backends.dask.agenda import Agenda
from psbench.backends.dask.drift import Drift
from psbench.backends.dask.evaluations import Evaluations
from psbench.backends.dask.keeper import Keeper, State, Then, state_of, without_optimizer
from psbench.backends.dask.letters import PUSH, Pushed
from psbench.backends.dask.meter import Meter
from psbench.backends.dask.names import CLIENT, CONDUCTOR, EVALUATOR, worker_name, worker_number
from psbench.backends.dask.replicas import Replicas
from psbench.backends.dask.servers import Servers
from psbench.backends.dask.wire import FIRST_FREE_KIND, HELLO, JSON, Hub, Letter, pack, unpack
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.log import EventLog, Kind, plain_json
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView, Status
from psbench.errors import BackendError, Cancelled, Deadlock, ServerLost, WorkerLost
from psbench.problem import Problem

#: new rows of the log, for the client: length of the texts, texts as JSON, packed rows
ROWS = FIRST_FREE_KIND + 3
#: nothing to read; sending it finds out whether the peer is there
PING = FIRST_FREE_KIND + 4
TEXTS = struct.Struct("<I")

#: seconds between looks at the clock, the client's share of the log, and the peers; a peer's death is
#: noticed within the last
_TICK_S, _SHOW_S, _PING_S = 0.02, 0.1, 0.25
#: seconds that processes may take to load torch and the data
_START_S = 180.0


class PeerFailed(BackendError):
    """A task raised; the message is its traceback."""

    def __init__(self, name: str, traceback: str) -> None:
        self.name, self.traceback = name, traceback
        super().__init__(f"{name} failed:\n{traceback}")

    def __reduce__(self) -> tuple[type[PeerFailed], tuple[str, str]]:
        return PeerFailed, (self.name, self.traceback)


class Conductor:
    """One run's conductor.

    Parameters
    ----------
    problem : Problem
    hub : Hub
        Where the peers report.
    crew : sequence of str
        The names of all peers; training begins when each is ready.
    """

    def __init__(self, problem: Problem, hub: Hub, crew: Sequence[str]) -> None:
        experiment = problem.experiment
        self.problem, self.hub, self.crew = problem, hub, list(crew)
        self.log = EventLog()
        self.engine = problem.engine(self.log)
        self.ending = Ending(experiment.stop, experiment.evaluate_every)
        self._seconds = experiment.stop.seconds
        self._begin_s = time.monotonic()
        self._next_tick = self._next_show = self._next_ping = 0.0
        self._events: deque[ev.Event] = deque()
        self._push_ids = count()
        self._numbers = count(1)
        self._agenda = Agenda(problem.profile)
        self._ready: dict[str, dict[str, Any]] = {}
        self._met: set[str] = set()
        self._gone: set[str] = set()
        self._training = False
        self._status = self._reason = ""
        self._evaluations = Evaluations(hub, problem.model_bytes)
        self._evaluated = -1, -1  # the last version, and its samples, that were sent to the evaluator
        self._meter = Meter(hub, lambda facts: self._events.appendleft(ev.Measured(facts)))
        self._next_checkpoint = experiment.checkpoint_every or float("inf")
        #: nothing can be due before that many samples and that version
        self._look_at, self._last_version = 0.0, experiment.stop.updates or float("inf")
        self._carried: set[int] = set()  # pushes whose payloads wait
        self._handed: list[ev.Push] = []  # pushes that the engine was given, and may find void
        self._polled: int | None = None  # the models that go with the answer being performed
        self._shown_rows = self._shown_texts = 0
        self._received = False

    # ---------------------------------------------------------------- the run

    def run(self) -> None:
        """Run to the end, and give the client the outcome.

        Raises
        ------
        PsbenchError
            Whatever ends the run before its time; the client has the log up to there.
        """
        try:
            self._assemble()
            self._begin()
            while not self._status:
                self._pump()
                while self._events and not self._status:
                    self._handle(self._events.popleft())
            self._finish()
        finally:
            self._dismiss()

    @property
    def _now(self) -> float:
        return time.monotonic() - self._begin_s

    def _assemble(self) -> None:
        """Wait until everybody is ready."""
        while missing := [name for name in self.crew if name not in self._ready]:
            self._pump()
            if self._status:
                raise Cancelled("stopped by hand before training began")
            if self._now > _START_S:
                raise BackendError(
                    f"{', '.join(missing)} did not report within {_START_S:.0f} s: are the Dask workers busy?"
                )

    def _begin(self) -> None:
        self._keep(0, None)
        self._evaluate(0)
        self._until(lambda: not self._evaluations)
        self._begin_s = time.monotonic()
        self._next_tick = self._next_show = self._next_ping = 0.0
        roster = {number: self._ready[worker_name(number)]["ring"] for number in self._workers()}
        for worker in self._workers():
            self.hub.tell(worker_name(worker), {"do": "start", "begin_s": self._begin_s, "ring": roster})
        self._training = True
        starters = self.problem.profile.starters
        self._perform(self.engine.begin(worker for worker in self._workers() if worker in starters))

    def _workers(self) -> list[int]:
        """Return the training workers that are there."""
        numbers = (worker_number(name) for name in self.crew if name not in self._gone)
        return sorted(number for number in numbers if number is not None)

    def _keep(self, index: int, state: State | None) -> None:
        """Have a new keeper for a composition; without a state it begins where the problem does."""
        problem, hub, numbers = self.problem, self.hub, self._numbers
        composition = self._composition = problem.experiment.strategy.compositions[index]
        self._wire_bytes = composition.placement.bytes_up(
            composition.wire_bytes(problem.model_bytes), problem.profile.num_workers
        )
        self._holds = "distance_sq" in composition.measures
        self._drift = Drift(hub, numbers) if composition.communication.pushes == "together" else None
        self.keeper: Keeper
        if composition.placement.collective:
            self.keeper = Replicas(hub, self._workers(), state, numbers)
            return
        optimizer, batch = problem.experiment.optimizer, problem.experiment.batch_size
        state = state or state_of(problem.server(), optimizer=True)
        self.keeper = Servers(hub, composition, index, state, optimizer, batch, numbers)

    # ---------------------------------------------------------------- letters

    def _pump(self) -> None:
        """Take one letter, or let a little time pass; keep the clock's appointments."""
        letter = self.hub.receive(_TICK_S)
        if letter is not None:
            self._read(letter)
        now = self._now
        if now >= self._next_tick:
            self._tick(now)

    def _until(self, done: Callable[[], bool]) -> None:
        """Wait for letters that are not events; events are handled later, in their order."""
        while not done():
            self._pump()

    def _read(self, letter: Letter) -> None:
        if letter.kind == PUSH:
            self._pushed(letter)
        elif letter.kind == HELLO:
            self._met.add(letter.sender)
        elif letter.kind == JSON:
            plain = letter.plain
            _READERS[plain["do"]](self, letter.sender, plain, letter)

    def _pushed(self, letter: Letter) -> None:
        worker = worker_number(letter.sender)
        if worker is None or letter.sender in self._gone:
            return
        told = Pushed.decode(letter.body)
        send_s = max(0.0, time.monotonic() - told.sent_s)
        push = ev.Push(
            *(next(self._push_ids), worker, told.ticket, told.version, told.samples, told.steps),
            *(self._wire_bytes, told.compute_s, send_s, told.loss, told.stats, told.goes_on),
        )
        self.keeper.take(push, letter.payload)
        self._carried.add(push.id)
        view = self.engine.view.workers[worker]
        if not told.is_finite and told.ticket == view.ticket and view.status is Status.COMPUTING:
            self._diverged(push)
            return
        reads = self._composition.reads
        self._events.append(with_stats(push, reads) if reads else push)

    def _diverged(self, push: ev.Push) -> None:
        if not self._status:
            self.engine.handle(push, self._now)
            self._end("diverged", why_diverged(push, self._now))

    def _on_vote(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        worker = worker_number(sender)
        assert worker is not None
        told = plain["ticket"], plain["value"], plain["samples"], plain["compute_s"]
        self._events.append(ev.Vote(worker, *told))

    def _on_report(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        worker = worker_number(sender)
        assert worker is not None
        self._events.append(ev.Report(worker, plain["ticket"], plain["stats"]))

    def _on_model(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        worker = worker_number(sender)
        if self._drift is not None and worker is not None:
            self._drift.answer(worker, plain["tag"], unpack(plain["shapes"], letter.payload))

    def _on_measured(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        self._meter.take(plain["name"], plain["number"])

    def _on_ready(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        self._ready[sender] = plain

    def _on_clock(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        self.hub.tell(sender, {"do": "clock", "time_s": time.monotonic()})

    def _on_failed(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        raise PeerFailed(sender, plain["traceback"])

    def _on_keeper(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        self.keeper.answer(sender, plain, letter.payload)

    def _on_evaluated(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        number, version, epoch = self._evaluations.take(plain["id"])
        values = {"epoch": epoch} | plain["values"]
        if number > 0 and not self._status:
            self._events.append(ev.Evaluated(number, version, values))
        else:  # no rule sees it: it is of before the first step or after the last
            self._record(-1 if number else 0, version, values)

    def _on_stop(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        self._end("stopped", "stopped by hand")

    def _on_switch(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        self._events.append(ev.Asked(plain["to"]))

    def _on_received(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        self._received = True

    # ---------------------------------------------------------------- events

    def _handle(self, event: ev.Event) -> None:
        now = self._now
        if self._seconds is not None and now >= self._seconds:
            self._time_is_up()
            return
        if not self._can_be(event):
            return
        actions = self.engine.handle(event, now)
        if type(event) is ev.Push:
            self._handed.append(event)
        elif type(event) is ev.Leave:
            self._halt(event.worker)
        self._perform(actions)
        if self._handed and not self.engine.measuring:
            self._drop_void()
        if type(event) is ev.Evaluated:
            reason = self.ending.after_evaluation(event.values)
            if reason:
                self._end("finished", reason)
        elif not self.engine.view.num_active and not self._agenda.expects_more_than(self._lost):
            raise WorkerLost(f"every worker is gone at {now:.3f} s; nobody is left to train")

    def _can_be(self, event: ev.Event) -> bool:
        """Whether the profile's comings and goings are possible: a process that died does not come back."""
        workers = self.engine.view.workers
        if type(event) is ev.Join:
            is_here = event.worker in workers and workers[event.worker].status is not Status.GONE
            return not is_here and event.worker not in self._lost
        return type(event) is not ev.Leave or event.worker in workers

    @property
    def _lost(self) -> set[int]:
        """Workers whose processes are dead."""
        return {worker for name in self._gone if (worker := worker_number(name)) is not None}

    def _halt(self, worker: int) -> None:
        """Have a worker forget what it computes; should it be released again, it begins anew."""
        self.hub.tell(worker_name(worker), {"do": "halt"})

    def _drop_void(self) -> None:
        """Drop what came with pushes that the engine has found void."""
        pending = self.engine.view.pending
        for push in self._handed:
            if push.id in self._carried and push.id not in pending:
                self._carried.discard(push.id)
                self.keeper.discard(push)
        self._handed.clear()

    def _time_is_up(self) -> None:
        assert self._seconds is not None
        self.engine.view.now = self._seconds
        self._end("finished", self.ending.at(self._seconds))

    def _end(self, status: str, reason: str) -> None:
        if not self._status:
            self._status, self._reason = status, reason

    # ---------------------------------------------------------------- actions

    def _perform(self, actions: Sequence[Action]) -> None:
        if self._drift is not None and self._may_be_due:
            self._ask_for_models(actions)
        for action in actions:
            perform = _PERFORMERS.get(type(action))
            # a Hold is silence; after a Cancel comes the Release that the worker finds between two steps
            if perform is not None:
                perform(self, action)
                if self._status:
                    return  # the run ended with this version; nobody starts another step
        if not self._composition.plain:  # steps that are kept after a vote are progress too
            self._look()
        if not self._status:
            self._polled = None

    def _release(self, release: act.Release) -> None:
        view = self.engine.view
        if self._holds:
            in_use = {w.base_version for w in view.workers.values()} | {release.load}
            self.keeper.hold(release.load, in_use | {push.base_version for push in view.pending.values()})
        self.keeper.release(release, view.workers[release.worker].batch_size)

    def _apply(self, apply: act.Apply) -> None:
        self.keeper.apply(apply)
        self._carried.difference_update(push.id for push in apply.pushes)
        if self._composition.plain:
            self._look()

    def _discard(self, discard: act.Discard) -> None:
        self._carried.discard(discard.push.id)
        self.keeper.discard(discard.push)

    def _drop(self, drop: act.Drop) -> None:
        self._halt(drop.worker)

    def _tell(self, tell: act.Tell) -> None:
        self.hub.tell(worker_name(tell.worker), {"do": "orders", "orders": tell.orders})

    def _wake(self, wake: act.Wake) -> None:
        self._agenda.add(wake.at, ev.Timer(wake.key, wake.composition_id))

    def _measure(self, measure: act.Measure) -> None:
        self._meter.measure(measure.needs, self.keeper, self.engine.view.pending)

    def _hand_over(self, handover: act.Handover) -> None:
        """Everybody is idle: move the model from its old keeper to the new one, and store it on the way."""
        state = self._state(optimizer=True)
        if handover.forgets_momentum:
            state = without_optimizer(state)
        for worker in self._workers():
            self.hub.tell(worker_name(worker), {"do": "compose", "composition": handover.to})
        self._keep(handover.to, state)
        self._send_checkpoint(f"switch-version-{self.engine.view.version}", state)
        pause = self._now + handover.cost_s
        self._until(lambda: self._now >= pause or bool(self._status))

    def _state(self, optimizer: bool) -> State:
        """Return the current version's state, waiting for it."""
        return self._await_state(lambda then: self.keeper.gather(optimizer, then))

    def _await_state(self, gather: Callable[[Then], None]) -> State:
        found: list[State] = []
        gather(found.append)
        self._until(lambda: bool(found))
        return found[0]

    # ---------------------------------------------------------------- looking and storing

    @property
    def _may_be_due(self) -> bool:
        view = self.engine.view
        return view.samples >= self._look_at or view.version >= self._last_version

    def _look(self) -> None:
        """Evaluate, write a checkpoint, or end, if one of them is due."""
        if self._may_be_due:
            self._after_update(self.engine.view)

    def _after_update(self, view: ClusterView) -> None:
        number = self.ending.due(view)
        if number is not None:
            self._evaluate(number)
        if view.epoch >= self._next_checkpoint:
            self._next_checkpoint += self.problem.experiment.checkpoint_every or float("inf")
            self._checkpoint(f"epoch-{view.epoch:g}")
        reason = self.ending.after_update(view)
        if reason:
            self._end("finished", reason)
        self._look_at = view.dataset_size * min(self.ending.next_epoch, self._next_checkpoint)

    def _ask_for_models(self, actions: Sequence[Action]) -> None:
        """Ask for the workers' own models as they will be when these actions are performed."""
        assert self._drift is not None
        going = {a.worker for a in actions if type(a) is act.Release and a.then == "step"}
        self._polled = self._drift.ask(self._with_models() - going, going)

    def _with_models(self) -> set[int]:
        """Return the workers that have been released under this composition."""
        workers = self.engine.view.workers.values()
        return {w.id for w in workers if w.status not in (Status.NEW, Status.GONE)}

    def _gather_model(self, then: Then) -> None:
        """Call `then` with the model that a person would take away: the mean where models drift apart."""
        if self._drift is None:
            self.keeper.gather(False, then)
            return
        polled = self._drift.ask(self._with_models()) if self._polled is None else self._polled
        self._drift.mean(polled, lambda mean: then(mean) if mean else self.keeper.gather(False, then))

    def _evaluate(self, number: int) -> None:
        """Have the current version evaluated, while training goes on."""
        evaluations = self._evaluations
        self._evaluated = self._stand
        key = evaluations.expect(number, self.engine.view)
        self._gather_model(lambda state: evaluations.send(key, state))
        if evaluations.too_many:
            self._until(lambda: not evaluations.too_many)

    @property
    def _stand(self) -> tuple[int, int]:
        return self.engine.view.version, self.engine.view.samples

    def _record(self, number: int, version: int, values: dict[str, float]) -> None:
        now = self._now if number else 0.0
        self.log.add(Kind.EVALUATED, now, id=number, version=version, text=plain_json(values))

    def _checkpoint(self, label: str) -> None:
        self.keeper.gather(True, lambda state: self._send_checkpoint(label, state))

    def _send_checkpoint(self, label: str, state: State) -> None:
        shapes, flat = pack(state)
        # while numbers are being measured, an answer is half given: the model alone is of one moment then
        decisions = None if self.engine.measuring else self.engine.state_dict()
        plain = {"time_s": self._now, "engine": decisions}
        self.hub.tell(CLIENT, {"do": "checkpoint", "label": label, "shapes": shapes, "state": plain}, flat)

    def _show(self) -> None:
        """Send the client what the log has grown by."""
        rows, texts = self.log.rows(self._shown_rows), self.log.texts[self._shown_texts :]
        if not len(rows):
            return
        written = plain_json(list(texts)).encode()
        self._shown_rows += len(rows)
        self._shown_texts += len(texts)
        self.hub.send(CLIENT, ROWS, TEXTS.pack(len(written)) + written + rows.tobytes())

    # ---------------------------------------------------------------- the clock

    def _tick(self, now: float) -> None:
        self._next_tick = now + _TICK_S
        if self._training:
            self._events.extend(self._agenda.due(now))
        if now >= self._next_show:
            self._next_show = now + _SHOW_S
            self._show()
        if now >= self._next_ping:
            self._next_ping = now + _PING_S
            self._call_the_roll()
        if self._seconds is not None and now >= self._seconds and not self._status and self._training:
            self._time_is_up()

    def _call_the_roll(self) -> None:
        """See who is there; a letter to a process that died cannot be sent."""
        for name in sorted(self._met - self._gone):
            if not self.hub.send(name, PING, b""):
                self._lose(name)
        view = self.engine.view
        busy = view.num_computing or self._status or self._events or self._agenda or self._evaluations
        if view.num_active and not (busy or self.engine.measuring):
            raise Deadlock(f"at {self._now:.3f} s no worker can ever go on; {view.waits()}")

    def _lose(self, name: str) -> None:
        """Do without a peer that is gone, or give up."""
        self._gone.add(name)
        self.hub.forget(name)
        worker = worker_number(name)
        if worker is not None:
            if not self._training:
                raise WorkerLost(f"{name} died before training began")
            self.keeper.leave(worker)
            if self._drift is not None:
                self._drift.leave(worker)
            self._events.append(ev.Leave(worker, "lost"))
        elif name == CLIENT:
            raise Cancelled("the client is gone")
        elif name == EVALUATOR:
            raise BackendError("the evaluator is gone: its process was killed or its machine is unreachable")
        else:
            raise ServerLost(f"{name} is gone: its process was killed or its machine is unreachable")

    # ---------------------------------------------------------------- the end

    def _finish(self) -> None:
        """Evaluate the last version, and give the client what the run leaves."""
        self._handle_leavers()
        time_s = min(self._now, self._seconds or float("inf"))
        state = self._await_state(self._gather_model)
        self._stop_workers()
        if self._evaluated != self._stand and self._status != "diverged":
            self._evaluations.send(self._evaluations.expect(-1, self.engine.view), state)
        self._until(lambda: not self._evaluations)
        self._show()
        shapes, flat = pack(state)
        lost = [w.id for w in self.engine.view.workers.values() if w.status == Status.GONE]
        outcome = {"status": self._status, "reason": self._reason}
        facts = {"time_s": time_s, "lost_workers": lost, "strangers": self.hub.strangers}
        self.hub.tell(CLIENT, {"do": "outcome", "shapes": shapes, "facts": facts} | outcome, flat)
        self._until(lambda: self._received)

    def _handle_leavers(self) -> None:
        for event in self._events:
            if type(event) is ev.Leave:
                self.engine.handle(event, self._now)
        self._events.clear()

    def _stop_workers(self) -> None:
        for worker in self._workers():
            self.hub.tell(worker_name(worker), {"do": "stop"})

    def _dismiss(self) -> None:
        """Send everybody home, however the run ended."""
        self._show()
        for name in self._met - self._gone:
            self.hub.tell(name, {"do": "stop"})


def servers_of(composition: Strategy) -> int:
    """Return how many server shards a composition has; none under All-Reduce."""
    return 0 if composition.placement.collective else getattr(composition.placement, "servers", 1)


_READERS: dict[str, Callable[[Conductor, str, dict[str, Any], Letter], None]] = {
    "ready": Conductor._on_ready,
    "clock": Conductor._on_clock,
    "failed": Conductor._on_failed,
    "keeper": Conductor._on_keeper,
    "vote": Conductor._on_vote,
    "report": Conductor._on_report,
    "model": Conductor._on_model,
    "measured": Conductor._on_measured,
    "evaluated": Conductor._on_evaluated,
    "stop": Conductor._on_stop,
    "switch": Conductor._on_switch,
    "received": Conductor._on_received,
}

_PERFORMERS: dict[type, Callable[[Conductor, Any], None]] = {
    act.Release: Conductor._release,
    act.Apply: Conductor._apply,
    act.Discard: Conductor._discard,
    act.Drop: Conductor._drop,
    act.Tell: Conductor._tell,
    act.Wake: Conductor._wake,
    act.Measure: Conductor._measure,
    act.Handover: Conductor._hand_over,
}

__all__ = ["CONDUCTOR", "PING", "ROWS", "TEXTS", "Conductor", "PeerFailed", "servers_of"]
