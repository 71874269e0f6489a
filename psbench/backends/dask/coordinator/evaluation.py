"""Who looks at a run: evaluates its model, and says when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from psbench.backends.dask.coordinator.evaluation_queue import EvaluationQueue
from psbench.backends.dask.coordinator.replica_averaging import ReplicaAveraging
from psbench.backends.dask.server.store import State, Then
from psbench.backends.schedule import StopRules
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.log import Kind, plain_json
from psbench.core.strategy import Strategy
from psbench.core.view import Status

if TYPE_CHECKING:
    from psbench.backends.dask.coordinator.coordinator import Coordinator


class Evaluation:
    """Looks at the run of a conductor whenever something may be due.

    The model that it evaluates is the one that a person would take away: the keeper's, or, where the
    workers' own models drift apart, their mean.

    Parameters
    ----------
    conductor : Conductor
    """

    def __init__(self, conductor: Coordinator) -> None:
        workload = conductor.workload
        experiment = workload.experiment
        self._run = conductor
        self.ending = StopRules(experiment.stop, experiment.evaluate_every)
        self.evaluations = EvaluationQueue(conductor.hub, workload.model_bytes)
        self.drift = ReplicaAveraging(conductor.hub, conductor.numbers)
        self._drifts = False
        self._asked: int | None = None  # the models that go with the answer being performed
        self._evaluated = -1, -1  # the last version, and its samples, that were sent to the evaluator
        #: nothing can be due before that many samples and that version
        self._look_at, self._last_version = 0.0, self.ending.next_version

    def compose(self, composition: Strategy) -> None:
        """Look at a run under another composition."""
        self._drifts = composition.communication.pushes == "together"

    # ---------------------------------------------------------------- an answer of the engine

    @property
    def may_be_due(self) -> bool:
        """Whether an evaluation or the end may be due."""
        view = self._run.engine.view
        return view.samples >= self._look_at or view.version >= self._last_version

    def before(self, actions: Sequence[Action]) -> None:
        """Ask for the workers' own models as they will be when these actions are performed, if needed."""
        if self._drifts and self.may_be_due:
            going = {a.worker for a in actions if type(a) is act.Release and a.then == "step"}
            self._asked = self.drift.ask(self._with_models() - going, going)

    def look(self) -> None:
        """Evaluate, or end, if that is due."""
        if not self.may_be_due:
            return
        view = self._run.engine.view
        number = self.ending.evaluation_due(view)
        if number is not None:
            self.evaluate(number)
        reason = self.ending.after_update(view, self._run.keeper.movement)
        if reason:
            self._run.end("finished", reason)
        self._look_at = view.dataset_size * self.ending.next_epoch

    def after(self) -> None:
        """Forget what was asked for an answer that is performed."""
        self._asked = None

    # ---------------------------------------------------------------- models

    def evaluate(self, number: int) -> None:
        """Have the current version evaluated, while training goes on."""
        self._evaluated = self._stand
        key = self.evaluations.expect(number, self._run.engine.view)
        self.gather(lambda state: self.evaluations.send(key, state))
        if self.evaluations.too_many:
            self._run.until(lambda: not self.evaluations.too_many)

    def evaluate_last(self, state: State) -> None:
        """Have the model of the end evaluated, unless it was; wait for all evaluations."""
        if self._evaluated != self._stand and self._run.status != "diverged":
            self.evaluations.send(self.evaluations.expect(-1, self._run.engine.view), state)
        self._run.until(lambda: not self.evaluations)

    def evaluated(self, plain: dict[str, Any]) -> ev.Evaluated | None:
        """Take an evaluation; returns it as an event if a rule may see it."""
        number, version, epoch = self.evaluations.take(plain["id"])
        values = {"epoch": epoch} | plain["values"]
        if number > 0 and not self._run.status:
            return ev.Evaluated(number, version, values)
        # it is of before the first step or after the last
        now, number = (self._run.now, -1) if number else (0.0, 0)
        self._run.log.add(Kind.EVALUATED, now, id=number, version=version, text=plain_json(values))
        return None

    @property
    def _stand(self) -> tuple[int, int]:
        return self._run.engine.view.version, self._run.engine.view.samples

    def gather(self, then: Then) -> None:
        """Call `then` with the model that a person would take away."""
        keeper = self._run.keeper
        if not self._drifts:
            keeper.gather(False, then)
            return
        asked = self.drift.ask(self._with_models()) if self._asked is None else self._asked
        self.drift.mean(asked, lambda mean: then(mean) if mean else keeper.gather(False, then))

    def _with_models(self) -> set[int]:
        """Return the workers that have been released under this composition."""
        workers = self._run.engine.view.workers.values()
        return {w.id for w in workers if w.status not in (Status.NEW, Status.GONE)}

    def await_state(self, gather: Callable[[Then], None]) -> State:
        """Return the state that is gathered, waiting for it."""
        found: list[State] = []
        gather(found.append)
        self._run.until(lambda: bool(found))
        return found[0]
