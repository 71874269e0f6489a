"""A client's link to one detached run: everything goes by way of the scheduler, whose port is enough."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from distributed import Client, Future
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from psbench.backends.dask.detached.director import (
    CONTROL,
    READ,
    Answer,
    Director,
    Kept,
    digest_of,
    direct,
    packed_log,
    result_after,
)
from psbench.backends.dask.detached.registry import Listed, Registry
from psbench.backends.dask.lifetime import TASKS
from psbench.backends.dask.placement import DIRECTOR
from psbench.backends.dask.rpc import Departed, SchedulerLost, Unresponsive, ask, ask_scheduler
from psbench.clusters.connection import ConnectionSettings
from psbench.core.log import EventLog
from psbench.errors import BackendError, ParameterError, PsbenchError, ServerLost

#: how data sets are called that keep the tasks of directors, before the name of the run
_PUBLISHED = "psbench-run-"
#: seconds after which a director answers a reader for which it has nothing new
_WAIT_S = 5.0


class Link:
    """The link of one client to one detached run.

    Parameters
    ----------
    client : Client
        Dask's.
    name : str
        Of the run.
    limits : ConnectionSettings
    """

    def __init__(self, client: Client, name: str, limits: ConnectionSettings) -> None:
        self.name = name
        self._client, self._limits, self._registry = client, limits, Registry(client, limits)

    @classmethod
    def submit(
        cls,
        client: Client,
        name: str,
        work: Callable[[Director], Kept],
        limits: ConnectionSettings,
        *,
        folder: str = "",
        numbered: bool = False,
        replace: bool = False,
    ) -> Link:
        """Submit the director of a run, and return the link to it.

        The scheduler keeps the task, with all that is in `work`, until the run is forgotten.

        Raises
        ------
        ParameterError
            If the name is taken.
        """
        key = f"{TASKS}{name}-{secrets.token_hex(8)}{DIRECTOR}"
        registry = Registry(client, limits)
        made = registry.reserve(name, key, folder, numbered=numbered, replace=replace)
        if made is None:
            raise ParameterError(
                f"there is a detached run {name!r} on this cluster already: give another name, or attach to "
                "that run; an ended run is replaced with overwrite=True (--overwrite)"
            )
        link = cls(client, made, limits)
        link._drop()  # of the run that was replaced
        future = client.submit(direct, work, made, limits, key=key, pure=False)
        link._ask_scheduler("publish_dataset", future, name=_PUBLISHED + made)
        return link

    def listed(self) -> Listed:
        """Return the run's entry in the scheduler's list.

        Raises
        ------
        ParameterError
            If there is none.
        """
        found = self._registry.runs()
        for each in found:
            if each.name == self.name:
                return each
        names = ", ".join(each.name for each in found) or "none"
        raise ParameterError(
            f"the Dask scheduler lists no detached run {self.name!r} (it lists: {names}); a "
            "scheduler that was restarted has forgotten its runs, which go on in their folders"
        )

    def read(self, start: int, cuts: int, rows: int, texts: int, *, knows: bool) -> Answer | None:
        """Wait some seconds for the rows that a reader lacks; None if the run has no director at this moment.

        Parameters
        ----------
        start, cuts, rows, texts : int
            The reader's place: its director's number, and the cuts, rows and texts that it has.
        knows : bool
            Whether the reader has the facts of the run.
        """
        place = start, cuts, rows, texts, knows, _WAIT_S
        try:
            found: Answer | None = self._ask_director(READ, *place)
        except Unresponsive:  # the scheduler starts another one when it gives that Dask worker up
            return None
        return found

    def request(self, method: str, *arguments: Any) -> None:
        """Call a method of the run's `Control`.

        Raises
        ------
        BackendError
            If the run has no director at this moment, or has ended.
        """
        if not self._ask_director(CONTROL, method, arguments):
            found = self.listed()
            how = f"has ended ({found.words})" if found.state == "ended" else f"is {found.state}"
            raise BackendError(f"run {self.name!r} {how}, and has no director that could {method}")

    def _ask_director(self, request: str, *arguments: Any) -> Any:
        """Return the director's answer; None if there is no director at this moment."""
        if not (at := self.listed().at):
            return None
        try:
            return ask(self._client, request, self.name, *arguments, of=[at], limits=self._limits)[at]
        except (ServerLost, Departed):  # the Dask worker died or left meanwhile
            return None

    def result(self, log: EventLog) -> Kept:
        """Return the result of a run that has ended, from the cluster's memory.

        Parameters
        ----------
        log : EventLog
            As far as this reader has it: its rows are not sent again.

        Raises
        ------
        PsbenchError
            Why the run failed.
        """
        future: Future = self._ask_scheduler("get_dataset", _PUBLISHED + self.name)
        try:
            kept = self._result_after(future, log)
            if kept is None:
                kept = self._client.gather(future, direct=False)  # a large one may take minutes
        except PsbenchError:
            raise
        except FutureCancelledError as error:  # Dask cancels all futures of a client that reconnects
            raise SchedulerLost(f"the result of run {self.name!r} did not arrive: {error}") from None
        except KilledWorker:
            raise ServerLost(
                f"run {self.name!r}: the Dask worker of its director was killed, and the cluster starts no "
                f"task again that was lost (distributed.scheduler.allowed-failures); {self.last_state}"
            ) from None
        except ModuleNotFoundError as error:
            raise BackendError(
                f"run {self.name!r}: the Dask workers lack {error.name}: install the same psbench there"
            ) from None
        except Exception as error:
            raise BackendError(f"run {self.name!r} failed: {error!r}") from error
        return kept

    def _result_after(self, future: Future, log: EventLog) -> Kept | None:
        """Return the result, of whose log only the rest was sent; None if it has another log, or is gone."""
        rows, texts = packed_log(log)
        places = self._ask_scheduler("who_has", [future])[future.key] if rows else ()
        for at in places:
            place = digest_of(rows), len(log), len(texts)
            with suppress(OSError):  # that Dask worker died meanwhile
                rest: Kept | None = self._client.run(result_after, future.key, *place, workers=[at])[at]
                if rest is not None:
                    return rest._replace(rows=rows + rest.rows, texts=texts + rest.texts)
        return None

    @property
    def last_state(self) -> str:
        """The state from which the run can continue, in words."""
        folder = self.listed().folder
        return f"its checkpoints are in {folder}" if folder else "without a folder it left no checkpoint"

    def forget(self) -> None:
        """Remove the run, and its result, from the cluster.

        Raises
        ------
        BackendError
            If the run goes on.
        """
        if self.listed().state == "running":
            raise BackendError(f"run {self.name!r} is running: stop it before the cluster forgets it")
        self._drop()
        self._registry.remove(self.name)

    def _drop(self) -> None:
        self._ask_scheduler("unpublish_dataset", _PUBLISHED + self.name)

    def _ask_scheduler(self, question: str, *arguments: Any, **options: Any) -> Any:
        return ask_scheduler(self._client, question, *arguments, limits=self._limits, **options)
