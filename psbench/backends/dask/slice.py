"""One shard's slice of the model, wherever the shard is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from psbench.backends.dask.keeper import State, restore
from psbench.backends.dask.wire import ZERO_COPY_BYTES
from psbench.backends.dask.writing import is_bare, split, with_buffers
from psbench.codecs import ServerEnd
from psbench.core.strategy import Strategy
from psbench.optim import Optimizer
from psbench.seeds import Streams
from psbench.server_math import Server


class Slice:
    """One shard's slice of the model, with the pushes' slices that wait to be applied.

    The first shard's payloads hold the model's buffers after its slice of the parameters or gradient.

    Parameters
    ----------
    state : State
        Where to begin; only the first shard's has buffers.
    optimizer : Optimizer
    global_batch : int, samples
    streams : Streams
    number : int
        Of the shard.
    composition : Strategy
        Says how numbers travel, and whether aggregates are asked for.
    """

    def __init__(
        self,
        state: State,
        optimizer: Optimizer,
        global_batch: int,
        composition: Strategy,
        streams: Streams,
        number: int,
    ) -> None:
        self.server = Server(state["parameters"], state["buffers"], optimizer, global_batch)
        restore(self.server, state)
        self.server.keeps_aggregate = composition.aggregation.reply == "aggregate"
        self._sends_parameters = composition.aggregation.payload == "parameters"
        self._length = len(self.server.parameters)
        bare = is_bare(composition)
        self._end = None if bare else ServerEnd(composition, self._length, streams, number)
        #: whether every worker is sent the same for a version
        self.is_shared = bare
        self.payloads: dict[tuple[int, int], Tensor] = {}
        self._held: dict[int, Tensor] = {}

    def take(self, key: tuple[int, int], payload: Tensor) -> None:
        """Hold a push's slice, by (worker, ticket)."""
        if self._end is None:
            self.payloads[key] = payload
            return
        part, buffers = split(payload, self._length, len(self.server.buffers))
        arrived = torch.from_numpy(self._end.arrived(*key, part.numpy()))
        self.payloads[key] = with_buffers(arrived, buffers)

    def apply(self, keys: Sequence[tuple[int, int]], samples: Sequence[int], update: dict[str, Any]) -> None:
        """Apply the named payloads, in the order of the commit."""
        payloads = [self.payloads.pop(key) for key in keys]
        if not len(self.server.buffers):
            self.server.apply(payloads, **update)
            return
        self.server.apply([payload[: self._length] for payload in payloads], **update)
        mixing = {name: update[name] for name in ("rule", "weights", "keep")}
        self.server.merge_buffers([payload[self._length :] for payload in payloads], samples, **mixing)

    def nothing(self) -> Tensor:
        """Return what stands for a slice that never came: it moves the model nowhere."""
        own = self.server.parameters
        return own.clone() if self._sends_parameters else torch.zeros_like(own)

    def model(self, worker: int, ticket: int, version: int) -> Tensor:
        """Return slice and buffers as one vector that may be given to the wire."""
        server = self.server
        if self._end is not None:
            written = self._end.answer(worker, ticket, version, server.parameters.numpy())
            return with_buffers(torch.from_numpy(written), server.buffers)
        if len(server.buffers):
            return torch.cat([server.parameters, server.buffers])
        # the wire copies what is small; what is large must be a copy, as the next update changes it
        return server.parameters.clone() if self._length * 4 >= ZERO_COPY_BYTES else server.parameters

    def aggregate(self, version: int) -> Tensor:
        """Return the last commit's mean gradient, as it travels."""
        assert self.server.aggregate is not None
        if self._end is None:
            return self.server.aggregate
        return torch.from_numpy(self._end.aggregate(version, self.server.aggregate.numpy()))

    def forget(self, worker: int) -> None:
        """Know no longer what a worker holds."""
        if self._end is not None:
            self._end.forget(worker)

    def payload(self, key: tuple[int, int]) -> State:
        """Return what a push carries for this slice."""
        payload = self.payloads[key]
        return {"parameters": payload[: self._length], "buffers": payload[self._length :]}

    def hold(self, version: int, in_use: Iterable[int]) -> None:
        """Remember the current version, and forget those not in use."""
        if version not in self._held:
            keep = set(in_use)
            self._held = {v: tensor for v, tensor in self._held.items() if v in keep}
            self._held[version] = self.server.parameters.clone()

    def distance_sq(self, version: int) -> float:
        """Return the squared distance from the current version to one that is held."""
        difference = self.server.parameters - self._held[version]
        return float(torch.dot(difference, difference))
