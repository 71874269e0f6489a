"""Requests to an adaptive Dask cluster to scale up, for a run that waits for Dask workers."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dask
from distributed import Client, Future

from psbench.backends.dask.rpc import ask_scheduler
from psbench.clusters.connection import ConnectionSettings

logger = logging.getLogger(__name__)

#: how the tasks are called, and the resource that they wait for
_NAME = "psbenchwaits"


class Demand:
    """Asks for Dask workers that a run waits for.

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
        """Request room for a number of additional roles, unless it was requested already."""
        if self._waiting:
            return
        try:
            self._ask("run_on_scheduler", _hours_expected(), _NAME)
        except Exception as error:  # whatever its scheduler is, it can still be waited for
            logger.info("the Dask cluster cannot be asked to grow: %s", error)
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
    """Return a function for a scheduler, which then expects an hour of each task of that name."""

    # in here it is sent whole: a scheduler need not have psbench
    def expect(name: str) -> None:
        dask.config.set({f"distributed.scheduler.default-task-durations.{name}": "1h"})

    return expect


@contextmanager
def demand(client: Client, limits: ConnectionSettings) -> Iterator[Demand]:
    """Give a demand for Dask workers, which ends with this block."""
    found = Demand(client, limits)
    try:
        yield found
    finally:
        found.end()
