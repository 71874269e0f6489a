"""Progress of many runs and the remaining time: a bar, lines, or a line in a notebook."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self

from psbench.progress import time_left
from psbench.runs.sweeps.execution import Progress
from psbench.terminal import shown

#: seconds between plain lines, and before the first: work that ends sooner shows none
LINE_EVERY_S, FIRST_LINE_S = 5.0, 1.0


class _Screen(Protocol):
    def show(self, progress: Progress) -> None: ...

    def close(self) -> None: ...


class Display:
    """Shows the progress of many runs on standard error, or in a notebook's cell; a context manager.

    Parameters
    ----------
    what : str
        Begins the lines on standard error.
    """

    def __init__(self, what: str = "sweep") -> None:
        self._screen: _Screen = _Cell() if _in_notebook() else _Bar() if sys.stderr.isatty() else _Lines(what)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.close()

    def __call__(self, progress: Progress) -> None:
        """Show it."""
        self._screen.show(progress)


def words(progress: Progress) -> str:
    """Return the progress as a sentence.

    >>> words(Progress(done=3, total=12, failed=1, fraction=0.25, running=("asp, seed 0",), spent_s=10.0))
    '3 of 12 runs done, 1 failed, about 30 s left'
    """
    failed = f"{progress.failed} failed" if progress.failed else ""
    left = "" if progress.done == progress.total else time_left(progress.fraction, progress.spent_s)
    return ", ".join(filter(None, [f"{progress.done} of {progress.total} runs done", failed, left]))


def _in_notebook() -> bool:
    """Return whether output is displayed by a Jupyter kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class _Lines:
    """A line every few seconds."""

    def __init__(self, what: str) -> None:
        self._what, self._next = what, time.monotonic() + FIRST_LINE_S

    def show(self, progress: Progress) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            print(shown(f"{self._what}: {words(progress)}"), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing: printed lines remain."""


class _Bar:
    """A progress bar in a terminal with the running runs; it disappears at the end."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        state = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._bar = Bar(
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[running]}", markup=False, style="dim", table_column=state),
            console=Console(stderr=True),
            transient=True,
            expand=True,
        )
        self._task = self._bar.add_task("sweep", total=1.0, running="")
        self._bar.start()

    def show(self, progress: Progress) -> None:
        running = shown("; ".join(progress.running))
        self._bar.update(
            self._task, completed=progress.fraction, description=words(progress), running=running
        )

    def close(self) -> None:
        self._bar.stop()


class _Cell:
    """A line in a notebook cell that is updated as runs end, without a widget."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, progress: Progress) -> None:
        from IPython.display import display

        content = {"text/plain": words(progress)}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def close(self) -> None:
        """Do nothing: the last line remains."""
