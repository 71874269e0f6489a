"""What vectors become on their way between workers and servers, in virtual time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from psbench.backends.partition import gather, partitions, partitions_of
from psbench.backends.worker_codecs import WorkerCodecs
from psbench.codecs import ServerCodecState, over_the_wire
from psbench.core.migration import Ranges
from psbench.core.strategy import Strategy
from psbench.errors import CodecError
from psbench.training.workload import Workload


class Compression:
    """The connections of all workers under one composition.

    Parameters
    ----------
    composition : Strategy
    problem : Problem
    owed : dict of worker to tensor
        What each has not said under the composition before; taken over.
    """

    def __init__(self, composition: Strategy, workload: Workload, owed: dict[int, Tensor]) -> None:
        communication = composition.communication
        self._composition, self._streams = composition, workload.streams
        self._up, self._down = communication.codec.name, communication.codec_down.name
        # a collective's vectors, whose entries travel each by itself, or nothing that changes any
        self._entrywise = composition.placement.collective or self._up == self._down == "none"
        self._partitions = partitions(composition.placement, workload.model.layout)
        self._servers = self._new_servers()
        self._workers: dict[int, WorkerCodecs] = {}
        self._owed = owed  # until a worker has connections, or, if it needs none, has pushed
        self._paid: dict[int, Tensor] = {}  # with a push since the last answer
        self._sent: tuple[int, Tensor] | None = None  # the version sent last

    def model(self, worker: int, ticket: int, version: int, parameters: Tensor) -> Tensor:
        """Return the model as it arrives; not to be changed, as workers may share it.

        Raises
        ------
        CodecError
            If it has entries that are no numbers, or too large for the codec.
        """
        if self._entrywise:
            if self._sent is None or self._sent[0] != version:
                # a ring has rounded what it adds up, and leaves the model where it is
                codec = "none" if self._composition.placement.collective else self._down
                self._sent = version, over_the_wire(parameters.clone(), codec)
            return self._sent[1]
        parts = [
            torch.from_numpy(far.encode_model(worker, ticket, version, cut.of(parameters).numpy()))
            for far, cut in zip(self._servers, self._partitions, strict=True)
        ]
        return self._ends(worker).model(parts)

    def aggregate(self, worker: int, version: int, aggregate: Tensor) -> Tensor:
        """Return the aggregate of a commit as it arrives."""
        if self._entrywise:
            return over_the_wire(aggregate, self._down)
        parts = [
            torch.from_numpy(far.encode_aggregate(version, cut.of(aggregate).numpy()))
            for far, cut in zip(self._servers, self._partitions, strict=True)
        ]
        return self._ends(worker).aggregate(parts)

    def push(self, worker: int, ticket: int, payload: Tensor) -> Tensor:
        """Return a push's payload as it arrives; infinite if it cannot be written."""
        if self._entrywise:
            owed = self._owed.pop(worker, None)
            if owed is not None:
                self._paid[worker] = owed
            return over_the_wire(payload if owed is None else payload + owed, self._up)
        try:
            parts = self._ends(worker).push(payload)
        except CodecError:
            return torch.full_like(payload, torch.inf)
        arrived = [
            torch.from_numpy(far.decode_push(worker, ticket, part.numpy()))
            for far, part in zip(self._servers, parts, strict=True)
        ]
        return gather(arrived, self._partitions)

    def unsaid(self) -> dict[int, Tensor]:
        """Return what each worker has not said; what all have said, with it, is all they were to say."""
        found = {worker: connections.residual for worker, connections in self._workers.items()}
        return {worker: each for worker, each in found.items() if each is not None} | self._owed

    def answered(self, worker: int) -> None:
        """Mark what a worker would begin anew with if the run went on from a checkpoint."""
        self._paid.pop(worker, None)
        if worker in self._workers:
            self._workers[worker].mark_release()

    def worker_state(self, worker: int, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a worker needs to go on: what it has not said, and, if it waits, what it holds."""
        connections = self._workers.get(worker)
        if connections is None:
            owed = self._owed.get(worker) if waits else self._owed.get(worker, self._paid.get(worker))
            return ({} if owed is None else {"residual": owed}), {}
        return connections.checkpoint(waits)

    def load_worker(self, worker: int, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Let a worker go on from what `worker_state` returned."""
        if "residual" in tensors:
            self._owed[worker] = tensors["residual"]
        if "num_sent" in plain and not self._entrywise:
            self._ends(worker).restore({n: t for n, t in tensors.items() if n == "held"}, plain)

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what the servers' ends need to go on, apart from what workers hold."""
        first = self._servers[0]
        memories = [end.channel.residual for end in self._servers]
        known = [torch.from_numpy(memory) for memory in memories if memory is not None]
        plain = {"draws": first.draws, "aggregates": first.channel.num_sent}
        return plain, {"residual": gather(known, self._partitions)} if known else {}

    def load_state_dict(self, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over what `state_dict` returned, and what workers hold, who are known already."""
        held = {worker: each.held for worker, each in self._workers.items()}
        for end, cut in zip(self._servers, self._partitions, strict=True):
            end.restore(plain["draws"], {w: cut.of(h).numpy() for w, h in held.items() if h is not None})
            end.channel.num_sent = plain["aggregates"]
            if "residual" in tensors:
                end.channel.restore(cut.of(tensors["residual"]).numpy(), plain["aggregates"])

    def reassign(self, ranges: Ranges) -> None:
        """Write for servers that hold other entries from now on; the next model of each worker goes whole."""
        before, self._partitions = self._partitions, partitions_of(ranges)
        old, self._servers = self._servers, self._new_servers()
        for new, same in zip(self._servers, old, strict=True):
            new.continue_draws_of(same)
        memories = [torch.from_numpy(end.channel.residual) for end in old if end.channel.residual is not None]
        if memories:
            unsaid = gather(memories, before)
            for end, cut in zip(self._servers, self._partitions, strict=True):
                end.channel.add_residual(cut.of(unsaid).numpy())
        self._workers = {
            worker: each.repartitioned(self._partitions) for worker, each in self._workers.items()
        }

    def forget(self, worker: int) -> None:
        """Know nothing of a worker that has gone; what it had not said is lost with it."""
        self._workers.pop(worker, None)
        self._owed.pop(worker, None)
        for server in self._servers:
            server.forget(worker)

    def _new_servers(self) -> list[ServerCodecState]:
        return [
            ServerCodecState(self._composition, cut.size, self._streams, number)
            for number, cut in enumerate(self._partitions)
        ]

    def _ends(self, worker: int) -> WorkerCodecs:
        if worker not in self._workers:
            new = self._workers[worker] = WorkerCodecs(
                self._composition, self._partitions, self._streams, worker
            )
            owed = self._owed.pop(worker, None)
            if owed is not None:
                new.add_residual(owed)
        return self._workers[worker]
