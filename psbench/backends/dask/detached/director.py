"""The director of a detached run: the client of a live run, as a Dask task that readers follow by name."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed import Client, Worker, get_worker, secede
from distributed.core import Status
from distributed.protocol import to_serialize

from psbench.backends.control import Control
from psbench.backends.dask.connecting import client_at
from psbench.backends.dask.detached.held_log import HeldLog, LogPart
from psbench.backends.dask.detached.registry import Listed, Registry
from psbench.backends.dask.lifetime import outliving_scheduler
from psbench.clusters.connection import ConnectionSettings
from psbench.core.log import ROW, EventLog
from psbench.errors import BackendError
from psbench.experiment import Experiment
from psbench.progress import LogProgress
from psbench.system.claims import Writer
from psbench.system.start_progress import StartProgress, watching_start

if TYPE_CHECKING:
    from torch import Tensor

#: how the directors of a Dask worker are called among its attributes, by name of the run
_DIRECTORS = "_psbench_directors"
#: how the requests to directors are called among those that a Dask worker answers: it logs each other call
READ, CONTROL = "psbench_read", "psbench_control"
#: seconds between looks of a director at its Dask worker, and between its reports to the scheduler
_LOOK_S, _REPORT_S = 0.1, 1.0
#: seconds between looks whether there is something for a waiting reader, and between two states of a start
_READ_S, _STARTING_S = 0.05, 0.5


class Superseded(BackendError):
    """Another director of the same run has begun; this one may not write any more."""


class Kept(NamedTuple):
    """The result of a detached run, as the cluster keeps it."""

    spec: dict[str, Any]
    meta: dict[str, Any]
    parameters: Tensor | None
    buffers: Tensor | None
    rows: bytes
    texts: list[str]


class Answer(NamedTuple):
    """A director's answer to a reader.

    Attributes
    ----------
    start : int
        The director's start number: a reader that knew another one reads again from row 0.
    part : LogPart
    about : dict or None
        Specification and facts, for a reader that has none, once the experiment was accepted.
    starting : list
        How far the start of the processes is (`StartProgress.rows`); empty once there are rows of the log.
    said : str
        The last one of `Control.said`.
    """

    start: int
    part: LogPart
    about: dict[str, Any] | None
    starting: list[tuple[str, list[float | None]]]
    said: str


class Director(Writer):
    """One director of a run: its log, its control, and its entry in the scheduler's list.

    Parameters
    ----------
    name : str
        Of the run.
    owner : str
        The key of the task, which all directors of the run have.
    worker : Worker
        Dask's, in whose process the director is.
    client : Client
        Dask's, of that process.
    limits : ConnectionSettings

    Attributes
    ----------
    start : int
        The number that the scheduler gave to this director; 0 until it has begun.
    """

    def __init__(
        self, name: str, owner: str, worker: Worker, client: Client, limits: ConnectionSettings
    ) -> None:
        self.name, self.owner, self.client = name, owner, client
        self.log, self.control, self.start = HeldLog(), Control(), 0
        self.about: dict[str, Any] | None = None
        self.starting = StartProgress()
        self._worker, self._registry = worker, Registry(client, limits)
        self._progress: LogProgress | None = None
        self._over, self._is_replaced = threading.Event(), False

    def begin(self) -> Listed:
        """Take the next start number, from which on no earlier director may write; return the run so far.

        Raises
        ------
        BackendError
            If the scheduler does not list the run.
        """
        found = self._registry.begin(self.name, self._worker.address)
        if found is None:
            raise BackendError(f"run {self.name!r} is not on the scheduler's list of detached runs any more")
        self.start = found.starts
        return found

    def accept(self, experiment: Experiment, facts: dict[str, Any]) -> None:
        """Announce that the experiment can run; `facts` are those of its workload."""
        self.about = {"spec": experiment.spec(), "facts": facts}
        names = [composition.name for composition in experiment.strategy.compositions]
        self._progress = LogProgress(experiment.stop, {**facts, "compositions": names})

    def check(self) -> None:
        """Raise if another director has begun; called before each file of the run is written.

        A scheduler that is gone starts no other director, so without its answer the run goes on.

        Raises
        ------
        Superseded
        """
        if self._report():
            raise Superseded(f"run {self.name!r} is directed from another Dask worker now")

    def _report(self, **changes: Any) -> bool:
        """Report facts to the scheduler; return whether another director has begun."""
        if len(self.log):  # else those of an earlier director may be read from a checkpoint yet
            changes["has_rows"] = True
        try:
            found = self._registry.report(self.name, self.start, **changes)
        except BackendError:
            return self._is_replaced
        if found is not None:
            self._is_replaced |= found.starts > self.start
            if not found.task:  # its name was unpublished, or its task cancelled
                self.control.stop()
        return self._is_replaced

    def _words(self) -> str:
        if self.control.stopping:
            return "stopping"
        if self._progress is None or not len(self.log):
            return self.starting.words() if self.about else "starting"
        return self._progress.read(self.log).words("dask")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Answer readers in this block, and stop the run if the Dask worker closes or another takes over."""
        directors = _answering(self._worker)
        directors[self.name] = self
        watch = threading.Thread(target=self._watch, name=f"psbench-director-{self.name}", daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._over.set()
            watch.join()
            directors.pop(self.name, None)

    def carry_out(self, work: Callable[[Director], Kept]) -> Kept:
        """Return the result of some work, and record the start of its processes."""
        with watching_start(self.starting):
            return work(self)

    @property
    def is_leaving(self) -> bool:
        """Return True if the Dask worker closes: the scheduler starts another director elsewhere."""
        return self._worker.status not in (Status.running, Status.paused)

    def _watch(self) -> None:
        next_report_s = 0.0
        while not self._over.wait(_LOOK_S):
            now = time.monotonic()
            if self.start and now > next_report_s:
                next_report_s = now + _REPORT_S
                self._report(words=self._words())
            if self.is_leaving or self._is_replaced:
                self.control.stop()

    def end(self, status: str, reason: str) -> None:
        """Report the end of the run, unless another director goes on with it."""
        if self._is_replaced or self.is_leaving or not self.start:
            return
        try:
            self._registry.report(self.name, self.start, status=status, words=f"{status}: {reason}")
        except BackendError:
            return  # the scheduler is gone, and its list with it

    def answer(self, start: int, cuts: int, rows: int, texts: int, *, knows: bool) -> Answer:
        """Return the rows that a reader lacks: all of them if it has read from another director."""
        place = (cuts, rows, texts) if start == self.start else (0, 0, 1)
        part = self.log.part_after(*place)
        about = None if knows else self.about
        starting = [] if len(self.log) else self.starting.rows()
        return Answer(self.start, part, about, starting, self.control.said)


def direct(work: Callable[[Director], Kept], name: str, limits: ConnectionSettings) -> Kept:
    """Direct a run to its end, in a Dask task; if its Dask worker dies, Dask starts the task once more.

    Parameters
    ----------
    work : callable
        Runs or resumes the run.
    name : str
    limits : ConnectionSettings
    """
    secede()  # roles of the run may have this thread
    worker = get_worker()
    with (
        outliving_scheduler(worker),
        client_at(worker.scheduler.address, worker.security, limits.listen_within_s) as client,
        (director := Director(name, worker.get_current_task(), worker, client, limits)).at_work(),
    ):
        try:
            # without the context of this task: a client in one stores what it sends in this Dask worker
            kept = contextvars.Context().run(director.carry_out, work)
        except BaseException as error:
            director.end("failed", " ".join(str(error).split()))
            raise
        director.end(kept.meta["status"], kept.meta["reason"])
        return kept


def packed_log(log: EventLog) -> tuple[bytes, list[str]]:
    """Return the rows and the texts of a log as `Kept` holds them."""
    return log.rows().tobytes(), [*log.texts]


# ---------------------------------------------------------------- for readers, in the worker's event loop


def _answering(worker: Worker) -> dict[str, Director]:
    """Let a Dask worker answer readers and controls of its directors, and return those by name of the run."""
    directors: dict[str, Director] = worker.__dict__.setdefault(_DIRECTORS, {})

    async def read(arguments: list[Any]) -> dict[str, Any]:
        """Answer once there is something new, or after some seconds; None if no such director is here."""
        name, *place, knows, wait_s = arguments
        began = time.monotonic()
        while (director := directors.get(name)) is not None:
            found = director.answer(*place, knows=knows)
            most_s = _STARTING_S if found.starting else wait_s
            if found.part or found.about or time.monotonic() > began + most_s:
                return answered(found)
            await asyncio.sleep(_READ_S)
        return answered(None)

    def control(arguments: list[Any]) -> dict[str, Any]:
        """Call a method of a run's `Control`; answer whether its director is here."""
        name, method, given = arguments
        if (director := directors.get(name)) is not None:
            getattr(director.control, method)(*given)
        return answered(director is not None)

    def answered(found: Any) -> dict[str, Any]:
        return {"status": "OK", "answer": to_serialize(found)}

    worker.handlers.update({READ: read, CONTROL: control})
    return directors


async def result_after(key: str, digest: str, rows: int, texts: int, dask_worker: Worker) -> Kept | None:
    """Return the result of a run without the rows and texts that a reader has.

    None if the result is not in this Dask worker, or if the reader's rows, of that digest, are others.

    Parameters
    ----------
    key : str
        Of the director's task.
    digest : str
    rows, texts : int
    """
    kept: Kept | None = dask_worker.data.get(key)
    if kept is None or digest_of(kept.rows[: rows * ROW.itemsize]) != digest:
        return None
    return kept._replace(rows=kept.rows[rows * ROW.itemsize :], texts=kept.texts[texts:])


def digest_of(rows: bytes) -> str:
    """Return the digest by which readers and directors compare rows of the log."""
    return hashlib.sha256(rows).hexdigest()
