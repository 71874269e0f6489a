"""The simulator without gradients: logged rows a second, and how the cost of one grows with the workers."""

from __future__ import annotations

import heapq
import math
import random
import time

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.training.workload import Workload
from tests.benchmarks.measure import Row, Rows, in_turns

PUSHES_A_WORKER = 150
#: strategies in which no worker waits for all others, and that need no gradients to decide
WITHOUT_BARRIER = ("asp", "ssp", "dssp", "k_asp", "k_batch_asp", "n_softsync", "con_sgd", "dyn_sgd")


def workload(strategy: str, workers: int, pushes: int) -> Workload:
    """Return a timing-only experiment that ends after that many pushes."""
    updates = pushes // workers if strategy == "bsp" else pushes
    return Workload.build(
        Experiment(
            strategy=strategy,
            timing_only=True,
            batch_size=workers,
            stop={"updates": updates},
            cluster={"name": "homogeneous", "workers": workers},
        )
    )


def seconds_a_row(given: Workload) -> float:
    """Return the CPU seconds of one logged row of a whole run."""
    log = EventLog()
    return _seconds(given, log) / len(log)


def seconds_a_run(given: Workload) -> float:
    """Return the CPU seconds of a whole run."""
    return _seconds(given, EventLog())


def _seconds(given: Workload, log: EventLog) -> float:
    simulation = Simulation(given, log, Control())
    began = time.process_time()
    simulation.run()
    return time.process_time() - began


def bare_heap(workers: int = 1000, pops: int = 200_000) -> float:
    """Return the CPU seconds of one turn of a loop that does nothing but keep a heap of times."""
    rng = random.Random(0)
    heap = [(rng.random(), worker) for worker in range(workers)]
    heapq.heapify(heap)
    began = time.process_time()
    for _ in range(pops):
        now, worker = heap[0]
        heapq.heapreplace(heap, (now + rng.random(), worker))
    return (time.process_time() - began) / pops


def run() -> Rows:
    """Measure BSP, ASP and SSP at 1,000 workers, and ASP from 1,000 to 10,000."""
    rows: Rows = []
    for strategy in ("bsp", "asp", "ssp"):
        given = workload(strategy, 1000, 1000 * PUSHES_A_WORKER)
        ours, heap = in_turns([lambda given=given: seconds_a_row(given), bare_heap], 3)
        rows.append(
            Row(
                f"a row, timing only, 1,000 workers, {strategy.upper()} / a turn of a bare heap",
                f"{1e6 * ours:.2f} us",
                f"{1e6 * heap:.2f} us",
                ours / heap,
                *(4.0, 3.0),
                lower_is_better=True,
            )
        )
    return [*rows, *_growth(), *_many()]


def _many() -> Rows:
    """Run 10,000 workers for 100 steps each under every strategy without a barrier."""
    rows: Rows = []
    for strategy in WITHOUT_BARRIER:
        given = workload(strategy, 10_000, 1_000_000)
        seconds = seconds_a_run(given)
        what = f"10,000 workers, 100 steps each, timing only: {strategy}"
        rows.append(Row(what, f"{seconds:.1f} s of CPU", "", seconds, 60.0, unit="s", lower_is_better=True))
    return rows


def _growth() -> Rows:
    """Compare the cost of a row with the logarithm of the number of workers."""
    sizes = (1000, 10_000)
    problems = [workload("asp", workers, workers * 30) for workers in sizes]
    small, large = in_turns([lambda p=p: seconds_a_row(p) for p in problems], 3)
    growth = large / small / (math.log(sizes[1]) / math.log(sizes[0]))
    return [
        Row(
            "growth of a row's cost, 1,000 to 10,000 workers / growth of log(workers)",
            f"{1e6 * large:.2f} us",
            f"at 1,000: {1e6 * small:.2f} us",
            growth,
            1.0,
            lower_is_better=True,
        )
    ]
