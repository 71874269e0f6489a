"""The search for Dask workers: free ones take roles during a run, and an adaptive cluster grows.

Nothing here waits for a Dask worker, and only a request for room waits for the scheduler.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dask
from distributed import Client, Future

from psbench.backends.dask.placement import Room, look_for_room
from psbench.backends.dask.rpc import ask_scheduler, begin
from psbench.clusters.connection import ConnectionSettings

logger = logging.getLogger(__name__)

#: seconds between looks for a Dask worker that can take a role
_EVERY_S = 0.5
#: name of the tasks that request a Dask worker, and of the resource that they wait for
_NAME = "psbenchwaits"


class PlaceSearch:
    """Looks for room on a cluster, and pings the free Dask workers.

    All of them are asked at once, so one that is frozen keeps no role from the others.

    Parameters
    ----------
    client : Client
        Dask's.
    limits : ConnectionSettings
    """

    def __init__(self, client: Client, limits: ConnectionSettings) -> None:
        self._client, self._limits = client, limits
        self._look: concurrent.futures.Future[Room] | None = None
        self._next = 0.0
        self._asked: dict[str, concurrent.futures.Future[Any]] = {}

    def look(self, without: Collection[str], now: float) -> Room | None:
        """Return the room found since the last call; else start a search and return None.

        The room is empty if the scheduler has not answered.
        """
        if self._look is None:
            if now >= self._next and self._client.status == "running":
                limits, away = self._limits, {*without}
                self._look = begin(
                    self._client, lambda: look_for_room(self._client, limits, away), limits.settle_within_s
                )
            return None
        if not self._look.done():
            return None
        look = self._look
        self.look_again(now)
        if error := look.exception():
            logger.info("no Dask worker was found: %r", error)
            return Room({}, {}, {})
        return look.result()

    def look_again(self, now: float) -> None:
        """Cancel the current search: the cluster has changed since its start."""
        if self._look is not None:
            self._look.cancel()
        self._look, self._next = None, now + _EVERY_S

    def ask(self, addresses: Collection[str]) -> None:
        """Ask Dask workers for a response, unless they have responded or are asked already."""
        for address in addresses:
            if (asked := self._asked.get(address)) is None or _has_failed(asked):
                self._asked[address] = begin(
                    self._client,
                    lambda address=address: self._client.run(os.getpid, workers=[address]),
                    self._limits.answer_within_s,
                )

    @property
    def answered(self) -> set[str]:
        """The Dask workers that have responded since the search began."""
        return {address for address, asked in self._asked.items() if asked.done() and not _has_failed(asked)}

    @property
    def silent(self) -> set[str]:
        """The Dask workers that have not responded to a request within `answer_within_s`."""
        return {address for address, asked in self._asked.items() if _has_failed(asked)}

    def doubt(self, address: str) -> None:
        """Ping a Dask worker again before it gets a role."""
        self._asked.pop(address, None)

    def end_asking(self) -> None:
        """Forget which Dask workers responded; call this when no role needs a place."""
        for asked in self._asked.values():
            asked.cancel()
        self._asked.clear()

    def end(self) -> None:
        """Cancel all requests."""
        self.end_asking()
        if self._look is not None:
            self._look.cancel()
        self._look = None


def _has_failed(asked: concurrent.futures.Future[Any]) -> bool:
    return asked.done() and (asked.cancelled() or asked.exception() is not None)


# -------------------------------------------------------------------- adaptive clusters


class Demand:
    """Requests Dask workers for a waiting run.

    An adaptive cluster has as many workers as its tasks, those that run and those that wait for a worker, are
    expected to need (`Scheduler.adaptive_target`). These wait for a resource that no worker has, so that none
    ever runs or takes a thread, and are expected to take an hour each, so that each asks for a worker of its
    own. Any other cluster takes no notice.

    Parameters
    ----------
    client : Client
        Dask's.
    limits : ConnectionSettings
    """

    def __init__(self, client: Client, limits: ConnectionSettings) -> None:
        self._client, self._limits = client, limits
        self._waiting: list[Future] = []

    def ask(self, count: int) -> None:
        """Request room for that many roles in addition to existing tasks, unless requested before."""
        if self._waiting:
            return
        try:
            self._ask("run_on_scheduler", _hours_expected(), _NAME)
        except Exception as error:  # whatever its scheduler is, it can still be waited for
            logger.info("the request to scale up the Dask cluster failed: %s", error)
            return
        token = secrets.token_hex(8)
        self._waiting = [
            self._client.submit(
                int,  # which is never called
                key=f"{_NAME}-{number}-{token}",
                resources={_NAME: 1},
                pure=False,
                retries=0,
            )
            for number in range(count)
        ]

    def end(self) -> None:
        """Withdraw the request for room."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            with suppress(Exception):  # the scheduler may be gone, and these tasks with it
                self._ask("cancel", waiting, force=True)

    def _ask(self, question: str, *arguments: Any, **options: Any) -> None:
        ask_scheduler(self._client, question, *arguments, limits=self._limits, is_needed=False, **options)


def _hours_expected() -> Callable[[str], None]:
    """Return a function that makes a scheduler expect an hour for each task of that name."""

    # in here it is sent whole: a scheduler need not have psbench
    def expect(name: str) -> None:
        dask.config.set({f"distributed.scheduler.default-task-durations.{name}": "1h"})

    return expect


@contextmanager
def demand(client: Client, limits: ConnectionSettings) -> Iterator[Demand]:
    """Yield a demand for Dask workers, which ends with this block."""
    found = Demand(client, limits)
    try:
        yield found
    finally:
        found.end()
