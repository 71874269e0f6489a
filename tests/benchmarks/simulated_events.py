"""The simulator without gradients: logged rows a second, and how the cost of one grows with the workers."""

from __future__ import annotations

import heapq
import math
import random
import time
from functools import cache

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.training.build import Workload
from tests.benchmarks.measure import Row, Rows, in_turns

PUSHES_A_WORKER = 150


def workload(strategy: str, workers: int, pushes: int) -> Workload:
    """Return a timing-only experiment that ends after that many pushes, each of a step on one sample."""
    return Workload.build(
        Experiment(
            strategy=strategy,
            timing_only=True,
            batch_size=workers,
            stop={"epochs": pushes / _samples()},
            cluster={"name": "homogeneous", "workers": workers},
        )
    )


@cache
def _samples() -> int:
    """Return how many samples an epoch has."""
    return Workload.build(Experiment(strategy="asp", timing_only=True)).dataset_size


def seconds_a_row(given: Workload) -> float:
    """Return the CPU seconds of one logged row of a whole run."""
    log = EventLog()
    simulation = Simulation(given, log, Control())
    began = time.process_time()
    simulation.run()
    return (time.process_time() - began) / len(log)


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
    return [*rows, *_growth()]


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
