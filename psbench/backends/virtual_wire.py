"""What vectors become on their way between workers and servers, in virtual time."""

from __future__ import annotations

import torch
from torch import Tensor

from psbench.backends.connections import Connections
from psbench.backends.slices import cuts, cuts_of, together
from psbench.codecs import ServerEnd, over_the_wire
from psbench.core.move import Ranges
from psbench.core.strategy import Strategy
from psbench.errors import CodecError
from psbench.problem import Problem


class VirtualWire:
    """The connections of all workers under one composition.

    Parameters
    ----------
    composition : Strategy
    problem : Problem
    owed : dict of worker to tensor
        What each has not said under the composition before; taken over.
    """

    def __init__(self, composition: Strategy, problem: Problem, owed: dict[int, Tensor]) -> None:
        communication = composition.communication
        self._composition, self._streams = composition, problem.streams
        self._up, self._down = communication.codec.name, communication.codec_down.name
        # a collective's vectors, whose entries travel each by itself, or nothing that changes any
        self._entrywise = composition.placement.collective or self._up == self._down == "none"
        self._cuts = cuts(composition.placement, problem.model.layout)
        self._servers = self._new_servers()
        self._workers: dict[int, Connections] = {}
        self._owed = owed  # until a worker has connections, or, if it needs none, has pushed
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
            torch.from_numpy(far.answer(worker, ticket, version, cut.of(parameters).numpy()))
            for far, cut in zip(self._servers, self._cuts, strict=True)
        ]
        return self._ends(worker).model(parts)

    def aggregate(self, worker: int, version: int, aggregate: Tensor) -> Tensor:
        """Return the aggregate of a commit as it arrives."""
        if self._entrywise:
            return over_the_wire(aggregate, self._down)
        parts = [
            torch.from_numpy(far.aggregate(version, cut.of(aggregate).numpy()))
            for far, cut in zip(self._servers, self._cuts, strict=True)
        ]
        return self._ends(worker).aggregate(parts)

    def push(self, worker: int, ticket: int, payload: Tensor) -> Tensor:
        """Return a push's payload as it arrives; infinite if it cannot be written."""
        if self._entrywise:
            owed = self._owed.pop(worker, None)
            return over_the_wire(payload if owed is None else payload + owed, self._up)
        try:
            parts = self._ends(worker).push(payload)
        except CodecError:
            return torch.full_like(payload, torch.inf)
        arrived = [
            torch.from_numpy(far.arrived(worker, ticket, part.numpy()))
            for far, part in zip(self._servers, parts, strict=True)
        ]
        return together(arrived, self._cuts)

    def unsaid(self) -> dict[int, Tensor]:
        """Return what each worker has not said; what all have said, with it, is all they were to say."""
        found = {worker: connections.unsaid for worker, connections in self._workers.items()}
        return {worker: each for worker, each in found.items() if each is not None} | self._owed

    def reassign(self, ranges: Ranges) -> None:
        """Write for servers that hold other entries from now on; the next model of each worker goes whole."""
        before, self._cuts = self._cuts, cuts_of(ranges)
        old, self._servers = self._servers, self._new_servers()
        for new, same in zip(self._servers, old, strict=True):
            new.follow(same)
        memories = [torch.from_numpy(end.channel.memory) for end in old if end.channel.memory is not None]
        if memories:
            unsaid = together(memories, before)
            for end, cut in zip(self._servers, self._cuts, strict=True):
                end.channel.owe(cut.of(unsaid).numpy())
        self._workers = {worker: each.moved(self._cuts) for worker, each in self._workers.items()}

    def forget(self, worker: int) -> None:
        """Know nothing of a worker that has gone; what it had not said is lost with it."""
        self._workers.pop(worker, None)
        self._owed.pop(worker, None)
        for server in self._servers:
            server.forget(worker)

    def _new_servers(self) -> list[ServerEnd]:
        return [
            ServerEnd(self._composition, cut.size, self._streams, number)
            for number, cut in enumerate(self._cuts)
        ]

    def _ends(self, worker: int) -> Connections:
        if worker not in self._workers:
            new = self._workers[worker] = Connections(self._composition, self._cuts, self._streams, worker)
            owed = self._owed.pop(worker, None)
            if owed is not None:
                new.owe(owed)
        return self._workers[worker]
