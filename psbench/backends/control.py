"""Requests to a run under way: stop, switch now, and Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from psbench.core.events import SwitchRequested
from psbench.core.log import EventLog

#: called often with the log, from the thread that runs; must be quick
Observer: TypeAlias = Callable[[EventLog], None]


class Control:
    """Requests to a run under way, from any thread: stop, or switch now.

    Examples
    --------
    >>> control = Control()
    >>> control.stop()
    >>> control.pending, control.stopping
    (True, True)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: deque[SwitchRequested] = deque()
        self.stopping = False
        #: whether there is a request to handle; read without a lock, in every step of a run
        self.pending = False

    def stop(self) -> None:
        """End the run as soon as possible, keeping what it has."""
        with self._lock:
            self.stopping = self.pending = True

    def switch(self, to: int | None = None) -> None:
        """Change to composition `to`, or to the other one."""
        with self._lock:
            self._requests.append(SwitchRequested(to))
            self.pending = True

    def take(self) -> list[SwitchRequested]:
        """Return the requests to switch, each once."""
        with self._lock:
            requests = list(self._requests)
            self._requests.clear()
            self.pending = self.stopping
            return requests


@contextmanager
def stop_on_interrupt(control: Control) -> Iterator[None]:
    """Let the first Ctrl-C stop a run, and the second interrupt it as usual.

    Only in the main thread, and only where no other handler is installed.
    """
    usual = signal.default_int_handler
    install = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is usual
    )

    def first(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, usual)
        control.stop()

    if install:
        signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        if install:
            signal.signal(signal.SIGINT, usual)
