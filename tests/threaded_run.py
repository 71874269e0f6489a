"""A whole run without Dask: the same coordinator, servers, workers and evaluator, each in its thread."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np

from psbench.backends.dask.coordinator.beginning import Start
from psbench.backends.dask.coordinator.coordinator import Coordinator
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.roles import (
    CLIENT,
    COORDINATOR,
    EVALUATOR,
    REPLICA,
    roles_of,
    server_name,
    servers_of,
    worker_name,
)
from psbench.backends.dask.protocol.transport import ClientSocket, ServerSocket, Stopped
from psbench.backends.dask.server.replica import Replica
from psbench.backends.dask.server.server_process import ServerProcess
from psbench.backends.dask.tasks import _count_strangers, _evaluate, _report
from psbench.backends.dask.worker.worker import Worker
from psbench.checkpoints.file import Checkpoint
from psbench.core.log import ROW, EventLog
from psbench.experiment import Experiment
from psbench.training.build import Workload

HOST = "127.0.0.1"
KEY = b"k" * 32
#: seconds in which a role ends on however busy a machine
LONG_S = 240


class Killed(Stopped):
    """Ends a thread as a signal would a process: without a word to anybody."""


class ThreadedRun:
    """Runs an experiment in threads.

    `worker_class` and `replica_class` may be replaced to make one die where a test wants it; `outcome`,
    `error` and `log` say what came out.
    """

    replica_class = Replica

    def __init__(
        self, experiment: Experiment, worker_class: type[Worker] = Worker, start: Start | None = None
    ) -> None:
        self.experiment, self.worker_class, self.start = experiment, worker_class, start
        self.incidents: list[str] = []
        self.replica: Any = None
        self.log = EventLog()
        self.stored: dict[str, Checkpoint] = {}
        self.error: BaseException | None = None
        self.outcome: Any = None
        self.parameters: Any = None
        self.workers: dict[int, Worker] = {}
        self.addresses: dict[str, Any] = {}  # where roles listen
        self.servers: dict[int, ServerProcess] = {}
        self.checkpoints: list[str] = []
        self._threads: list[threading.Thread] = []

    def run(self, on_rows: Any = None) -> ThreadedRun:
        with ExitStack() as stack:
            socket = stack.enter_context(ServerSocket(HOST, KEY))
            servers = max(servers_of(c) for c in self.experiment.strategy.compositions)
            sockets = [ServerSocket(HOST, KEY) for _ in range(1, servers)]
            addresses = [socket.address, *(each.address for each in sockets)]
            others = [role for role in roles_of(self.experiment) if role != COORDINATOR]
            self.address = self.addresses[COORDINATOR] = socket.address
            self._go(self._coordinate, socket, [*others, CLIENT])
            for number, own in enumerate(sockets, 1):
                self._go(self._serve, number, own, socket.address)
            for worker in range(self.experiment.num_workers):
                self._go(self._train, worker, addresses)
            self._go(self._evaluate, socket.address)
            if self.experiment.recovery.replicas:
                self._go(self._replicate, socket.address)
            client = stack.enter_context(ClientSocket(socket.address, KEY, CLIENT))
            client.send(msg.Ready())
            self._follow(client, on_rows)
            for thread in self._threads:
                thread.join(LONG_S)
                assert not thread.is_alive(), "a role did not end"
        return self

    def _go(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _coordinate(self, socket: ServerSocket, expected: list[str]) -> None:
        try:
            self.coordinator = Coordinator(Workload.build(self.experiment), socket, expected, self.start)
            self.coordinator.run()
        except BaseException as error:
            self.error = error

    def _serve(self, number: int, socket: ServerSocket, address: Any) -> None:
        with socket, ClientSocket(address, KEY, server_name(number)) as client:
            self._listen(server_name(number), socket, client)
            self.servers[number] = ServerProcess(Workload.build(self.experiment), socket, client, number)
            _report(client, self.servers[number].run)

    def _train(self, worker: int, addresses: list[Any]) -> None:
        with ExitStack() as stack:
            clients = [stack.enter_context(ClientSocket(a, KEY, worker_name(worker))) for a in addresses]
            socket = stack.enter_context(ServerSocket(HOST, KEY))
            self._listen(worker_name(worker), socket, clients[0])
            own = self.worker_class(
                Workload.build(self.experiment), worker, clients[0], clients[1:], socket, KEY
            )
            self.workers[worker] = own
            _report(clients[0], own.run)

    def _listen(self, name: str, socket: ServerSocket, coordinator: ClientSocket) -> None:
        self.addresses[name] = socket.address
        _count_strangers(socket, coordinator)

    def _evaluate(self, address: Any) -> None:
        with ClientSocket(address, KEY, EVALUATOR) as client:
            _report(client, lambda: _evaluate(self.experiment, client))

    def _replicate(self, address: Any) -> None:
        with ServerSocket(HOST, KEY) as socket, ClientSocket(address, KEY, REPLICA) as coordinator:
            self._listen(REPLICA, socket, coordinator)
            self.replica = self.replica_class(socket, coordinator)
            _report(coordinator, self.replica.run)

    def _follow(self, client: ClientSocket, on_rows: Any) -> None:
        while True:
            message = client.receive(0.05)
            if message is None:
                if client.lost or self.error is not None:
                    return
            elif isinstance(message, msg.LogRows):
                self.log.extend(np.frombuffer(message.rows, dtype=ROW), message.texts)
                if on_rows is not None:
                    on_rows(self, client)
            elif isinstance(message, msg.StopRun):
                return
            else:
                self._take(message, client)

    def _take(self, message: Message, client: ClientSocket) -> None:
        if isinstance(message, msg.StoreCheckpoint):
            self.checkpoints.append(message.label)
            self.stored[message.label] = Checkpoint(message.tensors, message.state.data)
        elif isinstance(message, msg.Incident):
            self.incidents.append(message.text)
        elif isinstance(message, msg.RunOutcome):
            self.outcome = message
            self.parameters = message.tensors["parameters"]
            client.send(msg.OutcomeReceived())
