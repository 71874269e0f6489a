"""A live run as a state machine: messages and the time go in, instructions come out.

It has no socket, thread or clock, so the same inputs give the same instructions: faults are tests of lists of
messages, and a fuzzer can play whole runs. `coordinator` owns the sockets and performs what this says.

What has an order (begin, train, end; a hand-over; an answer of the engine) is a script: a generator that
yields where it has to wait. Messages are taken meanwhile, and their events wait for their turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from psbench.backends.checkpointing import released, resumption
from psbench.backends.dask.coordinator.actions import ActionPerformer
from psbench.backends.dask.coordinator.answers import Answers
from psbench.backends.dask.coordinator.checkpointing import (
    CheckpointWriter,
    Start,
    events_from_plain,
    first_actions,
    resume_workers,
    store_state,
    without_part,
)
from psbench.backends.dask.coordinator.evaluation import HOLDERS, Evaluation
from psbench.backends.dask.coordinator.measurements import Measurements
from psbench.backends.dask.coordinator.membership import Membership
from psbench.backends.dask.coordinator.peers import Peers
from psbench.backends.dask.coordinator.pushes import PushIntake
from psbench.backends.dask.coordinator.reduction import Reduction
from psbench.backends.dask.coordinator.replication import Replication
from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait, answered
from psbench.backends.dask.coordinator.stopping import Stopping, computing
from psbench.backends.dask.coordinator.timers import Timers
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Json, Message, MessageRefused
from psbench.backends.dask.protocol.instructions import End, Input, Instruction, Look, Looked, Refused
from psbench.backends.dask.protocol.roles import (
    CLIENT,
    COORDINATOR,
    REPLICA,
    names_or_count,
    server_name,
    servers_of,
    worker_name,
    worker_number,
)
from psbench.backends.dask.protocol.transport import Received
from psbench.backends.dask.server.all_reduce import AllReduceStore
from psbench.backends.dask.server.store import NO_CODEC_COUNTERS
from psbench.backends.schedule import StopRules
from psbench.core import events as ev
from psbench.core.collective import Collective
from psbench.core.log import EventLog
from psbench.errors import BackendError, Cancelled, Deadlock, ServerLost, WorkerLost
from psbench.training.build import Workload

#: seconds between looks at the client's share of the log, and at which peers are dead
_LOG_S, _LOOK_S = 0.1, 0.25
_NOT_BEGUN = "stopped by hand before training began"


class PeerFailed(BackendError):
    """A task raised; the message is its traceback."""

    def __init__(self, name: str, traceback: str) -> None:
        self.name, self.traceback = name, traceback
        super().__init__(f"{name} failed:\n{traceback}")

    def __reduce__(self) -> tuple[type[PeerFailed], tuple[str, str]]:
        return PeerFailed, (self.name, self.traceback)


class LiveRun:
    """The coordinator's decisions of one run.

    Parameters
    ----------
    workload : Workload
    expected : sequence of str
        The names of all peers; training begins when each is ready.
    start : Start or None
        Where to resume.

    Attributes
    ----------
    run : RunState
        What its sections share.
    start : Start or None
    wait : Wait or None
        What the run waits for now.
    training_wait : Wait
        What it is between two events of training.
    """

    def __init__(self, workload: Workload, expected: Sequence[str], start: Start | None = None) -> None:
        experiment, log = workload.experiment, EventLog()
        self.start = start
        self.run = run = RunState(
            workload,
            log,
            workload.engine(log),
            StopRules(experiment.stop, experiment.evaluate_every, experiment.patience_is_for_less),
            Peers(expected),
            Timers(workload.profile, experiment.strategy.requests),
            clock_s=math.nan,
        )
        self.evaluation = Evaluation(run)
        self.measurements = Measurements(run.out, run.events)
        self.pushes = PushIntake(run)
        self.reduction = Reduction(run)
        self.actions = ActionPerformer(run, self.measurements, self.evaluation, self.pushes, self.reduction)
        self.checkpoints = CheckpointWriter(run)
        self.replication = Replication(run, self.checkpoints, self.pushes.handled_position)
        self.membership = Membership(
            run, self.pushes, self.checkpoints, self.evaluation, self.measurements, self.replication
        )
        self.answers = Answers(
            run, self.actions, self.evaluation, self.checkpoints, self.replication, self.pushes
        )
        self.stopping = Stopping(run, self.checkpoints, self.membership)
        self._connection = experiment.connection
        self._waiting_since = -math.inf  # of the wait, or, in training, of the last message of a peer
        self._next_log = self._next_look = -math.inf
        self._looks = 0  # answers to `Look` so far
        self._client_has_outcome = False
        self._of_workers = self._worker_handlers()
        self._of_anyone = self._handlers()
        self._script = self._whole()
        self.wait: Wait | None = None
        self.training_wait = Wait(self._is_something_due, lambda: computing(run))

    # ---------------------------------------------------------------- what goes in and comes out

    def handle(self, given: Input, now: float) -> list[Instruction]:
        """Take an input, and return what is to be done now, in this order; the last `End` ends the run.

        Parameters
        ----------
        given : Received, Refused, Looked or Tick
        now : float
            Seconds of a clock that only goes on; its zero is of no importance.
        """
        run = self.run
        if math.isnan(run.clock_s):
            run.begin_s = now
        run.at(now)
        try:
            self._take(given)
            self._do_what_is_due()
            if now >= self._next_log and not run.log_stream.held:
                self._next_log = now + _LOG_S
                run.log_stream.send()
            while self.wait is None or self.wait.done():
                self.wait, self._waiting_since = next(self._script), now
            if now >= self._waiting_since + self._connection.say_after_s:
                self._say_whom(now)
        except StopIteration:
            self._end(None)
        except Exception as error:
            if isinstance(error, ServerLost):
                self.membership.close(REPLICA)  # it keeps what it has, for the client to take
            self._end(error)
        return run.out.take()

    def _end(self, error: Exception | None) -> None:
        self.run.log_stream.send()
        for name in self.run.peers.present:
            self.run.out.send(name, msg.StopRun())
        self.run.out.add(End(error))

    # ---------------------------------------------------------------- the run

    def _whole(self) -> Script[None]:
        run = self.run
        yield from self._await_peers()
        if self.start is None:
            yield from self._begin()
        else:
            yield from self._resume(self.start)
        while not run.ending:
            yield self.training_wait
            while run.events and not run.ending.status:  # which costs less here than its truth
                yield from self._handle(run.events.popleft())
            if run.now >= self.stopping.latest:
                yield from self.stopping.without_version(self.answers.write)
        if self.stopping.retired and run.ending.status == "stopped":
            yield from self.checkpoints.complete(self.pushes.position_after)
            run.out.send(CLIENT, msg.RunMoves(self.stopping.retired))
        else:
            yield from self._finish()

    def _await_peers(self) -> Script[None]:
        run = self.run

        def is_over() -> bool:
            return not run.peers.missing or bool(run.ending) or run.now > self._connection.start_within_s

        yield Wait(is_over, self._missing)
        if run.ending:
            if retired := self.stopping.retired:
                raise ServerLost(f"the Dask worker of {retired} is being retired before training began")
            raise Cancelled(_NOT_BEGUN)
        if run.peers.missing:
            raise BackendError(
                f"{self._missing()} did not report within {self._connection.start_within_s:g} s "
                "(connection.start_within_s): are the Dask workers busy?"
            )
        if not (run.peers.workers() or self.membership.awaits_worker):
            raise WorkerLost("every worker was lost before training began")

    def _missing(self) -> str:
        peers = self.run.peers
        return names_or_count(peers.missing, peers.num_expected, "processes")

    def _begin(self) -> Script[None]:
        self.actions.use(0, None)
        yield from self.evaluation.evaluate_start()
        self._start_workers(0.0)
        starters = self.run.workload.profile.starters
        here = self.run.peers.workers()
        yield from self.answers.perform(
            self.run.engine.begin(worker for worker in here if worker in starters)
        )

    def _resume(self, start: Start) -> Script[None]:
        """Restore what a checkpoint holds, and perform the rest of its answer, unless the run ends there."""
        run, state = self.run, start.checkpoint.state
        view, workers = run.view, run.peers.workers()
        run.log_stream.resume(start.rows, start.texts)
        self.pushes.next_number = state["next_push"]
        run.engine.load_state_dict(state["engine"])
        goes_on = resumption(start.checkpoint, view, run.engine.composition)
        checkpoint = goes_on.checkpoint
        composition = run.workload.experiment.strategy.compositions[view.in_force]
        resume_workers(run.out, workers, checkpoint, view, isinstance(composition.placement, Collective))
        for worker, own in state["workers"].items():
            if own["position"] is not None:
                self.pushes.set_position(int(worker), *own["position"][:2])
        self.actions.use(view.in_force, store_state(checkpoint), state.get("codecs") or NO_CODEC_COUNTERS)
        lost = without_part(workers, checkpoint, composition)
        for worker in sorted(lost):  # its process is there, and is as one that has taken another's place
            run.store.leave(worker, view.last_ticket(worker))
            run.store.join(worker)
        self.checkpoints.resume()
        run.rules.load_state_dict(state["stop_rules"], view.epoch)
        self._start_workers(state["time_s"])
        run.timers.due(state["time_s"])  # earlier joins and failures are in the engine's state
        timers, evaluations = events_from_plain(state["events"], state["time_s"])
        for at, event in timers:
            run.timers.add(at, event)
        if awaited := state.get("awaited"):  # the model of an earlier version is gone: the next one is this
            self.evaluation.evaluate(max(awaited))
        run.events.extend(evaluations)
        reason = run.rules.after_update(view, state["movement"])
        if self.actions.keeps_steps or not reason:
            epochs = run.workload.experiment.stop.epochs
            changes = self.membership.changes_since_checkpoint(state["time_s"], lost)
            run.events.extend(changes)  # before those of the wait
            yield from self.answers.perform(
                first_actions(run.engine, goes_on, {*run.peers.workers()} - lost, epochs)
            )
        else:
            run.ending.unanswered = bool(released(goes_on.rest))
        if reason:  # where models diverge, the last answer says first which steps the workers keep
            run.ending.finish(reason)

    def _start_workers(self, time_s: float) -> None:
        """Let training begin, at that time of the run."""
        self.run.start_s = time_s
        self.membership.begin(self.run.clock_s - time_s)

    # ---------------------------------------------------------------- messages

    def _worker_handlers(self) -> dict[type[Message], Callable[[int, Any], None]]:
        events, averaging = self.run.events, self.run.averaging
        return {
            msg.PushMessage: self.pushes.take,
            msg.VoteMessage: lambda worker, vote: events.append(
                ev.Vote(worker, vote.ticket, vote.value, vote.samples, vote.compute_s)
            ),
            msg.ReportMessage: lambda worker, report: events.append(
                ev.Report(worker, report.ticket, report.stats)
            ),
            msg.WorkerModel: lambda worker, sent: averaging.answer(worker, sent.tag, sent.tensors),
            msg.WorkerState: self.checkpoints.take_worker,
        }

    def _handlers(self) -> dict[type[Message], Callable[[str, Any], None]]:
        run, members = self.run, self.membership
        return {
            msg.Hello: lambda name, _: members.meet(name),
            msg.Ready: members.set_ready,
            msg.RoleLost: lambda _, lost: members.find_no_place(lost.name),
            msg.RoleLeaves: lambda _, leaving: self.stopping.leave_later(leaving.name),
            msg.RoleGone: lambda _, gone: members.lose_unconnected(gone.name),
            msg.AskClock: lambda name, _: run.out.send(name, msg.Clock(run.clock_s)),
            msg.Failed: self._fail,
            msg.PeerRefused: self._lose_refused,
            msg.ClosedStrangers: lambda name, strangers: run.strangers.count(name, strangers.count),
            **dict.fromkeys((msg.UsageReport, msg.StampsReport, msg.ServedReport), run.peers.report),
            msg.StateReply: lambda name, reply: run.store.reply(name, reply),
            msg.NumberReply: lambda name, reply: run.store.reply(name, reply),
            msg.RingVerdict: lambda name, reply: run.store.reply(name, reply),
            msg.LossMeasured: lambda _, loss: self.measurements.take(loss.name, loss.number),
            msg.EvaluationDone: lambda _, evaluation: self.evaluation.take(evaluation),
            msg.RequestStop: lambda _, request: self.stopping.stop(request.checkpoint),
            msg.RequestSwitch: lambda _, request: run.events.append(ev.SwitchRequested(request.to)),
            msg.PressWorker: lambda _, press: members.press(press),
            msg.OutcomeReceived: self._note_receipt,
            msg.StateKept: lambda _, receipt: self.replication.take_receipt(receipt.tag),
        }

    def _take(self, given: Input) -> None:
        if type(given) is Received:
            try:
                self._read(*given)
            except MessageRefused as error:  # a peer that sends such things is removed
                self.membership.lose(error.sender)
        elif type(given) is Refused:
            self.membership.lose(given.sender)
        elif type(given) is Looked:
            self._take_look(given)

    def _read(self, sender: str, message: Message) -> None:
        kind = type(message)
        of_worker = self._of_workers.get(kind)
        if of_worker is None:
            handler = self._of_anyone.get(kind)
            if handler is None:
                raise MessageRefused(f"{kind.__name__} is not for the coordinator", sender)
            handler(sender, message)
            return
        worker = worker_number(sender)
        if worker is None or sender not in self.run.peers.known:
            raise MessageRefused(f"{kind.__name__} is for workers of the run to send", sender)
        of_worker(worker, message)

    def _note_receipt(self, name: str, _: msg.OutcomeReceived) -> None:
        self._client_has_outcome = True

    def _fail(self, name: str, failed: msg.Failed) -> None:
        raise PeerFailed(name, failed.traceback)

    def _lose_refused(self, name: str, refused: msg.PeerRefused) -> None:
        if worker_number(refused.name) is not None and refused.name not in self.run.peers.gone:
            self.membership.lose(refused.name)

    # ---------------------------------------------------------------- the clock

    def _do_what_is_due(self) -> None:
        run = self.run
        now = run.clock_s
        if run.training:
            run.events.extend(run.timers.due(run.now))
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            run.out.add(Look(run.peers.to_look_at))
            self._check_progress()
        if run.now >= run.rules.deadline_s and not run.ending and run.training:
            self._end_in_time()

    def _say_whom(self, now: float) -> None:
        """Tell the client whom the run waits for, and again later if it still does."""
        assert self.wait is not None
        since, self._waiting_since = self._waiting_since, now
        self.run.out.send(CLIENT, msg.Waiting(f"waiting for {self.wait.whom()} for {now - since:.0f} s"))

    def _take_look(self, looked: Looked) -> None:
        """Remove peers that are dead, and then retire those that are to leave and are still there."""
        self._looks += 1
        self.run.strangers.count(COORDINATOR, looked.strangers)
        for name in looked.dead:
            if name not in self.run.peers.gone:
                self.membership.lose(name)
        self.stopping.let_go()

    def _check_progress(self) -> None:
        """Raise Deadlock if nothing under way can release a worker again, and WorkerLost if none is left."""
        run, view = self.run, self.run.view
        if self.wait is not self.training_wait:
            return
        if not (view.num_active or run.events or run.ending or self.membership.awaits_worker):
            raise WorkerLost(self._no_worker_left())
        busy = view.num_computing or run.ending or run.events or run.timers or run.engine.measuring
        if view.num_active and not (busy or self.evaluation.queue):  # a rule may act on one
            raise Deadlock(f"at {run.now:.3f} s no worker can ever go on; {view.waits()}")

    def _is_something_due(self) -> bool:
        run = self.run
        return bool(run.events or run.ending.status) or run.now >= self.stopping.latest

    def _end_in_time(self) -> None:
        run = self.run
        run.view.now = run.rules.deadline_s
        run.ending.finish(run.rules.at(run.rules.deadline_s))

    # ---------------------------------------------------------------- events and actions

    def _handle(self, event: ev.Event) -> Script[None]:
        run = self.run
        if type(event) is not ev.Push and not self.membership.is_possible(event):
            self.membership.put_off(event)
            return
        if self.pushes.diverges(event):
            return
        if isinstance(run.store, AllReduceStore) and run.now < run.rules.deadline_s:
            yield from self.reduction.before(event)
            if run.ending:  # a version that is not there yet is none
                run.events.appendleft(event)
                return
        now = run.now
        if now >= run.rules.deadline_s:
            run.events.appendleft(event)  # it has happened: the end says who was lost
            self._end_in_time()
            return
        if type(event) is ev.Evaluated and self.evaluation.ends_with(event.values):
            run.events.appendleft(event)  # it is the last one: no switch comes of it
            return
        actions = run.engine.handle(event, now)
        if type(event) is ev.Leave:
            self.actions.void(event.worker)
        yield from self.answers.perform(actions)
        run.events.extend(self.membership.joins_put_off())
        self.pushes.discard_void()
        if type(event) is ev.Evaluated:
            if self.replication.keeps_evaluations:
                yield from self.replication.keep((), self.answers.state())
        elif not (run.view.num_active or self.membership.awaits_worker):
            raise WorkerLost(self._no_worker_left())

    def _no_worker_left(self) -> str:
        return f"every worker is gone at {self.run.now:.3f} s; none is left to train"

    # ---------------------------------------------------------------- the end

    def _finish(self) -> Script[None]:
        """Have the last version evaluated, and send the client what the run leaves."""
        run = self.run
        # handling them would make versions that the store does not have
        gone = self.membership.gone_at_last()
        for event in run.events:
            if type(event) is ev.Evaluated:
                self.evaluation.take_late(event)
        run.events.clear()
        time_s = min(run.now, run.rules.deadline_s)
        state = yield from answered(self.evaluation.gather, HOLDERS)
        yield from self.checkpoints.complete(self.pushes.position_after)
        for worker in run.peers.workers():
            run.peers.dismiss(worker_name(worker))
            run.out.send(worker_name(worker), msg.StopRun())
        yield from self.evaluation.evaluate_last(state)
        yield from self._await_usage()
        if self._connection.stamps:
            yield from self._await_served()
        run.log_stream.send()
        run.strangers.report()
        facts = {
            "time_s": time_s,
            "lost_workers": sorted(gone | (run.peers.lost_workers - run.view.workers.keys())),
            "strangers": run.strangers.total,
            "usage": sorted(run.peers.usage.values(), key=lambda used: used["worker"]),
            "unanswered": run.ending.unanswered,
        }
        run.out.send(CLIENT, msg.RunOutcome(run.ending.status, run.ending.reason, Json(facts), state))
        yield Wait(lambda: self._client_has_outcome, lambda: CLIENT)

    def _await_usage(self) -> Script[None]:
        """Wait for what the workers used; one whose last step takes long is not waited for."""
        run, latest, looks = self.run, self.run.clock_s + self._connection.settle_within_s, self._looks
        yield Wait(
            lambda: self._looks > looks and (run.clock_s > latest or not run.peers.without_usage),
            lambda: names_or_count(run.peers.without_usage, len(run.peers.workers()), "workers"),
        )

    def _await_served(self) -> Script[None]:
        """Ask each server what its time went into; one that is lost meanwhile is not waited for."""
        run, latest = self.run, self.run.clock_s + self._connection.settle_within_s
        most = max(map(servers_of, run.workload.experiment.strategy.compositions))
        names = [name for name in map(server_name, range(most)) if name not in run.peers.gone]
        for name in names:
            run.out.send(name, msg.AskServed())
        yield Wait(
            lambda: run.clock_s > latest or run.peers.served.keys() >= set(names),
            lambda: names_or_count(
                [name for name in names if name not in run.peers.served], len(names), "servers"
            ),
        )
