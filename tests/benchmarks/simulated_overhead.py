"""A simulated run against a bare torch loop that computes as many gradients of the same model."""

from __future__ import annotations

import time

import torch
from torch.nn import functional
from torch.utils.data import BatchSampler, RandomSampler

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.training.workload import Workload
from tests.benchmarks.measure import Pictures, Row, Rows, in_turns


def measure(model: str, data: object, updates: int, repeats: int) -> tuple[float, float]:
    """Return the CPU seconds a step of a simulated run and of a bare loop."""
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
    workload = Workload.build(experiment)
    return tuple(
        t / updates for t in in_turns([lambda: _simulated(workload), lambda: _bare(workload)], repeats)
    )


def _simulated(workload: Workload) -> float:
    simulation = Simulation(workload, EventLog(), Control())
    simulation.evaluation.evaluate = lambda number, now: None  # a bare loop does not evaluate either
    began = time.process_time()
    simulation.run()
    return time.process_time() - began


def _bare(workload: Workload) -> float:
    """Train as a torch tutorial does: batches by index, cross entropy, SGD."""
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
        Row(f"{what}: CNN, 12 workers, ASP", *_words(cnn), cnn[0] / cnn[1], 1.10, 1.03, lower_is_better=True),
        Row(f"{what}: MLP on digits", *_words(mlp), mlp[0] / mlp[1], lower_is_better=True),
    ]


def _words(sides: tuple[float, float]) -> tuple[str, str]:
    ours, bare = (f"{1e6 * s:,.0f} us a step" for s in sides)
    return ours, f"bare loop: {bare}"
