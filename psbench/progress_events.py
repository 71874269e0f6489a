"""Progress of long work, such as reading a file, reported to a listener."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

#: called with the name of the work and the share that is done, 0 to 1; must return quickly
ReadingListener: TypeAlias = Callable[[str, float], None]

_listener: ContextVar[ReadingListener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: ReadingListener) -> Iterator[None]:
    """Report the progress of the work in this block to a listener.

    Examples
    --------
    >>> heard = []
    >>> with listening(lambda what, done: heard.append((what, done))):
    ...     tell("reading", 0.5)
    >>> heard
    [('reading', 0.5)]
    """
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def tell(what: str, done: float) -> None:
    """Report the share of some work that is done, 0 to 1, to the listener if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done)
