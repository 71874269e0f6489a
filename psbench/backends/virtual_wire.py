"""What vectors become on their way between workers and servers, in virtual time."""

from __future__ import annotations

import torch
from torch import Tensor

from psbench.backends.slices import cuts, together
from psbench.codecs import ServerEnd, WorkerEnd, over_the_wire
from psbench.core.strategy import Strategy
from psbench.errors import CodecError
from psbench.problem import Problem


class VirtualWire:
    """The connections of all workers under one composition.

    Parameters
    ----------
    composition : Strategy
    problem : Problem
    """

    def __init__(self, composition: Strategy, problem: Problem) -> None:
        communication = composition.communication
        self._composition, self._streams = composition, problem.streams
        self._up, self._down = communication.codec.name, communication.codec_down.name
        # a collective's vectors, whose entries travel each by itself, or nothing that changes any
        self._entrywise = composition.placement.collective or self._up == self._down == "none"
        self._cuts = cuts(composition.placement, problem.model.layout)
        self._servers = [
            ServerEnd(composition, cut.size, problem.streams, number) for number, cut in enumerate(self._cuts)
        ]
        self._workers: dict[int, list[WorkerEnd]] = {}
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
        ends = zip(self._ends(worker), self._servers, self._cuts, strict=True)
        return together(
            [
                torch.from_numpy(near.answer(far.answer(worker, ticket, version, cut.of(parameters).numpy())))
                for near, far, cut in ends
            ],
            self._cuts,
        )

    def aggregate(self, worker: int, version: int, aggregate: Tensor) -> Tensor:
        """Return the aggregate of a commit as it arrives."""
        if self._entrywise:
            return over_the_wire(aggregate, self._down)
        ends = zip(self._ends(worker), self._servers, self._cuts, strict=True)
        return together(
            [
                torch.from_numpy(near.aggregate(far.aggregate(version, cut.of(aggregate).numpy())))
                for near, far, cut in ends
            ],
            self._cuts,
        )

    def push(self, worker: int, ticket: int, payload: Tensor) -> Tensor:
        """Return a push's payload as it arrives; infinite if it cannot be written."""
        if self._entrywise:
            return over_the_wire(payload, self._up)
        ends = zip(self._ends(worker), self._servers, self._cuts, strict=True)
        try:
            return together(
                [
                    torch.from_numpy(far.arrived(worker, ticket, near.push(cut.of(payload).numpy())))
                    for near, far, cut in ends
                ],
                self._cuts,
            )
        except CodecError:
            return torch.full_like(payload, torch.inf)

    def forget(self, worker: int) -> None:
        """Know nothing of a worker that has gone."""
        self._workers.pop(worker, None)
        for server in self._servers:
            server.forget(worker)

    def _ends(self, worker: int) -> list[WorkerEnd]:
        if worker not in self._workers:
            self._workers[worker] = [
                WorkerEnd(self._composition, cut.size, self._streams, worker, number)
                for number, cut in enumerate(self._cuts)
            ]
        return self._workers[worker]
