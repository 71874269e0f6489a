"""What the tests of local updates share: runs, and the same training by plain torch."""

from __future__ import annotations

import torch
from torch.nn import functional

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.log import EventLog
from psbench.runs.execution import run
from psbench.testing import toy_experiment
from psbench.training.batches import Batches
from psbench.training.build import Workload

MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def trained(strategy, **changes):
    """Return a run of two epochs on three workers of speed 1, 1/2 and 1/4: 8 batches of 4 each an epoch."""
    return run(toy_experiment(strategy, **changes))


def alone(worker, steps, **changes):
    """Return the parameters of one of those workers that trains by itself, with plain torch."""
    experiment = toy_experiment(**changes)
    workload = Workload.build(experiment)
    inputs, labels = workload.data.train_x, workload.data.train_y
    module = experiment.model.build(tuple(inputs.shape[1:]), len(workload.data.classes), workload.streams)
    optimizer = torch.optim.SGD(
        module.parameters(), lr=experiment.optimizer.lr, momentum=experiment.optimizer.momentum
    )
    batches = Batches(workload.shards[worker], workload.streams, worker)
    for _ in range(steps):
        where = torch.from_numpy(batches.take(workload.batch_sizes[worker]))
        optimizer.zero_grad()
        functional.cross_entropy(module(inputs[where]), labels[where]).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def close(left, right):
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


class Watched:
    """A run whose workers' own models can be looked at."""

    def __init__(self, strategy, **changes):
        self.log = EventLog()
        self._simulation = Simulation(
            Workload.build(toy_experiment(strategy, **changes)), self.log, Control()
        )
        self._simulation._begin()

    @property
    def view(self):
        return self._simulation.engine.view

    @property
    def replicas(self):
        """The parameters that each worker computes on."""
        workers = self._simulation.cluster.workers._workers
        return [workers[number].model.parameters for number in sorted(workers)]

    def until(self, condition):
        """Go on until something holds of the cluster's view."""
        while not condition(self.view):
            self._simulation._handle_events(1)
        return self.replicas
