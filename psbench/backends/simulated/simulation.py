"""Simulation in virtual time: real gradients and real staleness, with times from the cluster's profile.

A heap of events ordered by (time, priority, worker, sequence) drives the engine, whose actions the simulated
cluster performs. Nothing reads a clock, so the same experiment gives the same log and the same parameters,
bit for bit.

A step's batch is drawn when its worker is released and its gradient is computed when it ends in virtual
time, from a snapshot of the version it was released with; cancelled work is never computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from heapq import heappop
from typing import Any

import torch

from psbench.backends.checkpointing import (
    actions_to_plain,
    released,
    resumed,
    resumption,
    split_at_model,
)
from psbench.backends.control import Control, Observer
from psbench.backends.outcome import Outcome
from psbench.backends.pushes import why_diverged, with_stats
from psbench.backends.schedule import CheckpointSchedule, StopRules, UpdateSchedule, membership_events
from psbench.backends.simulated.evaluation import SimulatedEvaluation
from psbench.backends.simulated.event_queue import REQUEST, EventQueue
from psbench.backends.simulated.shared_cores import StepBegins
from psbench.backends.simulated.simulated_cluster import InService, SimulatedCluster
from psbench.backends.simulated.worker import WorkerEvent
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.folder import CheckpointFolder
from psbench.checkpoints.validation import restoring
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.ending import DIVERGED, FINISHED, Ending
from psbench.core.events import Push
from psbench.core.log import EventLog
from psbench.core.view import Status
from psbench.errors import Deadlock, WorkerLost
from psbench.system.allocator import give_back_freed_memory, keep_freed_memory
from psbench.system.collector import only_new_objects_searched
from psbench.training.build import Workload

#: events between two calls of an observer: often enough to move a chart, too seldom to be felt
OBSERVE_EVERY = 256
#: events that a stop waits for a version to write a checkpoint of
_STOP_AFTER = 10_000


class Simulation:
    """One run in virtual time.

    Parameters
    ----------
    workload : Workload
    log : EventLog
        Filled during the run.
    control : Control
    observer : callable or None
        Called with the log about every `OBSERVE_EVERY` events and after each evaluation.
    checkpoints : CheckpointFolder or None
        Where checkpoints are written; none are without it.
    start : Checkpoint or None
        Where to resume; the log up to there is in `log` already.
    """

    def __init__(
        self,
        workload: Workload,
        log: EventLog,
        control: Control,
        observer: Observer | None = None,
        checkpoints: CheckpointFolder | None = None,
        start: Checkpoint | None = None,
    ) -> None:
        experiment = workload.experiment
        self.workload, self.log, self.control, self.observer = workload, log, control, observer
        self._folder, self._start = checkpoints, start
        self.engine = workload.engine(log)
        view = self.engine.view
        self.queue = EventQueue()
        self._rules = StopRules(experiment.stop, experiment.evaluate_every, experiment.patience_is_for_less)
        self._deadline = self._rules.deadline_s
        self.ending = Ending()
        self._schedule = UpdateSchedule(
            self._rules,
            view,
            evaluate=self._evaluate,
            movement=lambda: self.cluster.server.movement,
            end=self.ending.finish,
        )
        self.cluster = SimulatedCluster(
            workload,
            view,
            self.queue,
            on_update=self._schedule.after_update,
            ending=self.ending,
            checkpoints=checkpoints is not None,
        )
        self.cluster.server.measures_movement = self._rules.sees_movement
        self._gradients = self.cluster.trainer is not None
        cluster = self.cluster
        self.evaluation = SimulatedEvaluation(
            cluster.steps, cluster.model, cluster.measured, view, self.queue, log
        )
        self.engine.pause_for_evaluations(self._evaluation_precedes_releases)
        self._checkpoints = CheckpointSchedule(view, experiment.checkpoint_every)
        self._next_push = 0  # the number of the next push
        self.now = 0.0
        self._stop_after = 0

    def run(self) -> Outcome:
        """Run to the end and return the outcome.

        Raises
        ------
        Deadlock
            When no worker can ever be released again.
        WorkerLost
            When every worker is gone.
        """
        # steps with gradients take so long that a search of all objects does not count
        searched = nullcontext() if self._gradients else only_new_objects_searched()
        try:
            with searched:
                return self._run()
        finally:
            self.cluster.close()

    def _run(self) -> Outcome:
        if self._start is None:
            self._begin()
        else:
            self._resume(self._start)
        while not self.ending.status:
            if self.control.pending:
                self._handle_requests()
            else:
                pace = self.control.pace
                self._handle_events(OBSERVE_EVERY if pace is None else 1)
                if not self.ending.status:
                    self._show()
                if pace is not None:
                    pace(self.now)
        return self._finish()

    # ---------------------------------------------------------------- events

    def _handle_events(self, most: int) -> None:
        """Handle up to that many events, until the run ends or receives a request."""
        heap, arriving, under_way = self.queue.heap, self.queue.arriving, self.cluster.under_way
        control, deadline, cluster, ending = self.control, self._deadline, self.cluster, self.ending
        profile = self.workload.profile
        shared = profile.link_sharing != "in_turn" or profile.cores > 0
        for _ in range(most):
            arrives = arriving and (not heap or arriving[0] < heap[0])
            if not (arrives or heap):
                waits = self.engine.view.waits()
                raise Deadlock(f"at {self.now:.3f} s no worker can ever continue; {waits}")
            now, _, _, _, event = entry = arriving.popleft() if arrives else heappop(heap)
            self.now = now
            if now >= deadline:
                self.now = self.engine.view.now = deadline
                ending.finish(self._rules.at(deadline))
            elif shared and cluster.reschedule_if_delayed(entry, arrives=bool(arrives)):
                pass
            elif type(event) is not Push:
                if isinstance(event, WorkerEvent):
                    cluster.workers.handle(event, now)
                elif type(event) is InService:
                    self._served(event)
                elif type(event) is StepBegins:
                    cluster.begin_step(event, now)
                elif cluster.serves and isinstance(event, (ev.Vote, ev.Report)):
                    cluster.serve(event, now)
                else:
                    self._handle(event)
            elif under_way.get(event.worker) is event:  # else cancelled, or its worker has gone
                if not arrives:
                    cluster.send(event, now)
                elif cluster.serves:
                    cluster.serve(event, now)
                else:
                    self._push(event)
            if ending.status or control.pending:
                return

    def _served(self, served: InService) -> None:
        """Handle a served message; its push may have been cancelled."""
        event = served.event
        if not isinstance(event, Push):
            self._handle(event)
        elif self.cluster.under_way.get(event.worker) is event:
            event.send_s += self.now - served.arrived_s
            self._push(event)
        self.cluster.serve_next()

    def _push(self, push: Push) -> None:
        """Pass an arrived push to the engine, and perform the answer."""
        del self.cluster.under_way[push.worker]
        push.id = self._next_push
        self._next_push += 1
        if self._gradients and not self.cluster.receive(push):
            self.ending.end(DIVERGED, why_diverged(push, self.now))
        if self.cluster.reads:
            push = with_stats(push, self.cluster.reads)
        actions = self.engine.handle(push, self.now)
        if self.ending.status:
            self.ending.unanswered = True
        else:
            self._perform(actions)

    def _handle(self, event: ev.Event) -> None:
        """Pass an event other than a push to the engine, and perform the answer."""
        if isinstance(event, ev.Leave):
            self.cluster.leave(event.worker)
        elif isinstance(event, ev.Join):
            self.cluster.join(event.worker)
        elif isinstance(event, ev.Evaluated):
            self.evaluation.unhandled = None
        self._perform(self.engine.handle(event, self.now))
        if not self.engine.view.num_active and not self.queue.expects_join:
            raise WorkerLost(f"every worker is gone at {self.now:.3f} s; none is left to train")

    def _handle_requests(self) -> None:
        for request in self.control.take():
            self.queue.add(self.now, REQUEST, 0, request)
        if self.control.stopping:
            self._stop()

    def _stop(self) -> None:
        """End the run, with a checkpoint of the next version if there is a folder and one comes soon."""
        if not self._checkpoints.stopping:
            self._checkpoints.stop()
            self._stop_after = 0 if self._folder is None else _STOP_AFTER
        self._stop_after -= 1
        if self._stop_after > 0 or (self.engine.measuring and self._folder is not None):
            self._handle_events(1)
            if self._stop_after % OBSERVE_EVERY == 0:
                self._show()
            return
        if self._folder is not None:
            self._folder.write("stopped", self._checkpoint(()))
        self.ending.stop()

    # ---------------------------------------------------------------- the engine's answers

    def _perform(self, actions: Sequence[Action]) -> None:
        view, checkpoints = self.engine.view, self._checkpoints
        if self.cluster.holds_versions:
            self.cluster.begin(actions)
        if view.samples >= checkpoints.from_samples or view.in_force != checkpoints.composition:
            actions = self._store(actions)
            if self.ending.status:
                return
        if self.cluster.perform(actions, self.now) and self.cluster.averages_models:
            self._schedule.after_update()
            # which steps were kept was said, and no other begins
            self.ending.unanswered = bool(self.ending.status)

    def _store(self, actions: Sequence[Action]) -> Sequence[Action]:
        """Perform the answer's model updates, write a checkpoint, and return the remaining actions."""
        label = self._checkpoints.label(self.engine.measuring, actions)
        if not label:
            return actions
        before, after = split_at_model(actions)
        ending = self.ending
        if self.cluster.perform(before, self.now, completely=True) or ending.status == FINISHED:
            self._checkpoints.advance()
            if self._folder is not None:
                self._folder.write(label, self._checkpoint(after))
            if self._checkpoints.stopping and not ending.status:
                ending.unanswered = True
                ending.stop()
        return after

    # ---------------------------------------------------------------- start and checkpoints

    def _begin(self) -> None:
        profile = self.workload.profile
        self.queue.add_membership(membership_events(profile))
        for at_s, to in self.workload.experiment.strategy.requests:
            self.queue.add(at_s, REQUEST, 0, ev.SwitchRequested(to))
        self._evaluate(0)
        self._perform(self.engine.begin(profile.starters))

    def _checkpoint(self, rest: Sequence[Action]) -> Checkpoint:
        """Return a checkpoint, with the remaining actions of an answer."""
        engine = self.engine
        facts = {
            "time_s": self.now,
            "engine": None if engine.measuring else engine.state_dict(),
            "spec": self.workload.experiment.spec(),
            "rest": actions_to_plain(rest),
            "events": self.queue.state(),
            "stop_rules": self._rules.state_dict(),
            "next_push": self._next_push,
            "evaluated": list(self.evaluation.evaluated),
        }
        return self.cluster.checkpoint(facts, released(rest))

    def _resume(self, start: Checkpoint) -> None:
        """Continue from a checkpoint, unless the run ends there."""
        with restoring(start.origin):
            actions, again = self._restore(start)
        movement = self.cluster.server.movement
        reason = self._rules.after_update(self.engine.view, movement) or self._rules.at(self.now)
        if awaited := start.state.get(
            "awaited"
        ):  # live: the model of an earlier version is gone, the next one is this
            self._evaluate(max(awaited))
        if not reason:
            self.cluster.repeat(again, self.now)
        if not reason or self.cluster.averages_models:
            self._perform(actions)
        if reason:  # where models diverge, the last answer says first which steps the workers keep
            self.ending.finish(reason)

    def _restore(self, start: Checkpoint) -> tuple[list[Action], set[int]]:
        """Restore all state; return the remaining actions, and the workers that repeat steps."""
        state, engine = start.state, self.engine
        engine.load_state_dict(state["engine"])
        start, rest, again = resumption(start, engine.view, engine.composition)
        self.cluster.restore(start)
        self.now, self._next_push = state["time_s"], state["next_push"]
        self._rules.load_state_dict(state["stop_rules"], engine.view.epoch)
        self._checkpoints.advance()
        self.evaluation.evaluated = tuple(state["evaluated"])
        for event in self.queue.restore(state["events"]):
            if isinstance(event, ev.Evaluated):
                self.evaluation.unhandled = event
        return resumed(engine, rest, self.workload.experiment.stop.epochs, again), again

    # ---------------------------------------------------------------- evaluations and the end

    def _evaluate(self, number: int) -> None:
        values = self.evaluation.evaluate(number, self.now)
        if values is None:
            return
        self._show()
        reason = self._rules.after_evaluation(values) if number > 0 else ""
        if reason:
            self.ending.finish(reason)

    def _evaluation_precedes_releases(self) -> bool:
        """Return whether this version is evaluated before the answer that made it continues.

        Where the workers' own models drift apart their mean is evaluated, after the whole answer.
        """
        if not self._gradients or self.cluster.averages_models:
            return False
        return self._rules.evaluates_and_continues(self.engine.view)

    def _show(self) -> None:
        if self.observer is not None:
            self.observer(self.log)

    def _finish(self) -> Outcome:
        if self.ending.status != DIVERGED or self.evaluation.unhandled is not None:
            self.evaluation.evaluate_last(self.now)
        self._show()
        lost = [w.id for w in self.engine.view.workers.values() if w.status == Status.GONE]
        paths = [] if self._folder is None else self._folder.paths
        facts: dict[str, Any] = {"time_s": self.now, "checkpoints": paths, "lost_workers": lost}
        facts |= {"usage": self.cluster.resources.step_times.usage(), "unanswered": self.ending.unanswered}
        facts |= {"incidents": [*self.cluster.resources.said]} if self.cluster.resources.said else {}
        parameters, buffers = self.cluster.model() if self._gradients else (None, None)
        return Outcome(self.ending.status, self.ending.reason, parameters, buffers, facts)


def run_simulated(
    workload: Workload,
    log: EventLog,
    control: Control,
    observer: Observer | None = None,
    checkpoints: CheckpointFolder | None = None,
    start: Checkpoint | None = None,
) -> Outcome:
    """Run an experiment in virtual time; see `Simulation`."""
    before = torch.get_num_threads()
    torch.set_num_threads(workload.experiment.threads)
    keep_freed_memory()
    try:
        return Simulation(workload, log, control, observer, checkpoints, start).run()
    finally:
        torch.set_num_threads(before)
        give_back_freed_memory()
