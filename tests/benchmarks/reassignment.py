"""Time of the same updates with and without re-assignment by load, on uneven and on slow servers.

The perceptron of 109,386 parameters (784-128-64-10), eight workers, virtual time without gradients: 400
updates under a barrier, or as many pushes without one. A step takes 1 ms and 0.1 ms a sample; the servers'
links carry 1 Gbit/s, but for a slow one of 100 Mbit/s. The momentum moves with its parameter.
"""

from __future__ import annotations

from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from tests.benchmarks.measure import Row, Rows

WORKERS, UPDATES = 8, 400
FAST, SLOW = 1000.0, 100.0
CASES = (
    ("by layer on 2 equal servers", "layer", [FAST, FAST]),
    ("evenly on 2, one slow", "contiguous", [SLOW, FAST]),
    ("by layer on 2, the fuller slow", "layer", [SLOW, FAST]),
    ("evenly on 4, one slow", "contiguous", [SLOW, FAST, FAST, FAST]),
)


def run() -> Rows:
    """Return a row for each strategy and case."""
    return [_row(strategy, *case) for strategy in ("bsp", "asp") for case in CASES]


def _row(strategy: str, name: str, assignment: str, links: list[float]) -> Row:
    still, moving = (_run(strategy, assignment, links, rule) for rule in ("none", "by_load"))
    before, after = still.meta["time_s"], moving.meta["time_s"]
    moves = moving.summary()["reassignments"]
    worst = f"{moves[0]['imbalance']['before']:.2f} then {moves[-1]['imbalance']['after']:.2f} times the mean"
    held = ", ".join(map(str, moves[-1]["entries"]))
    moved = sum(move["bytes"] for move in moves) / 1e3
    return Row(
        f"{strategy}, {name}: still / moving",
        f"{after:.2f} s, {moved:.0f} kB in {len(moves)} move, then {held}",
        f"{before:.2f} s; busiest {worst}",
        before / after,
    )


def _run(strategy: str, assignment: str, links: list[float], reassignment: str) -> Run:
    placement = {
        **{"name": "parameter_server", "servers": len(links), "assignment": assignment},
        "reassignment": reassignment,
    }
    experiment = Experiment(
        strategy={"name": strategy, "placement": placement},
        data={"name": "mixture", "num_samples": 4000, "num_features": 784, "num_classes": 10},
        model={"name": "mlp", "hidden": [128, 64]},
        cluster={
            **{"workers": WORKERS, "seconds_per_step": 1e-3, "seconds_per_sample": 1e-4},
            "server_bandwidth_mbit_s": links,
        },
        optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9},
        batch_size=8 * WORKERS,
        stop={"updates": UPDATES * (1 if strategy == "bsp" else WORKERS)},
        timing_only=True,
    )
    return run_experiment(experiment)
