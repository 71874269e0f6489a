"""Requests to a running run: stop, switch now, and Ctrl-C."""

from __future__ import annotations

import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from psbench.core.events import SwitchRequested
from psbench.core.log import EventLog
from psbench.errors import Cancelled, ParameterError, UnknownName
from psbench.system.signals import FirstSignal

#: called often with the log, from the thread that runs; must be quick
Observer: TypeAlias = Callable[[EventLog], None]


#: faults that a user may inject
_FAULTS = ("lost", "back", "speed")


@dataclass(frozen=True)
class Press:
    """A fault that a user injects into a live run: a worker is lost, returns, or changes its speed.

    A worker that is lost by hand is one that the cluster's profile has fail: its process stays, and waits.

    Parameters
    ----------
    worker : int
    what : "lost", "back" or "speed"
    factor : float, > 0
        With "speed": how many times as fast as now the worker becomes.

    Raises
    ------
    UnknownName, ParameterError
    """

    worker: int
    what: Literal["lost", "back", "speed"]
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.what not in _FAULTS:
            raise UnknownName("fault", str(self.what), _FAULTS)
        if not 0 < self.factor < math.inf:
            raise ParameterError(f"speed: must be more than 0, got {self.factor:g}")


class Control:
    """Requests to a running run, from any thread: stop, switch now, or inject a fault.

    Examples
    --------
    >>> control = Control()
    >>> control.stop()
    >>> control.pending, control.stopping
    (True, True)
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal may come while it is held
        self._requests: deque[SwitchRequested] = deque()
        self._presses: deque[Press] = deque()
        self.stopping = False
        #: called with the virtual time after every event of a simulated run, which it may hold back
        self.pace: Callable[[float], None] | None = None
        #: what the run has last said of a press, or of a process that was lost; for who shows it to take away
        self.said = ""
        #: the signal that asked to stop, if one did
        self.signal: int | None = None
        #: whether there is a request to handle; read without a lock, in every step of a run
        self.pending = False

    def stop(self) -> None:
        """End the run as soon as possible; completed work is kept."""
        with self._lock:
            self.stopping = self.pending = True

    def check(self) -> None:
        """Raise Cancelled if a stop was requested before training begins."""
        if self.stopping:
            raise Cancelled("stopped by hand before training began")

    def switch(self, to: int | None = None) -> None:
        """Switch to composition `to`, or to the other one if None."""
        with self._lock:
            self._requests.append(SwitchRequested(to))
            self.pending = True

    def press(self, worker: int, what: Literal["lost", "back", "speed"], factor: float = 1.0) -> None:
        """Inject a fault into a live run; simulated runs ignore it: fork them instead."""
        with self._lock:
            self._presses.append(Press(worker, what, factor))
            self.pending = True

    def take_presses(self) -> list[Press]:
        """Return the injected faults, each once; call this before `take`."""
        with self._lock:
            presses = list(self._presses)
            self._presses.clear()
            return presses

    def take(self) -> list[SwitchRequested]:
        """Return the requests to switch, each once."""
        with self._lock:
            requests = list(self._requests)
            self._requests.clear()
            self.pending = self.stopping
            return requests


@contextmanager
def stop_on_signals(control: Control) -> Iterator[None]:
    """Stop the run on the first Ctrl-C or SIGTERM; a second one ends the process immediately.

    Batch systems send SIGTERM before they kill. Only in the main thread, and only where no other handler is
    installed; see `FirstSignal`.
    """
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    if threading.current_thread() is not threading.main_thread():
        usual = {}
    usual = {number: each for number, each in usual.items() if signal.getsignal(number) is each}

    def stop(number: int) -> None:
        control.signal = number
        control.stop()

    for number, each in usual.items():
        signal.signal(number, FirstSignal(stop, each))
    try:
        yield
    finally:
        for number, each in usual.items():
            signal.signal(number, each)
