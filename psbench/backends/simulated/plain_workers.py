"""Steps of workers that push after each, in virtual time: what they started from, and what they give.

Workers that decide more than to push have models of their own and are in `virtual_workers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from psbench.core.events import Push
from psbench.training.trainer import Job

if TYPE_CHECKING:
    from psbench.backends.simulated.simulation import Simulation


class Snapshots:
    """The versions that workers under way started from, each stored once."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, Tensor]] = {}
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

    def get(self, version: int) -> tuple[Tensor, Tensor]:
        """Return the parameters and buffers of a version."""
        return self._held[version]

    def drop(self, version: int) -> None:
        """Store a version for one worker less."""
        self._users[version] -= 1
        if not self._users[version]:
            del self._held[version], self._users[version]


class PlainWorkers:
    """The gradients that are being computed, and what goes with them.

    Parameters
    ----------
    simulation : Simulation
        Whose trainer and server they use.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._jobs: dict[int, Job] = {}
        self.snapshots = Snapshots()
        #: what each worker has not said under a composition before; goes with its first push
        self.owed: dict[int, Tensor] = {}

    def begin(self, worker: int, version: int, samples: int) -> None:
        """Let a worker begin a step on a version, which is the server's now."""
        server = self._sim.server
        self.snapshots.take(version, server.parameters, server.buffers)
        self._jobs[worker] = self._sim.trainer.start(worker, samples)

    def result(self, push: Push) -> tuple[Tensor, Tensor]:
        """Compute what a push carries, and complete it with the loss."""
        job = self._jobs.pop(push.worker)
        step = self._sim.trainer.result(job, *self.snapshots.get(push.base_version))
        self.snapshots.drop(push.base_version)
        push.loss = step.loss
        owed = self.owed.pop(push.worker, None)
        return step.gradient if owed is None else step.gradient + owed, step.buffers

    def void(self, push: Push) -> None:
        """Never compute what a push would have carried."""
        del self._jobs[push.worker]
        self.snapshots.drop(push.base_version)

    def state(self, number: int, push: Push | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a worker needs to go on from where it began the step whose push is under way."""
        sim = self._sim
        used = sim.step_times.used(number)
        position = sim.trainer.position(number) if sim.gradients else None
        if push is not None:
            used -= 1
            if position is not None:
                position = position._replace(taken=position.taken - push.samples, steps=position.steps - 1)
        owed = {"residual": self.owed[number]} if number in self.owed else {}
        return owed, {"used": used, "position": position}

    def load(self, number: int, tensors: dict[str, Tensor]) -> None:
        """Let a worker go on from what `state` returned, its position and step times aside."""
        if "residual" in tensors:
            self.owed[number] = tensors["residual"]
