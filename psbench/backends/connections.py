"""A worker's ends of its connections to all servers, as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from psbench.backends.slices import Cut, together
from psbench.codecs import WorkerEnd
from psbench.codecs.base import Floats, Packed
from psbench.core.strategy import Strategy
from psbench.seeds import Streams

_Read: TypeAlias = Callable[[WorkerEnd, Packed], Floats]


class Connections:
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

    def __init__(self, composition: Strategy, own: Sequence[Cut], streams: Streams, worker: int) -> None:
        self._composition, self._streams, self._worker = composition, streams, worker
        self._cuts = own
        self.ends = [
            WorkerEnd(composition, cut.size, streams, worker, server) for server, cut in enumerate(own)
        ]

    def model(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the model that an answer brings."""
        return self._read(parts, WorkerEnd.answer)

    def aggregate(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the aggregate that an answer brings."""
        return self._read(parts, WorkerEnd.aggregate)

    def push(self, payload: Tensor) -> list[Tensor]:
        """Return the parts of a push.

        Raises
        ------
        CodecError
            If it has entries that are no numbers, or too large for the codec.
        """
        parts = zip(self.ends, self._cuts, strict=True)
        return [torch.from_numpy(end.push(cut.of(payload).numpy())) for end, cut in parts]

    @property
    def unsaid(self) -> Tensor | None:
        """What pushes have lost so far and none has made up for; None if that is nothing."""
        memories = [end.channel.memory for end in self.ends]
        found = [torch.from_numpy(memory) for memory in memories if memory is not None]
        return whole_or_none(together(found, self._cuts)) if len(found) == len(memories) else None

    def owe(self, unsaid: Tensor) -> None:
        """Have later pushes say what others did not, such as those to servers that held other parameters."""
        for end, cut in zip(self.ends, self._cuts, strict=True):
            end.channel.owe(cut.of(unsaid).numpy())

    def moved(self, own: Sequence[Cut]) -> Connections:
        """Return the connections if servers hold other entries from now on, with what was not said yet.

        The next model must come whole.
        """
        new = Connections(self._composition, own, self._streams, self._worker)
        for end, before in zip(new.ends, self.ends, strict=True):
            end.channel.num_sent = before.channel.num_sent
        unsaid = self.unsaid
        if unsaid is not None:
            new.owe(unsaid)
        return new

    def _read(self, parts: Sequence[Tensor], read: _Read) -> Tensor:
        read_parts = [
            torch.from_numpy(read(end, part.numpy())) for end, part in zip(self.ends, parts, strict=True)
        ]
        return together(read_parts, self._cuts)


def whole_or_none(unsaid: Tensor) -> Tensor | None:
    """Return a vector that has anything in it."""
    return unsaid if unsaid.any() else None
