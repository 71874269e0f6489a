"""A parameter server in a process of its own: carries out the coordinator's orders on its slice."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message, MessageRefused
from psbench.backends.dask.protocol.framing import State
from psbench.backends.dask.protocol.messages import PushKey, ReleaseMessage
from psbench.backends.dask.protocol.roles import worker_name
from psbench.backends.dask.protocol.transport import (
    Abandoned,
    ClientSocket,
    ServerSocket,
    Stopped,
)
from psbench.backends.dask.server.adder import Adder
from psbench.backends.dask.server.lost_payloads import LostPayloads
from psbench.backends.dask.server.migration import SliceMigration
from psbench.backends.dask.server.parameter_server import new_slice, partition_of
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.backends.dask.server.store import state_of
from psbench.backends.partition import Partition, partitions_of
from psbench.core.strategy import Strategy
from psbench.training.products import Product
from psbench.training.workload import Workload

_POLL_MS = 50


class ServerProcess:
    """One parameter server that is not the first.

    A version means the same here as at the coordinator: orders are carried out in its order, and one waits
    for the payloads that it names. A payload that its worker died before sending moves the model nowhere.

    Parameters
    ----------
    workload : Workload
    socket : ServerSocket
        Where the workers' slices arrive.
    coordinator : ClientSocket
    number : int
        Of the server; server 0 is part of the coordinator's process.
    """

    def __init__(
        self, workload: Workload, socket: ServerSocket, coordinator: ClientSocket, number: int
    ) -> None:
        self.workload, self.socket, self.coordinator, self.number = workload, socket, coordinator, number
        self._orders: deque[Message] = deque()
        self._lost = LostPayloads()
        self._unwanted: set[PushKey] = set()  # pushes to drop when they come
        self._met: set[int] = set()  # workers whose greeting was read
        self._adder = Adder(socket.send)
        self._slice: ParameterSlice
        self._part: Partition
        self._migration: SliceMigration
        self._has_begun = False
        self._poller = zmq.Poller()
        self._poller.register(coordinator.handle, zmq.POLLIN)
        self._handlers: dict[type[Message], Callable[..., bool | None]] = {
            msg.ApplyUpdate: self._apply,
            msg.DiscardPush: self._discard,
            msg.AnswerWorker: self._answer,
            msg.ForgetWorker: lambda order: self._slice.forget(order.worker),
            msg.HoldVersion: lambda order: self._slice.hold(order.version, order.in_use),
            msg.SendState: self._send_state,
            msg.SendSliceState: self._send_slice_state,
            msg.SendPayload: self._send_payload,
            msg.MeasureDistance: self._measure_distance,
            msg.MeasureProducts: self._measure_products,
            msg.MeasureLoad: self._measure_load,
            msg.GiveEntries: self._give,
            msg.TakeEntries: self._take,
        }

    def run(self) -> None:
        """Serve until the coordinator says stop.

        Raises
        ------
        Stopped
            Always, at the end.
        """
        self.coordinator.send(msg.Ready())
        while True:
            self._poller.poll(_POLL_MS)
            nothing_came = True
            while self._has_begun and self._read_worker():
                nothing_came = False  # the slice has the payload
            if self._unwanted:
                self._unwanted = {key for key in self._unwanted if not self._slice.discard(key)}
            while (message := self.coordinator.receive(0)) is not None:
                self._read(message)
                nothing_came = False
            # not "the poll timed out": a connection that was closed at the other end is always ready to read
            if nothing_came and self.coordinator.lost:
                raise Abandoned("the coordinator is gone")
            while self._orders and self._carry_out(self._orders[0]):
                self._orders.popleft()

    def _read_worker(self) -> bool:
        """Take a message of a worker; return whether there was one."""
        try:
            received = self.socket.receive(0)
            if received is not None and isinstance(received.message, msg.Summand):
                self._adder.take(received.sender, received.message)
            return received is not None
        except MessageRefused as error:
            self.coordinator.send(msg.PeerRefused(error.sender, error.reason))
            return True

    def _read(self, message: Message) -> None:
        """Take what the coordinator sends: most orders wait for their turn."""
        if isinstance(message, msg.StopRun):
            raise Stopped
        if isinstance(message, msg.WorkerGone):
            self._met.discard(message.worker)
            self._lost.read(message, time.monotonic())
        elif isinstance(message, msg.BeginSlice):
            self._begin(message)
        elif not isinstance(message, msg.Ping):
            self._orders.append(message)

    def _begin(self, order: msg.BeginSlice) -> None:
        composition = self.workload.experiment.strategy.compositions[order.composition]
        self.socket.keep_payload = None
        if order.tensors:  # else workers hold the parameters
            self._begin_slice(composition, order)
        # workers are read from now on: one that resumes with a model of its own may have pushed already
        self._has_begun = True
        self._poller.register(self.socket.handle, zmq.POLLIN)

    def _begin_slice(self, composition: Strategy, order: msg.BeginSlice) -> None:
        self._part = partition_of(composition, self.workload, order.ranges)[self.number]
        own = order.tensors, self.workload, composition, self.number
        self._slice = new_slice(*own, order.codec_counters, order.ranges)
        self.socket.keep_payload = self._slice.receive

    def _carry_out(self, order: Message) -> bool:
        """Carry out an order; False if a payload that it names has not arrived yet."""
        return self._handlers[type(order)](order) is not False

    # ---------------------------------------------------------------- pushes and versions

    def _apply(self, order: msg.ApplyUpdate) -> bool:
        arrived = self._has(order.keys)
        if arrived:
            self._slice.apply(order)
        return arrived

    def _discard(self, order: msg.DiscardPush) -> None:
        """Drop a payload, now or when it comes: it may have gone with the slice of an earlier composition."""
        if not self._slice.discard(order.key):
            self._unwanted.add(order.key)

    def _answer(self, order: msg.AnswerWorker) -> bool:
        """Send a worker its release; one that has not been met yet is waited for.

        A worker tells the coordinator that it is ready when its greeting to this server is sent, which is
        before this server has read it.
        """
        if not self._has_met(order.worker):
            return order.worker in self._lost.absent
        with self._slice.busy:
            stamp = order.worker, order.ticket, order.version
            payload = self._slice.answer(*stamp, order.aggregate, order.fragment)
            release = ReleaseMessage(order.ticket, order.version, 0, True, payload=payload)
            self.socket.send(worker_name(order.worker), release)
        return True

    def _has_met(self, worker: int) -> bool:
        if worker not in self._met and worker_name(worker) in self.socket.peers:
            self._met.add(worker)
        return worker in self._met

    def _has(self, keys: Sequence[PushKey]) -> bool:
        """Return whether these payloads are here, or will never come."""
        for key in keys:
            if key not in self._slice.payloads:
                if not self._lost.has(key, time.monotonic()):
                    return False
                self._slice.replace_missing(key)
        return True

    # ---------------------------------------------------------------- requests

    def _reply(self, tag: int, state: State) -> None:
        self.coordinator.send(msg.StateReply(tag, state))

    def _send_state(self, order: msg.SendState) -> None:
        self._reply(order.tag, state_of(self._slice.server, order.states))

    def _send_slice_state(self, order: msg.SendSliceState) -> bool:
        arrived = self._has(order.keys)
        if arrived:
            self._reply(order.tag, self._slice.checkpoint(order.keys))
        return arrived

    def _send_payload(self, order: msg.SendPayload) -> bool:
        arrived = self._has([order.key])
        if arrived:
            self._reply(order.tag, self._slice.payload(order.key))
        return arrived

    def _measure_distance(self, order: msg.MeasureDistance) -> None:
        number = self._slice.distance_sq(order.version)
        self.coordinator.send(msg.NumberReply(order.tag, number))

    def _measure_products(self, order: msg.MeasureProducts) -> bool:
        arrived = self._has(order.keys)
        if arrived:
            asked = [Product(*product) for product in order.products]
            self._reply(order.tag, self._slice.products(order.keys, asked, self._part))
        return arrived

    def _measure_load(self, order: msg.MeasureLoad) -> None:
        self.coordinator.send(msg.NumberReply(order.tag, self._slice.take_load()))

    def _give(self, order: msg.GiveEntries) -> bool:
        """Send the entries that leave this server; those to come are in the next order."""
        if not self._has(order.keys):
            return False
        after = partitions_of(order.ranges)[self.number]
        self._migration, self._part = SliceMigration(self._slice, self._part, after, order.keys), after
        self._reply(order.tag, self._migration.given)
        return True

    def _take(self, order: msg.TakeEntries) -> None:
        self._migration.take(order.tensors)
        self._reply(order.tag, {})
