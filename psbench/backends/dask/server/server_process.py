"""A parameter server in its own process: executes the coordinator's orders on its slice."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Sequence

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message, MessageRefused
from psbench.backends.dask.protocol.messages import PushKey, ReleaseMessage
from psbench.backends.dask.protocol.roles import worker_name
from psbench.backends.dask.protocol.transport import Abandoned, ClientSocket, ServerSocket, Stopped
from psbench.backends.dask.server.adder import Adder
from psbench.backends.dask.server.lost_payloads import LostPayloads
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.backends.dask.server.slice_server import SliceServer
from psbench.training.build import Workload

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
        self._adder, self._held = Adder(socket.send), SliceServer(workload, socket, number)
        self._has_begun = False
        self._poller = select.poll()
        self._poller.register(coordinator.handle, select.POLLIN)

    def run(self) -> None:
        """Serve until the coordinator stops the run.

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
            if self._unwanted and (held := self._held.slice) is not None:
                self._unwanted = {key for key in self._unwanted if not held.discard(key)}
            while (message := self.coordinator.receive(0)) is not None:
                self._read(message)
                nothing_came = False
            # not "the poll timed out": a connection that was closed at the other end is always ready to read
            if nothing_came and self.coordinator.lost:
                raise Abandoned("the coordinator is gone")
            while self._orders and self._carry_out(self._orders[0]):
                self._orders.popleft()

    def _read_worker(self) -> bool:
        """Handle a worker's message; return whether there was one."""
        try:
            received = self.socket.receive(0)
            if received is not None and isinstance(received.message, msg.Summand):
                self._adder.take(received.sender, received.message)
            return received is not None
        except MessageRefused as error:
            self.coordinator.send(msg.PeerRefused(error.sender, error.reason))
            return True

    def _read(self, message: Message) -> None:
        """Handle a message of the coordinator: most orders are queued."""
        if isinstance(message, msg.StopRun):
            raise Stopped
        if isinstance(message, msg.WorkerGone):
            self._met.discard(message.worker)
            self._lost.read(message, time.monotonic())
        elif isinstance(message, msg.BeginSlice):
            self._begin(message)
        elif isinstance(message, msg.AskServed):  # it serves no more
            reply = self._held.carry_out(message)
            assert reply is not None
            self.coordinator.send(reply)
        elif not isinstance(message, msg.Ping):
            self._orders.append(message)

    def _begin(self, order: msg.BeginSlice) -> None:
        self._held.carry_out(order)
        # workers are read from now on: one that resumes with a model of its own may have pushed already
        self._has_begun = True
        self._poller.register(self.socket.handle, select.POLLIN)

    def _carry_out(self, order: Message) -> bool:
        """Carry out an order; False if a payload that it names has not arrived yet."""
        held = self._held.slice
        if isinstance(order, msg.DiscardPush):
            if held is None or not held.discard(order.key):  # it may come to a later slice
                self._unwanted.add(order.key)
            return True
        if held is None:  # the order is of a composition before this one, whose workers hold the parameters
            return True
        if isinstance(order, msg.AnswerWorker):
            return self._answer(held, order)
        named = [order.key] if isinstance(order, msg.SendPayload) else getattr(order, "keys", ())
        if not self._has(held, named):
            return False
        reply = self._held.carry_out(order)
        if reply is not None:
            self.coordinator.send(reply)
        return True

    def _answer(self, own: ParameterSlice, order: msg.AnswerWorker) -> bool:
        """Send a worker its release; one that has not been met yet is waited for.

        A worker tells the coordinator that it is ready when its greeting to this server is sent, which is
        before this server has read it.
        """
        if not self._has_met(order.worker):
            return order.worker in self._lost.absent
        with own.busy:
            stamp = order.worker, order.ticket, order.version
            payload = own.answer(*stamp, order.aggregate, order.fragment)
            release = ReleaseMessage(order.ticket, order.version, 0, True, payload=payload)
            self.socket.send(worker_name(order.worker), release)
        return True

    def _has_met(self, worker: int) -> bool:
        if worker not in self._met and worker_name(worker) in self.socket.peers:
            self._met.add(worker)
        return worker in self._met

    def _has(self, own: ParameterSlice, keys: Sequence[PushKey]) -> bool:
        """Return whether these payloads have arrived, or will never arrive."""
        for key in keys:
            if key not in own.payloads:
                if not self._lost.has(key, time.monotonic()):
                    return False
                own.replace_missing(key)
        return True
