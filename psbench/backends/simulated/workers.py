"""What the simulation asks of its workers, and what it lends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from psbench.backends.checkpointing import SELECTION, named
from psbench.backends.simulated.shared_cores import SharedCores
from psbench.backends.simulated.steps import Steps
from psbench.clusters import StepTimes
from psbench.clusters.link_times import LinkTimes
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.core.migration import Ranges
from psbench.core.view import ClusterView
from psbench.training.build import Workload
from psbench.training.corruption import Corruptions
from psbench.training.evaluator import Evaluator
from psbench.training.mixing import ModelVectors
from psbench.training.server import Server
from psbench.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Resources:
    """What workers compute with, under whichever composition.

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

    @property
    def computing(self) -> tuple[Steps, Evaluator]:
        """What a run with gradients computes with."""
        assert self.steps is not None
        assert self.evaluator is not None
        return self.steps, self.evaluator

    def position(self, worker: int) -> dict[str, Any]:
        """Return as plain data where a worker is in its data and its step times."""
        position = None if self.trainer is None else self.trainer.position(worker)
        return {"used": self.step_times.used(worker), "position": position}

    def remembered(self, worker: int) -> dict[str, Tensor]:
        """Return what a worker's selection remembers, as it is named among its tensors."""
        return {} if self.trainer is None else named(SELECTION, self.trainer.remembered(worker))


class WorkerEvent:
    """Something that happens to one worker, and that only the workers' own code knows of."""

    __slots__ = ()


class Workers:
    """All workers under one composition: one subclass for each way of working.

    What is asked of workers here does nothing where they have nothing to do.

    Attributes
    ----------
    without_model : set of int
        Workers that must be sent the model whole, as they have none to take a difference from.
    """

    without_model: set[int]

    def release(self, release: act.Release, reaches_s: float, now: float) -> Push | None:
        """Take a release that is sent now; returns the push that a step becomes, if it surely does."""
        raise NotImplementedError

    def payload(self, push: Push) -> ModelVectors:
        """Return the vector that an arrived push carries, and the buffers; completes the push's loss."""
        raise NotImplementedError

    def handle(self, event: WorkerEvent, now: float) -> None:
        """Handle an event of a worker; those of before a hand-over are void."""

    def follows_release(self, event: Any, time: float, reaches_s: float) -> bool:
        """Return whether an event at that time began with a release that was to reach its worker then."""
        return False

    def order(self, tell: act.Tell, reaches_s: float) -> None:
        """Have orders reach a worker between two steps."""

    def cancel(self, worker: int, push: Push | None) -> None:
        """Void what a worker has under way, such as this push."""

    def leave(self, worker: int) -> None:
        """Forget a worker with its residual; should it come back, it starts from the model it is sent."""

    def repartition(self, ranges: Ranges) -> None:
        """Encode for servers that hold other entries from now on."""

    def leave_out(self, worker: int, residual: Tensor) -> None:
        """Have a worker add this to its next push."""

    def residuals(self) -> dict[int, Tensor]:
        """Return the residual of each worker's pushes, where there is one."""
        raise NotImplementedError

    def mean_model(self) -> ModelVectors | None:
        """Return the mean of the workers' models if it stands for the run's model, else None."""
        return None

    def checkpoint(
        self, worker: int, waits: bool, push: Push | None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a worker's state: as it is if it waits, else as of its last release.

        `push` is the one it has under way, which is void then.
        """
        raise NotImplementedError

    def restore(self, worker: int, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore what `checkpoint` returned, except its position in the data and in its step times."""

    def repeat(self, worker: int, now: float) -> Push | None:
        """Begin a restored worker's steps again; returns the push that a step becomes, if it surely does."""
        raise NotImplementedError

    def codec_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain data of the servers' codecs; empty without any."""
        return {}, {}

    def restore_codecs(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore what `codec_state` returned, after all workers are restored."""
