"""What the panel shows of a run: its charts, its recording, and the progress line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psbench.core.log import EventLog, Kind
from psbench.experiment import Experiment
from psbench.metrics.clocks import Clocks
from psbench.metrics.rows import positions
from psbench.progress import RunProgress, time_left
from psbench_widgets.bridge import Job
from psbench_widgets.figures import FigureInput, Figures
from psbench_widgets.film import NEWEST, film, newest
from psbench_widgets.run_table import RunEntry

#: a picture of the newest rows that took t of the processor's time is not made again for this many t
PATIENCE = 25
#: and never more often than this, in seconds: faster than that nobody sees
LEAST_S = 0.1


@dataclass
class _Shown:
    """A run that is shown, and what its recording is made from."""

    experiment: Experiment
    log: EventLog
    label: str
    number: int

    @property
    def key(self) -> str:
        """What tells it apart on the page."""
        return f"run {self.number}"


@dataclass
class _Snapshots:
    """Who was there with which clock at some rows of a log that grows, and which composition was in force."""

    clocks: Clocks = field(default_factory=Clocks)
    composition: int = 0
    taken: list[tuple[int, dict[int, int], int]] = field(default_factory=lambda: [(0, {}, 0)])

    def read(self, log: EventLog, start: int, stop: int) -> None:
        """Read new rows; a snapshot is what follows from all rows before its number."""
        rows = log.rows(start, stop)
        for part in np.split(rows, positions(rows, *Clocks.BREAKS)):
            if len(part) and part["kind"][0] in Clocks.BREAKS:
                self.clocks.change(part[0])
                if part["kind"][0] == Kind.HANDOVER:
                    self.composition = int(part["id"][0])
            pushed, counts = np.unique(part["worker"][part["kind"] == Kind.PUSH], return_counts=True)
            for worker, count in zip(pushed.tolist(), counts.tolist(), strict=True):
                self.clocks.rise(worker, count)
        self.taken.append((stop, dict(self.clocks.of), self.composition))

    def before(self, row: int) -> tuple[int, dict[int, int], int]:
        """Return the newest snapshot at or before a row, and forget older ones."""
        while len(self.taken) > 1 and self.taken[1][0] <= row:
            del self.taken[0]
        return self.taken[0]


class RunView:
    """Shows one run at a time, or two beside each other; safe to use from any thread.

    Parameters
    ----------
    figures : Figures
    send : callable
        Sends a message to the page.
    """

    def __init__(self, figures: Figures, send: Callable[[dict[str, Any]], None]) -> None:
        self._figures, self._send = figures, send
        self._lock = threading.RLock()
        self._job: Job | None = None
        self._progress: RunProgress | None = None
        self._snapshots = _Snapshots()
        self._shown: list[_Shown] = []
        self._due = 0.0
        #: whether somebody looks: nothing is drawn for nobody
        self.is_seen = True

    # ---------------------------------------------------------------- a run under way

    def read_rows(self, job: Job, log: EventLog, start: int, stop: int) -> None:
        """Read new rows of a job's log; those of another job put its charts in place of the last."""
        with self._lock:
            if self._job is not job:
                self._begin(job, log)
            if self._progress is not None:
                self._progress.read(log, start, stop)
                self._snapshots.read(log, start, stop)

    def _begin(self, job: Job, log: EventLog) -> None:
        label = job.name or str(job.experiment.strategy.name)
        self._job, self._snapshots = job, _Snapshots()
        self._progress = RunProgress(job.experiment.stop, job.meta)
        self._shown = [_Shown(job.experiment, log, label, job.number)]
        self._due = 0.0
        self._figures.show(job.experiment, log, job.meta, label)

    def finish(self, job: Job) -> None:
        """Draw the whole log of a job that has ended, if it is the one shown."""
        with self._lock:
            if job.is_over and job.run is not None and self._job is job:
                self._figures.refresh(final=True)
                self.show_moment(None)

    def refresh(self) -> None:
        """Bring the charts and the moving picture up to the log, if somebody looks."""
        with self._lock:
            if not self.is_seen:
                return
            self._figures.refresh()
            job = self._job
            if job is not None and not job.is_over and time.perf_counter() >= self._due:
                began = time.thread_time()
                self._send_newest()
                spent = time.thread_time() - began
                self._due = time.perf_counter() + max(LEAST_S, PATIENCE * spent)

    def _send_newest(self) -> None:
        shown = self._shown[0]
        first, clocks, composition = self._snapshots.before(len(shown.log) - NEWEST)
        rows = shown.log.rows(first)
        if not (rows["kind"] == Kind.PUSH).any():
            return
        picture = newest(shown.experiment, shown.log, shown.label, shown.key, first, clocks, composition)
        self._send({"kind": "films", "films": [picture], "live": True})

    # ---------------------------------------------------------------- a run that is over

    def show(self, entry: RunEntry, beside: RunEntry | None = None, at_s: float | None = None) -> None:
        """Show a finished run again, perhaps with another one beside it, at a moment."""
        entries = [each for each in (entry, beside) if each is not None and each.run is not None]
        if not entries:
            return
        with self._lock:
            self._job = None
            self._shown = [_shown(each) for each in entries]
            first = entries[0].run
            assert first is not None
            other = entries[1] if len(entries) > 1 else None
            input_beside = FigureInput(other.run, other.label) if other and other.run else None
            self._figures.show(first.experiment, first.log, first.meta, entry.label, input_beside)
            self._figures.refresh(final=True)
            self.show_moment(at_s)

    @property
    def shown_number(self) -> int:
        """The number of the run that is shown first; 0 before any."""
        return self._shown[0].number if self._shown else 0

    def show_moment(self, at_s: float | None) -> None:
        """Send the recordings of what is shown, with a moment in them; the newest one if that is None."""
        with self._lock:
            live = self._job is not None and not self._job.is_over
            if live and at_s is None:
                self._due = 0.0
                return
            films = [film(each.experiment, each.log, each.label, each.key, at_s) for each in self._shown]
            if films:
                self._send({"kind": "films", "films": films, "live": live, "at": at_s})

    def sum_up_to(self, at_s: float | None) -> None:
        """Draw sums and counts up to a moment."""
        with self._lock:
            self._figures.until(at_s)

    # ---------------------------------------------------------------- words

    def progress(self, job: Job) -> dict[str, Any]:
        """Return how far a job under way has come, as the page shows it."""
        experiment, progress = job.experiment, self._progress
        found = {
            "running": job.number,
            "echo": _in_one_line(experiment),
            "can_switch": len(experiment.strategy.compositions) > 1,
            "fraction": None,
            "left": "",
            "words": _before_first_event(experiment),
            "beginning": True,
        }
        if progress is None or self._job is not job:
            return found
        fraction = progress.fraction()
        left = time_left(fraction, time.monotonic() - job.began_s)
        words = progress.words(experiment.backend)
        return found | {"words": words, "fraction": fraction, "left": left, "beginning": False}


def _shown(entry: RunEntry) -> _Shown:
    assert entry.run is not None
    return _Shown(entry.run.experiment, entry.run.log, entry.label, entry.number)


def _before_first_event(experiment: Experiment) -> str:
    """Say what happens before the first event."""
    cluster = f", starting {experiment.num_workers} Dask workers" if experiment.backend == "dask" else ""
    return f"loading {experiment.data.name}{cluster}"


def _in_one_line(experiment: Experiment) -> str:
    """Say what took effect."""
    parts = (experiment.data, experiment.model, experiment.cluster, experiment.sharding)
    names = [experiment.title, *(part.name for part in parts)]
    return " · ".join([*names, f"seed {experiment.seed}", experiment.backend])
