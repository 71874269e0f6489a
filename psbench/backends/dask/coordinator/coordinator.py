"""The coordinator: holds the engine, takes events from messages, and has the engine's actions performed.

It runs in the process of the first parameter server, or, under All-Reduce, in one of its own without
tensors. One thread does everything in turn, so nothing needs a lock; a worker that is held is simply not
answered.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from psbench.backends.checkpointing import split_at_model
from psbench.backends.dask.coordinator.actions import ActionPerformer
from psbench.backends.dask.coordinator.checkpointing import (
    CheckpointWriter,
    Start,
    events_from_plain,
    first_actions,
    resume_workers,
    store_state,
    timers_to_plain,
)
from psbench.backends.dask.coordinator.ending import Ending
from psbench.backends.dask.coordinator.evaluation import Evaluation
from psbench.backends.dask.coordinator.evaluation_queue import EvaluationQueue
from psbench.backends.dask.coordinator.handlers import Handlers
from psbench.backends.dask.coordinator.log_stream import LogStream
from psbench.backends.dask.coordinator.measurements import Measurements
from psbench.backends.dask.coordinator.membership import Membership
from psbench.backends.dask.coordinator.peers import Peers
from psbench.backends.dask.coordinator.pushes import PushIntake
from psbench.backends.dask.coordinator.replacements import Replacements
from psbench.backends.dask.coordinator.replica_averaging import ReplicaAveraging
from psbench.backends.dask.coordinator.replication import Replication
from psbench.backends.dask.coordinator.timers import Timers
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.roles import CLIENT, REPLICA
from psbench.backends.dask.protocol.transport import ServerSocket
from psbench.backends.dask.server.store import NO_CODEC, ParameterStore
from psbench.backends.schedule import StopRules
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.log import EventLog
from psbench.core.strategy import Strategy
from psbench.core.view import Status
from psbench.errors import BackendError, Cancelled, Deadlock, ServerLost, WorkerLost
from psbench.training.workload import Workload

#: seconds between looks at the clock, at the client's share of the log, and at which peers are dead
_TICK_S, _LOG_S, _PING_S = 0.02, 0.1, 0.25
#: seconds that processes may take to load torch and the data
_START_S = 180.0
#: seconds that the last step of a worker may take before the run ends without what it used
_USAGE_S = 5.0
#: seconds that a stop waits for a version to write a checkpoint of, before it waits for the workers' parts
_STOP_S = 1.5
_RETIRED = "a server's Dask worker is being retired before training began"
_NOT_BEGUN = "stopped by hand before training began"


class Coordinator:
    """The coordinator of one run.

    Parameters
    ----------
    workload : Workload
    socket : ServerSocket
        Where the peers connect.
    expected : sequence of str
        The names of all peers; training begins when each is ready.
    start : Start or None
        Where to resume.
    """

    def __init__(
        self, workload: Workload, socket: ServerSocket, expected: Sequence[str], start: Start | None = None
    ) -> None:
        self.workload, self.socket, self._start = workload, socket, start
        experiment, numbers = workload.experiment, count(1)  # numbers of rings and requests
        self.log = EventLog()
        self.engine = engine = workload.engine(self.log)
        self.events: deque[ev.Event] = deque()
        self.ending, self.peers = Ending(), Peers(socket, expected)
        self.replacements = Replacements(experiment, socket, expected)
        self.timers = Timers(workload.profile, experiment.strategy.requests)
        self.log_stream = LogStream(socket, self.log)
        self.rules = StopRules(experiment.stop, experiment.evaluate_every)
        self._begin_s = time.monotonic()
        self._next_tick = self._next_log = self._next_ping = 0.0
        self._stop_by, self._unanswered = math.inf, False  # when a stop waits no longer for a version
        self._retired = ""  # the server whose Dask worker is: the run goes on elsewhere
        self.averaging = ReplicaAveraging(socket, numbers)
        self.evaluation = Evaluation(
            *(self.rules, engine.view, EvaluationQueue(socket, workload.model_bytes), self.averaging),
            *(self.log, self.events),
            ending=self.ending,
            store=lambda: self.store,
            until=self._until,
        )
        measurements = Measurements(socket, lambda facts: self.events.appendleft(ev.Measured(facts)))
        self.pushes = PushIntake(engine, self.events, self.ending, lambda: self.store, lambda: self.now)
        self.actions = ActionPerformer(
            *(workload, socket, engine.view, self.peers, self.timers, measurements),
            *(self.averaging, self.evaluation, numbers),
            composed=self._composed,
            pause=self._pause,
            until=self._until,
        )
        self.checkpoints = CheckpointWriter(socket, engine, experiment.checkpoint_every, numbers)
        self.replication = Replication(
            *(socket, self.checkpoints, self.log, self.log_stream, engine.view, numbers),
            position=self.pushes.handled_position,
            until=self._until,
            compositions=experiment.strategy.compositions,
        )
        self.membership = Membership(
            *(socket, engine.view, self.events, self.peers, self.replacements, self.timers, self.pushes),
            *(self.averaging, self.checkpoints, self.evaluation, measurements, self.replication),
            store=lambda: self.store,
            now=lambda: self.now,
        )
        self.handlers = Handlers(
            *(socket, self.events, self.ending, self.peers, self.pushes, self.averaging),
            *(self.checkpoints, measurements),
            evaluated=lambda message: self.evaluation.take(message, self.now),
            store=lambda: self.store,
            lose=self.membership.lose,
            ready=self.membership.set_ready,
            no_place=self.membership.find_no_place,
            stop=self._stop,
            leave=self._leave,
            kept=self.replication.take_receipt,
        )

    # ---------------------------------------------------------------- the run

    def run(self) -> None:
        """Run to the end, and send the client the outcome.

        Raises
        ------
        PsbenchError
            If something ends the run before its time; the client has the log up to there.
        """
        try:
            self._await_peers()
            if self._start is None:
                self._begin()
            else:
                self._resume(self._start)
            while not self.ending:
                self._pump()
                while self.events and not self.ending:
                    self._handle(self.events.popleft())
                self._stop_without_version()
            if self._retired and self.ending.status == "stopped":
                self.checkpoints.complete(self._until, self.pushes.position_after)
                self.socket.send(CLIENT, msg.RunMoves(self._retired))
            else:
                self._finish()
        except ServerLost:
            self.peers.lose(REPLICA)  # it keeps what it has, for the client to take
            raise
        finally:
            self.log_stream.send()
            for name in self.peers.present:
                self.socket.send(name, msg.Stop())

    @property
    def now(self) -> float:
        """Seconds of the run."""
        return time.monotonic() - self._begin_s

    @property
    def store(self) -> ParameterStore:
        """The parameter store of the current composition."""
        return self.actions.store

    def _await_peers(self) -> None:
        while missing := self.peers.missing:
            self._pump()
            if self.ending:
                raise ServerLost(_RETIRED) if self._retired else Cancelled(_NOT_BEGUN)
            if self.now > _START_S:
                raise BackendError(
                    f"{', '.join(missing)} did not report within {_START_S:.0f} s: are the Dask workers busy?"
                )

    def _begin(self) -> None:
        self.actions.use(0, None)
        self.evaluation.evaluate_start()
        self._start_workers(0.0)
        starters = self.workload.profile.starters
        self._perform(self.engine.begin(worker for worker in self.peers.workers() if worker in starters))

    def _resume(self, start: Start) -> None:
        """Restore what a checkpoint holds, and perform the rest of its answer, unless the run ends there."""
        checkpoint, engine = start.checkpoint, self.engine
        state, view = checkpoint.state, engine.view
        self.log_stream.resume(start.rows, start.texts)
        self.pushes.next_number = state["next_push"]
        engine.load_state_dict(state["engine"])
        resume_workers(self.socket, self.peers.workers(), checkpoint, view)
        for worker, own in state["workers"].items():
            if own["position"] is not None:
                self.pushes.set_position(int(worker), *own["position"][:2])
        self.actions.use(view.in_force, store_state(checkpoint), state.get("codecs") or NO_CODEC)
        self.checkpoints.resume()
        self.rules.load_state_dict(state["stop_rules"], view.epoch)
        self._start_workers(state["time_s"])
        self.timers.due(state["time_s"])  # earlier joins and failures are in the engine's state
        timers, evaluations = events_from_plain(state["events"])
        for at, event in timers:
            self.timers.add(at, event)
        for number in state.get("awaited", ()):
            self.evaluation.evaluate(number)
        self.events.extend(evaluations)
        reason = self.rules.after_update(view, state["movement"])
        if not (reason and self.actions.pushes_raw_gradients):
            epochs = self.workload.experiment.stop.epochs
            self._perform(first_actions(engine, checkpoint, self.peers.workers(), epochs))
            self.events.extend(self.membership.changes_since_checkpoint())
        if reason:  # where models diverge, the last answer says first which steps the workers keep
            self.ending.finish(reason)

    def _start_workers(self, time_s: float) -> None:
        """Let training begin, at that time of the run."""
        self._begin_s = time.monotonic() - time_s
        self._next_tick = self._next_log = self._next_ping = 0.0
        self.membership.begin(self._begin_s)

    def _composed(self, composition: Strategy, bytes_up: int) -> None:
        self.pushes.compose(bytes_up, composition.reads)
        if self.rules.sees_movement:
            self.store.measure_movement()

    # ---------------------------------------------------------------- messages and the clock

    def _pump(self) -> None:
        """Handle a message, or let a little time pass; then do what is due by the clock."""
        self.handlers.receive(_TICK_S)
        now = self.now
        if now >= self._next_tick:
            self._tick(now)

    def _until(self, done: Callable[[], bool]) -> None:
        """Handle messages until a condition holds; events wait, and are handled later in their order."""
        while not done():
            self._pump()

    def _pause(self, seconds: float) -> None:
        end = self.now + seconds
        self._until(lambda: self.now >= end or bool(self.ending))

    def _tick(self, now: float) -> None:
        self._next_tick = now + _TICK_S
        if self.membership.training:
            self.events.extend(self.timers.due(now))
        if now >= self._next_log:
            self._next_log = now + _LOG_S
            self.log_stream.send()
        if now >= self._next_ping:
            self._next_ping = now + _PING_S
            for name in self.peers.find_dead():
                self.membership.lose(name)
            self._check_progress()
        if now >= self.rules.deadline_s and not self.ending and self.membership.training:
            self._end_in_time()

    def _check_progress(self) -> None:
        """Raise Deadlock if nothing that is under way can release a worker again."""
        view = self.engine.view
        busy = view.num_computing or self.ending or self.events or self.timers or self.engine.measuring
        if view.num_active and not (busy or self.evaluation.under_way):  # a rule may act on one
            raise Deadlock(f"at {self.now:.3f} s no worker can ever go on; {view.waits()}")

    def _stop(self, with_checkpoint: bool) -> None:
        """End the run, with a checkpoint of its next version if one is wanted and comes soon."""
        if with_checkpoint and self.membership.training:
            self.checkpoints.stop()
            self._stop_by = self.now + _STOP_S
        else:
            self.ending.stop()

    def _leave(self, name: str) -> None:
        """Let a role go whose Dask worker is being retired; a server's run goes on elsewhere."""
        if self.ending or self.membership.let_go(name):
            return
        self._retired = name
        self._stop(with_checkpoint=True)

    def _stop_without_version(self) -> None:
        """End a run that was asked to stop with a checkpoint of this moment, if no version came in time."""
        if self.now >= self._stop_by and not (self.ending or self.engine.measuring):
            self.checkpoints.write("stopped", (), self.store, self.peers.workers(), self._run_state())
            self.ending.stop()

    def _end_in_time(self) -> None:
        self.engine.view.now = self.rules.deadline_s
        self.ending.finish(self.rules.at(self.rules.deadline_s))

    # ---------------------------------------------------------------- events and actions

    def _handle(self, event: ev.Event) -> None:
        now = self.now
        if now >= self.rules.deadline_s:
            self._end_in_time()
            return
        if not self.membership.is_possible(event):
            return
        actions = self.engine.handle(event, now)
        if type(event) is ev.Leave:
            self.actions.halt(event.worker)
        self._perform(actions)
        self.pushes.discard_void()
        if type(event) is ev.Evaluated:
            self.evaluation.end_after(event.values)
            if self.replication.keeps_evaluations:
                self.replication.keep((), self.store, self.peers.workers(), self._run_state())
        elif not (self.engine.view.num_active or self.membership.awaits_worker):
            raise WorkerLost(f"every worker is gone at {now:.3f} s; nobody is left to train")

    def _perform(self, actions: Sequence[Action]) -> None:
        """Perform an answer of the engine; a checkpoint falls between the model it makes and its releases."""
        self.evaluation.before_answer(actions)
        label, replicates = self.checkpoints.due(actions), self.replication.due(actions)
        if label or replicates:
            make, actions = split_at_model(actions)
            if self._perform_each(make) or self.ending.status == "finished":
                if replicates:
                    self.replication.keep(actions, self.store, self.peers.workers(), self._run_state())
                if label:
                    self._write(label, actions)
        if self.ending or not self._perform_each(actions):
            return
        if not self.actions.pushes_raw_gradients:  # steps that are kept after a vote count too
            self.evaluation.after_update()
        if not self.ending:
            self.evaluation.after_answer()

    def _write(self, label: str, rest: Sequence[Action]) -> None:
        """Write a checkpoint; `rest` is what is still to be performed of the answer."""
        self.log_stream.send()
        self.checkpoints.write(label, rest, self.store, self.peers.workers(), self._run_state())
        if self.checkpoints.stopping and not self.ending:
            self._unanswered = not self.store.updates_itself
            self.ending.stop()

    def _perform_each(self, actions: Sequence[Action]) -> bool:
        for action in actions:
            self.actions.perform(action)
            if self.ending:
                self._unanswered = not self.store.updates_itself
                return False  # the run ended with this version; nobody starts another step
        return True

    def _run_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the coordinator itself."""
        now = self.now
        return {
            "time_s": now,
            "logged": list(self.log_stream.logged),
            "events": timers_to_plain(self.timers.entries()),
            "network": {"up_free_s": now, "down_free_s": now, "carried_bytes": 0.0},
            "stop_rules": self.rules.state_dict(),
            "next_push": self.pushes.next_number,
            "awaited": self.evaluation.awaited,
        }

    # ---------------------------------------------------------------- the end

    def _finish(self) -> None:
        """Have the last version evaluated, and send the client what the run leaves."""
        for event in self.events:
            if type(event) is ev.Leave and self.membership.is_possible(event):
                self.engine.handle(event, self.now)
        self.events.clear()
        time_s = min(self.now, self.rules.deadline_s)
        state = self.evaluation.await_state(self.evaluation.gather)
        self.checkpoints.complete(self._until, self.pushes.position_after)
        self.peers.dismiss_workers()
        self.evaluation.evaluate_last(state)
        latest = time.monotonic() + _USAGE_S  # a worker whose last step takes long is not waited for
        self._until(lambda: time.monotonic() > latest or self.peers.all_usage_reported)
        self.log_stream.send()
        facts = {
            "time_s": time_s,
            "lost_workers": [w.id for w in self.engine.view.workers.values() if w.status == Status.GONE],
            "strangers": self.socket.strangers,
            "usage": sorted(self.peers.usage.values(), key=lambda used: used["worker"]),
            "unanswered": self._unanswered or self.pushes.diverged,
        }
        outcome = msg.RunOutcome(self.ending.status, self.ending.reason, facts, state)
        self.socket.send(CLIENT, outcome)
        self._until(lambda: self.handlers.client_has_outcome)
