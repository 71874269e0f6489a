"""A live worker's exchange under a composition: pushes out, models and aggregates in.

See `psbench.backends.exchange.Exchange`, which simulated exchanges are, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from psbench.backends.compression import WorkerCodecs
from psbench.backends.dask.protocol.framing import StateDict, is_bare, padded, split, with_buffers
from psbench.backends.dask.protocol.messages import EntryRanges, PushMessage, ReleaseMessage
from psbench.backends.dask.protocol.roles import servers_of
from psbench.backends.dask.protocol.transport import ClientSocket
from psbench.backends.dask.server.shared_model import SharedModel
from psbench.backends.dask.worker.mailbox import LOOK_S, Mailbox
from psbench.backends.dask.worker.ring_member import RingMember
from psbench.backends.partition import (
    Partition,
    answered_by,
    fragments_of,
    gather,
    partitions,
    partitions_of,
    parts_of,
    pushed_to,
    within,
)
from psbench.backends.stamps import WorkerStamps
from psbench.core.events import Push
from psbench.core.strategy import Strategy
from psbench.errors import CodecError
from psbench.optimization.piecewise import PiecewiseSteps
from psbench.strategies.codecs import Codec
from psbench.training.build import Workload
from psbench.training.server import all_finite


class WorkerExchange:
    """Base class of exchanges: a push, and the residual of an earlier composition.

    Parameters
    ----------
    mailbox : Mailbox
    clock : callable
        Returns the coordinator's time, in seconds.
    residual : tensor or None
        What codecs of an earlier composition have left out.
    """

    def __init__(self, mailbox: Mailbox, clock: Callable[[], float], residual: Tensor | None) -> None:
        self._mailbox, self._clock, self._residual = mailbox, clock, residual

    def push(self, push: Push, payload: Tensor, buffers: Tensor) -> Callable[[], Tensor | None]:
        """Send a push to the coordinator, and its payload to the process that adds it up.

        What is returned gives the payload as it is decoded there; None if it does not travel.
        """
        raise NotImplementedError

    def model(self, release: ReleaseMessage) -> tuple[Tensor, Tensor] | tuple[()]:
        """Return the parameters and buffers that a release brings."""
        raise NotImplementedError

    def aggregate(self, release: ReleaseMessage) -> Tensor:
        raise NotImplementedError

    @property
    def residual(self) -> Tensor | None:
        return self._residual

    def take_note(self, stamps: WorkerStamps) -> None:
        """Record from now on the codecs' times."""

    def began(self, version: int) -> None:
        """Record the start of a step from that version."""

    def mark_release(self) -> None:
        """Save the state to which a checkpoint returns if a later push is in transit."""

    def reassign(self, ranges: EntryRanges) -> None:
        """Change the partition among servers."""

    def checkpoint(self, waits: bool) -> tuple[StateDict, dict[str, Any]]:
        """Return tensors and plain data for a checkpoint: current if it waits, else of the last release."""
        return ({} if self._residual is None else {"residual": self._residual}), {}

    def restore(self, tensors: StateDict, plain: dict[str, Any]) -> None:
        self._residual = tensors.get("residual")

    def _with_residual(self, payload: Tensor) -> Tensor:
        residual, self._residual = self._residual, None
        return payload if residual is None else payload + residual


class RingExchange(WorkerExchange):
    """All-Reduce: the payload waits here for the coordinator's ring, and the replica has the model."""

    def __init__(
        self,
        member: RingMember,
        fragments: Sequence[Partition],
        mailbox: Mailbox,
        clock: Callable[[], float],
        residual: Tensor | None,
    ) -> None:
        super().__init__(mailbox, clock, residual)
        self._member, self._fragments = member, fragments
        self._at_release: Tensor | None = None
        member.leave_out = self._leave_out

    def _leave_out(self, residual: Tensor) -> None:
        self._residual = residual

    def mark_release(self) -> None:
        """Save the residual: the push that includes it may be discarded by a restart."""
        self._at_release = self._residual

    def checkpoint(self, waits: bool) -> tuple[StateDict, dict[str, Any]]:
        """Return the residual; see `WorkerExchange`."""
        residual = self._residual if waits else self._at_release
        return ({} if residual is None else {"residual": residual}), {}

    def push(self, push: Push, payload: Tensor, buffers: Tensor) -> Callable[[], Tensor | None]:
        """Store the payload for the next ring, and report to the coordinator."""
        payload = self._member.contribute(self._with_residual(payload), buffers)
        is_finite = math.isfinite(push.loss) and all_finite(payload)
        self._mailbox.send(PushMessage.of(push, self._clock(), is_finite))
        return lambda: payload

    def model(self, release: ReleaseMessage) -> tuple[Tensor, Tensor]:
        """Return the replica."""
        member, buffers = self._member, self._member.replica.buffers
        if release.fragment >= 0:
            return self._fragments[release.fragment].of(member.parameters), buffers
        # of a share of the model the others are gathered; then there is no state to send
        return (
            member.replica.sent_model() if member.replica.aggregation.sends else member.parameters
        ), buffers

    def aggregate(self, release: ReleaseMessage) -> Tensor:
        assert self._member.replica.aggregate is not None
        return self._member.replica.aggregate


class SharedMemoryExchange(WorkerExchange):
    """Hogwild: the model is in the host's memory, which this worker reads and writes without a lock.

    Parameters
    ----------
    composition : Strategy
    workload : Workload
    worker : int
    """

    def __init__(
        self,
        composition: Strategy,
        workload: Workload,
        worker: int,
        mailbox: Mailbox,
        clock: Callable[[], float],
        residual: Tensor | None,
    ) -> None:
        super().__init__(mailbox, clock, residual)
        self._worker, self._optimizer = worker, workload.optimizers[0]
        self._sizes = workload.model.num_parameters, workload.profile.num_workers
        self._share = 1 / workload.profile.num_workers if composition.lr_scaling == "by_share" else 1.0
        self._epoch = 0.0
        self._memory: SharedModel | None = None  # from the first release on
        self._steps: PiecewiseSteps

    def model(self, release: ReleaseMessage) -> tuple[Tensor, Tensor]:
        """Read the model, while others may write."""
        self._epoch = release.epoch
        if self._memory is None:
            assert release.payload is not None
            self._memory = SharedModel.attach(release.payload, *self._sizes)
            self._steps = PiecewiseSteps(self._optimizer, self._memory.parameters)
        return self._memory.parameters.clone(), torch.zeros(0)

    def push(self, push: Push, payload: Tensor, buffers: Tensor) -> Callable[[], Tensor | None]:
        """Write into the model, while others may do so, too; then report to the coordinator."""
        payload, memory = self._with_residual(payload), self._memory
        assert memory is not None
        is_finite = math.isfinite(push.loss) and all_finite(payload)
        if is_finite:
            self._steps.step(payload, self._optimizer.rate(self._epoch) * self._share)
            memory.wrote(self._worker)
        self._mailbox.send(PushMessage.of(push, self._clock(), is_finite))
        return lambda: payload


class ServerExchange(WorkerExchange):
    """Parameter servers: a push sends each server its slice, and a release brings the slices back.

    Parameters
    ----------
    servers : list of ClientSocket
        To all servers of the run, in order; the first is the coordinator.
    composition : Strategy
    workload : Workload
    worker : int
    """

    def __init__(
        self,
        servers: list[ClientSocket],
        composition: Strategy,
        workload: Workload,
        worker: int,
        mailbox: Mailbox,
        clock: Callable[[], float],
        residual: Tensor | None,
    ) -> None:
        coded = not is_bare(composition)
        self._withstands_nan = composition.aggregation.withstands_nan
        super().__init__(mailbox, clock, None if coded else residual)
        self._parts = partitions(composition.placement, workload.model.layout)
        self._pushed_parts = pushed_to(composition, self._parts)
        self._answered_parts = answered_by(composition, self._parts)
        self._fragments = fragments_of(composition, workload.model.layout)
        self._composition = composition
        self._servers = servers[: servers_of(composition)]
        self._num_buffers = workload.model.num_buffers
        self._codecs: WorkerCodecs | None = None
        if coded:
            self._codecs = WorkerCodecs(composition, self._parts, workload.streams, worker)
            if residual is not None:
                self._codecs.add_residual(residual)
        #: what takes note of seconds that codecs take
        self._encoding: AbstractContextManager[None] = nullcontext()
        self._decoding: AbstractContextManager[None] = nullcontext()

    def take_note(self, stamps: WorkerStamps) -> None:
        if self._codecs is not None:
            self._encoding, self._decoding = stamps.encoding, stamps.decoding

    def push(self, push: Push, payload: Tensor, buffers: Tensor) -> Callable[[], Tensor | None]:
        """Send each server its slice, with the buffers to the first."""
        payload = self._with_residual(payload)
        slices = self._slices(push, payload)
        sent_s = self._clock()
        if not slices:  # what is not finite does not travel: the push ends the run
            self._mailbox.send(PushMessage.of(push, sent_s, False))
            return lambda: None
        first, *others = slices
        for server, part in zip(self._servers[1:], others, strict=True):
            server.send(PushMessage.of(push, sent_s, True, part))
        self._servers[0].send(PushMessage.of(push, sent_s, True, with_buffers(first, buffers)))
        return lambda: payload if self._codecs is None else self._codecs.pushed(slices)

    def _slices(self, push: Push, payload: Tensor) -> list[Tensor]:
        """Return the servers' encoded slices; none if the push ends the run."""
        fragment, setting = push.fragment, push.setting
        if not (math.isfinite(push.loss) and (self._withstands_nan or all_finite(payload))):
            return []
        codecs = self._codecs
        try:
            if fragment < 0:
                if codecs is None:
                    return parts_of(payload, self._pushed_parts)
                with self._encoding:
                    return codecs.push(payload, setting)
            entries = self._fragments[fragment]
            if codecs is None:
                return [padded(within(own, entries).of(payload)) for own in self._parts]
            with self._encoding:
                return [padded(part) for part in codecs.push_part(payload, entries, setting)]
        except CodecError:
            return []

    def _model_part(self, release: ReleaseMessage, entries: Partition) -> tuple[Tensor, Tensor]:
        """Return a fragment of the model that the servers send."""
        assert release.payload is not None
        cuts, down = [within(own, entries) for own in self._parts], self._composition.communication.codec_down
        assert isinstance(down, Codec)
        first, buffers = split(release.payload, max(1, cuts[0].size), self._num_buffers)
        found, slices = torch.empty(entries.size), self._received(first, release.ticket)
        with self._decoding:
            for cut, part in zip(cuts, slices, strict=True):
                if cut.size:
                    whole = self._codecs is None
                    floats = part if whole else torch.from_numpy(down.decode(part.numpy(), cut.size))
                    cut.put(found, floats)
        return found, buffers

    def model(self, release: ReleaseMessage) -> tuple[Tensor, Tensor]:
        """Return the model that the servers send."""
        if release.fragment >= 0:
            return self._model_part(release, self._fragments[release.fragment])
        assert release.payload is not None
        first, buffers = split(release.payload, self._answered_parts[0].size, self._num_buffers)
        slices, codecs = self._received(first, release.ticket), self._codecs
        if codecs is None:
            return gather(slices, self._answered_parts), buffers
        with self._decoding:
            return codecs.model(slices), buffers

    def aggregate(self, release: ReleaseMessage) -> Tensor:
        """Return the aggregate that the servers send."""
        assert release.payload is not None
        slices, codecs = self._received(release.payload, release.ticket), self._codecs
        with self._decoding:
            return gather(slices, self._parts) if codecs is None else codecs.aggregate(slices)

    def _received(self, first: Tensor, ticket: int) -> Sequence[Tensor]:
        """Return the servers' slices as they arrived."""
        others = self._servers[1:]
        return [first, *(self._await_slice(server, ticket) for server in others)] if others else [first]

    def _await_slice(self, server: ClientSocket, ticket: int) -> Tensor:
        """Wait for another server's slice of a release; skip slices of cancelled steps."""
        while True:
            message = server.receive(LOOK_S)
            if isinstance(message, ReleaseMessage):
                assert message.payload is not None
                if message.ticket == ticket:
                    return message.payload
            elif message is None:
                self._mailbox.look()

    @property
    def residual(self) -> Tensor | None:
        return self._residual if self._codecs is None else self._codecs.residual

    def mark_release(self) -> None:
        if self._codecs is not None:
            self._codecs.mark_release()

    def reassign(self, ranges: EntryRanges) -> None:
        """Change the partition among servers."""
        self._parts = partitions_of(ranges)
        self._pushed_parts = pushed_to(self._composition, self._parts)
        self._answered_parts = answered_by(self._composition, self._parts)
        if self._codecs is not None:
            self._codecs = self._codecs.repartitioned(self._parts)

    def checkpoint(self, waits: bool) -> tuple[StateDict, dict[str, Any]]:
        return super().checkpoint(waits) if self._codecs is None else self._codecs.checkpoint(waits)

    def restore(self, tensors: StateDict, plain: dict[str, Any]) -> None:
        """Restore the state from `checkpoint`."""
        if self._codecs is None:
            super().restore(tensors, plain)
        else:
            self._codecs.restore(tensors, plain)
