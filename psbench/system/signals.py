"""Signals that end a process: the first is handled, the second has its default effect."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

#: signals with which a terminal, a batch system or a service manager ends a process, and often its group
ENDING = (signal.SIGINT, signal.SIGTERM)
#: seconds in which a second SIGTERM is the first one again
_TWICE_S = 1.0


class FirstSignal:
    """A handler that calls a function at the first signal; the second has its default effect.

    A second SIGTERM within a second is taken for the first: `timeout` sends it to its command and then to the
    group that the command is in, and SLURM's `srun` passes on what the process is sent, too.

    Parameters
    ----------
    handle : callable
        Takes the signal's number.
    usual : callable or signal.Handlers
        What is installed, as `signal.signal` takes it, when the signal is to do as usual.
    """

    def __init__(self, handle: Callable[[int], None], usual: Any) -> None:
        self._handle, self._usual = handle, usual
        self._came_s: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self._came_s is None:
            self._came_s = now
            self._handle(number)
        elif number != signal.SIGTERM or now - self._came_s > _TWICE_S:
            signal.signal(number, self._usual)
            signal.raise_signal(number)


def ignore_ending() -> None:
    """Let this process ignore Ctrl-C and SIGTERM, which its parent process handles."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
