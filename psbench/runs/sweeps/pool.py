"""Processes that run cells side by side; the death of one costs the cell that it was at."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

import cloudpickle

from psbench.runs.sweeps.worker import Answer, serve
from psbench.system import fork_server
from psbench.system.insides import without_main

#: seconds that a process may take to end after it was asked to
_END_S = 5.0


def in_processes(packed: Sequence[bytes], processes: int) -> Iterator[tuple[int, Answer]]:
    """Run packed cells in processes, and yield what is heard: the place of a cell, and the answer.

    Every cell is answered with ("done", ...) once; of a process that dies, the cell it was at is answered
    with an error, and another process takes its place. When the iterator is closed, all processes end.
    """
    waiting = deque(enumerate(packed))
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.place is not None for worker in workers):
            for begun in _hand_out(workers, waiting, processes):
                yield begun, ("progress", 0.0)
            busy = {worker.connection: worker for worker in workers if worker.place is not None}
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]  # nothing else is waited for
                place = worker.place
                assert place is not None
                answer = worker.hear()
                if not worker.alive:
                    workers.remove(worker)
                yield place, answer
    finally:
        for worker in workers:
            worker.end()


def _hand_out(workers: list[_Worker], waiting: deque[tuple[int, bytes]], processes: int) -> list[int]:
    """Give every idle process a cell, starting processes while there are too few; return the places."""
    begun = []
    while waiting:
        idle = next((worker for worker in workers if worker.place is None), None)
        if idle is None and len(workers) == processes:
            break
        if idle is None:
            idle = _Worker()
            workers.append(idle)
        place, content = waiting.popleft()
        idle.ask(place, content)
        begun.append(place)
    return begun


class _Worker:
    """A process, and the cell that it is at."""

    def __init__(self) -> None:
        context = _context()
        self.connection, other = context.Pipe()
        self._process: BaseProcess = context.Process(target=serve, args=(other,), daemon=True)  # type: ignore[attr-defined]
        with without_main():
            self._process.start()
        other.close()
        self.place: int | None = None
        self.alive = True

    def ask(self, place: int, content: bytes) -> None:
        """Have a cell run."""
        self.place = place
        with suppress(OSError):  # a process that has died is noticed when its answer is waited for
            self.connection.send_bytes(content)

    def hear(self) -> Answer:
        """Return the process's next answer; an error if it has died."""
        try:
            answer: Answer = cloudpickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self._process.join(_END_S)
            self.alive = False
            answer = ("done", {"error": self._death()})
            self.end()
        if answer[0] == "done":
            self.place = None
        return answer

    def _death(self) -> str:
        code = self._process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        full = " (memory may be full: use fewer processes)" if code == -9 else ""
        return f"the process of this run {how}{full}"

    def end(self) -> None:
        """End the process, whatever it is at."""
        self.connection.close()
        if self.place is not None and self._process.is_alive():
            self._process.terminate()
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _context() -> BaseContext:
    """Return how processes are started: as forks of a server that has imported torch, where there is one."""
    if not fork_server.is_available():
        return multiprocessing.get_context("spawn")
    fork_server.ensure_running()
    return multiprocessing.get_context("forkserver")
