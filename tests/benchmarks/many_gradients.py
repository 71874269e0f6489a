"""A step with gradients of 10,000 workers beside one of 100, and of D-PSGD beside ASP, in CPU time.

Both runs take turns of some hundred steps in one process, so that other programs slow both alike. Whole
rounds are measured: under a barrier the last push of a round has work of its own. A worker's first step also
makes its random streams and shuffles its shard; it is a row of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.training.build import Workload
from psbench.training.trainer import StepResult
from tests.benchmarks.measure import Row, Rows

#: steps of a worker between two pushes, by strategy
STRATEGIES = {"asp": 1, "ssp": 1, "bsp": 1, "local_sgd": 2, "d_psgd": 1}
MANY, FEW = 10_000, 100
#: training samples: no worker of 10,000 comes to the end of its own
SAMPLES = 220_000
TURN = 500


def run() -> Rows:
    """Measure each strategy at both sizes, then two strategies at one."""
    rows: Rows = [row for strategy in STRATEGIES for row in _of_strategy(strategy)]
    both = [_Begun("d_psgd", FEW), _Begun("asp", FEW)]
    for each in both:
        each.first_us()
    ours, other = _steps_us(both, 5000)
    what = f"a step with gradients, {FEW} workers: d_psgd / asp"
    return [*rows, Row(what, f"{ours:.0f} us", f"{other:.0f} us", ours / other, lower_is_better=True)]


def _of_strategy(strategy: str) -> Rows:
    many, few = _Begun(strategy, MANY), _Begun(strategy, FEW)
    first = many.first_us()
    few.first_us()
    ours, other = _steps_us([many, few], MANY * STRATEGIES[strategy])
    what = f"a step with gradients, {strategy}: {MANY:,} workers / {FEW}"
    return [
        Row(what, f"{ours:.0f} us", f"{other:.0f} us", ours / other, 1.2, lower_is_better=True),
        Row(
            f"a worker's first step, {strategy} / a later one, {MANY:,} workers",
            f"{first:.0f} us",
            f"{ours:.0f} us",
            first / ours,
            lower_is_better=True,
        ),
    ]


class _Begun:
    """A run of the smallest steps, one sample each, that ends later than anybody looks."""

    def __init__(self, strategy: str, workers: int) -> None:
        local = STRATEGIES[strategy]
        given = Workload.build(
            Experiment(
                strategy=strategy if local == 1 else {"name": strategy, "local_steps": local},
                data={"name": "mixture", "num_samples": SAMPLES, "val_fraction": 0.001},
                model="logistic",
                sharding="random",
                batch_size=workers,
                evaluate_every=1e9,
                stop={"epochs": 1e6},
                cluster={"name": "homogeneous", "workers": workers},
                processes=1,
            )
        )
        self.steps, self.cpu_s, self._workers = 0, 0.0, workers
        self._simulation = Simulation(given, EventLog(), Control())
        trainer = self._simulation.cluster.trainer
        assert trainer is not None
        self._compute, trainer.compute = trainer.compute, self._counted  # type: ignore[method-assign]

    def _counted(self, *given: Any) -> StepResult:
        self.steps += 1
        return self._compute(*given)

    def first_us(self) -> float:
        """Let each worker take a step; return the microseconds of one."""
        began = time.process_time()
        self._simulation._begin()
        while self.steps < self._workers:
            self._simulation._handle_events(64)
        return 1e6 * (time.process_time() - began) / self._workers

    def take(self, steps: int) -> None:
        """Take some more steps."""
        until, began = self.steps + steps, time.process_time()
        while self.steps < until:
            self._simulation._handle_events(64)
        self.cpu_s += time.process_time() - began


def _steps_us(runs: Sequence[_Begun], steps: int) -> list[float]:
    """Return the microseconds of a step in each run, over so many steps taken in turns."""
    before = [run.steps for run in runs]
    for turn in range(steps // TURN):
        for run in runs if turn % 2 else reversed(runs):
            run.take(TURN)
    return [1e6 * run.cpu_s / (run.steps - was) for run, was in zip(runs, before, strict=True)]
