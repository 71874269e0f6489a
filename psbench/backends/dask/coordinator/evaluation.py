"""Evaluation of a live run's model, while training goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from psbench.backends.dask.coordinator.evaluation_queue import EvaluationQueue
from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait, answered
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.roles import EVALUATOR
from psbench.backends.dask.server.store import Then
from psbench.backends.schedule import UpdateSchedule
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.log import Kind, plain_json
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.strategy import Strategy
from psbench.core.view import Status

#: whom it waits for who gathers a model
HOLDERS = "the holders of the model"


class Evaluation:
    """Has the model evaluated when that is due, and ends the run when a rule says so.

    The model is the run's result: the store's, or, where the workers' own models
    diverge between averages, their mean.

    Attributes
    ----------
    queue : EvaluationQueue
        The evaluations under way.
    movement : float
        How far the last update moved the model, if a rule reads that.
    """

    def __init__(self, run: RunState) -> None:
        self._run, self._view, self._averaging = run, run.view, run.averaging
        self.queue = EvaluationQueue(run.out, run.workload.model_bytes)
        self.movement = math.inf
        self._schedule = UpdateSchedule(
            run.rules,
            run.view,
            evaluate=self.evaluate,
            movement=lambda: self.movement,
            end=run.ending.finish,
        )
        self._no_server = False
        self._spread: dict[str, float] = {}  # of the models whose mean was taken last
        self._measured: dict[int, dict[str, float]] = {}  # by evaluations that are under way
        self._averages = False  # whether the model is the mean of the workers' models
        # waited for, so that the version after an evaluation has the rate that follows from it, as simulated
        self._next_rate_depends = run.workload.experiment.plateau is not None
        # for the models of the answer being performed: the request, and who sends its own with its release
        self._asked: tuple[int, set[int]] | None = None
        self._evaluated = -1, -1  # the last version, and its samples, that were sent to the evaluator

    def compose(self, composition: Strategy) -> None:
        """Evaluate under another composition."""
        self._no_server = isinstance(composition.placement, PeerToPeer)
        self._averages = self._no_server or composition.communication.pushes == "together"

    # ---------------------------------------------------------------- an answer of the engine

    def before_answer(self, actions: Sequence[Action]) -> None:
        """Ask those that it releases for their own models as they go on, if an evaluation may be due.

        The others are asked when the answer is performed, which may order them to mix.
        """
        if self._averages and self._schedule.may_be_due:
            here = self._run.peers.workers()
            going = {a.worker for a in actions if type(a) is act.Release and a.then == "step"} & {*here}
            self._asked = self._averaging.ask(released=going), going

    def do_without_model(self, worker: int) -> None:
        """Wait for no model of a worker whose release, with which it was asked for, is not sent."""
        if self._asked is not None:
            self._averaging.leave(worker, self._asked[0])

    def after_answer(self) -> None:
        """Forget the models that were asked for an answer that is performed."""
        self._asked = None

    @property
    def may_be_due(self) -> bool:
        """Whether an evaluation or the end of the run may be due at this version."""
        return self._schedule.may_be_due

    def after_update(self) -> Script[None]:
        """Evaluate or end the run if the current version makes that due; wait if the evaluator is late."""
        if self._run.rules.sees_movement and self._schedule.may_be_due:
            self.movement = yield from answered(self._run.store.ask_movement, "the parameter server")
        self._schedule.after_update()
        if self._next_rate_depends:
            yield from self._await_all()
        if self.queue.is_full:
            yield Wait(lambda: not self.queue.is_full, lambda: EVALUATOR)

    # ---------------------------------------------------------------- evaluations

    def evaluate(self, number: int) -> None:
        """Have the current version evaluated, while training goes on."""
        if not self.queue.is_off:
            self._evaluated = self._progress
        key = self.queue.expect(number, self._view)
        self.gather(lambda state: self._send(key, state))

    def _send(self, key: int, state: StateDict) -> None:
        self._measured[key] = self._spread
        self.queue.send(key, state)

    def evaluate_start(self) -> Script[None]:
        """Have the model evaluated that training starts from, and wait for that."""
        self.evaluate(0)
        yield from self._await_all()

    def evaluate_last(self, state: StateDict) -> Script[None]:
        """Have the model of the end evaluated, unless it was; wait for all evaluations."""
        if self._evaluated != self._progress and self._run.ending.status != "diverged":
            self._send(self.queue.expect(-1, self._view), state)
        yield from self._await_all()

    def _await_all(self) -> Script[None]:
        yield Wait(lambda: not self.queue, lambda: f"{EVALUATOR} ({len(self.queue)} evaluations)")

    def take(self, message: msg.EvaluationDone) -> None:
        """Take an evaluation: an event, unless it is before the first step or after the last."""
        found = self.queue.take(message.key)
        if found is None:
            return  # of an evaluator that was given up
        number, version, epoch = found
        values = {"epoch": epoch} | message.values | self._measured.pop(message.key, {})
        if number > 0 and not self._run.ending:
            self._hear(ev.Evaluated(number, version, values))
        else:
            self._log(-1 if number else 0, version, values)

    def _hear(self, event: ev.Evaluated) -> None:
        """Have the engine hear of an evaluation: where the next rate depends on it, before any later push."""
        events = self._run.events
        if not self._next_rate_depends:
            events.append(event)
            return
        earlier = [place for place, each in enumerate(events) if type(each) is ev.Evaluated]
        events.insert(max(earlier, default=-1) + 1, event)

    def take_late(self, event: ev.Evaluated) -> None:
        """Take an evaluation that came before the run's end, but not before the answer that ended it."""
        self._log(-1, event.version, event.values)

    def _log(self, number: int, version: int, values: dict[str, float]) -> None:
        at = self._run.now if number else 0.0
        self._run.log.add(Kind.EVALUATED, at, id=number, version=version, text=plain_json(values))

    def ends_with(self, values: dict[str, float]) -> bool:
        """End the run if a rule says so after an evaluation, and return whether one does."""
        reason = self._run.rules.after_evaluation(values)
        if reason:
            self._run.ending.finish(reason)
        return bool(reason)

    # ---------------------------------------------------------------- models

    @property
    def _progress(self) -> tuple[int, int]:
        return self._view.version, self._view.samples

    def gather(self, then: Then) -> None:
        """Call `then` with the run's model."""
        store = self._run.store
        if not self._averages:
            store.gather(False, then)
            return
        tag, going = self._asked or (self._averaging.ask(), set[int]())
        self._averaging.ask_more(tag, self._with_models() - going)

        def take(mean: StateDict, spread: dict[str, float]) -> None:
            self._spread = spread if self._no_server else {}
            if mean:
                then(mean)
            else:
                store.gather(False, then)

        self._averaging.mean(tag, take)

    def _with_models(self) -> set[int]:
        """Return the workers that are here and have been released under this composition."""
        workers = self._view.workers
        here = [workers[w] for w in self._run.peers.workers() if w in workers]
        return {w.id for w in here if w.status not in (Status.NEW, Status.GONE)}
