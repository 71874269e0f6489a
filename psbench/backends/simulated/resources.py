"""Objects that the simulation provides to its workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from psbench.backends.checkpointing import SELECTION, named
from psbench.backends.simulated.shared_cores import SharedCores
from psbench.backends.simulated.steps import Steps
from psbench.clusters import StepTimes
from psbench.clusters.link_times import LinkTimes
from psbench.core.view import ClusterView
from psbench.training.build import Workload
from psbench.training.corruption import Corruptions
from psbench.training.evaluator import Evaluator
from psbench.training.server import Server
from psbench.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Resources:
    """The workers' trainer, evaluator, links and cores, under any composition.

    `trainer`, `evaluator` and `steps` are None where a run computes no gradients (timing only), `corruptions`
    where all workers push what they have computed, `cores` where each worker has its own, `link_times` where
    messages have no times of their own. Without `checkpoints` workers keep nothing of their last release.
    """

    workload: Workload
    view: ClusterView
    server: Server
    step_times: StepTimes
    trainer: Trainer | None
    evaluator: Evaluator | None
    steps: Steps | None
    corruptions: Corruptions | None
    cores: SharedCores | None = None
    link_times: LinkTimes | None = None
    checkpoints: bool = False
    #: how vectors are added up, in words for the user; with no values
    said: dict[str, None] = field(default_factory=dict)

    @property
    def computing(self) -> tuple[Steps, Evaluator]:
        """The trainer and its companions; call if the run computes gradients."""
        assert self.steps is not None
        assert self.evaluator is not None
        return self.steps, self.evaluator

    def position(self, worker: int) -> dict[str, Any]:
        """Return a worker's position in its data and its step times, as plain data."""
        position = None if self.trainer is None else self.trainer.position(worker)
        return {"used": self.step_times.used(worker), "position": position}

    def remembered(self, worker: int) -> dict[str, Tensor]:
        """Return the memory of a worker's selection, under its tensor names."""
        return {} if self.trainer is None else named(SELECTION, self.trainer.remembered(worker))
