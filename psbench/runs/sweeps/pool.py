"""Processes that run cells side by side; if one dies, its current cell is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from psbench.runs.sweeps.worker import serve
from psbench.system.child import END_S, Child


def in_processes(
    packed: Sequence[bytes], processes: int, target: Callable[[Connection], None] = serve
) -> Generator[tuple[int, tuple[str, Any]], None, None]:
    """Run packed cells in processes, and yield answers: the index of a cell, and its message.

    Every cell is answered with ("done", ...) once; of a process that dies, the cell it was at is answered
    with an error, and another process takes its place. When the iterator is closed, all processes end.

    Parameters
    ----------
    packed : sequence of bytes
    processes : int
    target : callable
        What a process does: it receives cells through a connection, and sends messages about each, ("done",
        mapping) last; "error" of that mapping says why a cell has failed.
    """
    waiting = deque(enumerate(packed))
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.place is not None for worker in workers):
            for begun in _hand_out(workers, waiting, processes, target):
                yield begun, ("progress", 0.0)
            busy = {worker.pipe: worker for worker in workers if worker.place is not None}
            for connection in wait(list(busy)):
                worker = busy[connection]
                place = worker.place
                assert place is not None
                answer = worker.receive()
                if worker.pipe.closed:  # it has died
                    workers.remove(worker)
                yield place, answer
    finally:
        for worker in workers:
            worker.end()


def _hand_out(
    workers: list[_Worker],
    waiting: deque[tuple[int, bytes]],
    processes: int,
    target: Callable[[Connection], None],
) -> list[int]:
    """Give every idle process a cell, starting processes while there are too few; return the places."""
    begun = []
    while waiting:
        idle = next((worker for worker in workers if worker.place is None), None)
        if idle is None and len(workers) == processes:
            break
        if idle is None:
            idle = _Worker(target)
            workers.append(idle)
        place, content = waiting.popleft()
        idle.ask(place, content)
        begun.append(place)
    return begun


class _Worker(Child):
    """A process and its current cell."""

    def __init__(self, target: Callable[[Connection], None]) -> None:
        super().__init__(target)
        self.place: int | None = None

    def ask(self, place: int, content: bytes) -> None:
        """Start a cell."""
        self.place = place
        with suppress(OSError):  # a process that has died is noticed when its answer is waited for
            self.pipe.send_bytes(content)

    def receive(self) -> tuple[str, Any]:
        """Return the process's next answer; an error if it has died."""
        try:
            answer: tuple[str, Any] = cloudpickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join(END_S)
            answer = ("done", {"error": self._death()})
            self.end()
        if answer[0] == "done":
            self.place = None
        return answer

    def _death(self) -> str:
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        full = " (memory may be full: use fewer processes)" if code == -9 else ""
        return f"the process of this run {how}{full}"

    def end(self, at_once: bool = False) -> None:
        """End the process in any state."""
        super().end(at_once or self.place is not None)
