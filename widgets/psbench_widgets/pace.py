"""Pace of a simulated run while a user watches: slow enough to see, and to press Switch now."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from psbench.errors import ParameterError
from psbench.progress import RunProgress
from psbench_widgets.bridge import Job

PaceName = Literal["watchable", "10", "fast"]
#: what the page offers, and what it says of each
PACES: dict[PaceName, str] = {"watchable": "watchable", "10": "10 ×", "fast": "as fast as possible"}
#: seconds that a watchable run takes from its begin to its end
WATCHABLE_S = 20.0
#: seconds of the run in a second of the clock, where it is not known when a watchable run ends
_UNKNOWN = 1.0
_NAP_S = 0.05


def check_pace(pace: str) -> str:
    """Return the pace, or raise if it is unknown."""
    if pace not in PACES:
        raise ParameterError(f"pace: {pace!r} is not one of {', '.join(PACES)}")
    return pace


class Pace:
    """Slows a simulated run down, in its own thread, while a page is watched and idle.

    Parameters
    ----------
    job : Job
    kind : "watchable", "10" or "fast"
        A run of `WATCHABLE_S` seconds; ten seconds of the run in a second; not held back at all.
    is_watched : callable
        Whether a user sees the page.
    """

    def __init__(self, job: Job, kind: PaceName, is_watched: Callable[[], bool]) -> None:
        self.kind, self._job, self._is_watched = kind, job, is_watched
        self._progress: RunProgress | None = None
        self._read = 0
        self._due_s: float | None = None
        self._place = 0.0

    def __call__(self, now_s: float) -> None:
        """Sleep until the run's time is due."""
        if self.kind == "fast" or not self._is_watched():
            self._due_s = None
            return
        place = self._seconds(now_s)
        if self._due_s is None:
            self._due_s = time.monotonic()
        else:
            # what took longer by itself is not made up for by going on faster
            self._due_s = max(self._due_s + max(0.0, place - self._place), time.monotonic() - _NAP_S)
        self._place = place
        control = self._job.control
        while (left := self._due_s - time.monotonic()) > 0 and not control.pending and self._is_watched():
            time.sleep(min(left, _NAP_S))

    def _seconds(self, now_s: float) -> float:
        """Return the wall-clock seconds at which the run should reach a time of its own."""
        if self.kind == "10":
            return now_s / 10
        job = self._job
        if job.log is None:
            return 0.0
        if self._progress is None:
            self._progress = RunProgress(job.experiment.stop, job.meta)
        self._progress.read(job.log, self._read, len(job.log))
        self._read = len(job.log)
        fraction = self._progress.fraction()
        return now_s / _UNKNOWN if fraction is None else WATCHABLE_S * fraction
