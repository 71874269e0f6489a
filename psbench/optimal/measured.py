"""L, sigma^2 and Delta of a run's own problem, measured on its data and model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from psbench.arrays import Integers
from psbench.core.log import EventLog
from psbench.core.rounding import largest_remainder
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.optimal.bounds import Bound
from psbench.optimization.own_functions import ImportedLoss, OwnLoss
from psbench.results.run import Run
from psbench.training.build import Workload

#: points between the first and the last model, both included, at which the problem is measured
POINTS = 3
#: steps of the power iteration for L at a point
POWER_STEPS = 8
#: length of the step for the difference of two gradients, as a share of the parameters' norm
STEP = 1e-3
#: mini-batches of each worker for sigma^2
BATCHES = 32
#: how much further apart than random shards are gradients of workers' shards that count as unlike
UNLIKE = 4.0


@dataclass(frozen=True)
class Problem:
    """What was measured of a run's problem.

    Attributes
    ----------
    bound : Bound
    how : str
        How, in sentences.
    """

    bound: Bound
    how: str


def measure(run: Run, like_data: bool | None = None) -> Problem:
    """Measure the problem of a run on the line between its first and its last model.

    Parameters
    ----------
    run : Run
    like_data : bool, optional
        Whether the workers' data count as samples of one distribution. By default they do unless the
        gradients of the shards are further apart than those of random shards would be.

    Raises
    ------
    ParameterError
        If the run has no model, or the time of a worker's steps is not known.
    """
    experiment = run.experiment
    if run.parameters is None or run.buffers is None:
        raise ParameterError(
            f"{experiment.title}: a run without a model has no gradients to measure; run it with gradients"
        )
    step_s, whence = step_seconds(run)
    gradients = _Gradients(experiment)
    start, buffers = gradients.workload.parameters, gradients.workload.buffers
    points = [
        (torch.lerp(start, run.parameters, at), torch.lerp(buffers, run.buffers, at))
        for at in torch.linspace(0, 1, POINTS).tolist()
    ]
    like = gradients.are_alike(points[0]) if like_data is None else like_data
    variance = max(gradients.variance(point, like) for point in points)
    smoothness = max(gradients.smoothness(point) for point in points)
    gap, how_gap = _gap(gradients, points[0], run.log)
    workers = "all workers" if like else "the worker with the largest"
    by = ", by the gradients of their shards" if like_data is None else ", as said"
    how = (
        f"L = {smoothness:.3g}: the largest change of the full gradient per distance that {POWER_STEPS} "
        f"steps of a power iteration find, at {POINTS} points from the first model to the last. sigma^2 = "
        f"{variance:.3g}: the variance of the gradient of a mini-batch of {gradients.batch} at these points, "
        f"from {BATCHES} batches of {workers}. Delta = {gap:.3g}: {how_gap}. A worker's time for a "
        f"mini-batch is {whence}: {min(step_s):.3g} to {max(step_s):.3g} s; messages count as free. "
        f"The workers' data count as {'like' if like else 'unlike'}{by}."
    )
    return Problem(Bound(step_s, smoothness, variance, gap, like), how)


def step_seconds(run: Run) -> tuple[tuple[float, ...], str]:
    """Return the mean seconds of each worker's mini-batch, and where they are from.

    In virtual time the profile gives the mean, whatever the distribution. The times of live runs, and of
    simulated ones on measured seconds, are the means of the steps taken.

    Raises
    ------
    ParameterError
        If a worker of such a run took no step.
    """
    experiment = run.experiment
    profile = experiment.cluster.profile()
    if experiment.backend == "simulated" and not profile.step_time.in_seconds:
        sizes = largest_remainder(experiment.batch_size, [1.0] * profile.num_workers)
        per_sample = profile.seconds_per_sample + profile.read_seconds_per_sample
        each = [profile.seconds_per_step + size * per_sample for size in sizes]
        pairs = zip(each, profile.speed, strict=True)
        return tuple(seconds / speed for seconds, speed in pairs), "the mean that the cluster's profile says"
    used = {row["worker"]: row for row in run.meta.get("usage", ()) if row["steps"]}
    if missing := [worker for worker in range(profile.num_workers) if worker not in used]:
        raise ParameterError(
            f"{experiment.title}: worker {missing[0]} took no step, so its time for one is not known; give "
            "a run in which all workers computed"
        )
    rows = [used[worker] for worker in range(profile.num_workers)]
    return tuple((row["read_s"] + row["compute_s"]) / row["steps"] for row in rows), "the mean of its steps"


class _Gradients:
    """Gradients of the training loss: of all samples, of shards, and of mini-batches."""

    def __init__(self, experiment: Experiment) -> None:
        self.workload = workload = Workload.build(experiment)
        self._evaluator = workload.evaluator()
        self._all = torch.arange(workload.dataset_size)
        self._rng = workload.streams.generator("optimal time")
        #: the smallest mini-batch, which has the largest variance
        self.batch = min(workload.batch_sizes)

    def full(self, point: tuple[Tensor, Tensor]) -> Tensor:
        return self._evaluator.gradient(*point, self._all).double()

    def of(self, point: tuple[Tensor, Tensor], where: Integers) -> Tensor:
        return self._evaluator.gradient(*point, torch.from_numpy(where)).double()

    def loss(self, point: tuple[Tensor, Tensor]) -> float:
        return self._evaluator.loss("train", *point, samples=len(self._all))

    def smoothness(self, point: tuple[Tensor, Tensor]) -> float:
        """Return the largest |grad f(x + h v) - grad f(x)| / h along a power iteration from random v."""
        parameters, buffers = point
        here = self.full(point)
        direction = torch.from_numpy(self._rng.standard_normal(len(parameters)))
        length = STEP * float(parameters.norm()) or STEP
        found = 0.0
        for _ in range(POWER_STEPS):
            moved = (parameters + length * direction / direction.norm()).float()
            moved_by = moved.double() - parameters.double()  # as rounded
            direction = self.full((moved, buffers)) - here
            if not (change := float(direction.norm())):
                break
            found = max(found, change / float(moved_by.norm()))
        return found

    def variance(self, point: tuple[Tensor, Tensor], like: bool) -> float:
        """Return the variance of a mini-batch's gradient; with unlike data the largest of any worker."""
        if like:
            return self._variance(point, self._all.numpy())
        return max(self._variance(point, np.asarray(shard)) for shard in self.workload.shards)

    def _variance(self, point: tuple[Tensor, Tensor], samples: Integers) -> float:
        chosen = [self._rng.choice(samples, self.batch) for _ in range(BATCHES)]  # independent, as in theory
        each = torch.stack([self.of(point, where) for where in chosen])
        return float((each - each.mean(0)).square().sum() / (len(each) - 1))

    def are_alike(self, point: tuple[Tensor, Tensor]) -> bool:
        """Return whether the gradients of the shards are about as far apart as those of random shards."""
        shards = [np.asarray(shard) for shard in self.workload.shards]
        order = self._rng.permutation(len(self._all))
        drawn = np.split(order[: sum(map(len, shards))], np.cumsum([len(shard) for shard in shards])[:-1])
        if any(len(one) != len(other) for one, other in zip(shards, drawn, strict=True)):
            return True  # shards overlap and have more samples together than there are: nearly all each
        return self._spread(point, shards) <= UNLIKE * self._spread(point, drawn)

    def _spread(self, point: tuple[Tensor, Tensor], shards: list[Integers]) -> float:
        each = torch.stack([self.of(point, shard) for shard in shards])
        return float((each - each.mean(0)).square().sum())


def _gap(gradients: _Gradients, start: tuple[Tensor, Tensor], log: EventLog) -> tuple[float, str]:
    """Return Delta, or an estimate, and how it was found."""
    first = gradients.loss(start)
    if not isinstance(gradients.workload.loss, OwnLoss | ImportedLoss):
        return first, "the training loss of the first model, since no loss is below 0"
    lowest = min([0.0, *(row["train_loss"] for row in log.evaluations() if "train_loss" in row)])
    return first - lowest, f"the training loss of the first model, less {lowest:.3g}, the lowest one known"
