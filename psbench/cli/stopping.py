"""SIGTERM, which batch systems send before they kill, ends a command as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from psbench.system.signals import FirstSignal


class Terminated(KeyboardInterrupt):
    """Raised in the main thread when the process receives SIGTERM."""


@contextmanager
def terminable() -> Iterator[list[int]]:
    """Raise `Terminated` on SIGTERM in this block; the yielded list then holds the signal."""
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only there may a handler be set
        yield came
        return
    before = signal.signal(signal.SIGTERM, FirstSignal(end, signal.SIG_DFL))
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
