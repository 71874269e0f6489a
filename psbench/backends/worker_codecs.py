"""The codec state of one worker: what it encodes for, and decodes from, each server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from psbench.backends.partition import Partition, gather
from psbench.codecs import WorkerCodecState
from psbench.codecs.base import Floats, Packed
from psbench.core.strategy import Strategy
from psbench.seeds import Streams

_Decode: TypeAlias = Callable[[WorkerCodecState, Packed], Floats]


class WorkerCodecs:
    """Encodes what one worker pushes to the servers of a composition, and decodes what they answer.

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
        self._partitions = own
        #: residuals and messages sent as of the last release
        self._at_release: tuple[list[Floats | None], int] = [], 0
        self.states = [
            WorkerCodecState(composition, partition.size, streams, worker, server)
            for server, partition in enumerate(own)
        ]

    def model(self, parts: Sequence[Tensor]) -> Tensor:
        """Decode the model that a release brings."""
        return self._decode(parts, WorkerCodecState.decode_model)

    def aggregate(self, parts: Sequence[Tensor]) -> Tensor:
        """Decode the aggregate that a release brings."""
        return self._decode(parts, WorkerCodecState.decode_aggregate)

    def push(self, payload: Tensor) -> list[Tensor]:
        """Encode the parts of a push.

        Raises
        ------
        CodecError
            If it has entries that are NaN or infinite, or too large for the codec.
        """
        parts = zip(self.states, self._partitions, strict=True)
        return [torch.from_numpy(state.encode_push(own.of(payload).numpy())) for state, own in parts]

    @property
    def residual(self) -> Tensor | None:
        """The residual of error feedback: what pushes lost and none has made up for; None if it is 0."""
        return self._gather([state.channel.residual for state in self.states])

    def add_residual(self, residual: Tensor) -> None:
        """Add the residual of other channels, such as those to servers that held other entries."""
        for state, own in zip(self.states, self._partitions, strict=True):
            state.channel.add_residual(own.of(residual).numpy())

    def repartitioned(self, own: Sequence[Partition]) -> WorkerCodecs:
        """Return the codec state for servers that hold other entries from now on, with the same residual.

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
        """Pushes so far; a stochastic codec draws from a stream of its own for each."""
        return self.states[0].channel.num_sent

    @num_sent.setter
    def num_sent(self, number: int) -> None:
        for state in self.states:
            state.channel.num_sent = number

    @property
    def held(self) -> Tensor | None:
        """The model that the last release left; None before the first."""
        parts = [torch.from_numpy(state.held) for state in self.states if state.held is not None]
        return gather(parts, self._partitions) if parts else None

    def hold(self, held: Tensor) -> None:
        """Set the model that the last release left."""
        for state, own in zip(self.states, self._partitions, strict=True):
            state.held = own.of(held).numpy()

    # ---------------------------------------------------------------- checkpoints

    def mark_release(self) -> None:
        """Remember the state at a release: later pushes may be under way at a checkpoint, and then void."""
        self._at_release = [state.channel.residual for state in self.states], self.num_sent

    def checkpoint(self, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain data for a checkpoint: current if it waits, else of the last release."""
        memories, num_sent = self._at_release
        if waits:
            residual, num_sent, held = self.residual, self.num_sent, self.held
        else:
            residual, held = self._gather(memories), None
        found = {"residual": residual, "held": held}
        return {name: each for name, each in found.items() if each is not None}, {"num_sent": num_sent}

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore what `checkpoint` returned."""
        self.num_sent = plain.get("num_sent", 0)
        if "residual" in tensors:
            self.add_residual(tensors["residual"])
        if "held" in tensors:
            self.hold(tensors["held"])
        self.mark_release()

    def _gather(self, memories: Sequence[Floats | None]) -> Tensor | None:
        found = [torch.from_numpy(memory) for memory in memories if memory is not None]
        return nonzero_or_none(gather(found, self._partitions)) if len(found) == len(self.states) else None

    def _decode(self, parts: Sequence[Tensor], decode: _Decode) -> Tensor:
        decoded = [
            torch.from_numpy(decode(state, part.numpy()))
            for state, part in zip(self.states, parts, strict=True)
        ]
        return gather(decoded, self._partitions)


def nonzero_or_none(residual: Tensor) -> Tensor | None:
    """Return a vector that has any entry but 0, and None for one that has not."""
    return residual if residual.any() else None
