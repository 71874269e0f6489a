"""Runs in a background thread, and one pump thread that passes their logs on to the panel.

The thread that runs only marks that its log has grown. The pump wakes about ten times a second, reads the
new rows, and alone calls the listener, so that widgets are touched from one thread. The log is
append-only and read by row number: rows arrive in order, each once, however fast they are written.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from psbench import Control
from psbench.core.log import EventLog
from psbench.errors import Cancelled
from psbench.experiment import Experiment
from psbench.percents import percent
from psbench.progress_events import listening
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.system.start_progress import StartProgress, watching_start
from psbench.training.build import Workload

if TYPE_CHECKING:
    from psbench.detached import DetachedRun

logger = logging.getLogger(__name__)

JobStatus = Literal["queued", "running", "finished", "stopped", "diverged", "failed", "cancelled"]

#: why 0.1 s: faster than that is not seen, and the run pays for it; slower and charts seem to stutter
INTERVAL_S = 0.1


@dataclass(eq=False)
class Job:
    """One requested run.

    `log` is there from its first event on, `run` when it has ended by itself or was stopped, `error` (a
    traceback) when it failed.
    """

    number: int
    experiment: Experiment
    #: what it is called, if not by what differs among the runs; of a fork, which run and how
    name: str = ""
    #: the number of the run that it is a fork of, and from which moment on
    fork_of: tuple[int, float] | None = None
    #: the name of the run that all forks before it are of, and what each of them, and this one, adds to it
    forked: tuple[str, ...] = ()
    control: Control = field(default_factory=Control)
    status: JobStatus = "queued"
    log: EventLog | None = None
    #: what charts need to know while the run goes on; a part of what `run.meta` says in the end
    meta: dict[str, Any] = field(default_factory=dict)
    run: Run | None = None
    error: str = ""
    began_s: float = float("nan")
    ended_s: float = float("nan")
    #: rows of the log that the listener has seen
    seen: int = 0
    #: how far its processes have come, and what is being read, before training begins
    start: StartProgress = field(default_factory=StartProgress)
    reading: str = ""
    #: the run of a cluster that this job follows; None for a run of this process
    detached: DetachedRun | None = None

    @property
    def is_over(self) -> bool:
        """Return True if the job is finished."""
        return self.status not in ("queued", "running")

    def note(self, log: EventLog) -> None:
        """Mark that the log has grown (called from the thread that runs, after every event)."""
        self.log = log

    def note_loading(self, what: str, done: float) -> None:
        """Record the progress of reading data, unless the job was cancelled.

        Raises
        ------
        Cancelled
        """
        self.reading = f"{what}: {percent(done)}"
        self.control.check()


def perform(job: Job) -> Run:
    """Run a job's experiment; its facts are known before its first event."""
    if job.detached is not None:
        return follow(job, job.detached)
    experiment = job.experiment
    with listening(job.note_loading):
        workload = Workload.build(experiment)
    job.meta = _meta(experiment, workload.facts())
    job.control.check()
    job.start = StartProgress()
    with watching_start(job.start):
        return run_experiment(experiment, observer=job.note, control=job.control, workload=workload)


def follow(job: Job, run: DetachedRun) -> Run:
    """Follow a detached run, and pass requests on to it; leave it when the job is over."""

    def look(log: EventLog) -> None:
        for press in job.control.take_presses():
            run.press(press.worker, press.what, press.factor)
        for request in job.control.take():
            run.switch(request.to)
        if job.control.stopping and not stopped:
            stopped.append(run.stop())
        if job.is_over:
            raise Cancelled(f"the panel has left run {run.name!r}")
        if len(log):
            job.note(log)

    stopped: list[None] = []
    job.start = StartProgress()
    with watching_start(job.start):
        while not run.facts and run.read():
            look(run.log)
        job.meta = _meta(job.experiment, run.facts)
        return run.wait(look)


def _meta(experiment: Experiment, facts: Mapping[str, Any]) -> dict[str, Any]:
    strategy = experiment.strategy
    names = [composition.name for composition in strategy.compositions]
    return {"strategy": strategy.name, "compositions": names, "seed": experiment.seed, **facts}


class Listener(Protocol):
    """Callbacks of the pump; never called from two threads at once."""

    def on_rows(self, job: Job, log: EventLog, start: int, stop: int) -> None:
        """Receive rows `start` to `stop` of the job's log, which are new."""

    def on_status(self, job: Job, status: JobStatus) -> None:
        """Receive a job's new status, after all rows that were written before it."""

    def on_tick(self) -> None:
        """Update the page after a pump cycle."""

    def on_trouble(self, text: str) -> None:
        """Receive the traceback of a failure of the listener itself."""


class Bridge:
    """Runs experiments one after the other in the background and reports to a listener.

    Parameters
    ----------
    listener : Listener
    work : callable
        What runs a job; it calls `job.note(log)` as the log grows and heeds `job.control`.
    interval_s : float, seconds
        Time between two looks at the log.

    Notes
    -----
    Both threads end when there is nothing left to do, and begin again with the next run.
    """

    def __init__(
        self, listener: Listener, work: Callable[[Job], Run] | None = None, interval_s: float = INTERVAL_S
    ) -> None:
        self._listener = listener
        self._work = work or perform
        self._interval_s = interval_s
        self._lock = threading.RLock()
        self._queue: deque[Job] = deque()
        self._notices: deque[tuple[Job, JobStatus]] = deque()
        self._wake = threading.Event()
        self._current: Job | None = None
        self._runner: threading.Thread | None = None
        self._pump: threading.Thread | None = None
        self._numbers = 0
        self._closed = False
        atexit.register(_close_at_exit, weakref.ref(self))

    @property
    def current(self) -> Job | None:
        """The running job; None while a stopped job is being cleaned up."""
        job = self._current
        return None if job is None or job.is_over else job

    @property
    def queued(self) -> list[Job]:
        """The jobs that wait for their turn."""
        with self._lock:
            return list(self._queue)

    @property
    def jobs(self) -> list[Job]:
        """The running job, if any, and the queued ones."""
        return [job for job in (self.current, *self.queued) if job is not None]

    @property
    def threads(self) -> list[threading.Thread]:
        return [thread for thread in (self._runner, self._pump) if thread is not None and thread.is_alive()]

    def submit(
        self,
        experiment: Experiment,
        name: str = "",
        fork_of: tuple[int, float] | None = None,
        forked: tuple[str, ...] = (),
        detached: DetachedRun | None = None,
    ) -> Job:
        """Queue an experiment, or a detached run to follow, and return at once.

        Raises
        ------
        RuntimeError
            If the bridge was closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("this panel was closed; make a new one")
            self._numbers += 1
            job = Job(self._numbers, experiment, name, fork_of, forked, detached=detached)
            self._queue.append(job)
            self._notices.append((job, "queued"))
            if self._runner is None:
                self._runner = _thread(self._run_all, f"psbench-run-{job.number}")
            if self._pump is None:
                self._pump = _thread(self._pump_all, "psbench-pump")
        self._wake.set()
        return job

    def stop(self, job: Job | None = None) -> None:
        """Stop a job (by default the running one); a queued one is cancelled.

        One that only starts is over at once: it has nothing to keep. What it had started is then ended before
        the next job begins.
        """
        with self._lock:
            job = job or self._current
            if job is None:
                return
            job.control.stop()
            if job in self._queue:
                self._queue.remove(job)
                self._change(job, "cancelled")
            elif job is self._current and job.log is None:
                self._end(job, "stopped")
        self._wake.set()

    def stop_all(self) -> None:
        """Cancel the queued jobs and stop the running one; a detached run is left, and goes on."""
        for job in self.queued:
            self.stop(job)
        current = self._current
        if current is not None and current.detached is not None:
            self.leave(current)
        else:
            self.stop()

    def leave(self, job: Job) -> None:
        """Stop following a detached run, which goes on."""
        if job in self.queued:
            self.stop(job)
        else:
            self._end(job, "cancelled")

    @property
    def is_busy(self) -> bool:
        """Return True if a job is running or queued."""
        return self._current is not None or bool(self._queue)

    def switch(self, to: int | None = None) -> None:
        """Request a switch of the running job."""
        job = self._current
        if job is not None:
            job.control.switch(to)

    def close(self, timeout_s: float = 30.0) -> bool:
        """Cancel the queued jobs, stop the running one, and wait until both threads have ended."""
        with self._lock:
            self._closed = True
        self.stop_all()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all jobs have been run and reported; return whether they have."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return not [thread for thread in self.threads if thread is not threading.current_thread()]

    def _end(self, job: Job, status: JobStatus) -> None:
        """Record the end of a job only once: it may end by itself after it was stopped."""
        with self._lock:
            if not job.is_over:
                job.ended_s = time.monotonic()
                self._change(job, status)

    def _change(self, job: Job, status: JobStatus) -> None:
        job.status = status
        self._notices.append((job, status))
        self._wake.set()

    def _next(self) -> Job | None:
        with self._lock:
            job = self._current = self._queue.popleft() if self._queue else None
            if job is None:
                self._runner = (
                    None  # said under the lock, so that a submission at this moment starts a new one
                )
            return job

    def _run_all(self) -> None:
        while (job := self._next()) is not None:
            job.began_s = time.monotonic()
            self._change(job, "running")
            self._end(job, self._run_one(job))
        self._wake.set()

    def _run_one(self, job: Job) -> JobStatus:
        try:
            done = self._work(job)
        except Cancelled:
            return "stopped"
        except Exception:
            if job.is_over:
                logger.info("run %d was stopped, and then ended with an error", job.number, exc_info=True)
                return "stopped"
            job.error = traceback.format_exc()
            return "failed"
        with self._lock:
            if not job.is_over:
                job.run, job.log = done, done.log
        return _status(done.meta)

    def _pump_all(self) -> None:
        while True:
            with self._lock:
                idle = self._runner is None
            self._drain()  # once more after the last run is over
            with self._lock:
                if idle and self._runner is None and not self._notices:
                    self._pump = None
                    return
            # a change of status is shown at once, rows wait for their turn
            self._wake.wait(self._interval_s)
            self._wake.clear()

    def _drain(self) -> None:
        try:
            while self._notices:
                job, status = self._notices.popleft()
                self._send_rows(job)
                self._listener.on_status(job, status)
            job_under_way = self.current
            if job_under_way is not None:
                self._send_rows(job_under_way)
            self._listener.on_tick()
        except Exception:
            self._listener.on_trouble(traceback.format_exc())

    def _send_rows(self, job: Job) -> None:
        log = job.log
        if log is None:
            return
        start, stop = job.seen, len(log)
        if stop < start:  # a live run has gone back to a checkpoint
            start = 0
        if stop > start:
            job.seen = stop
            self._listener.on_rows(job, log, start, stop)


def _status(meta: dict[str, Any]) -> JobStatus:
    status = meta.get("status", "finished")
    return status if status in ("stopped", "diverged") else "finished"


def _thread(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _close_at_exit(bridge: weakref.ref[Bridge]) -> None:
    alive = bridge()
    if alive is not None and alive.threads:
        alive.close(timeout_s=5.0)
