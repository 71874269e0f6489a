"""By how much a run deviates from its twin, beyond the luck of a seed: what bands have to hold beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.twin.exchanges import last_version
from psbench.twin.replayed import without_gradients

#: twins of each probe, and by what their seeds begin
_TWINS, _SEED = 6, 9000
#: quantile of a two-sided 90 % interval
_END = 0.95


def between_runs(
    runs: Sequence[Run], cluster_of: Callable[[Experiment], Mapping[str, Any]]
) -> tuple[float, int]:
    """Return the standard deviation of the logarithm of a run's seconds that its twin does not have.

    Each probe is compared with its twins: what is left over has the fit's lack, and what differs from one
    run to another (who else used the machine, where processes were put). The level of each kind of probe was
    fitted to, so that of n runs of k kinds n - k are free. Of few the deviation is hardly known: it is made
    larger by Student's factor. `cluster_of` returns what was fitted, for an experiment's strategy.

    Returns
    -------
    (float, int)
        The deviation, and how many runs were free; 0 of both if each probe was run once.
    """
    kinds: dict[tuple[str, int, float], list[Run]] = {}
    for run in runs:
        key = run.experiment.title, run.experiment.batch_size, float(last_version(run.log)[0])
        kinds.setdefault(key, []).append(run)
    free = len(runs) - len(kinds)
    if not free:
        return 0.0, 0
    squares, twins = 0.0, 0.0
    for same in kinds.values():
        live = np.log([last_version(run.log)[1] for run in same])
        experiment, cluster = same[0].experiment, cluster_of(same[0].experiment)
        twin = np.log([_seconds(experiment, cluster, each) for each in range(_TWINS)])
        squares += float(((live - twin.mean()) ** 2).sum())
        twins += len(same) * float(twin.var(ddof=1))
    beyond = squares / free - twins / len(runs)
    student = float(stats.t.ppf(_END, free) / stats.norm.ppf(_END))
    return student * math.sqrt(max(0.0, beyond)), free


def _seconds(experiment: Experiment, cluster: Mapping[str, Any], number: int) -> float:
    changes = {"backend": "simulated", "scheduler": None, "seed": _SEED + number, "evaluate_every": 1e6}
    twin = without_gradients(experiment.but(cluster=dict(cluster), **changes))
    return last_version(run_experiment(twin).log)[1]
