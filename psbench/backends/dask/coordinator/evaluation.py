"""Evaluation of a live run's model, while training goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from psbench.backends.dask.coordinator.ending import Ending
from psbench.backends.dask.coordinator.evaluation_queue import EvaluationQueue
from psbench.backends.dask.coordinator.replica_averaging import ReplicaAveraging
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.framing import State
from psbench.backends.dask.server.store import ParameterStore, Then
from psbench.backends.schedule import StopRules, UpdateSchedule
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.log import EventLog, Kind, plain_json
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView, Status


class Evaluation:
    """Has the model evaluated when that is due, and ends the run when a rule says so.

    The model is the one that a person would take away: the store's, or, where the workers' own models
    diverge between averages, their mean.

    Parameters
    ----------
    rules : StopRules
    view : ClusterView
        The engine's.
    queue : EvaluationQueue
    averaging : ReplicaAveraging
    log : EventLog
    events : deque
        Where evaluations wait for the engine.
    ending : Ending
    store : callable
        Returns the parameter store of the current composition.
    until : callable
        Handles messages until a condition holds.
    """

    def __init__(
        self,
        rules: StopRules,
        view: ClusterView,
        queue: EvaluationQueue,
        averaging: ReplicaAveraging,
        log: EventLog,
        events: deque[ev.Event],
        *,
        ending: Ending,
        store: Callable[[], ParameterStore],
        until: Callable[[Callable[[], bool]], None],
    ) -> None:
        self._rules, self._view, self._queue, self._averaging = rules, view, queue, averaging
        self._log, self._events = log, events
        self._ending, self._store, self._until = ending, store, until
        self._schedule = UpdateSchedule(
            rules,
            view,
            evaluate=self.evaluate,
            movement=lambda: store().movement,
            end=ending.finish,
        )
        #: evaluates or ends the run if the current version makes that due
        self.after_update = self._schedule.after_update
        self._averages = False  # whether the model is the mean of the workers' models
        self._asked: int | None = None  # the request for the models of the answer being performed
        self._evaluated = -1, -1  # the last version, and its samples, that were sent to the evaluator

    def compose(self, composition: Strategy) -> None:
        """Evaluate under another composition."""
        self._averages = composition.communication.pushes == "together"

    # ---------------------------------------------------------------- an answer of the engine

    def before_answer(self, actions: Sequence[Action]) -> None:
        """Ask for the workers' own models as they will be when these actions are performed, if needed."""
        if self._averages and self._schedule.may_be_due:
            going = {a.worker for a in actions if type(a) is act.Release and a.then == "step"}
            self._asked = self._averaging.ask(self._with_models() - going, going)

    def after_answer(self) -> None:
        """Forget the models that were asked for an answer that is performed."""
        self._asked = None

    # ---------------------------------------------------------------- evaluations

    def evaluate(self, number: int) -> None:
        """Have the current version evaluated, while training goes on."""
        self._evaluated = self._progress
        key = self._queue.expect(number, self._view)
        self.gather(lambda state: self._queue.send(key, state))
        if self._queue.is_full:
            self._until(lambda: not self._queue.is_full)

    def evaluate_start(self) -> None:
        """Have the model evaluated that training starts from, and wait for that."""
        self.evaluate(0)
        self._until(lambda: not self._queue)

    def evaluate_last(self, state: State) -> None:
        """Have the model of the end evaluated, unless it was; wait for all evaluations."""
        if self._evaluated != self._progress and self._ending.status != "diverged":
            self._queue.send(self._queue.expect(-1, self._view), state)
        self._until(lambda: not self._queue)

    def take(self, message: msg.Evaluated, now: float) -> None:
        """Take an evaluation: an event, unless it is before the first step or after the last."""
        found = self._queue.take(message.key)
        if found is None:
            return  # of an evaluator that was given up
        number, version, epoch = found
        values = {"epoch": epoch} | message.values
        if number and self._ending:
            number = -1
        if number > 0:
            self._events.append(ev.Evaluated(number, version, values))
        else:
            at = now if number else 0.0
            self._log.add(Kind.EVALUATED, at, id=number, version=version, text=plain_json(values))

    def end_after(self, values: dict[str, float]) -> None:
        """End the run if a rule says so after an evaluation."""
        reason = self._rules.after_evaluation(values)
        if reason:
            self._ending.finish(reason)

    def begin_again(self) -> None:
        """Have another evaluator go on where the one before was lost."""
        self._queue.begin_again()

    def do_without(self) -> None:
        """Go on without evaluations, as there is no evaluator."""
        self._queue.do_without()

    @property
    def under_way(self) -> bool:
        """Whether an evaluation is under way."""
        return bool(self._queue)

    @property
    def awaited(self) -> list[int]:
        """The numbers of the evaluations of the current version that are under way."""
        return self._queue.numbers_at(self._view.version)

    # ---------------------------------------------------------------- models

    @property
    def _progress(self) -> tuple[int, int]:
        return self._view.version, self._view.samples

    def gather(self, then: Then) -> None:
        """Call `then` with the model that a person would take away."""
        store = self._store()
        if not self._averages:
            store.gather(False, then)
            return
        asked = self._averaging.ask(self._with_models()) if self._asked is None else self._asked
        self._averaging.mean(asked, lambda mean: then(mean) if mean else store.gather(False, then))

    def _with_models(self) -> set[int]:
        """Return the workers that have been released under this composition."""
        workers = self._view.workers.values()
        return {w.id for w in workers if w.status not in (Status.NEW, Status.GONE)}

    def await_state(self, gather: Callable[[Then], None]) -> State:
        """Return the state that is gathered, waiting for it."""
        found: list[State] = []
        gather(found.append)
        self._until(lambda: bool(found))
        return found[0]
