"""10,000 workers: 100 steps each, timing only; a step with gradients beside one of 100 workers; CPU time.

It takes a quarter of an hour, so it is not among the rows that run without a name.
"""

from __future__ import annotations

import time

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.training.build import Workload
from tests.benchmarks.measure import Row, Rows
from tests.benchmarks.simulated_events import workload

WORKERS, STEPS = 10_000, 100
#: strategies in which no worker waits for all others, and that need no gradients to decide
STRATEGIES = ("asp", "ssp", "dssp", "k_asp", "k_batch_asp", "n_softsync", "con_sgd", "dyn_sgd")


#: those of which a step with gradients is measured
WITH_GRADIENTS = ("asp", "ssp", "bsp", "local_sgd", "d_psgd")
#: rows of the data: no worker of 10,000 comes to the end of its own
ROWS = 220_000


def run() -> Rows:
    """Run each strategy once: the limits are far enough away."""
    return [*map(_row, STRATEGIES), *map(_gradients, WITH_GRADIENTS)]


def _row(strategy: str) -> Row:
    began = time.process_time()
    Simulation(workload(strategy, WORKERS, WORKERS * STEPS), EventLog(), Control()).run()
    seconds = time.process_time() - began
    what = f"{WORKERS:,} workers, {STEPS} steps each, timing only: {strategy}"
    return Row(what, f"{seconds:.1f} s of CPU", "", seconds, 60.0, unit="s", lower_is_better=True)


def _gradients(strategy: str) -> Row:
    many, few = _step_s(strategy, WORKERS, 4), _step_s(strategy, 100, 200)
    what = f"a step with gradients, {strategy}: {WORKERS:,} workers / 100"
    ours, other = f"{1e6 * many:.0f} us", f"{1e6 * few:.0f} us"
    return Row(what, ours, other, many / few, 1.2, lower_is_better=True)


def _step_s(strategy: str, workers: int, steps: int) -> float:
    """Return the CPU seconds of a step on one sample: of twice as many, without what the first ones cost.

    A worker's first steps draw its random streams and shuffle its shard.
    """
    once, twice = _run_s(strategy, workers, steps), _run_s(strategy, workers, 2 * steps)
    return (twice - once) / (workers * steps)


def _run_s(strategy: str, workers: int, steps: int) -> float:
    given = Workload.build(
        Experiment(
            strategy=strategy,
            data={"name": "mixture", "num_samples": ROWS, "val_fraction": 0.001},
            model="logistic",
            sharding="random",
            batch_size=workers,
            evaluate_every=1000,
            stop={"epochs": workers * steps / (0.999 * ROWS)},
            cluster={"name": "homogeneous", "workers": workers},
            processes=1,
        )
    )
    simulation = Simulation(given, EventLog(), Control())
    began = time.process_time()
    simulation.run()
    return time.process_time() - began
