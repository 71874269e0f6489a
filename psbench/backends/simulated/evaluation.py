"""Who looks at a simulation: evaluates its model, and says when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from psbench.backends.schedule import StopRules
from psbench.backends.simulated.event_queue import MEMBERSHIP
from psbench.core import events as ev
from psbench.core.log import Kind, plain_json

if TYPE_CHECKING:
    from psbench.backends.simulated.simulation import Simulation


class Evaluation:
    """Looks at a simulation whenever something may be due.

    Evaluations cost no virtual time, as a node of its own makes them.

    Parameters
    ----------
    simulation : Simulation
    """

    def __init__(self, simulation: Simulation) -> None:
        experiment = simulation.workload.experiment
        self._sim, self._view = simulation, simulation.engine.view
        self.ending = StopRules(experiment.stop, experiment.evaluate_every)
        self.evaluated = -1, -1  # version and samples of the last evaluation
        self.unseen: ev.Evaluated | None = None  # the evaluation that the engine has not handled yet
        simulation.engine.pause_for_evaluations(self.precedes_releases)
        #: nothing can be due before that many samples and that version
        self._look_at, self._last_version = 0.0, self.ending.next_version

    def precedes_releases(self) -> bool:
        """Whether this version is evaluated before the answer that made it goes on.

        Where the workers' own models drift apart their mean is evaluated, after the whole answer.
        """
        sim = self._sim
        drifts = sim.composition.communication.pushes == "together"
        return sim.gradients and not drifts and self.ending.evaluates_and_continues(self._view)

    def look(self) -> None:
        """Evaluate, or end, if that is due."""
        view = self._view
        if view.samples >= self._look_at or view.version >= self._last_version:
            self._after_update()

    def _after_update(self) -> None:
        view = self._view
        number = self.ending.evaluation_due(view)
        if number is not None:
            self.evaluate(number)
        reason = self.ending.after_update(view, self._sim.server.movement)
        if reason:
            self._sim.end("finished", reason)
        self._look_at = view.dataset_size * self.ending.next_epoch

    def evaluate(self, number: int) -> None:
        """Evaluate the current version; rules see the evaluations that are numbered from 1."""
        sim, view = self._sim, self._view
        if not sim.gradients:
            return
        self.evaluated = view.version, view.samples
        values = {"epoch": view.epoch} | sim.evaluator.evaluate(*self.model())
        if number > 0:
            self.unseen = ev.Evaluated(number, view.version, values)
            sim.agenda.add(sim.now, MEMBERSHIP, -1, self.unseen)
        else:
            self._record(number, values)
        sim.show()
        reason = self.ending.after_evaluation(values) if number > 0 else ""
        if reason:
            sim.end("finished", reason)

    def evaluate_last(self) -> None:
        """Evaluate the version of the end, unless that was done or has no numbers."""
        if self.unseen is not None:
            self._record(-1, self.unseen.values)
        elif self.evaluated != (self._view.version, self._view.samples) and self._sim.status != "diverged":
            self.evaluate(-1)

    def _record(self, number: int, values: dict[str, float]) -> None:
        """Log an evaluation that no rule sees: before the first step (0) or after the last (-1)."""
        sim, version = self._sim, self._view.version
        sim.log.add(Kind.EVALUATED, sim.now, id=number, version=version, text=plain_json(values))

    def model(self) -> tuple[Tensor, Tensor]:
        """Return the model that a person would take away: where workers' models drift apart, their mean."""
        sim = self._sim
        drifts = sim.composition.communication.pushes == "together"
        mean = sim.workers.mean() if drifts and sim.workers is not None else None
        return mean or (sim.server.parameters, sim.server.buffers)
