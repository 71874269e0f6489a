"""What codecs make of vectors between workers and servers, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from psbench.backends.partition import Partition, gather, partitions, partitions_of
from psbench.backends.worker_codecs import WorkerCodecs
from psbench.codecs import ServerCodecState, over_the_wire
from psbench.core.migration import Ranges
from psbench.core.strategy import Strategy
from psbench.errors import CodecError
from psbench.training.workload import Workload


class Compression:
    """Encodes and decodes the vectors of all workers and servers under one composition.

    Parameters
    ----------
    composition : Strategy
    workload : Workload
    residuals : dict of worker to tensor
        Residuals of the composition before; taken over.
    """

    def __init__(self, composition: Strategy, workload: Workload, residuals: dict[int, Tensor]) -> None:
        communication = composition.communication
        self._composition, self._streams = composition, workload.streams
        self._up, self._down = communication.codec.name, communication.codec_down.name
        # a collective's vectors, whose entries travel each by itself, or codecs that change nothing
        self._entrywise = composition.placement.collective or self._up == self._down == "none"
        self._partitions = partitions(composition.placement, workload.model.layout)
        self._servers = self._new_servers()
        self._workers: dict[int, WorkerCodecs] = {}
        #: until a worker has codecs, or, if it needs none, has pushed
        self._pending_residuals = residuals
        #: residuals pushed since the last release: that push is void after a checkpoint
        self._pushed_residuals: dict[int, Tensor] = {}
        self._last_sent: tuple[int, Tensor] | None = None  # version and model

    def model(self, worker: int, ticket: int, version: int, parameters: Tensor) -> Tensor:
        """Return the model as it arrives; not to be changed, as workers may share it.

        Raises
        ------
        CodecError
            If it has entries that are NaN or infinite, or too large for the codec.
        """
        if self._entrywise:
            if self._last_sent is None or self._last_sent[0] != version:
                # a ring has rounded what it adds up, and leaves the model where it is
                codec = "none" if self._composition.placement.collective else self._down
                self._last_sent = version, over_the_wire(parameters.clone(), codec)
            return self._last_sent[1]
        parts = [
            torch.from_numpy(server.encode_model(worker, ticket, version, own.of(parameters).numpy()))
            for server, own in zip(self._servers, self._partitions, strict=True)
        ]
        return self._codecs_of(worker).model(parts)

    def aggregate(self, worker: int, version: int, aggregate: Tensor) -> Tensor:
        """Return the aggregate of a commit as it arrives."""
        if self._entrywise:
            return over_the_wire(aggregate, self._down)
        parts = [
            torch.from_numpy(server.encode_aggregate(version, own.of(aggregate).numpy()))
            for server, own in zip(self._servers, self._partitions, strict=True)
        ]
        return self._codecs_of(worker).aggregate(parts)

    def push(self, worker: int, ticket: int, payload: Tensor) -> Tensor:
        """Return a push's payload as it arrives; infinite if it cannot be encoded."""
        if self._entrywise:
            residual = self._pending_residuals.pop(worker, None)
            if residual is not None:
                self._pushed_residuals[worker] = residual
            return over_the_wire(payload if residual is None else payload + residual, self._up)
        try:
            parts = self._codecs_of(worker).push(payload)
        except CodecError:
            return torch.full_like(payload, torch.inf)
        arrived = [
            torch.from_numpy(server.decode_push(worker, ticket, part.numpy()))
            for server, part in zip(self._servers, parts, strict=True)
        ]
        return gather(arrived, self._partitions)

    def residuals(self) -> dict[int, Tensor]:
        """Return each worker's compression residual: all payloads are what arrived plus these."""
        found = {worker: codecs.residual for worker, codecs in self._workers.items()}
        return {worker: each for worker, each in found.items() if each is not None} | self._pending_residuals

    def repartition(self, ranges: Ranges) -> None:
        """Encode for servers that hold other entries from now on; each worker's next model goes whole."""
        before, self._partitions = self._partitions, partitions_of(ranges)
        old, self._servers = self._servers, self._new_servers()
        for new, same in zip(self._servers, old, strict=True):
            new.continue_draws_of(same)
        residual = _residual(old, before)
        if residual is not None:
            for server, own in zip(self._servers, self._partitions, strict=True):
                server.channel.add_residual(own.of(residual).numpy())
        self._workers = {
            worker: codecs.repartitioned(self._partitions) for worker, codecs in self._workers.items()
        }

    def leave(self, worker: int) -> None:
        """Forget a worker with its residual."""
        self._workers.pop(worker, None)
        self._pending_residuals.pop(worker, None)
        for server in self._servers:
            server.forget(worker)

    # ---------------------------------------------------------------- checkpoints

    def mark_release(self, worker: int) -> None:
        """Remember a worker's codec state at its release; see `WorkerCodecs.mark_release`."""
        self._pushed_residuals.pop(worker, None)
        if worker in self._workers:
            self._workers[worker].mark_release()

    def checkpoint_worker(self, worker: int, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a worker's codec state: current if it waits, else as of its last release."""
        codecs = self._workers.get(worker)
        if codecs is not None:
            return codecs.checkpoint(waits)
        residual = self._pending_residuals.get(worker)
        if residual is None and not waits:
            residual = self._pushed_residuals.get(worker)
        return ({} if residual is None else {"residual": residual}), {}

    def restore_worker(self, worker: int, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore what `checkpoint_worker` returned."""
        if "num_sent" in plain and not self._entrywise:
            self._codecs_of(worker).restore(tensors, plain)
        elif "residual" in tensors:
            self._pending_residuals[worker] = tensors["residual"]

    def checkpoint_servers(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the servers' codec state, apart from the models that workers hold."""
        first = self._servers[0]
        residual = _residual(self._servers, self._partitions)
        plain = {"draws": first.draws, "aggregates": first.channel.num_sent}
        return ({} if residual is None else {"residual": residual}), plain

    def restore_servers(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore what `checkpoint_servers` returned; all workers are restored already."""
        held = {worker: codecs.held for worker, codecs in self._workers.items()}
        for server, own in zip(self._servers, self._partitions, strict=True):
            server.restore(
                plain["draws"],
                {worker: own.of(model).numpy() for worker, model in held.items() if model is not None},
            )
            server.channel.num_sent = plain["aggregates"]
            if "residual" in tensors:
                server.channel.restore(own.of(tensors["residual"]).numpy(), plain["aggregates"])

    # ---------------------------------------------------------------- codecs

    def _new_servers(self) -> list[ServerCodecState]:
        return [
            ServerCodecState(self._composition, own.size, self._streams, number)
            for number, own in enumerate(self._partitions)
        ]

    def _codecs_of(self, worker: int) -> WorkerCodecs:
        if worker not in self._workers:
            codecs = WorkerCodecs(self._composition, self._partitions, self._streams, worker)
            self._workers[worker] = codecs
            residual = self._pending_residuals.pop(worker, None)
            if residual is not None:
                codecs.add_residual(residual)
        return self._workers[worker]


def _residual(servers: list[ServerCodecState], own: list[Partition]) -> Tensor | None:
    """Return the residual of the servers' answers; None for codecs without error feedback."""
    found = [server.channel.residual for server in servers]
    known = [torch.from_numpy(residual) for residual in found if residual is not None]
    return gather(known, own) if known else None
