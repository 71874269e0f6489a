"""Progress of a run on standard error: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.table import Column

from psbench.backends.control import Control
from psbench.cli.app import say
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.percents import percent
from psbench.progress import LogProgress, RunProgress, time_left
from psbench.system.start_progress import StartProgress, watching_start
from psbench.terminal import shown

#: seconds between two looks at the log: a bar need not move faster, and a log file should not fill up
BAR_EVERY_S, LINE_EVERY_S = 0.1, 5.0
#: seconds before the first line: a run that is over by then needs none
FIRST_LINE_S = 1.0


class Monitor:
    """An observer of one run; a context manager.

    Parameters
    ----------
    label : str
        What the run is called.
    experiment : Experiment
    facts : mapping
        `dataset_size` and `num_workers`.
    control : Control
        Whether the run was asked to stop.
    """

    def __init__(
        self, label: str, experiment: Experiment, facts: Mapping[str, Any], control: Control
    ) -> None:
        names = [composition.name for composition in experiment.strategy.compositions]
        label = shown(label)
        self._label, self._backend, self._control = label, experiment.backend, control
        self._progress = LogProgress(experiment.stop, {**facts, "compositions": names})
        self._read = 0
        self._began = time.monotonic()
        self._bar = _Bar(label) if sys.stderr.isatty() else None
        self._every = BAR_EVERY_S if self._bar else LINE_EVERY_S
        self._next = self._began + (0.0 if self._bar else FIRST_LINE_S)
        self._start = StartProgress(self._show_start)
        self._watching = ExitStack()

    def __enter__(self) -> Self:
        self._watching.enter_context(watching_start(self._start))
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.close()
        if self._bar:
            self._bar.stop()

    def _show_start(self) -> None:
        """Show the start of a live run's processes, unless it was shown a moment ago."""
        now = time.monotonic()
        if now < self._next or self._read:
            return
        self._next = now + self._every
        words = "stopping" if self._control.stopping else self._start.words()
        if self._bar:
            self._bar.show(None, words, "")
        else:
            say(f"{self._label}: {words}")

    def __call__(self, log: EventLog) -> None:
        """Look at the log, unless that was done a moment ago."""
        now = time.monotonic()
        if now < self._next or len(log) == self._read:
            return
        self._next = now + self._every
        self._read = len(log)
        self._show(self._progress.read(log), now - self._began)

    def _show(self, progress: RunProgress, spent_s: float) -> None:
        fraction = progress.fraction()
        state = "stopping" if self._control.stopping else progress.words(self._backend)
        left = time_left(fraction, spent_s)
        if self._bar:
            self._bar.show(fraction, state, left)
            return
        share = "" if fraction is None else f"{percent(fraction):>5}, "
        say(f"{self._label}: {share}{state}" + (f", {left}" if left else ""))


class _Bar:
    """The progress bar, and the text beside it."""

    def __init__(self, label: str) -> None:
        state = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[state]}", markup=False, style="dim", table_column=state),
            console=Console(stderr=True),
            transient=True,
            expand=True,
        )
        self._task: TaskID = self._progress.add_task(label, total=None, state="", left="")
        self.start, self.stop = self._progress.start, self._progress.stop

    def show(self, fraction: float | None, state: str, left: str) -> None:
        known: dict[str, Any] = {} if fraction is None else {"total": 1.0, "completed": fraction}
        self._progress.update(self._task, state=state, left=left, **known)
