"""The coordinator's process: gives a live run its messages and the time, and performs what it says.

It is the process of the first parameter server, or, under All-Reduce, one of its own without tensors. One
thread does everything in turn, so nothing needs a lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from psbench.backends.dask.coordinator.checkpointing import Start
from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.protocol.decoder import Message, MessageRefused
from psbench.backends.dask.protocol.instructions import (
    FIRST_SERVER,
    Answer,
    End,
    Forget,
    Input,
    Instruction,
    Look,
    Looked,
    Refused,
    Send,
    Tick,
)
from psbench.backends.dask.protocol.messages import Ping, ReportMessage, RunOutcome, VoteMessage
from psbench.backends.dask.protocol.packed_messages import PushMessage, ReleaseMessage, Summand
from psbench.backends.dask.protocol.roles import worker_number
from psbench.backends.dask.protocol.transport import Received, ServerSocket
from psbench.backends.dask.server.adder import Adder
from psbench.backends.dask.server.first_server import FirstServer
from psbench.backends.stamps import CoordinatorStamps
from psbench.training.workload import Workload

#: seconds that a message is waited for before the run gets a tick
_TICK_S = 0.02


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
        self._answers: deque[Input] = deque()  # of this process itself, before all messages
        self._pushes, self._handled_s, self._other_s = 0, 0.0, 0.0
        self._stamps = CoordinatorStamps() if workload.experiment.connection.stamps else None

    def run(self) -> None:
        """Run to the end, and send the client the outcome.

        Raises
        ------
        PsbenchError
            If something ends the run before its time; the client has the log up to there.
        """
        while True:
            given = self._next()
            is_push = type(given) is Received and type(given.message) is PushMessage
            began = time.perf_counter() if is_push else self._serving_s
            row = None if self._stamps is None else self._stamp(given)
            instructions = self.live.handle(given, time.monotonic())
            if row is not None:
                row[4] = time.monotonic()
            for instruction in instructions:
                if isinstance(instruction, End):
                    if instruction.error is not None:
                        raise instruction.error
                    return
                self._perform(instruction)
                if row is not None and isinstance(instruction, Send) and instruction.to == FIRST_SERVER:
                    row[5] = time.monotonic()
            if is_push:
                self._pushes += 1
                self._handled_s += time.perf_counter() - began
            else:
                self._other_s += self._serving_s - began

    def _stamp(self, given: Input) -> list[float] | None:
        """Begin the row of a push, a vote or a report; None of anything else. See `CoordinatorStamps`."""
        assert self._stamps is not None
        message = given.message if isinstance(given, Received) else None
        if not isinstance(message, PushMessage | VoteMessage | ReportMessage):
            return None
        assert isinstance(given, Received)
        worker = worker_number(given.sender)
        facts = -1 if worker is None else worker, message.ticket, self._received_s, self._socket.waiting
        if isinstance(message, PushMessage):
            return self._stamps.push(*facts)
        return self._stamps.word(*facts, is_vote=isinstance(message, VoteMessage))

    @property
    def _serving_s(self) -> float:
        own = self.first_server.slice
        return 0.0 if own is None else own.busy.whole_s

    def _load(self) -> dict[str, float | int]:
        """Return what the pushes so far have cost, as plain data.

        `handled_s` from when a push was there until all of its answer was sent; `serving_s` the server's part
        of it, and its time to take the pushes from the socket.
        """
        serving = self._serving_s - self._other_s
        return {"pushes": self._pushes, "handled_s": self._handled_s, "serving_s": serving}

    def _next(self) -> Input:
        if self._answers:
            return self._answers.popleft()
        try:
            found = self._socket.receive(_TICK_S)
            self._received_s = time.monotonic() if self._stamps is not None else 0.0
            while found is not None and isinstance(found.message, Summand):  # of no concern to the run
                self._adder.take(found.sender, found.message)
                found = self._socket.receive(_TICK_S)
            return found or Tick()
        except MessageRefused as error:
            return Refused(error.sender)

    def _perform(self, instruction: Instruction) -> None:
        if isinstance(instruction, Send):
            self._send(instruction)
        elif isinstance(instruction, Answer):
            self.first_server.answer(instruction.to, instruction.message)
            self._answered(instruction.to, instruction.message)
        elif isinstance(instruction, Forget):
            self._socket.forget(instruction.name)
        elif isinstance(instruction, Look):
            # a message to a dead process cannot be sent
            dead = tuple(name for name in instruction.names if not self._socket.send(name, Ping()))
            self._answers.append(Looked(dead, self._socket.strangers))

    def _answered(self, to: str, message: Message) -> None:
        if self._stamps is not None and isinstance(message, ReleaseMessage):
            worker = worker_number(to)
            self._stamps.answered(-1 if worker is None else worker, message.ticket)

    def _send(self, order: Send) -> None:
        if isinstance(order.message, RunOutcome):
            order.message.facts["coordinator"] = self._load()
            if self._stamps is not None:
                self._stamps.workers = self.live.run.peers.stamps
                order.message.facts["stamps"] = self._stamps.facts()
        if order.to != FIRST_SERVER:
            self._socket.send(order.to, order.message)
            self._answered(order.to, order.message)
            return
        answer = self.first_server.carry_out(order.message)
        if answer is not None:
            self._answers.append(Received(FIRST_SERVER, answer))
