"""Status line until the first progress report: importing torch and loading data take seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from psbench.system.collector import imports_not_searched
from psbench.terminal import shown


@contextmanager
def starting(what: str) -> Iterator[None]:
    """Show a status line in a terminal, and remove it at the end.

    It imports next to nothing, so that it is there at once. A file or a pipe gets nothing: there the first
    line is of the run, or the one that says what is wrong.
    """
    if not sys.stderr.isatty():
        with imports_not_searched():
            yield
        return
    what = shown(what)
    print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        with imports_not_searched():
            yield
    finally:
        print("\r" + " " * (len(what) + 4) + "\r", end="", file=sys.stderr, flush=True)
