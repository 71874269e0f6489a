"""A run played again in virtual time with its own times: what is left over is the mechanism's error."""

from __future__ import annotations

from typing import Any

import numpy as np

from psbench.core.log import EventLog, Kind
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.twin.exchanges import SHORTEST_S, Exchanges, exchanges_of, last_version

#: links that take what the trace says and nothing more
_NO_LINKS = {"bandwidth_mbit_s": 1e12, "server_bandwidth_mbit_s": 1e12, "server_latency_s": 0.0}
#: a step that was cancelled takes longer than until then by this factor
_LONGER = 1.5


def played_again(run: Run) -> Run:
    """Return a simulated run with the steps and messages of a live one, each as long as it took, in order.

    Raises
    ------
    DataError
        If the log does not say how long its messages took; see `exchanges_of`.
    """
    updates, _ = last_version(run.log)
    experiment = run.experiment.but(
        cluster=own_times(run.log, run.experiment.num_workers),
        **{
            "backend": "simulated",
            "scheduler": None,
            "stop": {**_epochs(run.experiment), "updates": updates},
        },
    )
    return run_experiment(without_gradients(experiment))


def without_gradients(experiment: Experiment) -> Experiment:
    """Return the experiment for timing only, if its strategy and its stop decide without losses."""
    needy = [each.needs_gradients for each in experiment.strategy.compositions]
    return experiment if any(needy) or experiment.reads_validation else experiment.but(timing_only=True)


def _epochs(experiment: Experiment) -> dict[str, Any]:
    """Return the epochs of a run, which some switch rules need to know."""
    return {} if experiment.stop.epochs is None else {"epochs": experiment.stop.epochs}


def own_times(log: EventLog, workers: int) -> dict[str, Any]:
    """Return the cluster whose steps and messages take what a run's took, in its order."""
    found = exchanges_of(log)
    ends = [_of(found, worker, "up_s") for worker in range(workers)]
    ends += [_of(found, worker, "down_s") for worker in range(workers)]
    steps = {"name": "trace", "order": "in_order", "seconds": _steps(log, found, workers)}
    hop = {"latency_s": _hop_s(found, workers)}
    links = {"name": "trace", "order": "in_order", "seconds": ends}
    return {"workers": workers, "step_time": steps, "link_time": links, **hop, **_NO_LINKS}


def _of(found: Exchanges, worker: int, column: str) -> list[float]:
    values = getattr(found, column)[found.worker == worker].tolist()
    return values or [SHORTEST_S]


def _hop_s(found: Exchanges, workers: int) -> float:
    """Return the latency with which a ring of all workers takes as long as the run's collectives."""
    took = found.collective_s[found.collective_s > 0]
    # a ring has 2 (n - 1) hops, and is ordered and confirmed by a message each
    return float(took.mean()) / (2 * workers) if len(took) else 0.0


def _steps(log: EventLog, found: Exchanges, workers: int) -> list[list[float]]:
    """Return each worker's seconds a step; one that was cancelled is given more than it had."""
    series: list[list[tuple[float, float, int]]] = [[] for _ in range(workers)]
    columns = found.worker, found.arrived_s, found.compute_s, found.steps
    for worker, at, seconds, steps in zip(*(column.tolist() for column in columns), strict=True):
        series[worker].append((at, seconds, steps))
    released: dict[int, float] = {}
    for row in log.rows():
        worker, now = int(row["worker"]), float(row["time_s"])
        if row["kind"] == Kind.RELEASE:
            released[worker] = now
        elif row["kind"] == Kind.CANCEL and worker in released:
            series[worker].append((now, _LONGER * (now - released.pop(worker)) + SHORTEST_S, 1))
    longest = float(np.max(found.compute_s))
    return [
        [seconds for _, seconds, steps in sorted(own) for _ in range(steps)] or [longest] for own in series
    ]
