"""Parameter servers: the conductor's own slice, and the stream that tells the other shards what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from psbench.backends.dask.keeper import State, Then, cut, join, restore, state_of
from psbench.backends.dask.letters import RELEASE, Released
from psbench.backends.dask.names import server_name, worker_name
from psbench.backends.dask.slices import slices
from psbench.backends.dask.wire import ZERO_COPY_BYTES, Hub, pack, unpack
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.optim import Optimizer
from psbench.server_math import Server


class Slice:
    """One shard's slice of the model, with the pushes' slices that wait to be applied.

    The first shard's payloads hold the model's buffers after its slice of the gradient.
    """

    def __init__(self, state: State, optimizer: Optimizer, global_batch: int) -> None:
        self.server = Server(state["parameters"], state["buffers"], optimizer, global_batch)
        restore(self.server, state)
        self._length = len(self.server.parameters)
        self.payloads: dict[tuple[int, int], Tensor] = {}

    def apply(self, keys: Sequence[tuple[int, int]], samples: Sequence[int], update: dict[str, Any]) -> None:
        """Apply the named payloads: (worker, ticket) in the order of the commit."""
        payloads = [self.payloads.pop(key) for key in keys]
        if not len(self.server.buffers):
            self.server.apply(payloads, **update)
            return
        self.server.apply([payload[: self._length] for payload in payloads], **update)
        self.server.merge_buffers([payload[self._length :] for payload in payloads], samples)

    def model(self) -> Tensor:
        """Return slice and buffers as one vector that may be given to the wire."""
        server = self.server
        if len(server.buffers):
            return torch.cat([server.parameters, server.buffers])
        # the wire copies what is small; what is large must be a copy, as the next update changes it
        return server.parameters.clone() if self._length * 4 >= ZERO_COPY_BYTES else server.parameters


class Servers:
    """The keeper of a parameter server with one or more shards.

    Parameters
    ----------
    hub : Hub
    count : int
        Number of shards; the others than the first are peers of the hub.
    state : State
        Where to begin.
    numbers : iterator of int
        Numbers for requests that nobody had before in this run.
    """

    def __init__(
        self,
        hub: Hub,
        count: int,
        state: State,
        optimizer: Optimizer,
        global_batch: int,
        numbers: Iterator[int],
    ) -> None:
        self._hub = hub
        self._others = [server_name(shard) for shard in range(1, count)]
        parts = slices(len(state["parameters"]), count)
        self._own = Slice(cut(state, parts[0], first=True), optimizer, global_batch)
        for name, part in zip(self._others, parts[1:], strict=True):
            shapes, flat = pack(cut(state, part, first=False))
            hub.tell(name, {"do": "begin", "shapes": shapes}, flat)
        self._requests: dict[int, tuple[dict[str, State], Then]] = {}
        self._numbers = numbers
        self._snapshot: tuple[int, Tensor] | None = None

    def take(self, push: Push, payload: Tensor | None) -> None:
        """Hold a push's slice; the other shards hold theirs."""
        if payload is not None:
            self._own.payloads[push.worker, push.ticket] = payload

    def apply(self, apply: act.Apply) -> None:
        """Make the next version here, and have the other shards make it."""
        keys = [(push.worker, push.ticket) for push in apply.pushes]
        samples = [push.samples for push in apply.pushes]
        update = {
            "weights": apply.weights,
            "lr_scale": apply.lr_scale,
            "epoch": apply.epoch,
            "rule": apply.rule,
            "keep": apply.keep,
            "momentum_scale": apply.momentum_scale,
        }
        self._own.apply(keys, samples, update)
        self._stream({"do": "apply", "keys": keys, "samples": samples, "update": update})

    def release(self, release: act.Release, samples: int) -> None:
        """Answer a worker, with the model if it has not got this version."""
        body = Released(release.ticket, release.load, samples, release.send, release.orders).encode()
        model = self._model(release.load) if release.send else None
        self._hub.send(worker_name(release.worker), RELEASE, body, model)
        if release.send:
            stamp = {"worker": release.worker, "ticket": release.ticket, "version": release.load}
            self._stream({"do": "release"} | stamp)

    def _model(self, version: int) -> Tensor:
        if self._snapshot is None or self._snapshot[0] != version:
            self._snapshot = version, self._own.model()
        return self._snapshot[1]

    def discard(self, push: Push) -> None:
        """Drop a push's slices."""
        self._own.payloads.pop((push.worker, push.ticket), None)
        self._stream({"do": "discard", "key": [push.worker, push.ticket]})

    def gather(self, optimizer: bool, then: Then) -> None:
        """Put the slices together; with one shard at once."""
        own = state_of(self._own.server, optimizer)
        if not self._others:
            then(own)
            return
        tag = next(self._numbers)
        self._requests[tag] = {"": own}, then
        self._stream({"do": "state", "tag": tag, "optimizer": optimizer})

    def answer(self, sender: str, plain: dict[str, Any], payload: Tensor | None) -> None:
        """Take another shard's slice of a state."""
        if plain.get("tag") not in self._requests:
            return  # an answer to the keeper before us
        parts, then = self._requests[plain["tag"]]
        parts[sender] = unpack(plain["shapes"], payload)
        if len(parts) == 1 + len(self._others):
            del self._requests[plain["tag"]]
            then(join([parts[name] for name in ("", *self._others)]))

    def leave(self, worker: int) -> None:
        """Tell the shards not to wait for that worker's slices for ever."""
        self._stream({"do": "gone", "worker": worker})

    def _stream(self, plain: dict[str, Any]) -> None:
        for name in self._others:
            self._hub.tell(name, plain)
