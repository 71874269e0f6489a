"""The simulated cluster: real gradients in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psbench.backend import Backend
from psbench.errors import ParameterError

if TYPE_CHECKING:
    from psbench.backends.outcome import Outcome
    from psbench.experiment import Experiment


def check(experiment: Experiment) -> None:
    """Refuse settings of a live cluster.

    Raises
    ------
    ParameterError
    """
    if experiment.scheduler is not None:
        raise ParameterError("scheduler: only the dask backend has one; set backend: dask")
    if experiment.connection.scheduler_file is not None:
        raise ParameterError("connection.scheduler_file: only the dask backend has one; set backend: dask")
    recovery = experiment.recovery
    if recovery.lets_workers_join:
        raise ParameterError(
            "recovery: applies to the dask backend only; for simulated failures set cluster.failures"
        )
    if recovery.replicas:
        raise ParameterError("recovery.replicas: servers can be lost on dask only; set backend: dask")


def _run(*given: Any, client: None = None) -> Outcome:
    from psbench.backends.simulated.simulation import run_simulated

    return run_simulated(*given)


BACKEND = Backend(run=_run, check=check)
