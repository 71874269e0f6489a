"""Replay of a run in virtual time with its measured times: the remaining error is the simulator's."""

from __future__ import annotations

from typing import Any

from psbench.core.log import EventLog, Kind
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.twin.exchanges import SHORTEST_S, Exchanges, exchanges_of, last_version

#: links that take what the trace says and nothing more
_NO_LINKS = {"bandwidth_mbit_s": 1e12, "server_bandwidth_mbit_s": 1e12, "server_latency_s": 0.0}
#: what the step takes that a worker was at when the run ended
_UNENDED_S = 1e4
#: a step that was cancelled takes longer than until then by this factor
_LONGER = 1.5


def played_again(run: Run) -> Run:
    """Return a simulated run with the measured times of a live run's steps and messages, in order.

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
    """Return the experiment as timing-only, if its strategy and its stop rules do not need losses."""
    needy = [each.needs_gradients for each in experiment.strategy.compositions]
    return experiment if any(needy) or experiment.reads_validation else experiment.but(timing_only=True)


def _epochs(experiment: Experiment) -> dict[str, Any]:
    """Return the number of epochs, which some switch rules need."""
    return {} if experiment.stop.epochs is None else {"epochs": experiment.stop.epochs}


def own_times(log: EventLog, workers: int) -> dict[str, Any]:
    """Return a cluster with the measured times of a run's steps and messages, in order."""
    found = exchanges_of(log)
    own = [_series(found, _cancelled(log, worker), worker) for worker in range(workers)]
    ends = [[*up] or [SHORTEST_S] for _, up, _ in own] + [[*down] or [SHORTEST_S] for _, _, down in own]
    steps = {"name": "trace", "order": "in_order", "seconds": [[*step, _UNENDED_S] for step, _, _ in own]}
    links = {"name": "trace", "order": "in_order", "seconds": ends}
    hop = {"latency_s": _hop_s(found, workers)}
    return {"workers": workers, "step_time": steps, "link_time": links, **hop, **_NO_LINKS}


def _series(
    found: Exchanges, cancelled: list[tuple[float, float]], worker: int
) -> tuple[list[float], list[float], list[float]]:
    """Return a worker's seconds of steps, of messages up, and of messages down, in order.

    Of a step that was cancelled, of which no more is known, it is that it took longer than until then.
    """
    each = found.where(found.worker == worker)
    columns = each.released_s, each.compute_s, each.steps, each.down_s
    rows = [(begun, [s] * n, down) for begun, s, n, down in zip(*(c.tolist() for c in columns), strict=True)]
    rows += [(begun, [_LONGER * (end - begun) + SHORTEST_S], SHORTEST_S) for begun, end in cancelled]
    rows.sort()
    return [s for _, steps, _ in rows for s in steps], each.up_s.tolist(), [down for _, _, down in rows]


def _cancelled(log: EventLog, worker: int) -> list[tuple[float, float]]:
    """Return the begin and end of each cancelled step."""
    found, released = [], -1.0
    for row in log.rows():
        if row["worker"] == worker and row["kind"] == Kind.RELEASE:
            released = float(row["time_s"])
        elif row["worker"] == worker and row["kind"] == Kind.CANCEL and released >= 0:
            found.append((released, float(row["time_s"])))
    return found


def _hop_s(found: Exchanges, workers: int) -> float:
    """Return the latency for which a simulated ring takes as long as the run's collectives."""
    took = found.collective_s[found.collective_s > 0]
    # a ring has 2 (n - 1) hops, and is ordered and confirmed by a message each
    return float(took.mean()) / (2 * workers) if len(took) else 0.0
