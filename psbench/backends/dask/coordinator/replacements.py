"""Roles whose processes are lost, and for which the client looks for another Dask worker."""

from __future__ import annotations

from collections.abc import Iterable

from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import Incident, RoleLost
from psbench.backends.dask.protocol.roles import CLIENT, EVALUATOR, REPLICA, worker_name, worker_number
from psbench.errors import BackendError
from psbench.experiment import Experiment

#: what only the evaluator can measure
_MEASURED_BY_EVALUATOR = {"train_loss", "model_loss", "candidate_loss"}


class Replacements:
    """What happens when a process is lost that the run can continue without, for a while or for good.

    Parameters
    ----------
    experiment : Experiment
    out : Outbox
    expected : iterable of str
        The roles that there is a Dask worker for at the beginning.
    """

    def __init__(self, experiment: Experiment, out: Outbox, expected: Iterable[str]) -> None:
        self._out = out
        self._of_workers = experiment.recovery.lets_workers_join
        self._needs_evaluator = _evaluator_is_needed(experiment)
        names = map(worker_name, range(experiment.num_workers))
        self._missing = set(names).difference(expected) if self._of_workers else set[str]()
        self._awaited = set(self._missing)

    def _tell(self, text: str) -> None:
        self._out.send(CLIENT, Incident(text))

    def lose(self, name: str, now: float, how: str, is_replaced: bool = False) -> None:
        """Have another Dask worker found for evaluator or replica, or for a worker if that is wanted.

        It is not sought if the role `is_replaced` already.
        """
        meanwhile = ": until it is replaced, a lost server costs updates" if name == REPLICA else ""
        self._tell(f"{name} {how} at {now:.1f} s{meanwhile}")
        if self.seeks(name):
            self._missing.add(name)
            self._awaited.add(name)
            if not is_replaced:
                self._out.send(CLIENT, RoleLost(name))

    def seeks(self, name: str) -> bool:
        """Whether another Dask worker is sought for a role that is lost."""
        return name in (EVALUATOR, REPLICA) or self._of_workers

    def is_missing(self, name: str) -> bool:
        """Whether a role is lost, or had no Dask worker at the beginning, and no other has taken it."""
        return name in self._missing

    def find(self, name: str, now: float) -> None:
        """Take note that a role has a process; the client is informed if one was sought."""
        if name not in self._missing:
            return
        self._missing.discard(name)
        self._awaited.discard(name)
        self._tell(f"{name} has joined on another Dask worker at {now:.1f} s")

    def give_up(self, name: str) -> None:
        """Wait no longer for a role; the client goes on looking.

        Raises
        ------
        BackendError
            If it is the evaluator, and a rule reads what it evaluates.
        """
        self._awaited.discard(name)
        if name == EVALUATOR and self._needs_evaluator:
            raise BackendError(
                f"the evaluator was lost, {self._needs_evaluator} needs it, and there is no free Dask worker "
                "for another (recovery.wait_for_workers)"
            )

    @property
    def awaits_worker(self) -> bool:
        """Whether a training worker may come soon."""
        return any(worker_number(name) is not None for name in self._awaited)


def _evaluator_is_needed(experiment: Experiment) -> str:
    """Return what needs the evaluator, in words; empty if nothing does."""
    for composition in experiment.strategy.compositions:
        if _MEASURED_BY_EVALUATOR.intersection(composition.measures):
            return f"strategy {composition.name!r}"
    return experiment.reads_validation or ("optimizer.schedule" if experiment.plateau else "")
