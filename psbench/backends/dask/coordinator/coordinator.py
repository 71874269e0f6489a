"""The coordinator's process: delivers messages and the time to a live run, and performs its instructions.

It is the process of the first parameter server, or, under All-Reduce, one of its own without tensors. One
thread does everything in turn, so nothing needs a lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from psbench.backends.dask.coordinator.beginning import Start
from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.protocol import instructions as ins
from psbench.backends.dask.protocol.decoder import MessageRefused
from psbench.backends.dask.protocol.messages import Ping, ReportMessage, RunOutcome, VoteMessage
from psbench.backends.dask.protocol.roles import worker_number
from psbench.backends.dask.protocol.step_messages import PushMessage, ReleaseMessage, Summand
from psbench.backends.dask.protocol.transport import Received, ServerSocket
from psbench.backends.dask.server.adder import Adder
from psbench.backends.dask.server.first_server import FirstServer
from psbench.backends.stamps import CoordinatorStamps
from psbench.system.cpu_samples import CpuSamples
from psbench.training.build import Workload

#: seconds that a message is waited for before the run gets a tick
_TICK_S = 0.02

#: messages that are stamped
_STAMPED = (PushMessage, VoteMessage, ReportMessage)


class Coordinator:
    """The coordinator of one run.

    Parameters
    ----------
    workload : Workload
    socket : ServerSocket
        Where the peers connect.
    expected : sequence of str
        The names of all peers; training begins when each is ready.
    start : Start or None
        Where to resume.
    """

    def __init__(
        self, workload: Workload, socket: ServerSocket, expected: Sequence[str], start: Start | None = None
    ) -> None:
        self._socket = socket
        self.live, self.first_server = LiveRun(workload, expected, start), FirstServer(workload, socket)
        self._adder = Adder(socket.send)
        self._answers: deque[ins.Input] = deque()  # of this process itself, before all messages
        self._pushes, self._handled_s, self._other_s = 0, 0.0, 0.0
        self._samples = CpuSamples(lambda: time.monotonic() - self.live.run.begin_s)
        self._stamps: CoordinatorStamps | None = None
        if workload.experiment.connection.stamps:
            self._stamps = CoordinatorStamps(workload.experiment.num_workers)
        self._performers: dict[type[ins.Instruction], Callable[[Any], None]] = {
            ins.Send: self._send,
            ins.Answer: self._answer if self._stamps is None else self._stamped_answer,
            ins.Forget: lambda order: self._socket.forget(order.name),
            ins.Look: self._look,
        }

    def run(self) -> None:
        """Run to the end, and send the client the outcome.

        Raises
        ------
        PsbenchError
            If something ends the run before its time; the client has the log up to there.
        """
        try:
            self._run()
        finally:
            self.first_server.close()

    def _run(self) -> None:
        while True:
            given = self._next()
            kind = type(given.message) if type(given) is Received else None
            is_push = kind is PushMessage
            began = time.perf_counter() if is_push else self._serving_s
            row = None if self._stamps is None else self._row(given, self._stamps)
            instructions = self.live.handle(given, time.monotonic())
            if self._samples.taken:
                self._samples.note()
            elif self.live.run.begin_s:
                self._samples.begin()
            if row is not None:
                row[4] = time.monotonic()
            for instruction in instructions:
                if type(instruction) is ins.End:
                    if instruction.error is not None:
                        raise instruction.error
                    return
                self._performers[type(instruction)](instruction)
                if row is not None and type(instruction) is ins.Send and instruction.to == ins.FIRST_SERVER:
                    row[5] = time.monotonic()
            if row is not None and self._stamps is not None:
                if is_push:
                    self._stamps.push(row)
                else:
                    self._stamps.word(row, is_vote=kind is VoteMessage)
            if is_push:
                self._pushes += 1
                self._handled_s += time.perf_counter() - began
            else:
                self._other_s += self._serving_s - began

    def _row(self, given: ins.Input, stamps: CoordinatorStamps) -> list[float] | None:
        """Return a new row of stamps for a push, a vote or a report; None for other messages."""
        if type(given) is not Received or not isinstance(given.message, _STAMPED):
            return None
        message, worker = given.message, worker_number(given.sender)
        step_s = message.compute_s / max(1, message.steps) if type(message) is PushMessage else None
        if worker is None or not stamps.has(worker, step_s):
            return None
        times = self._received_s, time.monotonic(), 0.0, 0.0
        return [worker, message.ticket, *times, self._socket.waiting, self._pushes]

    @property
    def _serving_s(self) -> float:
        own = self.first_server.slice
        return 0.0 if own is None else own.busy.whole_s

    def _load(self) -> dict[str, float | int]:
        """Return the processing time of all pushes so far, as plain data.

        `handled_s` from when a push was there until all of its answer was sent; `serving_s` the server's part
        of it, and its time to take the pushes from the socket.
        """
        serving = self._serving_s - self._other_s
        return {"pushes": self._pushes, "handled_s": self._handled_s, "serving_s": serving}

    def _usage(self) -> list[dict[str, Any]]:
        """Return the CPU use of the first server, which runs in this process, as plain data."""
        self._samples.end()
        taken = self._samples.taken
        wall_s = taken[-1][0] - taken[0][0] if taken else 0.0
        return [{"server": 0, "cpu_s": self._samples.cpu_s, "wall_s": wall_s, "samples": taken}]

    def _next(self) -> ins.Input:
        if self._answers:
            return self._answers.popleft()
        try:
            found = self._socket.receive(_TICK_S)
            self._received_s = time.monotonic() if self._stamps is not None else 0.0
            while found is not None and type(found.message) is Summand:  # of no concern to the run
                self._adder.take(found.sender, found.message)
                found = self._socket.receive(_TICK_S)
            return found or ins.Tick()
        except MessageRefused as error:
            return ins.Refused(error.sender)

    def _look(self, order: ins.Look) -> None:
        # a message to a dead process cannot be sent
        dead = tuple(name for name in order.names if not self._socket.send(name, Ping()))
        self._answers.append(ins.Looked(dead, self._socket.strangers))

    def _answer(self, order: ins.Answer) -> None:
        self.first_server.answer(order.to, order.message)

    def _stamped_answer(self, order: ins.Answer) -> None:
        self._stamped(order, self.first_server.answer)

    def _stamped(self, order: ins.Send | ins.Answer, send: Callable[..., object]) -> None:
        """Send a message; a release requests a worker's stamps if they are due."""
        message, stamps = order.message, self._stamps
        if stamps is None or type(message) is not ReleaseMessage:
            send(order.to, message)
            return
        worker = worker_number(order.to)
        assert worker is not None
        message.stamped = stamps.begins(worker)
        send(order.to, message)
        if message.stamped:
            stamps.answered(worker, message.ticket)

    def _send(self, order: ins.Send) -> None:
        if order.to == ins.FIRST_SERVER:
            answer = self.first_server.carry_out(order.message)
            if answer is not None:
                self._answers.append(Received(ins.FIRST_SERVER, answer))
            return
        if isinstance(order.message, RunOutcome):
            order.message.facts["coordinator"] = self._load()
            order.message.facts["server_usage"] = self._usage()
            if self.first_server.slice is not None:
                for name, fact in self.first_server.slice.facts().items():
                    order.message.facts[name] = fact
            if self._stamps is not None:
                peers = self.live.run.peers
                self._stamps.workers, self._stamps.servers = peers.stamps, peers.served
                order.message.facts["stamps"] = self._stamps.facts()
        self._stamped(order, self._socket.send)
