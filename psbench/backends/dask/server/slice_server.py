"""A parameter server in whichever process: it carries out orders on its slice, and migrates entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.messages import PushKey
from psbench.backends.dask.protocol.transport import ServerSocket
from psbench.backends.dask.server.migration import SliceMigration
from psbench.backends.dask.server.parameter_server import new_slice, partition_of
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.backends.dask.server.store import state_of
from psbench.backends.partition import Partition, partitions_of
from psbench.backends.stamps import ServerStamps
from psbench.training.build import Workload
from psbench.training.products import Product


class SliceServer:
    """Carries out orders on a server's slice. The payloads that an order names must have arrived.

    Parameters
    ----------
    workload : Workload
    socket : ServerSocket
        Where the workers' slices arrive.
    number : int
        Of the server.

    Attributes
    ----------
    slice : ParameterSlice or None
        None where workers hold the parameters.
    """

    def __init__(self, workload: Workload, socket: ServerSocket, number: int) -> None:
        self._workload, self._socket, self._number = workload, socket, number
        self.slice: ParameterSlice | None = None
        self._part: Partition
        self._migration: SliceMigration
        self._handlers: dict[type[Message], Callable[[Any], Message | None]] = {
            msg.BeginSlice: self._begin,
            msg.ApplyUpdate: lambda order: self.own.apply(order),
            msg.DiscardPush: self._discard,
            msg.ForgetWorker: lambda order: self.own.forget(order.worker),
            msg.WorkerGone: lambda _: None,
            msg.HoldVersion: lambda order: self.own.hold(order.version, order.dropped),
            msg.SendState: lambda order: msg.StateReply(order.tag, state_of(self.own.server, order.states)),
            msg.SendSliceState: self._send_slice_state,
            msg.SendPayload: lambda order: msg.StateReply(order.tag, self.own.payload(order.key)),
            msg.MeasureDistance: lambda order: msg.NumberReply(
                order.tag, self.own.distance_sq(order.version)
            ),
            msg.MeasureProducts: self._measure_products,
            msg.MeasureLoad: lambda order: msg.NumberReply(order.tag, self.own.busy.take()),
            msg.MeasureMovement: self._measure_movement,
            msg.GiveEntries: self._give,
            msg.TakeEntries: self._take,
            msg.AskServed: lambda _: msg.ServedReport(**self._stamps.facts()),
        }
        self._stamps, self._takes_note = ServerStamps(), workload.experiment.connection.stamps

    def carry_out(self, order: Message) -> Message | None:
        """Carry out an order, and return the answer if there is one."""
        return self._handlers[type(order)](order)

    @property
    def own(self) -> ParameterSlice:
        """The slice, if the composition has servers."""
        assert self.slice is not None, "the composition has no servers"
        return self.slice

    def close(self) -> None:
        """Close the slice, if there is one."""
        if self.slice is not None:
            self.slice.close()

    def _begin(self, order: msg.BeginSlice) -> None:
        self.close()
        self.slice, self._socket.keep_payload = None, None
        composition = self._workload.experiment.strategy.compositions[order.composition]
        if not order.tensors:  # workers hold the parameters
            return
        self._part = partition_of(composition, self._workload, order.ranges)[self._number]
        own = order.tensors, self._workload, composition, self._number
        self.slice = new_slice(*own, order.codec_counters, order.ranges)
        self._socket.keep_payload = self.slice.receive
        if self._takes_note:
            self.slice.take_note(self._stamps)
            self._socket.keep_payload = self._receive

    def _receive(self, key: PushKey, payload: Tensor) -> None:
        self._stamps.waiting.add(self._socket.waiting)
        self.own.receive(key, payload)

    def _discard(self, order: msg.DiscardPush) -> None:
        self.own.discard(order.key)

    def _send_slice_state(self, order: msg.SendSliceState) -> Message:
        return msg.StateReply(order.tag, self.own.checkpoint(order.keys), self.own.codec_counters)

    def _measure_products(self, order: msg.MeasureProducts) -> Message:
        asked = [Product(*product) for product in order.products]
        return msg.StateReply(order.tag, self.own.products(order.keys, asked, self._part))

    def _measure_movement(self, order: msg.MeasureMovement) -> Message:
        server = self.own.server
        server.measures_movement = True
        return msg.NumberReply(order.tag, server.movement)

    def _give(self, order: msg.GiveEntries) -> Message:
        """Send the moved entries; new ones arrive with the next order."""
        after = partitions_of(order.ranges)[self._number]
        self._migration, self._part = SliceMigration(self.own, self._part, after, order.keys), after
        return msg.StateReply(order.tag, self._migration.given)

    def _take(self, order: msg.TakeEntries) -> Message:
        self._migration.take(order.tensors)
        return msg.StateReply(order.tag, {})
