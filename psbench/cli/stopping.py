"""SIGTERM, which batch systems send before they kill, ends a command as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


@contextmanager
def terminable() -> Iterator[list[int]]:
    """Have SIGTERM raise `Terminated` inside; gives a list that holds the signal once it has come."""
    came: list[int] = []

    def end(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process
        came.append(number)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only there may a handler be set
        yield came
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
