"""Times at which messages were created, sent, received, dequeued, applied and answered; off by default.

Rows are packed as they are made, and travel and are kept as one text of each table (base64 of float64):
as JSON of numbers they would cost several times what it costs to take note of them.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import statistics
import struct
import time
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from psbench.arrays import Doubles

#: of a worker's row: what it is of, and seconds of its own monotonic clock (`cpu_s` and `paced_s`: lengths)
WORKER_COLUMNS = (
    *("ticket", "steps", "received_s", "begun_s", "created_s", "sent_s", "cpu_s", "wall_s", "paced_s"),
)
#: of a push at the coordinator, by its clock; `waiting` other connections had something to read then, and
#: it was the `number`-th of all pushes, from 0
PUSH_COLUMNS = ("worker", "ticket", "received_s", "dequeued_s", "decided_s", "applied_s", "waiting", "number")
ANSWER_COLUMNS = ("worker", "ticket", "answered_s")
#: of votes (1) and of reports on steps that are not pushed (0): at the coordinator, and of a worker's row
SAID_COLUMNS = (*PUSH_COLUMNS[:-1], "is_vote")
WORKER_SAID_COLUMNS = ("ticket", "created_s", "sent_s", "is_vote")


#: seconds of a step from which on all have stamps, and else one in so many at most
_SHORT_S, _MOST = 2e-3, 16
#: pushes that tell how long steps are, and each worker's exchanges in a stretch
_FIRST, _STRETCH = 40, 32
_WORKER, _WORKER_SAID = (struct.Struct(f"<{len(names)}d") for names in (WORKER_COLUMNS, WORKER_SAID_COLUMNS))
_PUSH, _SAID, _ANSWER = (
    struct.Struct(f"<{len(names)}d") for names in (PUSH_COLUMNS, SAID_COLUMNS, ANSWER_COLUMNS)
)


def packed(rows: bytes | bytearray) -> str:
    return base64.b64encode(rows).decode()


def rows_of(text: str | Sequence[Sequence[float]], columns: Sequence[str]) -> Doubles:
    """Return the rows, (n, columns), of a table written by `packed`; plain rows are also accepted.

    Raises
    ------
    ValueError
        If the text is cut off.
    """
    if not isinstance(text, str):
        return np.array(text, dtype=np.float64).reshape(-1, len(columns))
    try:
        return np.frombuffer(base64.b64decode(text, validate=True)).reshape(-1, len(columns))
    except binascii.Error as error:
        raise ValueError(str(error)) from None


class Durations:
    """The durations of stays in a queue or a phase, in seconds."""

    def __init__(self) -> None:
        self._began, self._seconds = 0.0, array("d")

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._seconds.append(time.perf_counter() - self._began)

    def add(self, seconds: float) -> None:
        """Record a measured duration."""
        self._seconds.append(seconds)

    def fact(self) -> str:
        """Return the stamps as text."""
        return packed(self._seconds.tobytes())


class ServerStamps:
    """A parameter server's times of service, decoding, encoding and updating, and its queue.

    `serving` has a stay for each push that is taken, each update and each answer; what is encoded and decoded
    is within them. `waiting`: of each push, how many other connections had something to read then.
    """

    def __init__(self) -> None:
        self.serving, self.decoding, self.encoding, self.updating = (Durations() for _ in range(4))
        self.waiting = Durations()

    def facts(self) -> dict[str, str]:
        """Return all as plain data."""
        return {name: own.fact() for name, own in vars(self).items()}


class WorkerStamps:
    """A worker's time stamps; `encoding` and `decoding` are codec times.

    A row for each push: when the release before it was received, its first step begun, its last step done
    (`created_s`) and the push handed to the system (`sent_s`). Of the steps in between `cpu_s` is CPU time
    of the thread that computes (of the process, if a step has several threads), `paced_s` what they were to
    wait to emulate another machine, and `wall_s` the rest of the clock's time, in which others may compute.
    """

    def __init__(self, threads: int) -> None:
        self._rows, self._said = bytearray(), bytearray()
        self._clocks: list[tuple[float, float]] = []
        self.encoding, self.decoding = Durations(), Durations()
        #: reads the CPU time of what computes
        self.cpu = time.thread_time if threads == 1 else time.process_time
        self._ahead = time.monotonic() - time.perf_counter()  # none on Linux
        self.received()

    def received(self) -> None:
        """Record a release."""
        self._received, self._steps = time.monotonic(), 0
        self._begun = self._created = self._cpu_s = self._wall_s = self._paced_s = 0.0

    def step(self, began: float, step_s: float, paced_s: float, cpu_s: float) -> None:
        """Record a completed step: its start (`time.perf_counter`) and its duration.

        Of `step_s` it was to wait `paced_s` for another machine's sake.
        """
        if not self._steps:
            self._begun = began + self._ahead
        self._steps += 1
        self._created = began + self._ahead + step_s
        self._cpu_s += cpu_s
        self._paced_s += paced_s
        self._wall_s += step_s - paced_s

    def sent(self, ticket: int) -> None:
        """Record that a push was passed to the system."""
        times = self._received, self._begun, self._created, time.monotonic()
        self._rows += _WORKER.pack(ticket, self._steps, *times, self._cpu_s, self._wall_s, self._paced_s)

    def sent_word(self, ticket: int, is_vote: bool) -> None:
        """Record that a vote or a report was passed to the system."""
        self._said += _WORKER_SAID.pack(ticket, self._created, time.monotonic(), is_vote)

    def clock(self, offset_s: float, took_s: float) -> None:
        """Record an offset from the coordinator's clock, and the round trip it was measured with."""
        self._clocks.append((offset_s, took_s))

    def facts(self) -> dict[str, Any]:
        """Return all as plain data."""
        codec = {"encoding": self.encoding.fact(), "decoding": self.decoding.fact()}
        return {"rows": packed(self._rows), "said": packed(self._said), "clocks": self._clocks} | codec


class CoordinatorStamps:
    """The coordinator's side: a row for each push, vote and report, and one for each answer.

    It chooses what has stamps, from one release of a worker to its next: everything, or, where steps are
    shorter than 2 ms, stretches of all workers' exchanges (one in `every`), in which it is known
    what else was under way. So stamps take less than 2 % of any step.
    """

    def __init__(self, workers: int) -> None:
        self.every = 1
        self._stretch, self._released = _STRETCH * workers, 0
        self._first: list[float] | None = []  # seconds of a step, until it is known how long they are
        self._on: dict[int, bool] = {}  # by worker
        self._pushes, self._said, self._answers = bytearray(), bytearray(), bytearray()
        #: of workers, their rows and clocks, as they reported them at the end
        self.workers: dict[str, dict[str, Any]] = {}
        self.servers: dict[str, dict[str, str]] = {}  #: the same of servers

    def begins(self, worker: int) -> bool:
        """Return whether a worker's messages after this release are stamped."""
        self._released += 1
        found = self._on[worker] = self._released // self._stretch % self.every == 0
        return found

    def has(self, worker: int, step_s: float | None = None) -> bool:
        """Return whether a worker's message is stamped; the first pushes' step times set the interval."""
        if self._first is not None and step_s is not None:
            self._first.append(step_s)
            if len(self._first) >= _FIRST:
                # only how much is noted depends on this, and nothing that the run decides
                shorter = _SHORT_S / max(1e-6, statistics.median(self._first))
                self.every = max(1, min(_MOST, math.ceil(shorter)))
                self._first = None
        return self._on.get(worker, False)

    def push(self, row: Sequence[float]) -> None:
        """Record the row of a push that was processed (`PUSH_COLUMNS`)."""
        self._pushes += _PUSH.pack(*row)

    def word(self, row: Sequence[float], is_vote: bool) -> None:
        """Record the times of a vote or a report; the columns are the same as for a push."""
        self._said += _SAID.pack(*row[:-1], is_vote)

    def answered(self, worker: int, ticket: int) -> None:
        """Record that a release was passed to the system."""
        self._answers += _ANSWER.pack(worker, ticket, time.monotonic())

    def facts(self) -> dict[str, Any]:
        """Return all as plain data."""
        return {
            "columns": {
                **{"push": PUSH_COLUMNS, "answer": ANSWER_COLUMNS, "worker": WORKER_COLUMNS},
                **{"said": SAID_COLUMNS, "worker said": WORKER_SAID_COLUMNS},
            },
            "every": self.every,
            **{"pushes": packed(self._pushes), "said": packed(self._said), "answers": packed(self._answers)},
            **{"workers": self.workers, "servers": self.servers},
        }


def cost_s(rounds: int = 2000) -> float:
    """Return the seconds that the stamps of one exchange take on this machine, at both ends together.

    With what it takes to carry and keep them: they are text in JSON of two messages and of a file.
    """
    worker, coordinator = WorkerStamps(1), CoordinatorStamps(1)
    began = time.perf_counter()
    for ticket in range(rounds):
        worker.received()
        cpu = worker.cpu()
        worker.step(0.0, 0.0, 0.0, worker.cpu() - cpu)
        worker.sent(ticket)
        now = time.monotonic()
        coordinator.push((0, ticket, now, time.monotonic(), time.monotonic(), 0.0, 0, ticket))
        coordinator.begins(0)
        coordinator.answered(0, ticket)
    coordinator.workers["worker 0"] = json.loads(json.dumps(worker.facts()))
    json.dumps(json.loads(json.dumps(coordinator.facts())))  # to the client, and into the run's folder
    return (time.perf_counter() - began) / rounds
