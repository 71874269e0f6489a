"""A simulated run of Hogwild, whose writes take time and overlap, against one of ASP."""

from __future__ import annotations

import time

import torch

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.strategies import asp, hogwild
from psbench.training.build import Workload
from tests.benchmarks.measure import Row, Rows, in_turns

STEPS = 2000


def _seconds_a_step(workload: Workload) -> float:
    simulation = Simulation(workload, EventLog(), Control())
    began = time.process_time()
    simulation.run()
    return (time.process_time() - began) / STEPS


def run() -> Rows:
    """Measure both in turns; a step is one gradient of the MLP on digits."""
    torch.set_num_threads(1)
    workloads = [
        Workload.build(
            Experiment(
                data="digits",
                model="mlp",
                strategy=strategy,
                batch_size=4 * 32,
                cluster={"name": "homogeneous", "workers": 4},
                stop={"updates": STEPS},
                evaluate_every=1e9,
                optimizer={"name": "sgd", "lr": 0.01},
            )
        )
        for strategy in (hogwild(write_s=0.005), asp())
    ]
    ours, theirs = in_turns([lambda each=each: _seconds_a_step(each) for each in workloads], 5)
    figures = (f"{1e6 * seconds:,.0f} us a step" for seconds in (ours, theirs))
    what = "simulated Hogwild / ASP: MLP on digits, 4 workers"
    return [Row(what, *figures, ours / theirs, 1.5, 1.0, lower_is_better=True)]
