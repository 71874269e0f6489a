"""Parameter servers: the coordinator's own slice, and the orders to the other servers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import State
from psbench.backends.dask.protocol.messages import EntryRanges, PushKey, ReleaseMessage
from psbench.backends.dask.protocol.roles import server_name, worker_name
from psbench.backends.dask.protocol.transport import ServerSocket
from psbench.backends.dask.server.migration import SliceMigration, exchange
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.backends.dask.server.store import (
    StoreReply,
    Then,
    ThenNumber,
    join,
    key_of,
    slice_of,
    state_of,
)
from psbench.backends.partition import Partition, partitions, partitions_of
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.core.migration import Ranges
from psbench.core.strategy import Strategy
from psbench.training.workload import Workload


@dataclass
class _Request:
    """What every server is asked for: their parts by name, and what to do when all are there."""

    then: Callable[[list[State | float]], None]
    parts: dict[str, State | float] = field(default_factory=dict)


class ParameterServerStore:
    """The store of one or more parameter servers, of which the first is in this process.

    Parameters
    ----------
    socket : ServerSocket
    workload : Workload
    index : int
        Which of the experiment's compositions this is.
    state : State
        Where to begin.
    numbers : iterator of int
        Numbers for requests that nobody had before in this run.
    ranges : ranges or None
        What each server holds, if that is not as the placement says.
    codec_counters : dict or None
        If the state is of a checkpoint: see `ParameterSlice`.
    """

    updates_itself = False

    def __init__(
        self,
        socket: ServerSocket,
        workload: Workload,
        index: int,
        state: State,
        numbers: Iterator[int],
        ranges: Ranges | None = None,
        codec_counters: dict[str, int] | None = None,
    ) -> None:
        self._socket = socket
        composition = workload.experiment.strategy.compositions[index]
        self._others = [server_name(number) for number in range(1, composition.placement.num_servers)]
        self._parts = parts = partition_of(composition, workload, ranges)
        own = slice_of(state, parts[0], first=True)
        self._own = new_slice(own, workload, composition, 0, codec_counters)
        socket.keep_payload = self._own.receive
        told_ranges = None if ranges is None else as_lists(ranges)
        for name, part in zip(self._others, parts[1:], strict=True):
            theirs = slice_of(state, part, first=False)
            socket.send(name, msg.BeginSlice(index, told_ranges, codec_counters, theirs))
        self._requests: dict[int, _Request] = {}
        self._numbers = numbers
        self._snapshot: tuple[int, Tensor] | None = None

    # ---------------------------------------------------------------- pushes and versions

    @property
    def waiting(self) -> Collection[PushKey]:
        """The pushes whose payloads are kept; the other servers keep their slices of the same."""
        return self._own.payloads.keys()

    def arrived(self, push: Push) -> None:
        """Do nothing: every server's socket gives its slice of the push to `ParameterSlice.receive`."""

    def apply(self, apply: act.Apply) -> None:
        """Make the next version here, and have the other servers make it."""
        pushes = apply.pushes
        order = msg.ApplyUpdate(
            [key_of(push) for push in pushes],
            list(apply.weights),
            [push.samples for push in pushes],
            [push.steps for push in pushes],
            [push.base_version for push in pushes],
            msg.Update.of(apply),
        )
        self._own.apply(order)
        self._order(order)

    def discard(self, key: PushKey) -> None:
        """Drop a push's slices."""
        self._own.discard(key)
        self._order(msg.DiscardPush(key))

    def release(self, release: act.Release, samples: int) -> None:
        """Answer a worker, with the model if it has not got this version, or with the aggregate."""
        with self._own.busy:
            payload = self._answer(release) if release.send else None
            self._socket.send(worker_name(release.worker), ReleaseMessage.of(release, samples, payload))
        if release.send:
            stamp = release.worker, release.ticket, release.load
            self._order(msg.AnswerWorker(*stamp, release.aggregate))

    def _answer(self, release: act.Release) -> Tensor:
        worker, ticket, version = release.worker, release.ticket, release.load
        if release.aggregate or not self._own.is_shared:
            return self._own.answer(worker, ticket, version, release.aggregate)
        if self._snapshot is None or self._snapshot[0] != version:
            self._snapshot = version, self._own.answer(worker, ticket, version, False)
        return self._snapshot[1]

    def forget(self, worker: int) -> None:
        """Forget which model a worker holds."""
        self._own.forget(worker)
        self._order(msg.ForgetWorker(worker))

    def leave(self, worker: int) -> None:
        """Tell the servers not to wait for ever for a dead worker's slices."""
        self._order(msg.WorkerGone(worker, is_back=False))

    def join(self, worker: int) -> None:
        """Tell the servers to wait for a worker's slices again."""
        self._order(msg.WorkerGone(worker, is_back=True))

    # ---------------------------------------------------------------- states and measurements

    def gather(self, states: bool, then: Then) -> None:
        """Put the slices together; with one server at once."""
        own = state_of(self._own.server, states)
        self._ask(lambda tag: msg.SendState(tag, states), own, self._joined(then))

    def checkpoint(self, keys: Sequence[PushKey], then: Then) -> None:
        """Put together what the servers' checkpoints hold of the current version, and of those pushes."""
        own = self._own.checkpoint(keys)
        self._ask(lambda tag: msg.SendSliceState(tag, list(keys)), own, self._joined(then))

    def payload(self, push: Push, then: Then) -> None:
        """Put a push's slices together."""
        key = key_of(push)
        self._ask(lambda tag: msg.SendPayload(tag, key), self._own.payload(key), self._joined(then))

    def _joined(self, then: Then) -> Callable[[list[State | float]], None]:
        now = self._parts
        return lambda parts: then(join([part for part in parts if isinstance(part, dict)], now))

    @property
    def codec_counters(self) -> dict[str, int]:
        """How many models and aggregates stochastic codecs have encoded."""
        return self._own.codec_counters

    def hold(self, version: int, in_use: Iterable[int]) -> None:
        """Keep the current version in every server."""
        self._own.hold(version, in_use)
        self._order(msg.HoldVersion(version, sorted(in_use)))

    def distance_sq(self, push: Push, then: ThenNumber) -> None:
        """Add up the servers' squared distances."""
        version = push.base_version
        own = self._own.distance_sq(version)
        self._ask(
            lambda tag: msg.MeasureDistance(tag, version), own, lambda parts: then(sum(_numbers(parts)))
        )

    def loads(self, then: Callable[[list[float]], None]) -> None:
        """Call `then` with the seconds that each server was busy serving since this was asked last.

        That is decoding, adding up, encoding and handing to the socket; the coordinator's decisions are not
        in it.
        """
        self._ask(msg.MeasureLoad, self._own.take_load(), lambda parts: then(_numbers(parts)))

    def measure_movement(self) -> None:
        """Measure the movement of every update; the first server must be the only one."""
        self._own.server.measures_movement = True

    @property
    def movement(self) -> float:
        """How far the last update moved the model, if that is measured."""
        return self._own.server.movement

    # ---------------------------------------------------------------- migration

    def reassign(self, ranges: Ranges, then: Callable[[], None]) -> None:
        """Move entries to the servers that are to hold them; only those that change their server travel.

        Calls `then` when all servers hold theirs: a worker may push as soon as it is released.
        """
        before, self._parts = self._parts, partitions_of(ranges)
        keys = list(self._own.payloads)
        migration = SliceMigration(self._own, before[0], self._parts[0], keys)
        self._snapshot = None
        self._ask(
            lambda tag: msg.GiveEntries(tag, keys, as_lists(ranges)),
            migration.given,
            partial(self._hand_out, migration, before, then),
        )

    def _hand_out(
        self,
        migration: SliceMigration,
        before: list[Partition],
        then: Callable[[], None],
        given: list[State | float],
    ) -> None:
        states = [part for part in given if isinstance(part, dict)]
        first, *others = exchange(states, before, self._parts)
        migration.take(first)
        tag = next(self._numbers)
        self._requests[tag] = _Request(lambda _: then(), {"": {}})
        for name, received in zip(self._others, others, strict=True):
            self._socket.send(name, msg.TakeEntries(tag, received))

    # ---------------------------------------------------------------- the other servers

    def _ask(
        self,
        request: Callable[[int], Message],
        own: State | float,
        then: Callable[[list[State | float]], None],
    ) -> None:
        """Ask the other servers for their part of something, of which the first server has its own."""
        if not self._others:
            then([own])
            return
        tag = next(self._numbers)
        self._requests[tag] = _Request(then, {"": own})
        self._order(request(tag))

    def reply(self, sender: str, reply: StoreReply) -> None:
        """Take another server's part."""
        if isinstance(reply, msg.RingVerdict) or reply.tag not in self._requests:
            return  # an answer to the store before this one
        request = self._requests[reply.tag]
        request.parts[sender] = reply.number if isinstance(reply, msg.NumberReply) else reply.tensors
        if len(request.parts) == 1 + len(self._others):
            del self._requests[reply.tag]
            request.then([request.parts[name] for name in ("", *self._others)])

    def _order(self, message: Message) -> None:
        for name in self._others:
            self._socket.send(name, message)


def _numbers(parts: Iterable[State | float]) -> list[float]:
    return [part for part in parts if not isinstance(part, dict)]


def as_lists(ranges: Ranges) -> EntryRanges:
    """Return ranges as a message holds them."""
    return [[(start, end) for start, end in own] for own in ranges]


def partition_of(composition: Strategy, workload: Workload, ranges: Ranges | None) -> list[Partition]:
    """Return each server's part of the model: as the placement says unless `ranges` are given."""
    return (
        partitions(composition.placement, workload.model.layout) if ranges is None else partitions_of(ranges)
    )


def new_slice(
    state: State,
    workload: Workload,
    composition: Strategy,
    number: int,
    codec_counters: dict[str, int] | None,
) -> ParameterSlice:
    """Return a server's slice of the model under a composition."""
    experiment = workload.experiment
    return ParameterSlice(
        *(state, experiment.optimizer, experiment.batch_size, composition),
        *(workload.streams, number, codec_counters),
    )
