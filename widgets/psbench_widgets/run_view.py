"""The charts and the progress line of the run that the panel shows."""

from __future__ import annotations

import threading
import time
from typing import Any

from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.progress import RunProgress, time_left
from psbench_widgets.bridge import Job
from psbench_widgets.figures import Figures
from psbench_widgets.run_table import RunEntry


class RunView:
    """Shows one run at a time: the one under way, or a finished one; safe to use from any thread.

    Parameters
    ----------
    figures : Figures
    """

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._lock = threading.RLock()
        self._job: Job | None = None
        self._progress: RunProgress | None = None

    def read_rows(self, job: Job, log: EventLog, start: int, stop: int) -> None:
        """Read new rows of a job's log; those of another job put its charts in place of the last."""
        with self._lock:
            if self._job is not job:
                self._job = job
                self._progress = RunProgress(job.experiment.stop, job.meta)
                self._figures.show(job.experiment, log, job.meta, str(job.experiment.strategy.name))
            if self._progress is not None:
                self._progress.read(log, start, stop)

    def finish(self, job: Job) -> None:
        """Draw the whole log of a job that has ended, if it is the one shown."""
        with self._lock:
            if job.is_over and job.run is not None and self._job is job:
                self._figures.refresh(final=True)

    def show(self, entry: RunEntry) -> None:
        """Show a finished run again."""
        if entry.run is None:
            return
        with self._lock:
            self._job = None
            self._figures.show(entry.run.experiment, entry.run.log, entry.run.meta, entry.label)
            self._figures.refresh(final=True)

    def refresh(self) -> None:
        """Bring the charts up to the log."""
        with self._lock:
            self._figures.refresh()

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
        }
        if progress is None or self._job is not job:
            return found
        fraction = progress.fraction()
        left = time_left(fraction, time.monotonic() - job.began_s)
        return found | {"words": progress.words(experiment.backend), "fraction": fraction, "left": left}


def _before_first_event(experiment: Experiment) -> str:
    """Say what happens before the first event."""
    cluster = f", starting {experiment.num_workers} Dask workers" if experiment.backend == "dask" else ""
    return f"loading {experiment.data.name}{cluster}"


def _in_one_line(experiment: Experiment) -> str:
    """Say what took effect."""
    parts = (experiment.data, experiment.model, experiment.cluster, experiment.sharding)
    names = [experiment.title, *(part.name for part in parts)]
    return " · ".join([*names, f"seed {experiment.seed}", experiment.backend])
