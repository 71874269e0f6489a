"""Checks of settings that a live run does not support."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from psbench.core.collective import Replicas
from psbench.core.shared_memory import SharedMemory
from psbench.errors import ParameterError

if TYPE_CHECKING:
    from psbench.core.strategy import Strategy
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
            _check_shared_memory(experiment, composition)
    if experiment.timing_only:
        raise ParameterError("timing_only: only the simulated backend can skip the gradients")


def _check_tolerance(experiment: Experiment) -> None:
    for composition in experiment.strategy.compositions:
        placement = composition.placement
        if placement.num_servers != 1 or isinstance(placement, (Replicas, SharedMemory)):
            raise ParameterError(
                f"stop.tolerance: on dask no process of {composition.name!r} has the whole model; use a "
                "parameter server with servers: 1, 'map_reduce', or the simulated backend"
            )


def _check_shared_memory(experiment: Experiment, composition: Strategy) -> None:
    name = f"strategy {composition.name!r}"
    if not hasattr(os, "memfd_create"):
        raise ParameterError(f"{name}: on dask it needs Linux; use the simulated backend")
    if getattr(composition.consistency, "write_s", 0.0):
        raise ParameterError(
            f"{name}: write_s is for virtual time, and a live write takes the time that it takes; "
            "set write_s: 0"
        )
    if experiment.optimizer.tensors:
        raise ParameterError(
            f"{name}: on dask the workers share the model and no state of optimizer "
            f"{experiment.optimizer.name!r}; use 'sgd' without momentum, or the simulated backend"
        )
