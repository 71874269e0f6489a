"""One simulated worker that decides after its steps: its state and its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

from psbench.core import actions as act
from psbench.core.actions import Orders
from psbench.core.worker_loop import WorkerLoop
from psbench.core.worker_policy import Directive
from psbench.training.local_model import LocalModel
from psbench.training.trainer import StepTask

#: tensors and plain data of a worker in a checkpoint
Held: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass(slots=True, eq=False)
class Worker:
    """A worker under one composition."""

    number: int
    loop: WorkerLoop
    model: LocalModel
    computes: bool = False  # a step, or the evaluation after it, is under way
    job: StepTask | None = None  # the step under way
    stashed: ReleaseArrival | None = None  # arrived during a step
    #: raised when what it has under way becomes void
    generation: int = 0
    computes_on: bool = False  # has pushed, and begins its next step at the end of this instant
    at_release: Held = field(default_factory=lambda: ({}, {}))  # what it had then, for checkpoints
    at_push: Held = field(default_factory=lambda: ({}, {}))  # and when it computed on beside a push
    next_chunk_s: float | None = None  # when the chunk of data that it has prefetched arrives

    @property
    def is_idle(self) -> bool:
        """Return True if the worker neither computes nor communicates."""
        return not (self.computes or self.stashed or self.computes_on or self.loop.exchanging)

    def keep_step(self) -> None:
        """Apply the last step to the model; a run without gradients has no model."""
        if len(self.model.parameters):
            self.model.keep()


@dataclass(slots=True, eq=False)
class WorkerEvent:
    """An event of one worker that only the workers' code handles."""

    worker: Worker
    generation: int

    @property
    def is_void(self) -> bool:
        """Return True if the event belongs to cancelled work, or to a worker that has left."""
        return self.generation != self.worker.generation


@dataclass(slots=True, eq=False)
class StepEnd(WorkerEvent):
    """A step ends, and is computed."""

    job: StepTask | None
    samples: int
    begins_s: float
    compute_s: float


@dataclass(slots=True, eq=False)
class EvaluationEnd(WorkerEvent):
    """A worker has evaluated its own model after a step, and follows its loop's decision."""

    directive: Directive


@dataclass(slots=True, eq=False)
class ReleaseArrival(WorkerEvent):
    """A release reaches its worker, with its vectors."""

    release: act.Release
    vectors: tuple[Tensor, ...]


@dataclass(slots=True, eq=False)
class OrdersArrival(WorkerEvent):
    """Orders reach a worker that is not waiting."""

    orders: Orders


@dataclass(slots=True, eq=False)
class ComputeOn(WorkerEvent):
    """A worker that has just pushed begins its next step, after all other events of that time."""
