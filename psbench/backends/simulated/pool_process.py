"""A process that computes steps for a simulation: it receives a task, computes and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import cloudpickle
import torch
from torch import Tensor, nn

from psbench.arrays import Array, Integers
from psbench.data import Dataset
from psbench.optimization.clip import Clip
from psbench.optimization.losses import Loss
from psbench.optimization.scores import Metric
from psbench.seeds import Streams
from psbench.system.allocator import keep_freed_memory
from psbench.system.parent import end_with_parent
from psbench.system.signals import ignore_ending
from psbench.training.build import Workload
from psbench.training.evaluator import EvaluationPart, Evaluator, Scores
from psbench.training.model import FlatModel
from psbench.training.trainer import StepTask, Trainer

#: the tensors of a data set, which are shared and not sent
_SHARED = ("train_x", "train_y", "val_x", "val_y")
#: what computing needs nothing of
_LEFT_OUT = ("shards", "columns")


#: the loss of a step, and what it has found of its samples
StepNumbers: TypeAlias = tuple[float, Mapping[str, Array]]


@dataclass(frozen=True)
class Served:
    """A process's workload, except the tensors of the data set."""

    module: nn.Module
    changed_buffers: tuple[str, ...]
    data: Mapping[str, Any]
    streams: Streams
    loss: Loss
    clip: Clip | None
    metrics: Mapping[str, Metric]
    threads: int
    precision: str | None
    blind: str
    groups: tuple[Integers, int] | None

    @classmethod
    def of(cls, workload: Workload, trainer: Trainer, evaluator: Evaluator) -> Served:
        """Return the workload of a run's steps."""
        data, model, experiment = workload.data, trainer.model, workload.experiment
        left_out = {*_SHARED, *_LEFT_OUT}
        rest = {each.name: getattr(data, each.name) for each in fields(data) if each.name not in left_out}
        return cls(
            module=model.module,
            changed_buffers=model.changed_buffers,
            data=rest,
            streams=workload.streams,
            loss=workload.loss,
            clip=experiment.worker_optimizer.clip,
            metrics=experiment.metrics,
            threads=experiment.threads,
            precision=experiment.precision,
            blind=workload.blind,
            groups=evaluator.groups,
        )

    def build(self, tensors: tuple[Tensor, ...]) -> tuple[Trainer, Evaluator]:
        """Return a trainer and an evaluator."""
        torch.set_num_threads(self.threads)
        shared: dict[str, Any] = dict(zip(_SHARED, tensors, strict=True))
        data = Dataset(**self.data, **shared)
        model = FlatModel(self.module, self.changed_buffers, precision=self.precision)
        trainer = Trainer(model, data, [], self.streams, loss=self.loss, clip=self.clip, blind=self.blind)
        how = {"loss": self.loss, "metrics": self.metrics, "groups": self.groups}
        return trainer, Evaluator(model, data, self.streams, **how)


def serve(pipe: Connection, packed: bytes, tensors: tuple[Tensor, ...], memory: Tensor, size: int) -> None:
    """Compute requested tasks until the other end of the pipe is closed.

    Parameters
    ----------
    pipe : Connection
        Brings (place, request) and takes (place, answer): the numbers of a step, scores for a part of an
        evaluation, and an exception, packed, where there was one.
    packed : bytes
        A `Served`.
    tensors : tuple of tensor
        Of the data set.
    memory : float32 tensor, (places, 2, num_params + num_buffers)
        The model of each task, and where its gradient and buffers go.
    size : int
        Parameters of the model.
    """
    ignore_ending()  # the simulation ends this process
    end_with_parent()
    keep_freed_memory()
    built: tuple[Trainer, Evaluator] | None = None
    while True:
        try:
            place, request = pipe.recv()
        except (EOFError, OSError):
            return
        answer: StepNumbers | Scores | bytes
        try:
            if built is None:
                built = cloudpickle.loads(packed).build(tensors)
            trainer, evaluator = built
            answer = _answer(trainer, evaluator, request, memory[place], size)
        except BaseException as error:
            answer = _packed(error)
        try:
            pipe.send((place, answer))
        except OSError:
            return


def _answer(
    trainer: Trainer, evaluator: Evaluator, request: StepTask | EvaluationPart, memory: Tensor, size: int
) -> StepNumbers | Scores:
    parameters, buffers = memory[0, :size], memory[0, size:]
    if isinstance(request, EvaluationPart):
        return evaluator.evaluate_part(request, parameters, buffers)
    step = trainer.result(request, parameters, buffers)
    memory[1, :size].copy_(step.gradient)
    memory[1, size:].copy_(step.buffers)
    return step.loss, step.found


def _packed(error: BaseException) -> bytes:
    """Return a pickled exception; one that cannot be pickled becomes an error with its message."""
    try:
        packed: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(packed)
    except Exception:
        packed = cloudpickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return packed
