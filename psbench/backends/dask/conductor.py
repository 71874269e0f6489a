"""The conductor: holds the engine, takes events off the wire, and has its actions performed.

It runs in the process of the first server shard, or, under All-Reduce, in one of its own without tensors.
One thread does everything in turn, so nothing needs a lock; a worker that is held is simply not answered.
"""

from __future__ import annotations

import heapq
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from psbench.backends.base import Ending, with_stats
from psbench.backends.dask.keeper import Keeper, State, state_of, without_optimizer
from psbench.backends.dask.letters import PUSH, Pushed
from psbench.backends.dask.names import CLIENT, CONDUCTOR, EVALUATOR, worker_name, worker_number
from psbench.backends.dask.replicas import Replicas
from psbench.backends.dask.servers import Servers
from psbench.backends.dask.wire import FIRST_FREE_KIND, HELLO, JSON, Hub, Letter, pack
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.log import EventLog, Kind, plain_json
from psbench.core.strategy import Strategy
from psbench.core.view import Status
from psbench.errors import BackendError, Cancelled, Deadlock, ProtocolError, ServerLost, WorkerLost
from psbench.problem import Problem

#: new rows of the log, for the client: length of the texts, texts as JSON, packed rows
ROWS = FIRST_FREE_KIND + 3
#: nothing to read; sending it finds out whether the peer is there
PING = FIRST_FREE_KIND + 4
TEXTS = struct.Struct("<I")

#: seconds between looks at the clock, the client's share of the log, and the peers; a peer's death is
#: noticed within the last
_TICK_S, _SHOW_S, _PING_S = 0.02, 0.1, 0.25
#: bytes of models that may wait for the evaluator; beyond, training waits for it
_WAITING_BYTES = 1 << 28
_WAITING_AT_LEAST = 4
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
        self._timers: list[tuple[float, str, int]] = []
        self._ready: dict[str, dict[str, Any]] = {}
        self._met: set[str] = set()
        self._gone: set[str] = set()
        self._status = self._reason = ""
        self._evaluations: dict[int, tuple[int, int, float]] = {}  # under way: number, version, epoch
        self._evaluation_ids = count()
        self._evaluated = -1  # the last version that was sent to the evaluator
        self._next_checkpoint = experiment.checkpoint_every or float("inf")
        self._shown_rows = self._shown_texts = 0
        self._received = False
        self.keeper: Keeper

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
        experiment = self.problem.experiment
        self.keeper = self._keeper(experiment.strategy.compositions[0], None)
        self._evaluate(0)
        self._until(lambda: not self._evaluations)
        self._begin_s = time.monotonic()
        self._next_tick = self._next_show = self._next_ping = 0.0
        roster = {number: self._ready[worker_name(number)]["ring"] for number in self._workers()}
        for worker in self._workers():
            self.hub.tell(worker_name(worker), {"do": "start", "begin_s": self._begin_s, "ring": roster})
        self._perform(self.engine.begin(self._workers()))

    def _workers(self) -> list[int]:
        """Return the training workers that are there."""
        numbers = (worker_number(name) for name in self.crew if name not in self._gone)
        return sorted(number for number in numbers if number is not None)

    def _keeper(self, composition: Strategy, state: State | None) -> Keeper:
        """Return a new keeper for a composition; without a state it begins where the problem does."""
        placement, problem = composition.placement, self.problem
        if placement.collective:
            return Replicas(self.hub, self._workers(), state, self._numbers)
        optimizer, batch = problem.experiment.optimizer, problem.experiment.batch_size
        state = state or state_of(problem.server(), optimizer=True)
        return Servers(self.hub, servers_of(composition), state, optimizer, batch, self._numbers)

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
        number = next(self._push_ids)
        send_s = max(0.0, time.monotonic() - told.sent_s)
        size = self.engine.composition.placement.bytes_up(
            self.problem.model_bytes, self.engine.view.num_workers
        )
        push = ev.Push(
            *(number, worker, told.ticket, told.version, told.samples, 1, size),
            *(told.compute_s, send_s, told.loss),
        )
        if told.ticket == self.engine.view.workers[worker].ticket:
            self.keeper.take(push, letter.payload)
            if not told.is_finite:
                self._diverged(push)
                return
        else:
            self.keeper.discard(push)
        self._events.append(with_stats(push, self.engine.composition.reads))

    def _diverged(self, push: ev.Push) -> None:
        if self._status:
            return
        self.engine.handle(push, self._now)
        self._end(
            "diverged",
            f"push {push.id} of worker {push.worker}, computed on version {push.base_version} "
            f"at {self._now:.3f} s, has loss {push.loss}: lower the learning rate",
        )

    def _on_ready(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        self._ready[sender] = plain

    def _on_clock(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        self.hub.tell(sender, {"do": "clock", "time_s": time.monotonic()})

    def _on_failed(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        raise PeerFailed(sender, plain["traceback"])

    def _on_keeper(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        self.keeper.answer(sender, plain, letter.payload)

    def _on_evaluated(self, sender: str, plain: dict[str, Any], letter: Letter) -> None:
        number, version, epoch = self._evaluations.pop(plain["id"])
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
        self._perform(self.engine.handle(event, now))
        if type(event) is ev.Evaluated:
            reason = self.ending.after_evaluation(event.values)
            if reason:
                self._end("finished", reason)
        elif type(event) is ev.Leave and not self.engine.view.num_active:
            raise WorkerLost(f"every worker is gone at {now:.3f} s; nobody is left to train")

    def _time_is_up(self) -> None:
        assert self._seconds is not None
        self.engine.view.now = self._seconds
        self._end("finished", self.ending.at(self._seconds))

    def _end(self, status: str, reason: str) -> None:
        if not self._status:
            self._status, self._reason = status, reason

    # ---------------------------------------------------------------- actions

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            perform = _PERFORMERS.get(type(action))
            # a Hold is silence; after a Cancel comes the Release that the worker finds between two steps
            if perform is not None:
                perform(self, action)
                if self._status:
                    return  # the run ended with this version; nobody starts another step

    def _release(self, release: act.Release) -> None:
        self.keeper.release(release, self.engine.view.workers[release.worker].batch_size)

    def _apply(self, apply: act.Apply) -> None:
        self.keeper.apply(apply)
        view = self.engine.view
        number = self.ending.due(view)
        if number is not None:
            self._evaluate(number)
        if view.epoch >= self._next_checkpoint:
            self._next_checkpoint += self.problem.experiment.checkpoint_every or float("inf")
            self._checkpoint(f"epoch-{view.epoch:g}")
        reason = self.ending.after_update(view)
        if reason:
            self._end("finished", reason)

    def _discard(self, discard: act.Discard) -> None:
        self.keeper.discard(discard.push)

    def _tell(self, tell: act.Tell) -> None:
        self.hub.tell(worker_name(tell.worker), {"do": "orders", "orders": tell.orders})

    def _wake(self, wake: act.Wake) -> None:
        heapq.heappush(self._timers, (wake.at, wake.key, wake.composition_id))

    def _measure(self, measure: act.Measure) -> None:
        raise ProtocolError(f"{measure.asker} asks for {measure.needs}, which this backend cannot measure")

    def _hand_over(self, handover: act.Handover) -> None:
        """Everybody is idle: move the model from its old keeper to the new one, and store it on the way."""
        state = self._state(optimizer=True)
        if handover.forgets_momentum:
            state = without_optimizer(state)
        composition = self.problem.experiment.strategy.compositions[handover.to]
        for worker in self._workers():
            self.hub.tell(worker_name(worker), {"do": "compose", "composition": handover.to})
        self.keeper = self._keeper(composition, state)
        self._send_checkpoint(f"switch-version-{self.engine.view.version}", state)
        pause = self._now + handover.cost_s
        self._until(lambda: self._now >= pause or bool(self._status))

    def _state(self, optimizer: bool) -> State:
        """Return the current version's state, waiting for it."""
        found: list[State] = []
        self.keeper.gather(optimizer, found.append)
        self._until(lambda: bool(found))
        return found[0]

    # ---------------------------------------------------------------- looking and storing

    def _evaluate(self, number: int) -> None:
        """Have the current version evaluated, while training goes on."""
        key = self._expect_evaluation(number)
        self.keeper.gather(False, lambda state: self._send_evaluation(key, state))
        room = max(_WAITING_AT_LEAST, _WAITING_BYTES // max(1, self.problem.model_bytes))
        if len(self._evaluations) > room:
            self._until(lambda: len(self._evaluations) <= room)

    def _expect_evaluation(self, number: int) -> int:
        view = self.engine.view
        key = next(self._evaluation_ids)
        self._evaluations[key] = number, view.version, view.epoch
        self._evaluated = view.version
        return key

    def _send_evaluation(self, key: int, state: State) -> None:
        shapes, flat = pack(state)
        self.hub.tell(EVALUATOR, {"do": "evaluate", "id": key, "shapes": shapes}, flat)

    def _record(self, number: int, version: int, values: dict[str, float]) -> None:
        now = self._now if number else 0.0
        self.log.add(Kind.EVALUATED, now, id=number, version=version, text=plain_json(values))

    def _checkpoint(self, label: str) -> None:
        self.keeper.gather(True, lambda state: self._send_checkpoint(label, state))

    def _send_checkpoint(self, label: str, state: State) -> None:
        shapes, flat = pack(state)
        plain = {"time_s": self._now, "engine": self.engine.state_dict()}
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
        while self._timers and self._timers[0][0] <= now:
            self._events.append(ev.Timer(*heapq.heappop(self._timers)[1:]))
        if now >= self._next_show:
            self._next_show = now + _SHOW_S
            self._show()
        if now >= self._next_ping:
            self._next_ping = now + _PING_S
            self._call_the_roll()
        if self._seconds is not None and now >= self._seconds and not self._status and self._started:
            self._time_is_up()

    @property
    def _started(self) -> bool:
        return self.engine.view.num_active > 0

    def _call_the_roll(self) -> None:
        """See who is there; a letter to a process that died cannot be sent."""
        for name in sorted(self._met - self._gone):
            if not self.hub.send(name, PING, b""):
                self._lose(name)
        view = self.engine.view
        if view.num_active and not (view.num_computing or self._status or self._events or self._timers):
            self._stalled()

    def _stalled(self) -> None:
        if self._evaluations:
            return  # a rule may act on one
        waiting = [
            f"worker {w.id} at clock {w.clock}: {w.hold_reason or w.status.name.lower()}"
            for w in self.engine.view.workers.values()
            if w.status != Status.GONE
        ]
        raise Deadlock(f"at {self._now:.3f} s no worker can ever go on; " + "; ".join(waiting))

    def _lose(self, name: str) -> None:
        """Do without a peer that is gone, or give up."""
        self._gone.add(name)
        self.hub.forget(name)
        worker = worker_number(name)
        if worker is not None:
            if not self._started:
                raise WorkerLost(f"{name} died before training began")
            self.keeper.leave(worker)
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
        state = self._state(optimizer=False)
        self._stop_workers()
        if self._evaluated != self.engine.view.version and self._status != "diverged":
            self._send_evaluation(self._expect_evaluation(-1), state)
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
    "evaluated": Conductor._on_evaluated,
    "stop": Conductor._on_stop,
    "switch": Conductor._on_switch,
    "received": Conductor._on_received,
}

_PERFORMERS: dict[type, Callable[[Conductor, Any], None]] = {
    act.Release: Conductor._release,
    act.Apply: Conductor._apply,
    act.Discard: Conductor._discard,
    act.Tell: Conductor._tell,
    act.Wake: Conductor._wake,
    act.Measure: Conductor._measure,
    act.Handover: Conductor._hand_over,
}

__all__ = ["CONDUCTOR", "PING", "ROWS", "TEXTS", "Conductor", "PeerFailed", "servers_of"]
