"""A live run as a state machine: messages and the time go in, instructions come out.

It has no socket, thread or clock, so the same inputs give the same instructions: faults are tests of lists of
messages, and a fuzzer can play whole runs. `coordinator` owns the sockets and performs the instructions.

Sequences (begin, train, end; a hand-over; an answer of the engine) are scripts: generators that yield where
they have to wait. Messages are taken meanwhile, and their events wait for their turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from psbench.backends.dask.coordinator import (
    beginning,
    checkpointing,
    evaluation,
    finishing,
    membership,
    pushes,
)
from psbench.backends.dask.coordinator.beginning import Start
from psbench.backends.dask.coordinator.driver import LiveDriver
from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message, MessageRefused
from psbench.backends.dask.protocol.instructions import End, Input, Instruction, Look, Looked, Refused
from psbench.backends.dask.protocol.roles import CLIENT, COORDINATOR, REPLICA, worker_number
from psbench.backends.dask.protocol.transport import Received
from psbench.backends.dask.server.all_reduce import AllReduceStore
from psbench.core import events as ev
from psbench.errors import BackendError, Deadlock, ServerLost, WorkerLost
from psbench.training.build import Workload

#: seconds between two sendings of the log to the client, and between two looks for dead peers
_LOG_S, _LOOK_S = 0.1, 0.25


class PeerFailed(BackendError):
    """A task raised an exception; the message is its traceback."""

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
        All that the run is.
    driver : LiveDriver
        Performs the engine's answers.
    start : Start or None
    training_wait : Wait
        The wait between two events of training.
    """

    def __init__(self, workload: Workload, expected: Sequence[str], start: Start | None = None) -> None:
        self.start = start
        self.run = run = RunState(workload, expected)
        run.update_schedule = evaluation.update_schedule(run)
        self.driver = LiveDriver(run)
        self._say_after_s = workload.experiment.connection.say_after_s
        self._waiting_since = -math.inf  # of the wait, or, in training, of the last message of a peer
        self._next_log = self._next_look = -math.inf
        self._of_workers = _worker_handlers(run)
        self._of_anyone = _handlers(run)
        self._script = self._whole()
        self.training_wait = Wait(self._is_something_due, lambda: finishing.computing(run))

    # ---------------------------------------------------------------- what goes in and comes out

    def handle(self, given: Input, now: float) -> list[Instruction]:
        """Handle an input; return the instructions to perform now, in order. `End` is the last one.

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
            while run.wait is None or run.wait.done():
                run.wait, self._waiting_since = next(self._script), now
            if now >= self._waiting_since + self._say_after_s:
                self._report_wait(run.wait, now)
        except StopIteration:
            self._end(None)
        except Exception as error:
            if isinstance(error, ServerLost):
                membership.close(run, REPLICA)  # it keeps what it has, for the client to take
            self._end(error)
        return run.out.take()

    def _end(self, error: Exception | None) -> None:
        self.run.log_stream.send()
        for name in self.run.peers.present:
            self.run.out.send(name, msg.StopRun())
        self.run.out.add(End(error))

    def _take(self, given: Input) -> None:
        run = self.run
        if type(given) is Received:
            try:
                self._read(*given)
            except MessageRefused as error:  # a peer that sends such things is removed
                membership.lose(run, error.sender)
        elif type(given) is Refused:
            membership.lose(run, given.sender)
        elif type(given) is Looked:
            _take_look(run, given)

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
            raise MessageRefused(f"{kind.__name__} may only be sent by workers of the run", sender)
        of_worker(worker, message)

    # ---------------------------------------------------------------- the clock

    def _do_what_is_due(self) -> None:
        run = self.run
        now = run.clock_s
        if run.training and run.now >= run.timers.next_s:
            run.events.extend(run.timers.due(run.now))
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            run.out.add(Look(run.peers.to_look_at))
            self._check_progress()
        if run.now >= run.rules.deadline_s and not run.ending and run.training:
            _end_in_time(run)

    def _report_wait(self, wait: Wait, now: float) -> None:
        """Notify the client of the awaited processes, repeatedly while the wait lasts."""
        since, self._waiting_since = self._waiting_since, now
        self.run.out.send(CLIENT, msg.Waiting(f"waiting for {wait.awaited()} for {now - since:.0f} s"))

    def _check_progress(self) -> None:
        """Raise Deadlock if no pending event can release a worker, and WorkerLost if no worker is left."""
        run, view = self.run, self.run.view
        if run.wait is not self.training_wait:
            return
        if not (view.num_active or run.events or run.ending or membership.awaits_worker(run)):
            raise _no_worker_left(run)
        busy = view.num_computing or run.ending or run.events or run.timers or run.engine.measuring
        if view.num_active and not (busy or run.evaluations.pending):  # a rule may act on one
            raise Deadlock(f"at {run.now:.3f} s no worker can ever continue; {view.waits()}")

    def _is_something_due(self) -> bool:
        run = self.run
        return bool(run.events or run.ending.status) or run.now >= run.stop_by_s

    # ---------------------------------------------------------------- the run

    def _whole(self) -> Script[None]:
        run = self.run
        yield from beginning.await_peers(run)
        if self.start is None:
            yield from beginning.begin(run, self.driver)
        else:
            yield from beginning.resume(run, self.driver, self.start)
        while not run.ending.status:
            yield self.training_wait
            while run.events and not run.ending.status:  # which costs less here than its truth
                yield from self._handle(run.events.popleft())
            if run.now >= run.stop_by_s:
                yield from finishing.stop_without_version(run)
        if run.retired and run.ending.status == "stopped":
            yield from finishing.move(run)
        else:
            yield from finishing.finish(run)

    def _handle(self, event: ev.Event) -> Script[None]:
        """Pass a valid event to the engine, and perform the answer."""
        run = self.run
        if type(event) is not ev.Push and not membership.is_possible(run, event):
            membership.put_off(run, event)
            return
        if run.pushes.not_finite and pushes.diverges(run, event):
            return
        if isinstance(run.store, AllReduceStore) and run.now < run.rules.deadline_s:
            yield from pushes.sum_before(run, event)
            if run.ending:  # a version that is not there yet is none
                run.events.appendleft(event)
                return
        now = run.now
        if now >= run.rules.deadline_s:
            run.events.appendleft(event)  # it has happened: the end says who was lost
            _end_in_time(run)
            return
        if type(event) is ev.Evaluated and evaluation.ends_with(run, event.values):
            run.events.appendleft(event)  # it is the last one: no switch comes of it
            return
        actions = run.engine.handle(event, now)
        if type(event) is ev.Leave:
            self.driver.void(event.worker)
        yield from self.driver.perform(actions)
        run.events.extend(membership.take_joins_put_off(run))
        pushes.discard_void(run)
        if type(event) is ev.Evaluated:
            if checkpointing.keeps_evaluations(run):
                yield from checkpointing.keep(run)
        elif not (run.view.num_active or membership.awaits_worker(run)):
            raise _no_worker_left(run)


# -------------------------------------------------------------------- messages


def _worker_handlers(run: RunState) -> dict[type[Message], Callable[[int, Any], None]]:
    return {
        msg.PushMessage: partial(pushes.take, run),
        msg.VoteMessage: lambda worker, vote: run.events.append(
            ev.Vote(worker, vote.ticket, vote.value, vote.samples, vote.compute_s)
        ),
        msg.ReportMessage: lambda worker, report: run.events.append(
            ev.Report(worker, report.ticket, report.stats)
        ),
        msg.WorkerModel: lambda worker, sent: run.models.answer(worker, sent.tag, sent.tensors),
        msg.WorkerState: partial(checkpointing.take_worker, run),
    }


def _handlers(run: RunState) -> dict[type[Message], Callable[[str, Any], None]]:
    return {
        msg.Hello: lambda name, _: membership.meet(run, name),
        msg.Ready: partial(membership.set_ready, run),
        msg.RoleLost: lambda _, lost: membership.find_no_place(run, lost.name),
        msg.RoleLeaves: lambda _, leaving: run.leaving.append(leaving.name),
        msg.RoleGone: lambda _, gone: membership.lose_unconnected(run, gone.name),
        msg.AskClock: lambda name, _: run.out.send(name, msg.Clock(run.clock_s)),
        msg.Failed: _fail,
        msg.PeerRefused: partial(_lose_refused, run),
        msg.ClosedStrangers: lambda name, strangers: run.strangers.count(name, strangers.count),
        **dict.fromkeys((msg.UsageReport, msg.StampsReport, msg.ServedReport), run.peers.report),
        **dict.fromkeys(
            (msg.StateReply, msg.NumberReply, msg.RingVerdict),
            lambda name, reply: run.store.reply(name, reply),
        ),
        msg.LossMeasured: lambda _, loss: evaluation.take_number(run, loss.name, loss.number),
        msg.EvaluationDone: lambda _, done: evaluation.take(run, done),
        msg.RequestStop: lambda _, request: finishing.stop(run, request.checkpoint),
        msg.RequestSwitch: lambda _, request: run.events.append(ev.SwitchRequested(request.to)),
        msg.PressWorker: lambda _, press: membership.inject_fault(run, press),
        msg.OutcomeReceived: lambda _, receipt: _note_receipt(run),
        msg.StateKept: lambda _, receipt: checkpointing.take_receipt(run, receipt.tag),
    }


def _note_receipt(run: RunState) -> None:
    run.client_has_outcome = True


def _fail(name: str, failed: msg.Failed) -> None:
    raise PeerFailed(name, failed.traceback)


def _lose_refused(run: RunState, name: str, refused: msg.PeerRefused) -> None:
    if worker_number(refused.name) is not None and refused.name not in run.peers.gone:
        membership.lose(run, refused.name)


def _take_look(run: RunState, looked: Looked) -> None:
    """Remove dead peers, and then the retiring peers that are still present."""
    run.looks += 1
    run.strangers.count(COORDINATOR, looked.strangers)
    for name in looked.dead:
        if name not in run.peers.gone:
            membership.lose(run, name)
    finishing.let_leavers_go(run)


def _end_in_time(run: RunState) -> None:
    run.view.now = run.rules.deadline_s
    run.ending.finish(run.rules.at(run.rules.deadline_s))


def _no_worker_left(run: RunState) -> WorkerLost:
    return WorkerLost(f"every worker is gone at {run.now:.3f} s; none is left to train")
