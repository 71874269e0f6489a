"""Requests to parameter servers, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import NumberReply, PushKey, ReleaseMessage, StateReply
from psbench.backends.dask.protocol.roles import server_name, worker_name
from psbench.backends.dask.server.migration import exchange
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.backends.dask.server.shared_model import SharedSlice
from psbench.backends.dask.server.store import (
    NO_CODEC_COUNTERS,
    ParameterStore,
    StoreReply,
    Then,
    ThenCheckpoint,
    ThenNumber,
    join,
    key_of,
    slice_of,
)
from psbench.backends.partition import Partition, fragments_of, partitions, partitions_of, within
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.core.migration import Ranges
from psbench.core.shared_memory import SharedMemory
from psbench.core.strategy import Strategy
from psbench.optimization.optimizer import Optimizer
from psbench.training.build import Workload
from psbench.training.products import add_up, product_of

_Reply: TypeAlias = StateReply | NumberReply


@dataclass
class _Request:
    """A request to every server: its answers by name, and the function to call with all of them."""

    then: Callable[[list[_Reply]], None]
    answers: dict[str, _Reply] = field(default_factory=dict)


class ParameterServerStore(ParameterStore):
    """The orders to one or more parameter servers; the first runs in this process.

    Parameters
    ----------
    out : Outbox
    workload : Workload
    index : int
        Which of the experiment's compositions this is.
    state : State
        Where to begin.
    numbers : iterator of int
        Numbers for requests, unique in this run.
    ranges : ranges or None
        What each server holds, if that is not as the placement says.
    codec_counters : dict or None
        If the state is of a checkpoint: see `ParameterSlice`.
    """

    def __init__(
        self,
        out: Outbox,
        workload: Workload,
        index: int,
        state: StateDict,
        numbers: Iterator[int],
        ranges: Ranges | None = None,
        codec_counters: dict[str, int] | None = None,
    ) -> None:
        self._out, self._numbers = out, numbers
        composition = workload.experiment.strategy.compositions[index]
        self._layout, self._aggregation = workload.model.layout, composition.aggregation.name
        self._servers = [server_name(number) for number in range(composition.placement.num_servers)]
        self._parts = parts = partition_of(composition, workload, ranges)
        plain_ranges = None if ranges is None else as_lists(ranges)
        for number, (name, part) in enumerate(zip(self._servers, parts, strict=True)):
            own = slice_of(state, part, first=not number)
            out.send(name, msg.BeginSlice(index, plain_ranges, codec_counters, own))
        #: pushes of which the servers have payloads, in the order of their arrival
        self._waiting = {_key_in(name): None for name in state if name.startswith("payload/")}
        self._requests: dict[int, _Request] = {}

    # ---------------------------------------------------------------- pushes and versions

    @property
    def waiting(self) -> Collection[PushKey]:
        """The pushes with stored payloads; every server stores its slice of the same pushes."""
        return self._waiting.keys()

    def arrived(self, push: Push) -> None:
        """Record a push; every server's socket passes its slice to `ParameterSlice.receive`."""
        self._waiting[key_of(push)] = None

    def apply(self, apply: act.Apply) -> None:
        """Order the servers to make the next version."""
        order = msg.ApplyUpdate([], list(apply.weights), [], [], [], msg.Update.of(apply))
        for push in apply.pushes:
            key = push.worker, push.ticket
            del self._waiting[key]
            order.keys.append(key)
            order.samples.append(push.samples)
            order.steps.append(push.steps)
            order.bases.append(push.base_version)
        self._order(order)

    def discard(self, key: PushKey) -> None:
        """Drop a push's slices."""
        self._waiting.pop(key, None)
        self._order(msg.DiscardPush(key))

    def release(self, release: act.Release, samples: int) -> None:
        """Answer a worker, with the model if it has not got this version, or with the aggregate."""
        name, message = worker_name(release.worker), ReleaseMessage.of(release, samples)
        if not release.send:
            self._out.send(name, message)
            return
        self._out.answer(name, message)
        for other in self._servers[1:]:
            stamp = release.worker, release.ticket
            self._out.send(other, msg.AnswerWorker(*stamp, release.load, release.aggregate, release.fragment))

    def forget(self, worker: int) -> None:
        self._order(msg.ForgetWorker(worker))

    def leave(self, worker: int, ticket: int) -> None:
        """Order the servers to stop waiting for a dead worker's slices."""
        self._order(msg.WorkerGone(worker, is_back=False, ticket=ticket))

    def join(self, worker: int) -> None:
        """Tell the servers that another process has replaced a worker."""
        self._order(msg.WorkerGone(worker, is_back=True))

    # ---------------------------------------------------------------- states and measurements

    def gather(self, states: bool, then: Then) -> None:
        """Put the slices together."""
        self._ask(lambda tag: msg.SendState(tag, states), self._joined(then))

    def checkpoint(self, keys: Sequence[PushKey], then: ThenCheckpoint) -> None:
        """Join the servers' checkpoints of the current version and of the given pushes."""
        now = self._parts

        def put_together(answers: list[_Reply]) -> None:
            counters = answers[0].codec_counters if isinstance(answers[0], StateReply) else None
            then(join(_states(answers), now), counters or dict(NO_CODEC_COUNTERS))

        self._ask(lambda tag: msg.SendSliceState(tag, list(keys)), put_together)

    def payload(self, push: Push, then: Then) -> None:
        """Put a push's slices together."""
        key = key_of(push)
        self._ask(lambda tag: msg.SendPayload(tag, key), self._joined(then))

    def _joined(self, then: Then) -> Callable[[list[_Reply]], None]:
        now = self._parts
        return lambda answers: then(join(_states(answers), now))

    def hold(self, order: msg.HoldVersion) -> None:
        self._order(order)

    def distance_sq(self, push: Push, then: ThenNumber) -> None:
        version = push.base_version
        self._ask(lambda tag: msg.MeasureDistance(tag, version), lambda answers: then(sum(_numbers(answers))))

    def products(
        self, names: Sequence[str], pending: Mapping[int, Push], then: Callable[[str, float], None]
    ) -> None:
        """Add up the servers' shares of scalar products."""
        asked: list[tuple[str, str, int, int]] = [
            product_of(name, self._layout, self._aggregation, pending) for name in names
        ]

        def take(answers: list[_Reply]) -> None:
            for i, name in enumerate(names):
                then(name, add_up(state[str(i)] for state in _states(answers)))

        keys = [key_of(push) for push in pending.values()]
        self._ask(lambda tag: msg.MeasureProducts(tag, keys, asked), take)

    def loads(self, then: Callable[[list[float]], None]) -> None:
        """Call `then` with the seconds that each server was busy serving since this was asked last.

        That is decoding, adding up, encoding and handing to the socket; the coordinator's decisions are not
        in it.
        """
        self._ask(msg.MeasureLoad, lambda answers: then(_numbers(answers)))

    def ask_movement(self, then: ThenNumber) -> None:
        self._ask(msg.MeasureMovement, lambda answers: then(_numbers(answers)[0]))

    # ---------------------------------------------------------------- migration

    def reassign(self, ranges: Ranges, then: Callable[[], None]) -> None:
        """Move entries to their new servers; only moved entries are sent.

        Calls `then` when all servers hold theirs: a worker may push as soon as it is released.
        """
        before, self._parts = self._parts, partitions_of(ranges)
        keys = list(self._waiting)
        self._ask(
            lambda tag: msg.GiveEntries(tag, keys, as_lists(ranges)),
            partial(self._hand_out, before, then),
        )

    def _hand_out(self, before: list[Partition], then: Callable[[], None], given: list[_Reply]) -> None:
        tag = next(self._numbers)
        self._requests[tag] = _Request(lambda _: then())
        for name, received in zip(self._servers, exchange(_states(given), before, self._parts), strict=True):
            self._out.send(name, msg.TakeEntries(tag, received))

    # ---------------------------------------------------------------- the servers

    def _ask(
        self,
        request: Callable[[int], Message],
        then: Callable[[list[_Reply]], None],
    ) -> None:
        tag = next(self._numbers)
        self._requests[tag] = _Request(then)
        self._order(request(tag))

    def reply(self, sender: str, reply: StoreReply) -> None:
        """Handle a server's part."""
        if isinstance(reply, msg.RingVerdict) or reply.tag not in self._requests:
            return  # an answer to the store before this one
        request = self._requests[reply.tag]
        request.answers[sender] = reply
        if len(request.answers) == len(self._servers):
            del self._requests[reply.tag]
            request.then([request.answers[name] for name in self._servers])

    def _order(self, message: Message) -> None:
        for name in self._servers:
            self._out.send(name, message)


def _states(answers: Iterable[_Reply]) -> list[StateDict]:
    return [answer.tensors for answer in answers if isinstance(answer, StateReply)]


def _numbers(answers: Iterable[_Reply]) -> list[float]:
    return [answer.number for answer in answers if isinstance(answer, NumberReply)]


def _key_in(name: str) -> PushKey:
    """Return the push that a tensor of a checkpoint belongs to; see `ParameterSlice.checkpoint`."""
    worker, ticket = name.split("/")[1:]
    return int(worker), int(ticket)


def as_lists(ranges: Ranges) -> msg.EntryRanges:
    """Return ranges as a message holds them."""
    return [[(start, end) for start, end in own] for own in ranges]


def partition_of(composition: Strategy, workload: Workload, ranges: Ranges | None) -> list[Partition]:
    """Return each server's part of the model: the placement's, unless `ranges` are given."""
    return (
        partitions(composition.placement, workload.model.layout) if ranges is None else partitions_of(ranges)
    )


def of_part(optimizer: Optimizer, part: Partition) -> Optimizer:
    """Return an optimizer for the entries of a slice."""
    return optimizer.of_entries(part.of(optimizer.entries)) if optimizer.is_grouped else optimizer


def new_slice(
    state: StateDict,
    workload: Workload,
    composition: Strategy,
    number: int,
    codec_counters: dict[str, int] | None,
    ranges: Ranges | None = None,
) -> ParameterSlice:
    """Return a server's slice of the model under a composition."""
    experiment, part = workload.experiment, partition_of(composition, workload, ranges)[number]
    fragments = [within(each, part) for each in fragments_of(composition, workload.model.layout)]
    # fmt: off
    kind = SharedSlice if isinstance(composition.placement, SharedMemory) else ParameterSlice
    made = kind(
        state, of_part(workload.optimizers[0], part), experiment.batch_size, composition,
        workload.streams, number, codec_counters,
    )
    # fmt: on
    made.server.fragments = fragments
    if isinstance(made, SharedSlice):
        made.share(experiment.num_workers)
    if composition.aggregation.per_tensor:  # this one holds all of them
        made.server.shapes = workload.model.shapes
    return made
