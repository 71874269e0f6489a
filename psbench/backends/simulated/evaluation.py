"""Evaluation of the model during a simulation."""

from __future__ import annotations

from collections.abc import Callable

from psbench.backends.simulated.event_queue import MEMBERSHIP, EventQueue
from psbench.backends.simulated.steps import Steps
from psbench.core import events as ev
from psbench.core.log import EventLog, Kind, plain_json
from psbench.core.view import ClusterView
from psbench.training.mixing import ModelVectors


class SimulatedEvaluation:
    """Evaluates the current version, and passes the values to the engine or to the log.

    Evaluations cost no virtual time, as a node of its own makes them.

    Parameters
    ----------
    evaluator : Steps or None
        None where no model is trained; nothing is evaluated then.
    model : callable
        Returns the model that the run would leave now.
    measured : callable
        Returns what else is known of the workers' models.
    view : ClusterView
    queue : EventQueue
    log : EventLog
    """

    def __init__(
        self,
        evaluator: Steps | None,
        model: Callable[[], ModelVectors],
        measured: Callable[[], dict[str, float]],
        view: ClusterView,
        queue: EventQueue,
        log: EventLog,
    ) -> None:
        self._evaluator, self._model, self._view = evaluator, model, view
        self._measured = measured
        self._queue, self._log = queue, log
        self.evaluated = -1, -1  # version and samples of the last evaluation
        self.unhandled: ev.Evaluated | None = None  # the evaluation that the engine has not handled yet

    def evaluate(self, number: int, now: float) -> dict[str, float] | None:
        """Evaluate the current version; rules receive evaluations numbered from 1."""
        if self._evaluator is None:
            return None
        view = self._view
        self.evaluated = view.version, view.samples
        values = {"epoch": view.epoch} | self._evaluator.evaluate(*self._model()) | self._measured()
        if number > 0:
            self.unhandled = ev.Evaluated(number, view.version, values)
            self._queue.add(now, MEMBERSHIP, -1, self.unhandled)
        else:
            self._record(number, values, now)
        return values

    def evaluate_last(self, now: float) -> None:
        """Evaluate the final version, unless it has been evaluated."""
        if self.unhandled is not None:
            self._record(-1, self.unhandled.values, now)
        elif self.evaluated != (self._view.version, self._view.samples):
            self.evaluate(-1, now)

    def _record(self, number: int, values: dict[str, float], now: float) -> None:
        """Log an evaluation without a rule: before the first step (0) or after the last (-1)."""
        version = self._view.version
        self._log.add(Kind.EVALUATED, now, id=number, version=version, text=plain_json(values))
