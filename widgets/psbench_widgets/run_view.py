"""The panel's view of a run: its charts, its recording, and the progress line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psbench.core.log import EventLog, Kind
from psbench.experiment import Experiment
from psbench.metrics.recording import Recording
from psbench.metrics.recording_reader import LogPrefix, recording
from psbench.metrics.rows import end_of
from psbench.progress import RunProgress, time_left
from psbench.system.start_progress import STAGES
from psbench_widgets.bridge import Job
from psbench_widgets.figures import Figures, Shown
from psbench_widgets.moment_tree import tree_at
from psbench_widgets.own_objects import titles_of
from psbench_widgets.pace import Pace
from psbench_widgets.playback import NEWEST, OF_EACH, bounds_of, moving, part_of
from psbench_widgets.run_table import RunEntry
from psbench_widgets.sweep import machines_of

#: what drawing may take of the CPU time of a run in this process
SHARE = 1 / 200
#: of the clock's, of a run in other processes
LIVE_SHARE = 1 / 60
#: of the clock's, where the run is held back for those who watch it: what is shown is where it is
HELD_SHARE = 1 / 4
#: it is never done more often than this, in seconds: faster than that is not seen
LEAST_S = 0.1
#: the second time comes at the latest this many seconds after the first, which has more to prepare
SECOND_S = 1.5


@dataclass
class _Film:
    """A displayed run, and the source of its recording."""

    experiment: Experiment
    log: EventLog
    label: str
    number: int
    #: its recording, and of how many rows: a viewer who moves about in a long run asks for piece after piece
    _whole: tuple[int, Recording] | None = None

    @property
    def key(self) -> str:
        """The key of the run on the page."""
        return f"run {self.number}"

    def around(self, at_s: float | None) -> dict[str, Any]:
        """Return the part of the recording around a moment."""
        found = self._part(at_s)
        if at_s is not None and found["end_s"] > self.recording(renew=False).settled_s:
            self.recording()
            found = self._part(at_s)
        return found | {"whole_s": max(found["end_s"], end_of(self.log.rows(max(0, len(self.log) - 1))))}

    def _part(self, at_s: float | None) -> dict[str, Any]:
        whole = self.recording(renew=at_s is None)
        return part_of(whole, self.experiment, self.label, self.key, at_s)

    def next(self, kind: str, at_s: float, back: bool) -> float | None:
        """Return the next instant of a kind in the whole run; see `Recording.next`."""
        found = self.recording(renew=False).next(kind, at_s, back)
        late = at_s if found is None else found
        if found is None or late > self.recording(renew=False).settled_s:
            return self.recording().next(kind, at_s, back)
        return found

    def recording(self, renew: bool = True) -> Recording:
        """Return the recording of the whole log; without `renew` it may be slightly outdated."""
        rows = len(self.log)
        if self._whole is None or (renew and self._whole[0] != rows) or self._whole[0] > rows:
            self._whole = rows, recording(self.log, bounds_of(self.experiment), stop=rows)
        return self._whole[1]


class RunView:
    """Shows one run at a time, or two side by side; thread-safe.

    The sentence, the charts and the moving picture of a run under way are made at the same moments, from the
    same rows.

    Parameters
    ----------
    figures : Figures
    send : callable
        Sends a message to the page.
    labels : callable
        Returns the labels of the runs that the page compares, each of which has its colour.
    """

    def __init__(
        self,
        figures: Figures,
        send: Callable[[dict[str, Any]], None],
        labels: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._figures, self._send, self._labels = figures, send, labels
        self._lock = threading.RLock()
        self._job: Job | None = None
        self._progress: RunProgress | None = None
        self._newest = LogPrefix()
        self._shown: list[_Film] = []
        self._stop = self._read = 0  # rows of the log that there are, and that are shown
        self._rest_s: float | None = None  # the moment at which a run that is over is shown
        self._due = self._affordable = 0.0  # by the clock, and by the time that the run has taken
        self._deferred = 0.0  # the part of the first pause that is made up for after the second drawing
        self._is_seen, self._is_behind, self._was_held = True, False, False
        self._echo = 0, ""

    # ---------------------------------------------------------------- a run under way

    def read_rows(self, job: Job, log: EventLog, start: int, stop: int) -> None:
        """Handle new rows of a job's log; a new job replaces the charts."""
        with self._lock:
            if self._job is not job or start < self._stop:  # or it has gone back to a checkpoint
                self._begin(job, log)
            self._stop = stop

    def _begin(self, job: Job, log: EventLog) -> None:
        label = job.name or job.experiment.title
        self._job, self._newest = job, LogPrefix(bounds_of(job.experiment))
        self._progress = RunProgress(job.experiment.stop, job.meta)
        self._shown = [_Film(job.experiment, log, label, job.number)]
        self._stop = self._read = 0
        self._rest_s = None
        self._due = self._affordable = self._deferred = 0.0
        shown = Shown(label, log, job.meta, self._labels())
        self._figures.show(shown, machines=machines_of(job.experiment))

    @property
    def is_seen(self) -> bool:
        """Return True if the charts are visible; hidden charts are not drawn during a run."""
        return self._is_seen

    @is_seen.setter
    def is_seen(self, on: bool) -> None:
        with self._lock:
            if on and not self._is_seen:
                self._due = 0.0
            self._is_seen = on

    def finish(self, job: Job) -> None:
        """Draw the whole log of a job that has ended, if it is the one shown."""
        with self._lock:
            if job.is_over and job.run is not None and self._job is job:
                self._figures.refresh(final=True)
                self.show_moment(None)
                self._send_tree(None)

    def refresh(self) -> None:
        """Update the sentence, the charts and the recording from the log, all together.

        The charts may be out of sight while the sentence is not (on another tab); they follow later.
        """
        with self._lock:
            job = self._job
            if job is None or job.is_over or time.perf_counter() < self._due:
                return
            if self._read == self._stop and not self._is_behind:
                return
            held = _is_held_back(job)
            if held != self._was_held:  # its time is counted by another clock
                self._was_held, self._affordable, self._deferred = held, 0.0, 0.0
            if self.is_seen and self._clock(job) < self._affordable:
                return
            began = time.thread_time()  # not the clock, which also counts what the run takes meanwhile
            assert self._progress is not None
            self._progress.read(self._shown[0].log, self._read, self._stop)
            self._read = self._stop
            self._is_behind = not self.is_seen
            if self.is_seen:
                self._figures.refresh(self._stop)
                self._send_newest()
            pause = self._deferred + (time.thread_time() - began) / self._share(job)
            soon = pause if self._affordable else min(pause, SECOND_S)
            self._deferred = pause - soon
            self._due, self._affordable = time.perf_counter() + LEAST_S, self._clock(job) + soon

    @staticmethod
    def _share(job: Job) -> float:
        if _is_held_back(job):
            return HELD_SHARE
        return SHARE if job.experiment.backend == "simulated" else LIVE_SHARE

    @staticmethod
    def _clock(job: Job) -> float:
        """Return the seconds that a run has used: CPU time in this process, or else wall-clock time."""
        is_here = job.experiment.backend == "simulated" and not _is_held_back(job)
        return time.process_time() if is_here else time.perf_counter()

    def _send_newest(self) -> None:
        shown, newest = self._shown[0], self._newest
        newest.read(shown.log, self._stop - max(NEWEST, OF_EACH * len(newest.clocks.of)))
        if not (shown.log.rows(newest.row, self._stop)["kind"] == Kind.PUSH).any():
            return
        picture = moving(shown.experiment, shown.log, shown.label, shown.key, newest, self._stop)
        self._send({"kind": "films", "films": [picture], "live": True})

    # ---------------------------------------------------------------- a run that is over

    def show(self, entry: RunEntry, beside: RunEntry | None = None, at_s: float | None = None) -> None:
        """Show a finished run again at a moment, perhaps with another one beside it."""
        entries = [each for each in (entry, beside) if each is not None and each.run is not None]
        if not entries:
            return
        with self._lock:
            self._job, self._rest_s = None, at_s
            self._shown = [_film(each) for each in entries]
            among = self._labels()
            shown = [Shown(e.label, e.run.log, e.run.meta, among) for e in entries if e.run is not None]
            self._figures.show(*shown, machines=machines_of(entries[0].experiment))
            self._figures.refresh(final=True)
            self.show_moment(at_s)
            self._send_tree(at_s)

    @property
    def shown_number(self) -> int:
        return self._shown[0].number if self._shown else 0

    @property
    def gradients(self) -> int:
        """The number of gradients that the displayed run has applied."""
        return int((self._shown[0].log.rows()["kind"] == Kind.APPLY).sum()) if self._shown else 0

    @property
    def experiment(self) -> Experiment | None:
        return self._shown[0].experiment if self._shown else None

    def show_moment(self, at_s: float | None, view: str = "", sought: str = "") -> None:
        """Send the recordings of the displayed runs around a moment.

        None: the newest of a run under way; of one that is over where it was last looked at, for a page that
        was reloaded. Only the view that asked takes the answer, so that it moves no other; all do if none is
        named.
        """
        with self._lock:
            live = self._job is not None and not self._job.is_over
            if live and at_s is None:
                self._due = 0.0
                return
            at_s = self._rest_s if at_s is None else at_s
            films = [each.around(at_s) for each in self._shown]
            if films and films[0]["workers"]:  # else nothing has happened that could be drawn
                facts = {"live": live, "at": at_s, "view": view, "sought": sought}
                self._send({"kind": "films", "films": films} | facts)

    def seek(self, kind: str, at_s: float, back: bool = False, view: str = "") -> None:
        """Show the next (or previous) instant of a kind, searched in the whole log.

        Of two runs beside each other it is the nearer one. The view is notified even if there is none.
        """
        with self._lock:
            times = [each.next(kind, at_s, back) for each in self._shown if len(each.log)]
            found = [time_s for time_s in times if time_s is not None]
        if found:
            self.show_moment(max(found) if back else min(found), view, sought=kind)
        else:
            self._send({"kind": "nowhere", "sought": kind, "view": view})

    def sum_up_to(self, at_s: float | None, since_s: float | None = None) -> None:
        """Draw sums, counts and the tree up to a moment, or between two, of a run that is over."""
        with self._lock:
            if self._job is None or self._job.is_over:
                self._rest_s = at_s if since_s is None else self._rest_s
                self._figures.until(at_s, since_s)
                self._send_tree(at_s)

    def _send_tree(self, at_s: float | None) -> None:
        """Send the computation tree of the first run that is shown, at a moment."""
        if self._shown:
            film = self._shown[0]
            self._send({"kind": "tree", **tree_at(film.log, film.experiment.strategy, at_s)})

    # ---------------------------------------------------------------- words

    def _echo_of(self, job: Job) -> str:
        """Return the effective settings; cached, because it is needed ten times a second."""
        if self._echo[0] != job.number:
            self._echo = job.number, _in_one_line(job.experiment)
        return self._echo[1]

    def progress(self, job: Job) -> dict[str, Any]:
        """Return the progress of a running job, for the page."""
        experiment, progress = job.experiment, self._progress
        found = {
            "running": job.number,
            "echo": self._echo_of(job),
            "can_switch": len(experiment.strategy.compositions) > 1,
            "fraction": None,
            "left": "",
            "words": "stopping" if job.control.stopping else _before_first_event(job),
            "beginning": True,
            "starting": _start_of(job),
        }
        if progress is None or self._job is not job:
            return found
        fraction = progress.fraction()
        left = time_left(fraction, time.monotonic() - job.began_s)
        words = "stopping" if job.control.stopping else progress.reached(experiment.backend)
        shown = {"words": words, "fraction": fraction, "left": left}
        return found | shown | {"beginning": False, "starting": {}}


def _is_held_back(job: Job) -> bool:
    """Return whether a run is paced for its viewers, so that drawing does not slow it."""
    return isinstance(job.control.pace, Pace) and job.control.pace.kind != "fast"


def _film(entry: RunEntry) -> _Film:
    assert entry.run is not None
    return _Film(entry.run.experiment, entry.run.log, entry.label, entry.number)


def _before_first_event(job: Job) -> str:
    """Return the status before the first event."""
    if job.start.rows():
        return job.start.words()
    return job.reading or f"loading {job.experiment.data.name}"


def _start_of(job: Job) -> dict[str, Any]:
    """Return the start-up stages of a live run's processes for the page; empty before any starts."""
    rows = job.start.rows()
    return {"stages": STAGES, "rows": rows} if rows else {}


def _in_one_line(experiment: Experiment) -> str:
    """Return the effective settings in one line."""
    names = titles_of(experiment, "data", "model", "cluster", "sharding")
    return " · ".join([experiment.title, *names, f"seed {experiment.seed}", experiment.backend])
