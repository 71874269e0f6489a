"""Exchanges of simulated workers with servers: gradients of versions, or results of several steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from psbench.backends.compression import Compression
from psbench.backends.partition import fragments_of, partitions
from psbench.backends.simulated.resources import Resources
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.core.migration import Ranges
from psbench.core.strategy import Strategy
from psbench.training.local_model import LocalModel
from psbench.training.mixing import ModelVectors
from psbench.training.server import Server


class WorkersExchange:
    """The exchange of all workers of a composition; see `psbench.backends.exchange.Exchange`.

    A run without gradients sends no vectors, and calls neither `model`, `aggregate` nor `push`. What only
    some exchanges have to do does nothing here.
    """

    def __init__(self) -> None:
        #: what pushes that have not arrived carry, by worker
        self._carried: dict[int, ModelVectors] = {}

    # ---------------------------------------------------------------- vectors

    def model(self, release: act.Release) -> ModelVectors | tuple[()]:
        """Return the parameters and buffers that a release delivers."""
        raise NotImplementedError

    def aggregate(self, release: act.Release) -> Tensor:
        """Return the aggregate that a release delivers."""
        raise NotImplementedError

    def push(self, push: Push, payload: Tensor, buffers: Tensor) -> Callable[[], Tensor | None]:
        """Store the payload of a push until it arrives; see `Exchange`."""
        raise NotImplementedError

    def arrived(self, push: Push) -> ModelVectors:
        """Return the payload of an arrived push."""
        return self._carried.pop(push.worker)

    def void(self, worker: int, push: Push | None) -> None:
        """Discard the payload of a push that is in transit or about to be sent."""
        self._carried.pop(worker, None)

    # ---------------------------------------------------------------- from one release to the next

    def ready_s(self, worker: int, reaches_s: float) -> float:
        """Return when a release and all models that it depends on have arrived."""
        return reaches_s

    def began(self, worker: int, version: int, at_s: float) -> None:
        """Record that a worker starts from a version."""

    def free_s(self, worker: int, at_s: float) -> float:
        """Return when a worker that was released at a time is free for its step."""
        return at_s

    def computes(self, worker: int, ends_s: float) -> None:
        """Record that a worker has begun a step, and when it ends if nothing delays it."""

    def sends(self, push: Push, now: float) -> None:
        """Record that a push leaves its worker."""

    def mark_release(self, worker: int) -> None:
        """Mark the state that a checkpoint stores if a later push is in transit."""

    # ---------------------------------------------------------------- members, servers, other compositions

    def enter(self, worker: int, model: LocalModel) -> None:
        """Add a worker with an empty model of its own."""

    def leave(self, worker: int) -> None:
        """Remove a worker and its residual."""

    def reassign(self, ranges: Ranges) -> None:
        """Change the entry ranges of the servers."""

    def leave_out(self, worker: int, residual: Tensor) -> None:
        """Add a vector to a worker's next push."""
        raise NotImplementedError

    def residuals(self) -> dict[int, Tensor]:
        """Return the residuals by worker."""
        return {}

    # ---------------------------------------------------------------- models of workers

    def computes_from(self, worker: int, model: LocalModel) -> Tensor:
        """Return the parameters that a worker's current step starts from."""
        return model.parameters

    def model_of(self, worker: int, model: LocalModel) -> ModelVectors:
        """Return the current model of a worker."""
        return model.parameters, model.buffers

    def measured(self, models: Sequence[ModelVectors]) -> dict[str, float]:
        """Return the consensus distance and similar measures at an evaluation."""
        return {}

    # ---------------------------------------------------------------- checkpoints

    def checkpoint(self, worker: int, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain data of a worker: its current state if it waits, else its last release."""
        raise NotImplementedError

    def restore(self, worker: int, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore the state from `checkpoint`."""
        raise NotImplementedError

    def codec_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain data of the servers' codecs; empty without codecs."""
        return {}, {}

    def restore_codecs(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore the state from `codec_state`, after all workers are restored."""


class Snapshots:
    """Versions that running steps started from, each stored once."""

    def __init__(self) -> None:
        self._held: dict[int, ModelVectors] = {}
        self._users: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def versions(self) -> set[int]:
        """The stored versions."""
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
        """Release one worker's reference to a version."""
        self._users[version] -= 1
        if not self._users[version]:
            del self._held[version], self._users[version]


class GradientExchange(WorkersExchange):
    """Exchange with servers that hold the model: a worker receives a version and pushes its gradient.

    Workers have no models of their own: those that start from one version share it.

    Parameters
    ----------
    server : Server
    residuals : dict of worker to tensor
        Residuals of the composition before, which the first pushes carry; taken over.

    Attributes
    ----------
    snapshots : Snapshots
    """

    def __init__(self, server: Server, residuals: dict[int, Tensor]) -> None:
        super().__init__()
        self._server, self._residuals = server, residuals
        self.snapshots = Snapshots()

    def model(self, release: act.Release) -> ModelVectors:
        """Return the version to load, and store it until the gradient is pushed."""
        self.snapshots.take(release.load, self._server.parameters, self._server.buffers)
        return self.snapshots.get(release.load)

    def push(self, push: Push, payload: Tensor, buffers: Tensor) -> Callable[[], Tensor | None]:
        """Add the residual to a gradient, store the sum, and release the version."""
        self.snapshots.drop(push.base_version)
        residual = self._residuals.pop(push.worker, None)
        vector = payload if residual is None else payload + residual
        self._carried[push.worker] = vector, buffers
        return lambda: vector

    def void(self, worker: int, push: Push | None) -> None:
        """Release the version of a cancelled step."""
        if push is not None:
            self.snapshots.drop(push.base_version)

    def leave(self, worker: int) -> None:
        """Remove a worker's residual."""
        self._residuals.pop(worker, None)

    def leave_out(self, worker: int, residual: Tensor) -> None:
        """Add a vector to a worker's next push."""
        self._residuals[worker] = residual

    def residuals(self) -> dict[int, Tensor]:
        """Return the residuals that no push has carried yet."""
        return self._residuals

    def checkpoint(self, worker: int, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a worker's residual, unless a push in transit carries it."""
        residual = self._residuals.get(worker)
        return ({} if residual is None else {"residual": residual}), {}

    def restore(self, worker: int, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore a worker's residual, and the version of a step that is repeated."""
        if "residual" in tensors:
            self._residuals[worker] = tensors["residual"]
        if "since" in plain and "model/parameters" in tensors:
            model = tensors["model/parameters"], tensors["model/buffers"]
            self.snapshots.take(plain["loop"]["version"], *model)


class ServerExchange(WorkersExchange):
    """Exchange with servers or replicas: workers push results of several steps, and codecs encode.

    Parameters
    ----------
    composition : Strategy
    resources : Resources
    residuals : dict of worker to tensor
        Residuals of the composition before; taken over.
    """

    def __init__(self, composition: Strategy, resources: Resources, residuals: dict[int, Tensor]) -> None:
        super().__init__()
        workload = resources.workload
        layout = workload.model.layout
        own, fragments = partitions(composition.placement, layout), fragments_of(composition, layout)
        self._server = resources.server
        self._compression = Compression(composition, own, workload.streams, residuals, fragments)

    def model(self, release: act.Release) -> ModelVectors:
        """Return the model or a fragment of it, as decoded by the codecs."""
        server, compression = self._server, self._compression
        if release.fragment >= 0:
            return compression.part(release.fragment, server.parameters), server.buffers.clone()
        sent = compression.model(release.worker, release.ticket, release.load, server.sent_model())
        return sent, server.buffers.clone()

    def aggregate(self, release: act.Release) -> Tensor:
        """Return the last commit's aggregate, as decoded by the codecs."""
        assert self._server.aggregate is not None
        return self._compression.aggregate(release.worker, release.load, self._server.aggregate)

    def push(self, push: Push, payload: Tensor, buffers: Tensor) -> Callable[[], Tensor | None]:
        """Encode a payload and store it with the current running statistics."""
        vector = self._compression.push(push, payload)
        self._carried[push.worker] = vector, buffers.clone()
        return lambda: vector

    def mark_release(self, worker: int) -> None:
        """Mark the state of the worker's codecs."""
        self._compression.mark_release(worker)

    def leave(self, worker: int) -> None:
        """Remove a worker and its codecs."""
        self._compression.leave(worker)

    def reassign(self, ranges: Ranges) -> None:
        """Change the entry ranges of the servers."""
        self._compression.repartition(ranges)

    def leave_out(self, worker: int, residual: Tensor) -> None:
        """Add a vector to a worker's next push."""
        self._compression.leave_out(worker, residual)

    def residuals(self) -> dict[int, Tensor]:
        """Return the residuals by worker."""
        return self._compression.residuals()

    def checkpoint(self, worker: int, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state of the worker's codecs."""
        return self._compression.checkpoint_worker(worker, waits)

    def restore(self, worker: int, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore the state from `checkpoint`."""
        self._compression.restore_worker(worker, tensors, plain)

    def codec_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain data of the servers' codecs."""
        return self._compression.checkpoint_servers()

    def restore_codecs(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore the state from `codec_state`, after all workers are restored."""
        self._compression.restore_servers(tensors, plain)
