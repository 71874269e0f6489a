"""Progress of reading or writing a large file, on standard error: a bar in a terminal, else some lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from psbench.percents import percent
from psbench.progress_events import listening
from psbench.terminal import shown

if TYPE_CHECKING:
    from rich.progress import Progress

#: seconds before the first line, and between lines; work that ends sooner shows none
FIRST_LINE_S, LINE_EVERY_S = 1.0, 5.0


@contextmanager
def shown_progress() -> Iterator[None]:
    """Show the progress of each long operation in this block."""
    shown = _Bars() if sys.stderr.isatty() else _Lines()
    try:
        with listening(shown):
            yield
    finally:
        shown.stop()


class _Bars:
    """A progress bar for the current operation; it disappears at the end."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: Any = None
        self._what = ""

    def __call__(self, what: str, done: float) -> None:
        if what != self._what or self._progress is None:
            self.stop()
            self._start(what)
        assert self._progress is not None
        self._progress.update(self._task, completed=done)
        if done >= 1:
            self.stop()

    def _start(self, what: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(shown(what), total=1.0)
        self._what = what
        self._progress.start()

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = None


class _Lines:
    """A line every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + FIRST_LINE_S

    def __call__(self, what: str, done: float) -> None:
        if done < 1 and time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            print(shown(f"{what}: {percent(done)}"), file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Do nothing: printed lines remain."""
