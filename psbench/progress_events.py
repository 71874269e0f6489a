"""Telling whoever waits how far a long piece of work has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

#: called with what is being done, and how much of it is, 0 to 1; must be quick
Listener: TypeAlias = Callable[[str, float], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a listener be told of the work in this block; without one nobody is.

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
    """Say how much of some work is done, 0 to 1."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done)
