"""A whole run without Dask: the same conductor, shards, workers and evaluator, each in its thread."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from typing import Any

import numpy as np

from psbench.backends.dask.client import roles_of
from psbench.backends.dask.coordinator.checkpointing import Start
from psbench.backends.dask.coordinator.coordinator import Coordinator, servers_of
from psbench.backends.dask.coordinator.log_stream import ROWS, TEXTS
from psbench.backends.dask.protocol.roles import CLIENT, CONDUCTOR, EVALUATOR, server_name, worker_name
from psbench.backends.dask.protocol.transport import JSON, ClientSocket, Message, ServerSocket, unpack
from psbench.backends.dask.server.server_process import ServerProcess
from psbench.backends.dask.tasks import _evaluate, _report
from psbench.backends.dask.worker.mailbox import Stopped
from psbench.backends.dask.worker.worker import Worker
from psbench.checkpoints.file import Checkpoint
from psbench.core.log import ROW, EventLog
from psbench.experiment import Experiment
from psbench.training.workload import Workload

HOST = "127.0.0.1"
KEY = b"k" * 32


class Killed(Stopped):
    """Ends a thread as a signal would a process: without a word to anybody."""


class Crew:
    """Runs an experiment in threads.

    `worker_class` may be replaced to make a worker die where a test wants it; `outcome`, `error` and `log`
    say what came out.
    """

    def __init__(
        self, experiment: Experiment, worker_class: type[Worker] = Worker, start: Start | None = None
    ) -> None:
        self.experiment, self.worker_class, self.start = experiment, worker_class, start
        self.log = EventLog()
        self.stored: dict[str, Checkpoint] = {}
        self.error: BaseException | None = None
        self.outcome: dict[str, Any] = {}
        self.parameters: Any = None
        self.workers: dict[int, Worker] = {}
        self.shards: dict[int, ServerProcess] = {}
        self.checkpoints: list[str] = []
        self._threads: list[threading.Thread] = []

    def run(self, on_rows: Any = None) -> Crew:
        with ExitStack() as stack:
            hub = stack.enter_context(ServerSocket(HOST, KEY))
            shards = max(servers_of(c) for c in self.experiment.strategy.compositions)
            hubs = [ServerSocket(HOST, KEY) for _ in range(1, shards)]
            addresses = [hub.address, *(h.address for h in hubs)]
            crew = [role for role in roles_of(self.experiment) if role != CONDUCTOR]
            self._go(self._conduct, hub, [*crew, CLIENT])
            for number, own in enumerate(hubs, 1):
                self._go(self._serve, number, own, hub.address)
            for worker in range(self.experiment.num_workers):
                self._go(self._train, worker, addresses)
            self._go(self._evaluate, hub.address)
            link = stack.enter_context(ClientSocket(hub.address, KEY, CLIENT))
            link.tell({"do": "ready"})
            self._follow(link, on_rows)
            for thread in self._threads:
                thread.join(20)
                assert not thread.is_alive(), "a role did not end"
        return self

    def _go(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _conduct(self, hub: ServerSocket, crew: list[str]) -> None:
        try:
            self.conductor = Coordinator(Workload.build(self.experiment), hub, crew, self.start)
            self.conductor.run()
        except BaseException as error:
            self.error = error

    def _serve(self, number: int, hub: ServerSocket, conductor: Any) -> None:
        with hub, ClientSocket(conductor, KEY, server_name(number)) as link:
            self.shards[number] = ServerProcess(Workload.build(self.experiment), hub, link, number)
            _report(link, self.shards[number].run)

    def _train(self, worker: int, addresses: list[Any]) -> None:
        with ExitStack() as stack:
            links = [stack.enter_context(ClientSocket(a, KEY, worker_name(worker))) for a in addresses]
            hub = stack.enter_context(ServerSocket(HOST, KEY))
            workload = Workload.build(self.experiment)
            self.workers[worker] = it = self.worker_class(workload, worker, links[0], links[1:], hub, KEY)
            _report(links[0], it.run)

    def _evaluate(self, conductor: Any) -> None:
        with ClientSocket(conductor, KEY, EVALUATOR) as link:
            _report(link, lambda: _evaluate(self.experiment, link))

    def _follow(self, link: ClientSocket, on_rows: Any) -> None:
        while True:
            letter = link.receive(0.05)
            if letter is None:
                if link.lost or self.error is not None:
                    return
                continue
            if letter.kind == ROWS:
                self._grow(letter.body)
                if on_rows is not None:
                    on_rows(self, link)
            elif letter.kind == JSON and not self._hear(letter, link):
                return

    def _hear(self, letter: Message, link: ClientSocket) -> bool:
        plain = letter.plain
        if plain["do"] == "stop":
            return False
        if plain["do"] == "checkpoint":
            self.checkpoints.append(plain["label"])
            self.stored[plain["label"]] = Checkpoint(unpack(plain["shapes"], letter.payload), plain["state"])
        if plain["do"] == "outcome":
            self.outcome = plain
            self.parameters = unpack(plain["shapes"], letter.payload)["parameters"]
            link.tell({"do": "received"})
        return True

    def _grow(self, body: bytes) -> None:
        (length,) = TEXTS.unpack_from(body)
        texts = json.loads(body[TEXTS.size : TEXTS.size + length])
        self.log.extend(np.frombuffer(body, dtype=ROW, offset=TEXTS.size + length), texts)
