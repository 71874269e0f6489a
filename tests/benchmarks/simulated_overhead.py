"""A simulated run against a bare torch loop that computes as many gradients of the same model.

The bare loop runs in a process of its own: a simulated run tells the C library of its process to keep the
memory that is freed, which a bare loop does not.
"""

from __future__ import annotations

import multiprocessing
import time

import torch
from torch.nn import functional
from torch.utils.data import BatchSampler, RandomSampler

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.system.allocator import keep_freed_memory
from psbench.training.build import Workload
from tests.benchmarks.measure import Pictures, Row, Rows, in_turns


def measure(model: str, data: object, updates: int, repeats: int) -> tuple[float, float]:
    """Return the CPU seconds a step of a simulated run and of a bare loop."""
    given = model, data, updates
    workload = _workload(*given)
    keep_freed_memory()  # as `run_simulated` does
    with multiprocessing.get_context("spawn").Pool(1) as alone:
        sides = [lambda: _simulated(workload), lambda: alone.apply(_bare, given)]
        return tuple(t / updates for t in in_turns(sides, repeats))


def _workload(model: str, data: object, updates: int) -> Workload:
    experiment = Experiment(
        data=data,
        model=model,
        cluster="hermes",
        strategy="asp",
        batch_size=12 * 32,
        stop={"updates": updates},
        evaluate_every=1e9,
        optimizer={"name": "sgd", "lr": 0.01, "momentum": 0.9},
    )
    return Workload.build(experiment)


def _simulated(workload: Workload) -> float:
    simulation = Simulation(workload, EventLog(), Control())
    simulation.evaluation.evaluate = lambda number, now: None  # a bare loop does not evaluate either
    began = time.process_time()
    simulation.run()
    return time.process_time() - began


def _bare(model: str, data: object, updates: int) -> float:
    """Train as a torch tutorial does: batches by index, cross entropy, SGD."""
    torch.set_num_threads(1)
    workload = _workload(model, data, updates)
    experiment, data = workload.experiment, workload.data
    module = experiment.model.build(tuple(data.train_x.shape[1:]), len(data.classes), workload.streams)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    module.train()
    began = time.process_time()
    done = 0
    while done < experiment.stop.updates:
        for where in BatchSampler(RandomSampler(data.train_y), 32, drop_last=True):
            if done == experiment.stop.updates:
                break
            loss = functional.cross_entropy(module(data.train_x[where]), data.train_y[where])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            done += 1
    return time.process_time() - began


def run() -> Rows:
    """Measure the CNN, and the MLP on digits for comparison, where a gradient costs next to nothing."""
    torch.set_num_threads(1)
    cnn = measure("cnn", Pictures(), 120, 7)
    mlp = measure("mlp", "digits", 1000, 7)
    what = "simulated run / bare torch loop"
    return [
        Row(f"{what}: CNN, 12 workers, ASP", *_words(cnn), cnn[0] / cnn[1], 1.05, 1.0, lower_is_better=True),
        Row(f"{what}: MLP on digits", *_words(mlp), mlp[0] / mlp[1], 1.05, 0.65, lower_is_better=True),
    ]


def _words(sides: tuple[float, float]) -> tuple[str, str]:
    ours, bare = (f"{1e6 * s:,.0f} us a step" for s in sides)
    return ours, f"bare loop: {bare}"
