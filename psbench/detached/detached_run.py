"""A detached run as any client sees it: its growing log, its control and its result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from psbench.backends.control import Observer, Press
from psbench.backends.dask import Kept, Link, Listed, SchedulerLost, usable
from psbench.clusters.connection import ConnectionSettings
from psbench.core.log import ROW, EventLog
from psbench.errors import ServerLost
from psbench.experiment import Experiment
from psbench.system.start_progress import start_progress

if TYPE_CHECKING:
    from psbench.results.run import Run

#: seconds before a run without a director, or a scheduler without an answer, is asked again
_AGAIN_S = 0.3
#: seconds in which a connection to the scheduler may come back
_RECONNECT_S = 30.0


class DetachedRun:
    """A run that belongs to a Dask cluster.

    Attributes
    ----------
    name : str
        How any client of the cluster finds the run.
    log : EventLog
        As far as this process has read it; `wait` reads on.
    experiment : Experiment or None
        None until it is known; without the Python objects of another process.
    facts : mapping
        `dataset_size`, `num_workers` and others, for who shows the progress; empty until they are known.
    said : str
        What the run has last said of a fault that was injected, or of a process that was lost.
    """

    def __init__(self, client: Any, link: Link, experiment: Experiment | None = None) -> None:
        self._client, self._link = client, link
        self.name, self.log, self.experiment = link.name, EventLog(), experiment
        self.facts: Mapping[str, Any] = {}
        self.said = ""
        self._start = self._cuts = 0
        self._done: Run | None = None

    def __repr__(self) -> str:
        return f"<detached run {self.name!r}: {self.listed.words or self.listed.state}>"

    @property
    def listed(self) -> Listed:
        """The run's entry in the cluster's list: state, progress, folder."""
        return self._link.listed()

    def stop(self) -> None:
        """End the run as soon as possible; completed work is kept."""
        self._link.request("stop")

    def switch(self, to: int | None = None) -> None:
        """Switch to composition `to`, or to the other one if None."""
        self._link.request("switch", to)

    def press(self, worker: int, what: Literal["lost", "back", "speed"], factor: float = 1.0) -> None:
        """Inject a fault: see `psbench.backends.control.Press`."""
        self._link.request("press", *astuple(Press(worker, what, factor)))

    def forget(self) -> None:
        """Remove the run and its result from the cluster's memory; its folder stays.

        Raises
        ------
        BackendError
            If the run goes on.
        """
        self._link.forget()

    def wait(self, observer: Observer | None = None) -> Run:
        """Follow the run to its end, and return it; an interrupt ends the waiting, and not the run.

        Parameters
        ----------
        observer : callable or None
            Called with the log whenever the log has grown or was cut.

        Raises
        ------
        PsbenchError
            Why the run failed; that the cluster has lost it; or that the scheduler is gone.
        """
        failing_s: float | None = None
        while self._done is None:
            try:
                if not self.read(observer):
                    self._done = self._fetched()
                failing_s = None
            except SchedulerLost as error:  # for a moment, perhaps: Dask's client connects again
                failing_s = failing_s or time.monotonic()
                if self._client.status == "closed" or time.monotonic() > failing_s + _RECONNECT_S:
                    raise SchedulerLost(
                        f"{error}; run {self.name!r} does not need this process: attach to it again"
                    ) from None
                time.sleep(_AGAIN_S)
        if observer is not None:
            observer(self._done.log)
        return self._done

    def read(self, observer: Observer | None = None) -> bool:
        """Wait some seconds for news, and read them; return whether the run goes on.

        Raises
        ------
        BackendError
            If the cluster has lost the run, or the scheduler does not answer.
        """
        place = self._start, self._cuts, len(self.log), len(self.log.texts)
        answer = self._link.read(*place, knows=bool(self.facts))
        if answer is None:
            return self._await_director()
        if answer.start != self._start:  # another director, whose log this process has not read
            self._start, self._cuts = answer.start, 0
            self.log.truncate(0, 1)
        cuts, rows, texts = answer.part
        for left_rows, left_texts in cuts:
            self.log.truncate(min(left_rows, len(self.log)), min(left_texts, len(self.log.texts)))
        self._cuts += len(cuts)
        self.log.extend(np.frombuffer(rows, dtype=ROW), texts)
        if answer.about is not None:
            self.facts = answer.about["facts"]
            self.experiment = self.experiment or Experiment.from_spec(answer.about["spec"])
        self.said = answer.said
        if answer.starting:
            start_progress().copy(answer.starting)
        if observer is not None and answer.part:
            observer(self.log)
        return True

    def _await_director(self) -> bool:
        """Return whether a director may still come, after a moment."""
        listed = self.listed
        if listed.state == "lost":
            raise ServerLost(
                f"run {self.name!r}: its task is not on the cluster any more; {self._link.last_state}"
            )
        if listed.state == "running":
            time.sleep(_AGAIN_S)
        return listed.state == "running"

    def _fetched(self) -> Run:
        """Return the run from the cluster's memory."""
        from psbench.results.run import Run  # it loads torch, which who controls a run need not wait for

        kept: Kept = self._link.result(self.log)
        rows = np.frombuffer(kept.rows, dtype=ROW)
        if self.log.rows().tobytes() != kept.rows[: len(self.log) * ROW.itemsize]:
            self.log.truncate(0, 1)
        self.log.extend(rows[len(self.log) :], kept.texts)
        experiment = self.experiment or Experiment.from_spec(kept.spec)
        return Run(experiment, self.log, kept.meta, kept.parameters, kept.buffers)


def attach(name: str, *, client: Any) -> DetachedRun:
    """Return a detached run of a cluster by its name, to follow, control or fetch it.

    Parameters
    ----------
    name : str
    client : dask.distributed.Client
        Only the scheduler's port need be reachable.

    Raises
    ------
    ParameterError
        If the cluster lists no such run.
    """
    link = Link(usable(client), name, ConnectionSettings())
    link.listed()
    return DetachedRun(client, link)
