"""The list of detached runs, kept by the Dask scheduler, which need not have psbench."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from distributed import Client, Scheduler

from psbench.backends.dask.rpc import ask_scheduler
from psbench.clusters.connection import ConnectionSettings

#: how the list is called among the scheduler's attributes
_LIST = "_psbench_runs"
#: seconds that a run may take from its name to its task
_SUBMITTED_WITHIN_S = 60.0

State: TypeAlias = Literal["running", "ended", "lost"]


class Listed(NamedTuple):
    """A detached run as the scheduler lists it.

    Attributes
    ----------
    name : str
    key : str
        Of its director's task.
    folder : str
        On the cluster's file system; empty without one.
    submitted_s : float
        Seconds since 1970, of the scheduler's clock.
    starts : int
        The start number of the newest director; 0 before the first.
    at : str
        The Dask worker of the newest director; empty if it is gone.
    has_rows : bool
        Whether a director has received rows of the log.
    words : str
        The progress or the end of the run.
    status : str
        Empty until the run has ended; then finished, stopped, diverged or failed.
    task : str
        Dask's state of the director's task; empty if the scheduler does not have the task.
    """

    name: str
    key: str
    folder: str
    submitted_s: float
    starts: int
    at: str
    has_rows: bool
    words: str
    status: str
    task: str

    @property
    def state(self) -> State:
        """The state of the run: running, ended, or lost because no task directs it."""
        if self.status or self.task in ("memory", "erred"):
            return "ended"
        return "running" if self.task else "lost"


class Registry:
    """The detached runs of one cluster.

    Parameters
    ----------
    client : Client
        Dask's.
    limits : ConnectionSettings
        The scheduler may take `answer_within_s`.
    """

    def __init__(self, client: Client, limits: ConnectionSettings) -> None:
        self._client, self._limits = client, limits

    def _call(self, function: Callable[..., Any], *arguments: Any, is_needed: bool = True) -> Any:
        limits = self._limits
        return ask_scheduler(
            self._client, "run_on_scheduler", function, *arguments, limits=limits, is_needed=is_needed
        )

    def runs(self) -> list[Listed]:
        """Return all listed runs, in the order in which they were submitted."""
        found: list[dict[str, Any]] = self._call(_functions()["listed"], _LIST)
        return [Listed(**each) for each in found]

    def run(self, name: str) -> Listed | None:
        """Return a run by its name, if it is listed."""
        return next((each for each in self.runs() if each.name == name), None)

    def reserve(self, name: str, key: str, folder: str, *, numbered: bool, replace: bool) -> str | None:
        """List a run that is about to be submitted, and return its name; None if the name is taken.

        Parameters
        ----------
        name, key, folder
            See `Listed`.
        numbered : bool
            Whether a number may be added to the name, so that it is free.
        replace : bool
            Whether a run of that name that has ended is replaced.
        """
        entry = {
            **{"key": key, "folder": folder, "submitted_s": time.time(), "starts": 0, "at": ""},
            **{"has_rows": False, "words": "", "status": ""},
        }
        made: str | None = self._call(
            _functions()["reserve"], _LIST, name, entry, numbered, replace, _SUBMITTED_WITHIN_S
        )
        return made

    def begin(self, name: str, at: str) -> Listed | None:
        """Take the next start number for a director at that Dask worker; return the run, if it is listed."""
        found = self._call(_functions()["begin"], _LIST, name, at)
        return None if found is None else Listed(**found)

    def report(self, name: str, starts: int, **changes: Any) -> Listed | None:
        """Change the facts of a run, unless a director with a higher number has begun; return the run."""
        found = self._call(_functions()["report"], _LIST, name, starts, changes, is_needed=False)
        return None if found is None else Listed(**found)

    def remove(self, name: str) -> None:
        """Take a run off the list."""
        self._call(_functions()["remove"], _LIST, name)


def listed_runs(client: Client, limits: ConnectionSettings) -> list[Listed]:
    """Return the detached runs of a cluster, in the order in which they were submitted."""
    return Registry(client, limits).runs()


def _functions() -> dict[str, Callable[..., Any]]:
    """Return functions for a scheduler, which calls one after another: each is atomic."""

    # in here they are sent whole: a scheduler need not have psbench
    def plain(scheduler: Scheduler, name: str, entry: dict[str, Any]) -> dict[str, Any]:
        task = scheduler.tasks.get(entry["key"])
        # a scheduler tries for 30 s to reach a Dask worker that is gone
        at = entry["at"] if entry["at"] in scheduler.workers else ""
        return {"name": name, **entry, "at": at, "task": "" if task is None else task.state}

    def entries(scheduler: Scheduler, attribute: str) -> dict[str, dict[str, Any]]:
        if not hasattr(scheduler, attribute):
            setattr(scheduler, attribute, {})
        found: dict[str, dict[str, Any]] = getattr(scheduler, attribute)
        return found

    def listed(attribute: str, dask_scheduler: Scheduler) -> list[dict[str, Any]]:
        found = entries(dask_scheduler, attribute).items()
        return [plain(dask_scheduler, name, entry) for name, entry in found]

    def reserve(
        attribute: str,
        name: str,
        entry: dict[str, Any],
        numbered: bool,
        replace: bool,
        within_s: float,
        dask_scheduler: Scheduler,
    ) -> str | None:
        runs, now = entries(dask_scheduler, attribute), time.time()

        def is_taken(name: str) -> bool:
            if (there := runs.get(name)) is None:
                return False
            task = dask_scheduler.tasks.get(there["key"])
            if there["status"] or (task is not None and task.state in ("memory", "erred")):
                return not replace
            return task is not None or now < there["submitted_s"] + within_s

        made, number = name, 1
        while is_taken(made):
            if not numbered:
                return None
            number += 1
            made = f"{name}-{number}"
        runs.pop(made, None)
        runs[made] = {**entry, "submitted_s": now}
        return made

    def begin(attribute: str, name: str, at: str, dask_scheduler: Scheduler) -> dict[str, Any] | None:
        entry = entries(dask_scheduler, attribute).get(name)
        if entry is None:
            return None
        entry.update(starts=entry["starts"] + 1, at=at)
        return plain(dask_scheduler, name, entry)

    def report(
        attribute: str, name: str, starts: int, changes: dict[str, Any], dask_scheduler: Scheduler
    ) -> dict[str, Any] | None:
        entry = entries(dask_scheduler, attribute).get(name)
        if entry is None:
            return None
        if entry["starts"] == starts:
            entry.update(changes)
        return plain(dask_scheduler, name, entry)

    def remove(attribute: str, name: str, dask_scheduler: Scheduler) -> None:
        entries(dask_scheduler, attribute).pop(name, None)

    return {"listed": listed, "reserve": reserve, "begin": begin, "report": report, "remove": remove}
