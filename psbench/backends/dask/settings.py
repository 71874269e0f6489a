"""Checks of settings that a live run does not support."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psbench.core.collective import Replicas
from psbench.core.shared_memory import SharedMemory
from psbench.errors import ParameterError

if TYPE_CHECKING:
    from psbench.experiment import Experiment


def check(experiment: Experiment) -> None:
    """Raise unless the experiment can run live.

    Raises
    ------
    ParameterError
    """
    if experiment.processes not in ("auto", 1):
        raise ParameterError("processes: on dask every worker has its own process; remove this setting")
    if experiment.connection.scheduler_file is not None and experiment.scheduler:
        raise ParameterError("connection.scheduler_file: replaces `scheduler`; give only one of them")
    experiment.recovery.check(experiment.num_workers, experiment.strategy.compositions)
    if experiment.stop.tolerance is not None:
        _check_tolerance(experiment)
    if experiment.cluster.throttles:
        raise ParameterError(
            "cluster: throttles apply in virtual time only; a live run uses the links of its machines"
        )
    for composition in experiment.strategy.compositions:
        if isinstance(composition.placement, SharedMemory):
            raise ParameterError(
                f"strategy {composition.name!r}: workers of a live run share no memory; use the simulated "
                "backend, or 'asp' on dask"
            )
    if experiment.timing_only:
        raise ParameterError("timing_only: only the simulated backend can skip the gradients")


def _check_tolerance(experiment: Experiment) -> None:
    for composition in experiment.strategy.compositions:
        placement = composition.placement
        if placement.num_servers != 1 or isinstance(placement, Replicas):
            raise ParameterError(
                f"stop.tolerance: on dask no process of {composition.name!r} has the whole model; use a "
                "parameter server with servers: 1, 'map_reduce', or the simulated backend"
            )
