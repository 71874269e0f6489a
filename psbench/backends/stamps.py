"""When messages were created, sent, received, dequeued, applied and answered; off unless asked for."""

from __future__ import annotations

import time
from typing import Any

#: of a worker's row: what it is of, and seconds of its own monotonic clock (`cpu_s` and `paced_s`: lengths)
WORKER_COLUMNS = (
    *("ticket", "steps", "received_s", "begun_s", "created_s", "sent_s", "cpu_s", "wall_s", "paced_s"),
)
#: of a push at the coordinator, by its clock; `waiting` other connections had something to read then
PUSH_COLUMNS = ("worker", "ticket", "received_s", "dequeued_s", "decided_s", "applied_s", "waiting")
ANSWER_COLUMNS = ("worker", "ticket", "answered_s")
#: of votes (1) and of reports on steps that are not pushed (0): at the coordinator, and of a worker's row
SAID_COLUMNS = (*PUSH_COLUMNS, "is_vote")
WORKER_SAID_COLUMNS = ("ticket", "created_s", "sent_s", "is_vote")


class WorkerStamps:
    """A worker's side.

    A row for each push: when the release before it was received, its first step begun, its last step done
    (`created_s`) and the push handed to the system (`sent_s`). Of the steps in between `cpu_s` is CPU time
    of the thread that computes (of the process, if a step has several threads), `paced_s` what they were to
    wait to emulate another machine, and `wall_s` the rest of the clock's time, in which others may compute.
    """

    def __init__(self, threads: int) -> None:
        self.rows: list[tuple[float, ...]] = []
        self.said: list[tuple[float, ...]] = []
        self.clocks: list[tuple[float, float]] = []
        self._cpu = time.thread_time if threads == 1 else time.process_time
        self._received = 0.0
        self._clear()

    def _clear(self) -> None:
        self._begun = self._created = self._cpu_s = self._wall_s = self._paced_s = 0.0
        self._steps = 0

    def received(self) -> None:
        """Take note of a release."""
        self._received = time.monotonic()
        self._clear()

    def begin(self) -> float:
        """Take note that a step begins; returns what `computed` is given."""
        if not self._steps:
            self._begun = time.monotonic()
        return self._cpu()

    def computed(self, cpu: float) -> None:
        """Take note that a step was computed."""
        self._steps += 1
        self._cpu_s += self._cpu() - cpu

    def done(self, step_s: float, paced_s: float) -> None:
        """Take note that a step is over after so long, of which it was to wait for another machine's sake."""
        self._created = time.monotonic()
        self._paced_s += paced_s
        self._wall_s += step_s - paced_s

    def sent(self, ticket: int) -> None:
        """Take note that a push was handed to the system."""
        lengths = self._cpu_s, self._wall_s, self._paced_s
        times = self._received, self._begun, self._created, time.monotonic()
        self.rows.append((ticket, self._steps, *times, *lengths))

    def sent_word(self, ticket: int, is_vote: bool) -> None:
        """Take note that a vote or a report was handed to the system."""
        self.said.append((ticket, self._created, time.monotonic(), float(is_vote)))

    def clock(self, offset_s: float, took_s: float) -> None:
        """Take note of a difference to the coordinator's clock, and of the round trip that it comes from."""
        self.clocks.append((offset_s, took_s))


class CoordinatorStamps:
    """The coordinator's side: a row for each push, vote and report, and one for each answer."""

    def __init__(self) -> None:
        self.pushes: list[list[float]] = []
        self.said: list[list[float]] = []
        self.answers: list[tuple[float, ...]] = []
        #: of workers, their rows and clocks, as they reported them at the end
        self.workers: dict[str, dict[str, Any]] = {}

    def push(self, worker: int, ticket: int, received_s: float, waiting: int) -> list[float]:
        """Begin the row of a push; returns it, to be completed."""
        row = [worker, ticket, received_s, time.monotonic(), 0.0, 0.0, waiting]
        self.pushes.append(row)
        return row

    def word(self, worker: int, ticket: int, received_s: float, waiting: int, is_vote: bool) -> list[float]:
        """Begin the row of a vote or a report; returns it, to be completed."""
        row = [worker, ticket, received_s, time.monotonic(), 0.0, 0.0, waiting, float(is_vote)]
        self.said.append(row)
        return row

    def answered(self, worker: int, ticket: int) -> None:
        """Take note that a release was handed to the system."""
        self.answers.append((worker, ticket, time.monotonic()))

    def facts(self) -> dict[str, Any]:
        """Return all as plain data, times from the first push on."""
        return {
            "columns": {
                **{"push": PUSH_COLUMNS, "answer": ANSWER_COLUMNS, "worker": WORKER_COLUMNS},
                **{"said": SAID_COLUMNS, "worker said": WORKER_SAID_COLUMNS},
            },
            "pushes": self.pushes,
            "said": self.said,
            "answers": self.answers,
            "workers": self.workers,
        }


def cost_s(rounds: int = 2000) -> float:
    """Return the seconds that the stamps of one exchange take on this machine, both ends together."""
    worker, coordinator = WorkerStamps(1), CoordinatorStamps()
    began = time.perf_counter()
    for ticket in range(rounds):
        worker.received()
        worker.computed(worker.begin())
        worker.done(0.0, 0.0)
        worker.sent(ticket)
        row = coordinator.push(0, ticket, time.monotonic(), 0)
        row[4] = row[5] = time.monotonic()
        coordinator.answered(0, ticket)
    return (time.perf_counter() - began) / rounds
