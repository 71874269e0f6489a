"""The functions of a MapReduce run's tasks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from psbench.backends.dask.worker.usage import Usage
from psbench.data.shipment import Shipment
from psbench.experiment import Experiment
from psbench.training.build import Workload
from psbench.training.server import all_finite


@dataclass
class DataPartition:
    """A worker's samples, with the trainer that computes on them."""

    workload: Workload
    worker: int

    def __post_init__(self) -> None:
        self.trainer = self.workload.trainer()
        self.usage = Usage(self.worker)
        self.taken = 0

    def skip_to(self, job: int, samples: int) -> None:
        """Advance the random stream to the job's mini-batch; needed after a partition is loaded again."""
        while self.taken < job:
            self.trainer.start(self.worker, samples)
            self.taken += 1


@dataclass
class PartialSum:
    """The sum of a part of the tree: weighted gradients and buffers, and the report of each task."""

    gradient: np.ndarray
    buffers: np.ndarray
    #: by worker: seconds, loss, and whether gradient and loss are finite
    steps: dict[int, tuple[float, float, bool]] = field(default_factory=dict)


def load(experiment: Experiment, sent: Shipment | None, worker: int) -> DataPartition:
    torch.set_num_threads(experiment.threads)
    return DataPartition(Workload.build(experiment, sent, whole_run=False), worker)


def map_step(
    partition: DataPartition, model: tuple[np.ndarray, np.ndarray], job: int, samples: int, weight: float
) -> PartialSum:
    """Compute a partition's share of the mini-batch, as slowly as the emulated machine does.

    The task reads the whole partition to find the members, as a mini-batch of MLlib's does (`sample` goes
    through every row): they are those that a worker of BSP draws, so that both make the same updates.
    """
    partition.usage.begin()
    began = time.perf_counter()
    partition.skip_to(job, samples)
    partition.taken += 1
    batch = partition.trainer.scan(partition.trainer.start(partition.worker, samples))
    read = time.perf_counter() - began
    step = partition.trainer.compute(batch, *(torch.from_numpy(vector) for vector in model))
    partition.usage.add(read, time.perf_counter() - began - read)
    speed = partition.workload.profile.speed
    time.sleep((time.perf_counter() - began) * (max(speed) / speed[partition.worker] - 1.0))
    is_finite = bool(np.isfinite(step.loss)) and all_finite(step.gradient)
    steps = {partition.worker: (time.perf_counter() - began, step.loss, is_finite)}
    share = samples / partition.workload.experiment.batch_size
    return PartialSum((step.gradient * weight).numpy(), (step.buffers * share).numpy(), steps)


def add(left: PartialSum, right: PartialSum) -> PartialSum:
    """Add two parts of the tree."""
    return PartialSum(left.gradient + right.gradient, left.buffers + right.buffers, left.steps | right.steps)


def used(partition: DataPartition) -> dict[str, float]:
    return partition.usage.facts()


def evaluate(partition: DataPartition, model: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    evaluator = partition.workload.evaluator()
    return evaluator.evaluate(*(torch.from_numpy(vector) for vector in model))
