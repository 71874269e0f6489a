"""The gradients of one simulated cluster on all cores against one, by the clock; the logs must be the same.

The first row is the machine's limit: the steps of as many bare torch loops at once, over as many times those
of one loop. Where it is far below 1, the cores share something, and the other rows cannot be above it.

The processes' start is not counted: a run pays it once, and "auto" only when a run is long enough. Nothing is
evaluated: in a run this short that would take longer than the gradients.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import torch

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.system.allocator import keep_freed_memory
from psbench.training.build import Workload
from psbench.training.trainer import StepTask
from tests.benchmarks.measure import Pictures, Row, Rows, in_turns

#: of all workers together
STEPS, WORKERS, BATCH = 240, 12, 32
STRATEGIES = {
    "ASP": "asp",
    "BSP": "bsp",
    "Strategy-Switch": {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}},
    "local SGD": {"name": "local_sgd", "local_steps": 4},
}


def _workload(strategy: object, processes: int) -> Workload:
    return Workload.build(
        Experiment(
            data=Pictures(),
            model="cnn",
            cluster={"workers": WORKERS},
            strategy=strategy,
            batch_size=WORKERS * BATCH,
            stop={"epochs": STEPS * BATCH / 6000},
            evaluate_every=1e9,
            processes=processes,
        )
    )


def _seconds(workload: Workload, digests: set[str]) -> float:
    """Return the seconds of a run from its first event to its last, whose processes are there already."""
    log = EventLog()
    simulation = Simulation(workload, log, Control())
    steps = simulation.cluster.steps
    model = workload.parameters, workload.buffers
    first = [StepTask(0, -n, np.arange(BATCH)) for n in range(1, 1 + 4 * workload.experiment.processes)]
    for job in first:  # every process has built what it needs then
        steps.begin(job, *model, 0.0)
    for job in first:
        steps.result(job, *model)
    steps.evaluate = lambda *_: {"train_loss": 1.0, "val_loss": 1.0}  # type: ignore[method-assign]
    began = time.perf_counter()
    simulation.run()
    digests.add(log.digest())
    return time.perf_counter() - began


#: steps of a bare network in three seconds, once all processes are ready
_LOOP = """
import sys, time, torch
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
x, y = torch.randn(32, 784), torch.randint(10, (32,))
def step():
    torch.nn.functional.cross_entropy(net(x), y).backward()
for _ in range(50):
    step()
print(flush=True)
sys.stdin.readline()
steps, ends = 0, time.monotonic() + 3
while time.monotonic() < ends:
    step()
    steps += 1
print(steps)
"""


def _loops(processes: int) -> float:
    """Return the steps a second that so many bare torch loops take at once, together."""
    command = [sys.executable, "-c", _LOOP]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **pipes) for _ in range(processes)]  # type: ignore[call-overload]
    for each in running:
        each.stdout.readline()
    for each in running:
        each.stdin.write("begin\n")
        each.stdin.flush()
    return sum(int(each.communicate()[0]) for each in running) / 3


def run() -> Rows:
    """Measure what the machine gives to several loops at once, then each strategy in turns."""
    torch.set_num_threads(1)
    keep_freed_memory()
    cores = len(os.sched_getaffinity(0))
    together, alone = in_turns([lambda: _loops(cores), lambda: _loops(1)], 3)
    rows: Rows = [
        Row(
            f"the machine's limit: {cores} bare torch loops at once / one, over {cores}",
            f"{together:.0f} steps/s",
            f"one loop: {alone:.0f} steps/s",
            limit := together / alone / cores,
        )
    ]
    for name, strategy in STRATEGIES.items():
        sides, digests = [_workload(strategy, n) for n in (cores, 1)], set()
        ours, one = in_turns([lambda w=w, d=digests: _seconds(w, d) for w in sides], 5)
        if len(digests) != 1:
            raise AssertionError(f"{name}: the logs of {cores} processes and of one differ")
        rows.append(
            Row(
                f"simulated CNN, 12 workers, {name}: speed-up by {cores} processes / {cores}",
                f"{ours:.2f} s",
                f"one process: {one:.2f} s; the limit: {limit:.2f}",
                one / ours / cores,
                *(0.85, 0.95),
            )
        )
    return rows
