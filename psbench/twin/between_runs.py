"""Deviation of runs from their twins beyond the variation over seeds, which bands must include."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from psbench.arrays import Doubles
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.twin.exchanges import last_version
from psbench.twin.replayed import without_gradients

ClusterOf = Callable[[Experiment, int], Mapping[str, Any]]
#: twins of each probe, and by what their seeds begin
_TWINS, _SEED = 6, 9000
#: quantile of a two-sided 90 % interval
_END = 0.95


def between_runs(runs: Sequence[Run], cluster_of: ClusterOf) -> tuple[float, int]:
    """Return the standard deviation of the logarithm of a run's seconds that its twin does not explain.

    Each probe is compared with its twins: what is left over has the fit's lack, and what differs from one
    run to another (who else used the machine, where processes were put). The level of each kind of probe was
    fitted to, so that of n runs of k kinds n - k are free. Of few the deviation is hardly known: it is made
    larger by Student's factor, before what the twins have of their own is taken off. `cluster_of` returns
    what was fitted for an experiment, drawn for a seed.

    Returns
    -------
    (float, int)
        The deviation, and how many runs were free; 0 of both if each probe was run once.
    """
    kinds = _kinds(runs)
    free = len(runs) - len(kinds)
    if not free:
        return 0.0, 0
    squares, luck = 0.0, 0.0
    for same in kinds:
        apart, variance = _beside_twins(same, cluster_of)
        squares += float((apart**2).sum())
        luck += len(same) * variance
    student = float(stats.t.ppf(_END, free) / stats.norm.ppf(_END))
    beyond = student**2 * squares / free - luck / len(runs)
    return math.sqrt(max(0.0, beyond)), free


def between_sizes(runs: Sequence[Run], workers: int, cluster_of: ClusterOf) -> float:
    """Return the error of a fit per doubling of its workers, as a deviation of the logarithm.

    `runs` are of other numbers of workers than were fitted to: by how much their twins err, beside the luck
    of seeds, over the doublings between. What it holds needs no model: cores, sockets, and what else more
    processes share. Each kind of run tells one error.
    """
    squares = list[float]()
    for same in _kinds(runs):
        apart, variance = _beside_twins(same, cluster_of)
        doublings = math.log2(same[0].experiment.num_workers / workers)
        squares.append((float(apart.mean()) ** 2 - variance / len(same)) / doublings**2)
    return math.sqrt(max(0.0, sum(squares) / len(squares))) if squares else 0.0


def _kinds(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs grouped by probe."""
    kinds: dict[tuple[str, int, int, float], list[Run]] = {}
    for run in runs:
        own = run.experiment
        key = own.title, own.num_workers, own.batch_size, float(last_version(run.log)[0])
        kinds.setdefault(key, []).append(run)
    return list(kinds.values())


def _beside_twins(same: Sequence[Run], cluster_of: ClusterOf) -> tuple[Doubles, float]:
    """Return the deviation of each run's logarithm from the mean of its twins, and the twins' variance."""
    live = np.log([last_version(run.log)[1] for run in same])
    experiment = same[0].experiment
    twin = np.log([_seconds(experiment, cluster_of(experiment, each), each) for each in range(_TWINS)])
    return live - twin.mean(), float(twin.var(ddof=1))


def _seconds(experiment: Experiment, cluster: Mapping[str, Any], number: int) -> float:
    changes = {"backend": "simulated", "scheduler": None, "seed": _SEED + number, "evaluate_every": 1e6}
    twin = without_gradients(experiment.but(cluster=dict(cluster), **changes))
    return last_version(run_experiment(twin).log)[1]
