"""The conductor: holds the engine, takes events off the wire, and has its actions performed.

It runs in the process of the first server shard, or, under All-Reduce, in one of its own without tensors.
One thread does everything in turn, so nothing needs a lock; a worker that is held is simply not answered.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from psbench.backends.checkpointing import split_at_model
from psbench.backends.dask.coordinator.checkpointing import (
    NO_CODEC,
    CheckpointWriter,
    Start,
    awaited,
    first_actions,
    keeper_state,
    tell_workers,
)
from psbench.backends.dask.coordinator.evaluation import Evaluation
from psbench.backends.dask.coordinator.handlers import Handlers
from psbench.backends.dask.coordinator.log_stream import LogStream
from psbench.backends.dask.coordinator.measurements import Measurements
from psbench.backends.dask.coordinator.peers import Peers
from psbench.backends.dask.coordinator.timers import Timers
from psbench.backends.dask.protocol.messages import PUSH, PushMessage
from psbench.backends.dask.protocol.roles import CLIENT, EVALUATOR, worker_name, worker_number
from psbench.backends.dask.protocol.transport import HELLO, JSON, Message, ServerSocket, pack
from psbench.backends.dask.server.all_reduce import AllReduceStore
from psbench.backends.dask.server.parameter_server import ParameterServerStore
from psbench.backends.dask.server.store import ParameterStore, State, state_of, without_optimizer
from psbench.backends.pushes import why_diverged, with_stats
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.log import EventLog
from psbench.core.strategy import Strategy
from psbench.core.view import Status
from psbench.errors import BackendError, Cancelled, Deadlock, ServerLost, WorkerLost
from psbench.training.workload import Workload

#: seconds between looks at the clock, the client's share of the log, and the peers; a peer's death is
#: noticed within the last
_TICK_S, _SHOW_S, _PING_S = 0.02, 0.1, 0.25
#: seconds that processes may take to load torch and the data
_START_S = 180.0
#: seconds that the last step of a worker may take before its run is told without what it used
_USAGE_S = 5.0


class Coordinator:
    """One run's conductor.

    Parameters
    ----------
    problem : Problem
    hub : Hub
        Where the peers report.
    crew : sequence of str
        The names of all peers; training begins when each is ready.
    start : Start or None
        Where to go on from.
    """

    def __init__(
        self, workload: Workload, hub: ServerSocket, crew: Sequence[str], start: Start | None = None
    ) -> None:
        experiment = workload.experiment
        self.workload, self.hub = workload, hub
        self.roll, self.inbox = Peers(hub, crew), Handlers(self)
        self.log = EventLog()
        self.log_sender = LogStream(hub, self.log)
        self.engine = workload.engine(self.log)
        self._seconds = experiment.stop.seconds
        self._begin_s = time.monotonic()
        self._next_tick = self._next_show = self._next_ping = 0.0
        self.events: deque[ev.Event] = deque()
        self.push_ids = count()
        self.numbers = count(1)  # of rings and requests
        self.agenda = Timers(workload.profile)
        self._start = start
        self._training = False
        self.status = self._reason = ""
        self.lookout, self.recorder = Evaluation(self), CheckpointWriter(self)
        self.meter = Measurements(hub, lambda facts: self.events.appendleft(ev.Measured(facts)))
        self._carried: set[int] = set()  # pushes whose payloads wait
        self._handed: list[ev.Push] = []  # pushes that the engine was given, and may find void
        self._unanswered = False

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
            if self._start is None:
                self._begin()
            else:
                self._go_on(self._start)
            while not self.status:
                self._pump()
                while self.events and not self.status:
                    self._handle(self.events.popleft())
            self._finish()
        finally:
            self._dismiss()

    @property
    def now(self) -> float:
        """Seconds of the run."""
        return time.monotonic() - self._begin_s

    def _assemble(self) -> None:
        """Wait until everybody is ready."""
        while missing := self.roll.missing:
            self._pump()
            if self.status:
                raise Cancelled("stopped by hand before training began")
            if self.now > _START_S:
                raise BackendError(
                    f"{', '.join(missing)} did not report within {_START_S:.0f} s: are the Dask workers busy?"
                )

    def _begin(self) -> None:
        self._keep(0, None)
        self.lookout.evaluate(0)
        self.until(lambda: not self.lookout.evaluations)
        self._start_workers(0.0)
        starters = self.workload.profile.starters
        self._perform(self.engine.begin(worker for worker in self.roll.workers() if worker in starters))

    def _start_workers(self, time_s: float) -> None:
        """Let training begin, at that time of the run."""
        self._begin_s = time.monotonic() - time_s
        self._next_tick = self._next_show = self._next_ping = 0.0
        roster = self.roll.rings
        for worker in self.roll.workers():
            self.hub.tell(worker_name(worker), {"do": "start", "begin_s": self._begin_s, "ring": roster})
        self._training = True

    def _go_on(self, start: Start) -> None:
        """Be where a checkpoint was written, unless the run ends there."""
        state, engine = start.checkpoint.state, self.engine
        self.log_sender.go_on(start.rows, start.texts)
        self.push_ids = count(state["next_push"])
        engine.load_state_dict(state["engine"])
        tell_workers(self, start.checkpoint)
        self._keep(engine.view.composition, keeper_state(start.checkpoint), state.get("codecs") or NO_CODEC)
        self._carried = set(engine.view.pending)
        self.recorder.go_on()
        self.lookout.ending.load_state_dict(state["stop_rules"], engine.view.epoch)
        self._start_workers(state["time_s"])
        self.agenda = Timers(self.workload.profile, state["time_s"])
        self.events.extend(awaited(self, state))
        reason = self.lookout.ending.after_update(engine.view, state["movement"])
        if reason:
            self.end("finished", reason)
        else:
            self._perform(first_actions(self, start.checkpoint))

    @property
    def next_push(self) -> int:
        """The number of the next push."""
        number = next(self.push_ids)
        self.push_ids = count(number)
        return number

    def _keep(self, index: int, state: State | None, wire: dict[str, int] | None = None) -> None:
        """Have a new keeper for a composition; without a state it begins where the problem does.

        With a `wire` the state is a recorded one.
        """
        workload, hub, numbers = self.workload, self.hub, self.numbers
        composition = workload.experiment.strategy.compositions[index]
        self._wire_bytes = composition.bytes_up(workload.wire_size, workload.profile.num_workers)
        # asked for with every push, so looked up once
        self._plain, self._reads = composition.pushes_raw_gradients, composition.reads
        self._holds = "distance_sq" in composition.measures
        self.lookout.compose(composition)
        self.keeper: ParameterStore
        if composition.placement.collective:
            self.keeper = AllReduceStore(hub, self.roll.workers(), state, numbers)
            return
        optimizer, batch = workload.experiment.optimizer, workload.experiment.batch_size
        state = state or state_of(workload.server(), optimizer=True)
        servers = self.keeper = ParameterServerStore(
            *(
                hub,
                composition,
                index,
                state,
                optimizer,
                batch,
                numbers,
                workload.streams,
                workload.model.layout,
                None if wire is None else self.engine.view.ranges,
                wire,
            )
        )
        if self.lookout.ending.sees_movement:
            servers.measure_movement()

    # ---------------------------------------------------------------- letters

    def _pump(self) -> None:
        """Take one letter, or let a little time pass; keep the clock's appointments."""
        letter = self.hub.receive(_TICK_S)
        if letter is not None:
            self._read(letter)
        now = self.now
        if now >= self._next_tick:
            self._tick(now)

    def until(self, done: Callable[[], bool]) -> None:
        """Wait for letters that are not events; events are handled later, in their order."""
        while not done():
            self._pump()

    def _read(self, letter: Message) -> None:
        if letter.kind == PUSH:
            self._pushed(letter)
        elif letter.kind == HELLO:
            self.roll.met.add(letter.sender)
        elif letter.kind == JSON:
            self.inbox.read(letter)

    def _pushed(self, letter: Message) -> None:
        worker = worker_number(letter.sender)
        if worker is None or letter.sender in self.roll.gone:
            return
        told = PushMessage.decode(letter.body)
        send_s = max(0.0, time.monotonic() - told.sent_s)
        push = ev.Push(
            *(next(self.push_ids), worker, told.ticket, told.version, told.samples, told.steps),
            *(self._wire_bytes, told.compute_s, send_s, told.loss, told.stats, told.overlapping),
        )
        if told.is_finite:
            self.keeper.take(push, letter.payload)
            self._carried.add(push.id)
        elif self._is_current(push):
            self._diverged(push)
            return
        self.events.append(with_stats(push, self._reads) if self._reads else push)

    def _is_current(self, push: ev.Push) -> bool:
        worker = self.engine.view.workers[push.worker]
        return push.ticket == worker.ticket and worker.status is Status.COMPUTING

    def _diverged(self, push: ev.Push) -> None:
        if not self.status:
            self.engine.handle(push, self.now)
            self._unanswered = True
            self.end("diverged", why_diverged(push, self.now))

    # ---------------------------------------------------------------- events

    def _handle(self, event: ev.Event) -> None:
        now = self.now
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
            reason = self.lookout.ending.after_evaluation(event.values)
            if reason:
                self.end("finished", reason)
        elif not self.engine.view.num_active and not self.agenda.expects_more_than(self.roll.lost):
            raise WorkerLost(f"every worker is gone at {now:.3f} s; nobody is left to train")

    def _can_be(self, event: ev.Event) -> bool:
        """Whether the profile's comings and goings are possible: a process that died does not come back."""
        if type(event) is ev.Join:
            return event.worker not in self.roll.lost
        return type(event) is not ev.Leave or event.worker in self.engine.view.workers

    def _halt(self, worker: int) -> None:
        """Have a worker forget what it computes; should it be released again, it begins anew."""
        self.hub.tell(worker_name(worker), {"do": "halt"})
        self.keeper.forget(worker)
        self.lookout.drift.leave(worker)

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
        self.end("finished", self.lookout.ending.at(self._seconds))

    def end(self, status: str, reason: str) -> None:
        """Let the run end, unless it does already."""
        if not self.status:
            self.status, self._reason = status, reason

    # ---------------------------------------------------------------- actions

    def _perform(self, actions: Sequence[Action]) -> None:
        lookout = self.lookout
        lookout.before(actions)
        label = self.recorder.label()
        if label:
            make, actions = split_at_model(actions)
            if self._perform_each(make) or self.status == "finished":
                self.recorder.record(label, actions)
        if self.status or not self._perform_each(actions):
            return
        if not self._plain:  # steps that are kept after a vote are progress too
            lookout.look()
        if not self.status:
            lookout.after()

    def _perform_each(self, actions: Sequence[Action]) -> bool:
        for action in actions:
            perform = _PERFORMERS.get(type(action))
            # a Hold is silence; after a Cancel comes the Release that the worker finds between two steps
            if perform is not None:
                perform(self, action)
                if self.status:
                    self._unanswered = isinstance(
                        self.keeper, ParameterServerStore
                    )  # a ring is its own answer
                    return False  # the run ended with this version; nobody starts another step
        return True

    def _release(self, release: act.Release) -> None:
        view = self.engine.view
        if self._holds:
            in_use = {w.base_version for w in view.workers.values()} | {release.load}
            self.keeper.hold(release.load, in_use | {push.base_version for push in view.pending.values()})
        self.keeper.release(release, view.workers[release.worker].batch_size)

    def _apply(self, apply: act.Apply) -> None:
        self.keeper.apply(apply)
        self._carried.difference_update(push.id for push in apply.pushes)
        if self._plain:
            self.lookout.look()

    def _discard(self, discard: act.Discard) -> None:
        self._carried.discard(discard.push.id)
        self.keeper.discard(discard.push)

    def _drop(self, drop: act.Drop) -> None:
        self._halt(drop.worker)

    def _tell(self, tell: act.Tell) -> None:
        self.hub.tell(worker_name(tell.worker), {"do": "orders", "orders": tell.orders})

    def _wake(self, wake: act.SetTimer) -> None:
        self.agenda.add(wake.at, ev.Timer(wake.key, wake.composition_id))

    def _measure(self, measure: act.Measure) -> None:
        self.meter.measure(measure, self.keeper, self.engine.view.pending)

    def _reassign(self, change: act.Reassign) -> None:
        """No message is under way: have entries move, and tell the workers to which servers."""
        assert isinstance(self.keeper, ParameterServerStore)
        done: list[bool] = []
        self.keeper.reassign(change.ranges, lambda: done.append(True))
        for worker in self.roll.workers():
            self.hub.tell(worker_name(worker), {"do": "reassign", "ranges": change.ranges})
        workload = self.workload
        size = workload.wire_size._replace(ranges=change.ranges)
        self._wire_bytes = self.engine.composition.bytes_up(size, workload.profile.num_workers)
        self.until(lambda: bool(done))

    def _hand_over(self, handover: act.Handover) -> None:
        """Everybody is idle: move the model from its old keeper to the new one."""
        state = self.lookout.await_state(lambda then: self.keeper.gather(True, then))
        if handover.forgets_momentum:
            state = without_optimizer(state)
        for worker in self.roll.workers():
            self.hub.tell(worker_name(worker), {"do": "compose", "composition": handover.to})
        self._keep(handover.to, state)
        pause = self.now + handover.cost_s
        self.until(lambda: self.now >= pause or bool(self.status))

    # ---------------------------------------------------------------- the clock

    def _tick(self, now: float) -> None:
        self._next_tick = now + _TICK_S
        if self._training:
            self.events.extend(self.agenda.due(now))
        if now >= self._next_show:
            self._next_show = now + _SHOW_S
            self.log_sender.send()
        if now >= self._next_ping:
            self._next_ping = now + _PING_S
            self._call_the_roll()
        if self._seconds is not None and now >= self._seconds and not self.status and self._training:
            self._time_is_up()

    def _call_the_roll(self) -> None:
        """See who is there; a letter to a process that died cannot be sent."""
        for name in sorted(self.roll.met - self.roll.gone):
            if self.roll.silent(name):
                self._lose(name)
        view = self.engine.view
        busy = view.num_computing or self.status or self.events or self.agenda or self.engine.measuring
        if view.num_active and not (busy or self.lookout.evaluations):  # a rule may act on one
            raise Deadlock(f"at {self.now:.3f} s no worker can ever go on; {view.waits()}")

    def _lose(self, name: str) -> None:
        """Do without a peer that is gone, or give up."""
        self.roll.lose(name)
        worker = worker_number(name)
        if worker is not None:
            if not self._training:
                raise WorkerLost(f"{name} died before training began")
            self.keeper.leave(worker)
            self.lookout.drift.leave(worker)
            self.recorder.leave(worker)
            self.events.append(ev.Leave(worker, "lost"))
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
        time_s = min(self.now, self._seconds or float("inf"))
        state = self.lookout.await_state(self.lookout.gather)
        self.until(lambda: not self.recorder)
        self._stop_workers()
        self.lookout.evaluate_last(state)
        self._await_usage()
        self.log_sender.send()
        shapes, flat = pack(state)
        lost = [w.id for w in self.engine.view.workers.values() if w.status == Status.GONE]
        outcome = {"status": self.status, "reason": self._reason}
        usage = sorted(self.inbox.usage.values(), key=lambda used: used["worker"])
        facts = {"time_s": time_s, "lost_workers": lost, "strangers": self.hub.strangers, "usage": usage}
        facts["unanswered"] = self._unanswered
        self.hub.tell(CLIENT, {"do": "outcome", "shapes": shapes, "facts": facts} | outcome, flat)
        self.until(lambda: self.inbox.client_has_all)

    def _handle_leavers(self) -> None:
        for event in self.events:
            if type(event) is ev.Leave and self._can_be(event):
                self.engine.handle(event, self.now)
        self.events.clear()

    def _stop_workers(self) -> None:
        for worker in self.roll.workers():
            self.hub.tell(worker_name(worker), {"do": "stop"})

    def _await_usage(self) -> None:
        """Have each worker tell what it used; one whose last step takes long is not waited for."""
        latest = time.monotonic() + _USAGE_S
        self.until(
            lambda: (
                time.monotonic() > latest
                or all(worker_name(worker) in self.inbox.usage for worker in self.roll.workers())
            )
        )

    def _dismiss(self) -> None:
        """Send everybody home, however the run ended."""
        self.log_sender.send()
        for name in self.roll.met - self.roll.gone:
            self.hub.tell(name, {"do": "stop"})


def servers_of(composition: Strategy) -> int:
    """Return how many server shards a composition has; none under All-Reduce."""
    return 0 if composition.placement.collective else getattr(composition.placement, "servers", 1)


_PERFORMERS: dict[type, Callable[[Coordinator, Any], None]] = {
    act.Release: Coordinator._release,
    act.Apply: Coordinator._apply,
    act.Discard: Coordinator._discard,
    act.Drop: Coordinator._drop,
    act.Tell: Coordinator._tell,
    act.SetTimer: Coordinator._wake,
    act.Measure: Coordinator._measure,
    act.Handover: Coordinator._hand_over,
    act.Reassign: Coordinator._reassign,
}
