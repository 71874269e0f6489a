"""A worker's ends of its connections to all servers, as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from psbench.backends.partition import Partition, together
from psbench.codecs import WorkerCodecState
from psbench.codecs.base import Floats, Packed
from psbench.core.strategy import Strategy
from psbench.seeds import Streams

_Read: TypeAlias = Callable[[WorkerCodecState, Packed], Floats]


class WorkerCodecs:
    """What one worker writes to, and reads from, the servers of a composition.

    Parameters
    ----------
    composition : Strategy
    own : sequence of Cut
        The servers'.
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
        self._cuts = own
        #: what was not said, and the messages sent, when the last answer came
        self._answered: tuple[list[Floats | None], int] = [], 0
        self.ends = [
            WorkerCodecState(composition, cut.size, streams, worker, server) for server, cut in enumerate(own)
        ]

    def model(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the model that an answer brings."""
        return self._read(parts, WorkerCodecState.decode_model)

    def aggregate(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the aggregate that an answer brings."""
        return self._read(parts, WorkerCodecState.decode_aggregate)

    def push(self, payload: Tensor) -> list[Tensor]:
        """Return the parts of a push.

        Raises
        ------
        CodecError
            If it has entries that are no numbers, or too large for the codec.
        """
        parts = zip(self.ends, self._cuts, strict=True)
        return [torch.from_numpy(end.encode_push(cut.of(payload).numpy())) for end, cut in parts]

    @property
    def unsaid(self) -> Tensor | None:
        """What pushes have lost so far and none has made up for; None if that is nothing."""
        return self._together([end.channel.residual for end in self.ends])

    def owe(self, unsaid: Tensor) -> None:
        """Have later pushes say what others did not, such as those to servers that held other parameters."""
        for end, cut in zip(self.ends, self._cuts, strict=True):
            end.channel.add_residual(cut.of(unsaid).numpy())

    def moved(self, own: Sequence[Partition]) -> WorkerCodecs:
        """Return the connections if servers hold other entries from now on, with what was not said yet.

        The next model must come whole.
        """
        new = WorkerCodecs(self._composition, own, self._streams, self._worker)
        new.num_sent = self.num_sent
        unsaid = self.unsaid
        if unsaid is not None:
            new.owe(unsaid)
        return new

    @property
    def num_sent(self) -> int:
        """Pushes so far, each of which is written with chance of its own."""
        return self.ends[0].channel.num_sent

    @num_sent.setter
    def num_sent(self, number: int) -> None:
        for end in self.ends:
            end.channel.num_sent = number

    @property
    def held(self) -> Tensor | None:
        """The model that the last answer left; None before the first."""
        parts = [torch.from_numpy(end.held) for end in self.ends if end.held is not None]
        return together(parts, self._cuts) if parts else None

    def hold(self, held: Tensor) -> None:
        """Go on from a model that an answer left."""
        for end, cut in zip(self.ends, self._cuts, strict=True):
            end.held = cut.of(held).numpy()

    def answered(self) -> None:
        """Mark the beginning of what would be void if the run went on from a checkpoint."""
        self._answered = [end.channel.residual for end in self.ends], self.num_sent

    @property
    def when_answered(self) -> tuple[Tensor | None, int]:
        """What was not said, and the pushes, when the last answer came: later ones may be under way."""
        memories, num_sent = self._answered
        return self._together(memories), num_sent

    def _together(self, memories: Sequence[Floats | None]) -> Tensor | None:
        found = [torch.from_numpy(memory) for memory in memories if memory is not None]
        return whole_or_none(together(found, self._cuts)) if len(found) == len(self.ends) else None

    def _read(self, parts: Sequence[Tensor], read: _Read) -> Tensor:
        read_parts = [
            torch.from_numpy(read(end, part.numpy())) for end, part in zip(self.ends, parts, strict=True)
        ]
        return together(read_parts, self._cuts)


def whole_or_none(unsaid: Tensor) -> Tensor | None:
    """Return a vector that has anything in it."""
    return unsaid if unsaid.any() else None
