"""A model in memory that processes of one host share, and write into without locks (Hogwild)."""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

import torch
from torch import Tensor

from psbench.backends.dask.protocol.messages import ApplyUpdate, PushKey
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.errors import BackendError


class SharedModel(NamedTuple):
    """Views of the shared memory.

    Lost updates are counted by the same race: beside each parameter is a number that each writer reads,
    increments and writes back, as it does with the parameter. A number that is short of all writes has lost
    the difference.

    Attributes
    ----------
    parameters : float32 tensor, (entries,)
    increments : int32 tensor, (entries,)
        How many writes of each entry remain.
    writes : int32 tensor, (workers,)
        How often each worker has written; no worker writes into the number of another.
    """

    parameters: Tensor
    increments: Tensor
    writes: Tensor

    @classmethod
    def of(cls, descriptor: int, entries: int, workers: int) -> SharedModel:
        """Map the memory of a file descriptor."""
        memory = mmap.mmap(descriptor, 4 * (2 * entries + workers))
        floats = torch.frombuffer(memory, dtype=torch.float32, count=entries)
        numbers = torch.frombuffer(memory, dtype=torch.int32, offset=4 * entries)
        return cls(floats, numbers[:entries], numbers[entries:])

    @classmethod
    def attach(cls, name: Tensor, entries: int, workers: int) -> SharedModel:
        """Map the memory that the first server has given a name.

        Raises
        ------
        BackendError
            If this process cannot open it.
        """
        path = bytes(name.tolist()).decode()
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            raise BackendError(
                f"the model in shared memory cannot be opened ({error}); all workers must be on the "
                "coordinator's host, in its container, and of its user"
            ) from None
        try:
            return cls.of(descriptor, entries, workers)
        finally:
            os.close(descriptor)

    def wrote(self, worker: int) -> None:
        """Count a write, which has just ended."""
        self.increments.add_(1)
        self.writes[worker] += 1

    def lost(self) -> dict[str, float]:
        """Return how many updates were `written`, and `lost`, by the share of their entries."""
        written = int(self.writes.sum())
        return {"written": written, "lost": written - float(self.increments.double().mean())}


class SharedSlice(ParameterSlice):
    """The first server's part where workers write into its model: it gives them the memory's name.

    The memory has no name in any folder: it is gone with the last process that maps it, however that ends.
    """

    def share(self, workers: int) -> None:
        """Move the model into shared memory for so many workers."""
        entries = len(self.server.parameters)
        descriptor = os.memfd_create("psbench")
        os.ftruncate(descriptor, 4 * (2 * entries + workers))
        self._memory = SharedModel.of(descriptor, entries, workers)
        self._memory.parameters.copy_(self.server.parameters)
        self.server.parameters = self._memory.parameters
        self._descriptor = descriptor
        self._name = torch.tensor(list(f"/proc/{os.getpid()}/fd/{descriptor}".encode()), dtype=torch.uint8)

    def close(self) -> None:
        """Close the descriptor; processes that have mapped the memory keep it."""
        os.close(self._descriptor)

    def facts(self) -> dict[str, dict[str, float]]:
        """Return the lost updates."""
        return {"lost_updates": self._memory.lost()}

    def apply(self, order: ApplyUpdate) -> None:
        """Do nothing: the worker has written it."""

    def discard(self, key: PushKey) -> bool:
        """Do nothing: a written update cannot be undone."""
        return True

    def answer(self, worker: int, ticket: int, version: int, aggregate: bool, fragment: int) -> Tensor:
        """Return the name of the memory."""
        return self._name
