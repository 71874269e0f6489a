"""The search for Dask workers that can take roles during a run, without blocking it."""

from __future__ import annotations

import concurrent.futures
import logging
import os
from collections.abc import Collection
from typing import Any

from distributed import Client

from psbench.backends.dask.placement import Room, look_for_room
from psbench.backends.dask.rpc import begin
from psbench.clusters.connection import ConnectionSettings

logger = logging.getLogger(__name__)

#: seconds between looks for a Dask worker that can take a role
_EVERY_S = 0.5


class PlaceSearch:
    """Finds the free room of a cluster, and asks free Dask workers whether they respond.

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
        """Return the free room if a search has ended since the last call; else start one from time to time.

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
        """The Dask workers that have given a sign of life since the search began."""
        return {address for address, asked in self._asked.items() if asked.done() and not _has_failed(asked)}

    @property
    def silent(self) -> set[str]:
        """The Dask workers that were asked, and have not answered within `answer_within_s`."""
        return {address for address, asked in self._asked.items() if _has_failed(asked)}

    def doubt(self, address: str) -> None:
        """Ask a Dask worker again before it is given a role."""
        self._asked.pop(address, None)

    def end_asking(self) -> None:
        """Forget which Dask workers responded; call this when no role needs a place."""
        for asked in self._asked.values():
            asked.cancel()
        self._asked.clear()

    def end(self) -> None:
        """Cancel the requests in progress."""
        self.end_asking()
        if self._look is not None:
            self._look.cancel()
        self._look = None


def _has_failed(asked: concurrent.futures.Future[Any]) -> bool:
    return asked.done() and (asked.cancelled() or asked.exception() is not None)
