"""A child process with a pipe to it; it ends when the pipe is closed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from psbench.system import fork_server
from psbench.system.private_apis import without_main

#: seconds that a process may take to end after it was asked to
END_S = 5.0


class Child:
    """A process that runs `target` with its end of a pipe and the arguments.

    Attributes
    ----------
    pipe : Connection
        This process's end.
    process : BaseProcess
    """

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context: Any = _context()
        self.pipe, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=target, args=(other, *arguments), daemon=True)
        with without_main():
            self.process.start()
        other.close()

    def end(self, at_once: bool = False) -> None:
        """End the process after its current computation, or at once; kill it if it does not end in time."""
        self.pipe.close()
        if at_once and self.process.is_alive():
            self.process.kill()
        self.process.join(END_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _context() -> BaseContext:
    """Return the start method of processes: forks of a server that has imported torch, if possible."""
    if not fork_server.is_available():
        return multiprocessing.get_context("spawn")
    fork_server.ensure_running()
    return multiprocessing.get_context("forkserver")
