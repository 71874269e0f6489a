"""Workers that push the gradient of every step: what they start from, and what they give.

Workers that decide after a step whether to push have models of their own and are in `local_workers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from psbench.backends.simulated.transfers import Transfers
from psbench.backends.simulated.workers import Resources, Workers
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.core.strategy import Strategy
from psbench.core.worker_loop import WorkerLoop
from psbench.training.mixing import ModelVectors
from psbench.training.trainer import StepTask


class Snapshots:
    """The versions that workers under way started from, each stored once."""

    def __init__(self) -> None:
        self._held: dict[int, ModelVectors] = {}
        self._users: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def versions(self) -> set[int]:
        """The versions that are stored."""
        return set(self._held)

    def take(self, version: int, parameters: Tensor, buffers: Tensor) -> None:
        """Store a version for one more worker."""
        if version not in self._held:
            self._held[version] = parameters.clone(), buffers.clone()
            self._users[version] = 0
        self._users[version] += 1

    def get(self, version: int) -> ModelVectors:
        """Return the parameters and buffers of a version."""
        return self._held[version]

    def drop(self, version: int) -> None:
        """Store a version for one worker less."""
        self._users[version] -= 1
        if not self._users[version]:
            del self._held[version], self._users[version]


class PlainWorkers(Workers):
    """The steps under way; see `Workers`. These workers have no events, models or codecs of their own.

    Parameters
    ----------
    composition : Strategy
    resources : Resources
    transfers : Transfers
        Knows the bytes of pushes.
    residuals : dict of worker to tensor
        Residuals of the composition before, which the first pushes carry; taken over.
    """

    def __init__(
        self,
        composition: Strategy,
        resources: Resources,
        transfers: Transfers,
        residuals: dict[int, Tensor],
    ) -> None:
        self._composition, self._transfers = composition, transfers
        self.without_model: set[int] = set()
        self.snapshots = Snapshots()
        self._resources, self._residuals = resources, residuals
        self._view, self._server = resources.view, resources.server
        self._trainer, self._step_times = resources.trainer, resources.step_times
        self._steps = resources.steps
        self._jobs: dict[int, StepTask] = {}
        self._repeated: dict[int, tuple[int, int]] = {}  #: tickets and versions of steps to begin again

    def release(self, release: act.Release, reaches_s: float, now: float) -> Push:
        """Begin a step on the server's version; returns its push, whose loss is computed on arrival."""
        if self._trainer is not None:
            self.snapshots.take(release.load, self._server.parameters, self._server.buffers)
        return self._begin(release.worker, release.ticket, release.load, reaches_s)

    def _begin(self, worker: int, ticket: int, version: int, begins_s: float) -> Push:
        samples = self._view.workers[worker].batch_size
        compute_s = self._step_times.next(worker, samples, begins_s)
        if self._trainer is not None:
            self._compute(worker, version, samples, begins_s + compute_s)
        num_bytes = self._transfers.bytes_of_push(-1, version)
        return Push(-1, worker, ticket, version, samples, 1, num_bytes, compute_s)

    def _compute(self, worker: int, version: int, samples: int, ends_s: float) -> None:
        assert self._trainer is not None
        assert self._steps is not None
        job = self._jobs[worker] = self._trainer.start(worker, samples)
        self._steps.begin(job, *self.snapshots.get(version), ends_s)

    def payload(self, push: Push) -> ModelVectors:
        """Return the gradient of a push that has arrived; a residual is added after what corrupts it."""
        assert self._steps is not None
        job = self._jobs.pop(push.worker)
        step = self._steps.result(job, *self.snapshots.get(push.base_version))
        self.snapshots.drop(push.base_version)
        push.loss, gradient = step.loss, step.gradient
        if (corruptions := self._resources.corruptions) is not None:
            gradient = corruptions.of(push.worker, push.ticket, gradient)
        residual = self._residuals.pop(push.worker, None)
        return (gradient if residual is None else gradient + residual), step.buffers

    def cancel(self, worker: int, push: Push | None) -> None:
        """Forget the step of this push."""
        if push is not None and self._steps is not None:
            self._steps.cancel(self._jobs.pop(worker))
            self.snapshots.drop(push.base_version)

    def leave(self, worker: int) -> None:
        """Forget a worker's residual."""
        self._residuals.pop(worker, None)

    def leave_out(self, worker: int, residual: Tensor) -> None:
        """Have a worker add this to its next push."""
        self._residuals[worker] = residual

    def residuals(self) -> dict[int, Tensor]:
        """Return the residuals that no push has carried yet."""
        return self._residuals

    def checkpoint(
        self, worker: int, waits: bool, push: Push | None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a worker's state as of before the step whose push is under way, with the model it is of."""
        plain = self._resources.position(worker)
        residual = self._residuals.get(worker)
        tensors = {} if residual is None else {"residual": residual}
        if push is not None:
            plain["used"] -= 1
            before = plain["position"]
            if before is not None:
                taken, steps = before.taken - push.samples, before.steps - 1
                plain["position"] = before._replace(taken=taken, steps=steps)
            loop = WorkerLoop(self._composition, worker, push.samples)
            loop.release("step", push.ticket, push.base_version, {})
            plain |= {"since": "release", "loop": loop.state_dict(), "next_chunk_s": None}
            plain |= {"orders": {}}
            if self._trainer is not None:
                parameters, buffers = self.snapshots.get(push.base_version)
                tensors |= {"model/parameters": parameters, "model/buffers": buffers}
        return tensors, plain

    def restore(self, worker: int, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore a worker's residual, and what the step that it is to repeat begins from."""
        if "residual" in tensors:
            self._residuals[worker] = tensors["residual"]
        if "since" in plain:
            loop = plain["loop"]
            self._repeated[worker] = loop["ticket"], loop["version"]
            if self._trainer is not None:
                model = tensors["model/parameters"], tensors["model/buffers"]
                self.snapshots.take(loop["version"], *model)

    def repeat(self, worker: int, now: float) -> Push:
        """Begin the step of a restored worker again."""
        return self._begin(worker, *self._repeated.pop(worker), now)
