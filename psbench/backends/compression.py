"""Codecs of messages between workers and servers.

`WorkerCodecs` is one worker's side, wherever the worker is; a live server's side is in its slice of the
model. `Compression` is both sides of a run in virtual time: it gives vectors as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from psbench.arrays import Floats
from psbench.backends.partition import (
    Partition,
    answered_by,
    gather,
    partitions_of,
    pushed_to,
    within,
)
from psbench.core.collective import Collective
from psbench.core.events import Push
from psbench.core.migration import Ranges
from psbench.core.strategy import Strategy
from psbench.errors import CodecError
from psbench.seeds import Streams
from psbench.strategies.codecs import ServerCodecState, WorkerCodecState, over_the_wire
from psbench.strategies.codecs.base import Packed

_NOTHING = torch.zeros(0, dtype=torch.uint8)
_Decode: TypeAlias = Callable[[WorkerCodecState, Packed], Floats]


class WorkerCodecs:
    """Encodes the pushes of one worker, and decodes the servers' answers.

    Parameters
    ----------
    composition : Strategy
    own : sequence of Partition
        The entries that each server holds.
    streams : Streams
    worker : int

    Shapes
    ------
    Whole vectors are float32, (num_params,); parts are uint8, as they travel, one a server.
    """

    def __init__(
        self, composition: Strategy, own: Sequence[Partition], streams: Streams, worker: int
    ) -> None:
        self._composition, self._streams, self._worker = composition, streams, worker
        self._partitions, self._pushed = own, pushed_to(composition, own)
        self._answered = answered_by(composition, own)
        #: residuals and messages sent as of the last release
        self._at_release: tuple[list[Floats | None], int] = [], 0
        self.states = [
            WorkerCodecState(composition, partition.size, streams, worker, server)
            for server, partition in enumerate(own)
        ]

    def model(self, parts: Sequence[Tensor]) -> Tensor:
        """Decode the model in a release."""
        return self._decode(parts, WorkerCodecState.decode_model, self._answered)

    def aggregate(self, parts: Sequence[Tensor]) -> Tensor:
        """Decode the aggregate in a release."""
        return self._decode(parts, WorkerCodecState.decode_aggregate, self._partitions)

    def push(self, payload: Tensor, setting: int = -1) -> list[Tensor]:
        """Encode the parts of a push, with that setting of the codec.

        Raises
        ------
        CodecError
            If it has entries that are NaN or infinite, or too large for the codec.
        """
        parts = zip(self.states, self._pushed, strict=True)
        return [torch.from_numpy(state.encode_push(own.of(payload).numpy(), setting)) for state, own in parts]

    def pushed(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the payload of a push as decoded by the servers."""
        return self._decode(parts, WorkerCodecState.decode_push, self._pushed)

    def push_part(self, payload: Tensor, entries: Partition, setting: int) -> list[Tensor]:
        """Encode the parts of a push with some of the entries; see `push`."""
        cuts = [within(own, entries) for own in self._partitions]
        parts = zip(self.states, cuts, strict=True)
        return [
            torch.from_numpy(state.channel.send_part(cut.of(payload).numpy(), setting))
            if cut.size
            else _NOTHING
            for state, cut in parts
        ]

    @property
    def residual(self) -> Tensor | None:
        """The residual of error feedback: the part of earlier pushes not sent yet; None if it is 0."""
        return self._gather([state.channel.residual for state in self.states])

    def add_residual(self, residual: Tensor) -> None:
        """Add the residual of other channels, such as channels to servers with other entries."""
        for state, own in zip(self.states, self._pushed, strict=True):
            state.channel.add_residual(own.of(residual).numpy())

    def repartitioned(self, own: Sequence[Partition]) -> WorkerCodecs:
        """Return the codec state for servers with another partition, with the same residual.

        The next model must come whole.
        """
        new = WorkerCodecs(self._composition, own, self._streams, self._worker)
        new.num_sent = self.num_sent
        residual = self.residual
        if residual is not None:
            new.add_residual(residual)
        return new

    @property
    def num_sent(self) -> int:
        """Number of pushes so far; a stochastic codec uses a new random stream for each."""
        return self.states[0].channel.num_sent

    @num_sent.setter
    def num_sent(self, number: int) -> None:
        for state in self.states:
            state.channel.num_sent = number

    @property
    def held(self) -> Tensor | None:
        """The model after the last release; None before the first."""
        parts = [torch.from_numpy(state.held) for state in self.states if state.held is not None]
        return gather(parts, self._answered) if parts else None

    def hold(self, held: Tensor) -> None:
        """Set the model after the last release."""
        for state, own in zip(self.states, self._answered, strict=True):
            state.held = own.of(held).numpy()

    # ---------------------------------------------------------------- checkpoints

    def mark_release(self) -> None:
        """Save the state at a release: a later push may be discarded by a restart from a checkpoint."""
        self._at_release = [state.channel.residual for state in self.states], self.num_sent

    def checkpoint(self, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain data: the current state of a waiting worker, else its last release."""
        memories, num_sent = self._at_release
        if waits:
            residual, num_sent = self.residual, self.num_sent
        else:
            residual = self._gather(memories)
        found = {"residual": residual, "held": self.held}  # which pushes leave as it is
        return {name: each for name, each in found.items() if each is not None}, {"num_sent": num_sent}

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore the state that `checkpoint` returned."""
        self.num_sent = plain.get("num_sent", 0)
        if "residual" in tensors:
            self.add_residual(tensors["residual"])
        if "held" in tensors:
            self.hold(tensors["held"])
        self.mark_release()

    def _gather(self, memories: Sequence[Floats | None]) -> Tensor | None:
        found = [torch.from_numpy(memory) for memory in memories if memory is not None]
        if len(found) < len(self.states):
            return None
        whole = gather(found, self._pushed)
        return whole if whole.any() else None

    def _decode(self, parts: Sequence[Tensor], decode: _Decode, own: Sequence[Partition]) -> Tensor:
        decoded = [
            torch.from_numpy(decode(state, part.numpy()))
            for state, part in zip(self.states, parts, strict=True)
        ]
        return gather(decoded, own)


class Compression:
    """Encodes and decodes the vectors of all workers and servers under one composition.

    Parameters
    ----------
    composition : Strategy
    own : sequence of Partition
        The entries that each server holds.
    streams : Streams
    residuals : dict of worker to tensor
        Residuals of the composition before; taken over.
    fragments : sequence of Partition
        Those that pushes may be of.
    """

    def __init__(
        self,
        composition: Strategy,
        own: Sequence[Partition],
        streams: Streams,
        residuals: dict[int, Tensor],
        fragments: Sequence[Partition] = (),
    ) -> None:
        communication = composition.communication
        self._composition, self._streams = composition, streams
        self._up, self._down = communication.codec.name, communication.codec_down.name
        # a collective's vectors, whose entries travel each by itself, or codecs that change nothing
        self._entrywise = isinstance(composition.placement, Collective) or self._up == self._down == "none"
        self._fragments = fragments
        self._hold(own)
        self._servers = self._new_servers()
        self._workers: dict[int, WorkerCodecs] = {}
        #: until a worker has codecs, or, if it needs none, has pushed
        self._pending_residuals = residuals
        #: residuals pushed since the last release: that push is void after a checkpoint
        self._pushed_residuals: dict[int, Tensor] = {}
        self._last_sent: tuple[int, Tensor] | None = None  # version and model

    def model(self, worker: int, ticket: int, version: int, parameters: Tensor) -> Tensor:
        """Return the model as decoded by workers; read-only, as workers may share it.

        Raises
        ------
        CodecError
            If it has entries that are NaN or infinite, or too large for the codec.
        """
        if self._entrywise:
            if self._last_sent is None or self._last_sent[0] != version:
                # a ring has rounded what it adds up, and leaves the model where it is
                codec = "none" if isinstance(self._composition.placement, Collective) else self._down
                self._last_sent = version, over_the_wire(parameters.clone(), codec)
            return self._last_sent[1]
        parts = [
            torch.from_numpy(server.encode_model(worker, ticket, version, own.of(parameters).numpy()))
            for server, own in zip(self._servers, self._answered, strict=True)
        ]
        return self._codecs_of(worker).model(parts)

    def aggregate(self, worker: int, version: int, aggregate: Tensor) -> Tensor:
        """Return the aggregate of a commit as decoded by workers."""
        if self._entrywise:
            return over_the_wire(aggregate, self._down)
        parts = [
            torch.from_numpy(server.encode_aggregate(version, own.of(aggregate).numpy()))
            for server, own in zip(self._servers, self._partitions, strict=True)
        ]
        return self._codecs_of(worker).aggregate(parts)

    def part(self, fragment: int, parameters: Tensor) -> Tensor:
        """Return a copy of a fragment of the model as decoded by workers."""
        codec = "none" if isinstance(self._composition.placement, Collective) else self._down
        return over_the_wire(self._fragments[fragment].of(parameters).clone(), codec)

    def push(self, push: Push, payload: Tensor) -> Tensor:
        """Return a push's payload as decoded by the servers; infinite if it cannot be encoded."""
        worker, fragment = push.worker, push.fragment
        if fragment >= 0 and not self._entrywise:
            codecs = self._codecs_of(worker)
            return self._pushed_part(codecs, payload, self._fragments[fragment], push.setting)
        if self._entrywise:
            residual = self._pending_residuals.pop(worker, None)
            if residual is not None:
                self._pushed_residuals[worker] = residual
            return over_the_wire(payload if residual is None else payload + residual, self._up)
        try:
            parts = self._codecs_of(worker).push(payload, push.setting)
        except CodecError:
            return torch.full_like(payload, torch.inf)
        arrived = [
            torch.from_numpy(server.decode_push(worker, push.ticket, part.numpy()))
            for server, part in zip(self._servers, parts, strict=True)
        ]
        return gather(arrived, pushed_to(self._composition, self._partitions))

    def _hold(self, own: Sequence[Partition]) -> None:
        self._partitions, self._answered = own, answered_by(self._composition, own)

    def _pushed_part(self, codecs: WorkerCodecs, payload: Tensor, entries: Partition, setting: int) -> Tensor:
        try:
            parts = codecs.push_part(payload, entries, setting)
        except CodecError:
            return torch.full_like(payload, torch.inf)
        arrived = torch.empty_like(payload)
        for server, own, part in zip(self._servers, self._partitions, parts, strict=True):
            cut = within(own, entries)
            cut.put(arrived, torch.from_numpy(server.decode_part(part.numpy(), cut.size)))
        return arrived

    def leave_out(self, worker: int, residual: Tensor) -> None:
        """Add a residual to a worker's next push."""
        self._pending_residuals[worker] = residual

    def residuals(self) -> dict[int, Tensor]:
        """Return each worker's compression residual: its vectors minus the decoded payloads."""
        found = {worker: codecs.residual for worker, codecs in self._workers.items()}
        return {worker: each for worker, each in found.items() if each is not None} | self._pending_residuals

    def repartition(self, ranges: Ranges) -> None:
        """Change the partition among servers; each worker's next model is sent unencoded."""
        before = self._partitions
        self._hold(partitions_of(ranges))
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
        """Remove a worker and its residual."""
        self._workers.pop(worker, None)
        self._pending_residuals.pop(worker, None)
        for server in self._servers:
            server.forget(worker)

    # ---------------------------------------------------------------- checkpoints

    def mark_release(self, worker: int) -> None:
        self._pushed_residuals.pop(worker, None)
        if worker in self._workers:
            self._workers[worker].mark_release()

    def checkpoint_worker(self, worker: int, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a worker's codec state: the current one if it waits, else the one at its last release."""
        codecs = self._workers.get(worker)
        if codecs is not None:
            return codecs.checkpoint(waits)
        residual = self._pending_residuals.get(worker)
        if residual is None and not waits:
            residual = self._pushed_residuals.get(worker)
        return ({} if residual is None else {"residual": residual}), {}

    def restore_worker(self, worker: int, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore the state that `checkpoint_worker` returned."""
        if "num_sent" in plain and not self._entrywise:
            self._codecs_of(worker).restore(tensors, plain)
        elif "residual" in tensors:
            self._pending_residuals[worker] = tensors["residual"]

    def checkpoint_servers(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the servers' codec state, except the models that workers hold."""
        first = self._servers[0]
        residual = _residual(self._servers, self._partitions)
        plain = {"draws": first.draws, "aggregates": first.channel.num_sent}
        return ({} if residual is None else {"residual": residual}), plain

    def restore_servers(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore the state that `checkpoint_servers` returned; call this after restoring all workers."""
        held = {worker: codecs.held for worker, codecs in self._workers.items()}
        places = zip(self._servers, self._partitions, self._answered, strict=True)
        for server, own, answered in places:
            server.restore(
                plain["draws"],
                {worker: answered.of(model).numpy() for worker, model in held.items() if model is not None},
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


def _residual(servers: list[ServerCodecState], own: Sequence[Partition]) -> Tensor | None:
    found = [server.channel.residual for server in servers]
    known = [torch.from_numpy(residual) for residual in found if residual is not None]
    return gather(known, own) if known else None
