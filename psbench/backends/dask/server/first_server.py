"""The first parameter server, in the coordinator's process: carries out its orders at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import State
from psbench.backends.dask.protocol.messages import ReleaseMessage
from psbench.backends.dask.protocol.roles import worker_number
from psbench.backends.dask.protocol.transport import ServerSocket
from psbench.backends.dask.server.migration import SliceMigration
from psbench.backends.dask.server.parameter_server import new_slice, partition_of
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.backends.dask.server.store import state_of
from psbench.backends.partition import Partition, partitions_of
from psbench.training.products import Product
from psbench.training.workload import Workload


class FirstServer:
    """Server 0: the same orders as in `ServerProcess`, without waiting for payloads.

    The coordinator's socket gives it the payload of a push before the coordinator hears of the push.

    Parameters
    ----------
    workload : Workload
    socket : ServerSocket
        The coordinator's.

    Attributes
    ----------
    slice : ParameterSlice or None
        None under All-Reduce.
    """

    def __init__(self, workload: Workload, socket: ServerSocket) -> None:
        self._workload, self._socket = workload, socket
        self.slice: ParameterSlice | None = None
        self._part: Partition
        self._migration: SliceMigration
        self._snapshot: tuple[int, Tensor] | None = None  # of a version that every worker is sent alike
        self._handlers: dict[type[Message], Callable[[Any], Message | None]] = {
            msg.BeginSlice: self._begin,
            msg.ApplyUpdate: lambda order: self._own.apply(order),
            msg.DiscardPush: self._discard,
            msg.ForgetWorker: lambda order: self._own.forget(order.worker),
            msg.WorkerGone: lambda _: None,  # a payload that is named here has arrived
            msg.HoldVersion: lambda order: self._own.hold(order.version, order.in_use),
            msg.SendState: lambda order: _state(order.tag, state_of(self._own.server, order.states)),
            msg.SendSliceState: self._send_slice_state,
            msg.SendPayload: lambda order: _state(order.tag, self._own.payload(order.key)),
            msg.MeasureDistance: self._measure_distance,
            msg.MeasureProducts: self._measure_products,
            msg.MeasureLoad: lambda order: msg.NumberReply(order.tag, self._own.take_load()),
            msg.MeasureMovement: self._measure_movement,
            msg.GiveEntries: self._give,
            msg.TakeEntries: self._take,
        }

    def carry_out(self, order: Message) -> Message | None:
        """Carry out an order, and return the answer if there is one."""
        return self._handlers[type(order)](order)

    def answer(self, name: str, release: ReleaseMessage) -> None:
        """Send a worker its release, with the model or the last aggregate."""
        worker, own = worker_number(name), self._own
        assert worker is not None
        with own.busy:
            release.payload = self._answer(own, worker, release)
            self._socket.send(name, release)

    def _answer(self, own: ParameterSlice, worker: int, release: ReleaseMessage) -> Tensor:
        version, aggregate = release.version, release.aggregate
        if aggregate or not own.is_shared or release.fragment >= 0:
            return own.answer(worker, release.ticket, version, aggregate, release.fragment)
        if self._snapshot is None or self._snapshot[0] != version:
            self._snapshot = version, own.answer(worker, release.ticket, version, False, -1)
        return self._snapshot[1]

    @property
    def _own(self) -> ParameterSlice:
        assert self.slice is not None, "the composition has no servers"
        return self.slice

    def _begin(self, order: msg.BeginSlice) -> None:
        self.slice, self._snapshot, self._socket.keep_payload = None, None, None
        composition = self._workload.experiment.strategy.compositions[order.composition]
        if not order.tensors:  # workers hold the parameters
            return
        self._part = partition_of(composition, self._workload, order.ranges)[0]
        own = order.tensors, self._workload, composition, 0
        self.slice = new_slice(*own, order.codec_counters, order.ranges)
        self._socket.keep_payload = self.slice.receive

    def _discard(self, order: msg.DiscardPush) -> None:
        self._own.discard(order.key)

    def _send_slice_state(self, order: msg.SendSliceState) -> Message:
        return msg.StateReply(order.tag, self._own.checkpoint(order.keys), self._own.codec_counters)

    def _measure_distance(self, order: msg.MeasureDistance) -> Message:
        return msg.NumberReply(order.tag, self._own.distance_sq(order.version))

    def _measure_products(self, order: msg.MeasureProducts) -> Message:
        asked = [Product(*product) for product in order.products]
        return _state(order.tag, self._own.products(order.keys, asked, self._part))

    def _measure_movement(self, order: msg.MeasureMovement) -> Message:
        server = self._own.server
        server.measures_movement = True
        return msg.NumberReply(order.tag, server.movement)

    def _give(self, order: msg.GiveEntries) -> Message:
        after, self._snapshot = partitions_of(order.ranges)[0], None
        self._migration = SliceMigration(self._own, self._part, after, order.keys)
        self._part = after
        return _state(order.tag, self._migration.given)

    def _take(self, order: msg.TakeEntries) -> Message:
        self._migration.take(order.tensors)
        return _state(order.tag, {})


def _state(tag: int, state: State) -> msg.StateReply:
    return msg.StateReply(tag, state)
