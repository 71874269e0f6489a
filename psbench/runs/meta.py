"""The facts that a saved run holds about itself, beside its specification and its log."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
from torch import Tensor

from psbench.backends.outcome import Outcome
from psbench.core.collective import Collective, servers_that_add
from psbench.core.parts import Placement
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import AnyStrategy
from psbench.experiment import Experiment
from psbench.training.build import Workload


def meta_of(experiment: Experiment, workload: Workload, outcome: Outcome, wall_s: float) -> dict[str, Any]:
    """Return the facts of a run that has ended, as plain data."""
    rate, workers = experiment.worker_optimizer.lr, workload.profile.num_workers
    return {
        "name": experiment.title,
        "strategy": experiment.strategy.name,
        "compositions": [composition.name for composition in experiment.strategy.compositions],
        "backend": experiment.backend,
        "seed": experiment.seed,
        "status": outcome.status,
        "reason": outcome.reason,
        "target_accuracy": experiment.stop.target_accuracy,
        **_declared(experiment),
        **_costs(experiment),
        "params_digest": params_digest(outcome.parameters, outcome.buffers),
        "lr_convention": lr_convention(experiment.strategy, rate, workers),
        "versions": versions(),
        "wall_s": wall_s,
        **workload.facts(),
        **outcome.facts,
    }


def params_digest(parameters: Tensor | None, buffers: Tensor | None) -> str | None:
    """Return the SHA-256 of the model's bytes; None without a model."""
    if parameters is None or buffers is None:
        return None
    content = hashlib.sha256(np.ascontiguousarray(parameters.numpy()).data)
    content.update(np.ascontiguousarray(buffers.numpy()).data)
    return content.hexdigest()


def lr_convention(strategy: AnyStrategy, lr: float, num_workers: int) -> str:
    """Say in words which rate an update uses."""
    return "; ".join(f"{c.name}: {_rate_of(c, lr, num_workers)}" for c in strategy.compositions)


def _rate_of(composition: Strategy, lr: float, num_workers: int) -> str:
    if composition.has_local_steps:
        return f"lr = {lr:g} for each worker's own steps{composition.aggregation.outer_rate_in_words}"
    if composition.lr_scaling == "by_share":
        return f"lr k/n = {lr:g} k/{num_workers} for an update of k pushes"
    return f"lr = {lr:g} an update"


def _declared(experiment: Experiment) -> dict[str, Any]:
    """Return the target and the own metrics, if any, each with whether lower values are better."""
    target, metrics = experiment.stop.target, experiment.metrics
    found: dict[str, Any] = {} if target is None else {"target": target.model_dump(exclude_none=True)}
    if metrics:
        found["metrics"] = {each.column(name): each.lower_is_better for name, each in metrics.items()}
    return found


def _costs(experiment: Experiment) -> dict[str, Any]:
    """Return the watts and prices of the cluster, if it has some, with the machines that a run takes."""
    cluster = experiment.cluster
    if cluster.costs is None:
        return {}
    found = cluster.costs.facts(cluster.num_workers)
    found["servers"] = max(_num_servers(each.placement) for each in experiment.strategy.compositions)
    if experiment.backend == "simulated" and cluster.service.takes_time:
        found["service"] = cluster.service.model_dump()
    return {"costs": found}


def _num_servers(placement: Placement) -> int:
    """Return the number of machines that hold parameters or add up, beside the workers."""
    if isinstance(placement, PeerToPeer):
        return 0
    return servers_that_add(placement) if isinstance(placement, Collective) else placement.num_servers


def versions() -> dict[str, str]:
    """Return the versions that results may depend on."""
    names = ("psbench", "torch", "numpy", "scikit-learn", "distributed")
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


@cache  # five files to read: a fifth of the time of a short run
def _version(name: str) -> str:
    return metadata.version(name)
