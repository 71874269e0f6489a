"""Parameter servers: the conductor's own slice, and the stream that tells the other shards what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from torch import Tensor

from psbench.backends.dask.protocol.messages import RELEASE, ReleaseMessage
from psbench.backends.dask.protocol.roles import server_name, worker_name
from psbench.backends.dask.protocol.transport import ServerSocket, pack, unpack
from psbench.backends.dask.server.migration import SliceMigration, deal
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.backends.dask.server.store import State, Then, ThenNumber, cut, join, state_of, update_of
from psbench.backends.partition import Partition, partitions, partitions_of
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.core.migration import Ranges
from psbench.core.parts import Layout
from psbench.core.strategy import Strategy
from psbench.seeds import Streams
from psbench.training.optim import Optimizer


@dataclass
class _Request:
    """What is asked of every shard: parts by shard, our own first, and what to do when all are there."""

    then: Callable[[list[Any]], None]
    parts: dict[str, Any] = field(default_factory=dict)


class ParameterServerStore:
    """The keeper of a parameter server with one or more shards.

    Parameters
    ----------
    hub : Hub
    composition : Strategy
    index : int
        Which of the experiment's compositions that is.
    state : State
        Where to begin.
    optimizer : Optimizer
    global_batch : int, samples
    numbers : iterator of int
        Numbers for requests that nobody had before in this run.
    ranges : ranges or None
        What each server holds, if that is not as the placement says.
    wire : dict or None
        If the state is a recorded one: see `ParameterSlice`.
    """

    def __init__(
        self,
        hub: ServerSocket,
        composition: Strategy,
        index: int,
        state: State,
        optimizer: Optimizer,
        global_batch: int,
        numbers: Iterator[int],
        streams: Streams,
        layout: Layout,
        ranges: Ranges | None = None,
        wire: dict[str, int] | None = None,
    ) -> None:
        self._hub = hub
        count = composition.placement.num_servers
        self._others = [server_name(shard) for shard in range(1, count)]
        self._partitions = parts = (
            partitions(composition.placement, layout) if ranges is None else partitions_of(ranges)
        )
        own = cut(state, parts[0], first=True)
        self._own = ParameterSlice(own, optimizer, global_batch, composition, streams, 0, wire)
        for name, part in zip(self._others, parts[1:], strict=True):
            shapes, flat = pack(cut(state, part, first=False))
            told = {"do": "begin", "shapes": shapes, "composition": index, "ranges": ranges, "wire": wire}
            hub.tell(name, told, flat)
        self._requests: dict[int, _Request] = {}
        self._numbers = numbers
        self._snapshot: tuple[int, Tensor] | None = None

    def take(self, push: Push, payload: Tensor | None) -> None:
        """Hold a push's slice; the other shards hold theirs."""
        if payload is not None:
            began = perf_counter()
            self._own.take((push.worker, push.ticket), payload)
            self._own.busy_s += perf_counter() - began

    def apply(self, apply: act.Apply) -> None:
        """Make the next version here, and have the other shards make it."""
        keys = [(push.worker, push.ticket) for push in apply.pushes]
        samples = [push.samples for push in apply.pushes]
        update = {"weights": apply.weights} | update_of(apply)
        began = perf_counter()
        self._own.apply(keys, samples, update)
        self._own.busy_s += perf_counter() - began
        self._stream({"do": "apply", "keys": keys, "samples": samples, "update": update})

    def release(self, release: act.Release, samples: int) -> None:
        """Answer a worker, with the model if it has not got this version, or with the aggregate."""
        payload, began = None, perf_counter()
        if release.send:
            payload = self._own.aggregate(release.load) if release.aggregate else self._model(release)
        body = ReleaseMessage.of(release, samples).encode()
        self._hub.send(worker_name(release.worker), RELEASE, body, payload)
        self._own.busy_s += perf_counter() - began
        if release.send:
            stamp = {"worker": release.worker, "ticket": release.ticket, "version": release.load}
            self._stream({"do": "release", "aggregate": release.aggregate} | stamp)

    def _model(self, release: act.Release) -> Tensor:
        version = release.load
        if self._snapshot is None or self._snapshot[0] != version or not self._own.is_shared:
            self._snapshot = version, self._own.model(release.worker, release.ticket, version)
        return self._snapshot[1]

    def forget(self, worker: int) -> None:
        """Know no longer what a worker holds that has gone, or begins anew."""
        self._own.forget(worker)
        self._stream({"do": "forget", "worker": worker})

    def discard(self, push: Push) -> None:
        """Drop a push's slices."""
        self._own.payloads.pop((push.worker, push.ticket), None)
        self._stream({"do": "discard", "key": [push.worker, push.ticket]})

    def gather(self, optimizer: bool, then: Then) -> None:
        """Put the slices together; with one shard at once."""
        own, now = state_of(self._own.server, optimizer), self._partitions
        self._ask({"do": "state", "optimizer": optimizer}, own, lambda parts: then(join(parts, now)))

    def record(self, keys: Sequence[tuple[int, int]], then: Then) -> None:
        """Put together all that the shards know of the current version, and of those pushes."""
        own, now = self._own.record(keys), self._partitions
        self._ask({"do": "state", "keys": keys}, own, lambda parts: then(join(parts, now)))

    @property
    def wire(self) -> dict[str, int]:
        """How many models and aggregates were written with chance of their own."""
        return self._own.wire

    def payload(self, push: Push, then: Then) -> None:
        """Put a push's slices together."""
        key, now = (push.worker, push.ticket), self._partitions
        own = self._own.payload(key)
        self._ask({"do": "payload", "key": key}, own, lambda parts: then(join(parts, now)))

    def hold(self, version: int, in_use: Iterable[int]) -> None:
        """Remember the current version in every shard."""
        self._own.hold(version, in_use)
        self._stream({"do": "hold", "version": version, "in_use": sorted(in_use)})

    def distance_sq(self, push: Push, then: ThenNumber) -> None:
        """Add up the shards' squared distances."""
        version = push.base_version
        own = self._own.distance_sq(version)
        self._ask({"do": "distance_sq", "version": version}, own, lambda parts: then(sum(parts)))

    def loads(self, then: Callable[[list[float]], None]) -> None:
        """Call `then` with the seconds that each shard was busy serving since this was asked last.

        That is reading, adding up, writing and handing to the wire; what the conductor decides is not in it.
        """
        self._ask({"do": "load"}, self._own.take_load(), then)

    def reassign(self, ranges: Ranges, then: Callable[[], None]) -> None:
        """Have entries move to the shards that are to hold them, and call `then`; no message is under way.

        Only what changes its server travels, by way of this process.
        """
        before, self._partitions = self._partitions, partitions_of(ranges)
        keys = list(self._own.payloads)
        mover = SliceMigration(self._own, before[0], self._partitions[0], keys)
        self._snapshot = None
        order = {"do": "give", "keys": keys, "ranges": ranges}
        self._ask(order, mover.given, lambda given: self._deal(mover, given, before, then))

    def _deal(
        self, mover: SliceMigration, given: list[State], before: list[Partition], then: Callable[[], None]
    ) -> None:
        first, *others = deal(given, before, self._partitions)
        mover.take(first)
        for name, received in zip(self._others, others, strict=True):
            shapes, flat = pack(received)
            self._hub.tell(name, {"do": "receive", "shapes": shapes}, flat)
        then()

    def measure_movement(self) -> None:
        """Have the movement of every update measured; our own slice must be all there is."""
        self._own.server.measures_movement = True

    @property
    def movement(self) -> float:
        """How far the last update moved the model, if that is measured."""
        return self._own.server.movement

    def _ask(self, plain: dict[str, Any], own: Any, then: Callable[[list[Any]], None]) -> None:
        """Ask the other shards for their part of something of which we have our own."""
        if not self._others:
            then([own])
            return
        tag = next(self._numbers)
        self._requests[tag] = _Request(then, {"": own})
        self._stream(plain | {"tag": tag})

    def answer(self, sender: str, plain: dict[str, Any], payload: Tensor | None) -> None:
        """Take another shard's part."""
        request = self._requests.get(plain.get("tag", -1))
        if request is None:
            return  # an answer to the keeper before us
        request.parts[sender] = plain["number"] if "number" in plain else unpack(plain["shapes"], payload)
        if len(request.parts) == 1 + len(self._others):
            del self._requests[plain["tag"]]
            request.then([request.parts[name] for name in ("", *self._others)])

    def leave(self, worker: int) -> None:
        """Tell the shards not to wait for that worker's slices for ever."""
        self._stream({"do": "gone", "worker": worker})

    def _stream(self, plain: dict[str, Any]) -> None:
        for name in self._others:
            self._hub.tell(name, plain)
