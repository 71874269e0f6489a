"""10,000 workers: 100 steps each, timing only; CPU time.

It takes ten minutes, so it is not among the rows that run without a name.
"""

from __future__ import annotations

import time

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.log import EventLog
from tests.benchmarks.measure import Row, Rows
from tests.benchmarks.simulated_events import workload

WORKERS, STEPS = 10_000, 100
#: strategies in which no worker waits for all others, and that need no gradients to decide
STRATEGIES = ("asp", "ssp", "dssp", "k_asp", "k_batch_asp", "n_softsync", "con_sgd", "dyn_sgd")


def run() -> Rows:
    """Run each strategy once: the limits are far enough away."""
    return [*map(_row, STRATEGIES)]


def _row(strategy: str) -> Row:
    began = time.process_time()
    Simulation(workload(strategy, WORKERS, WORKERS * STEPS), EventLog(), Control()).run()
    seconds = time.process_time() - began
    what = f"{WORKERS:,} workers, {STEPS} steps each, timing only: {strategy}"
    return Row(what, f"{seconds:.1f} s of CPU", "", seconds, 60.0, unit="s", lower_is_better=True)
