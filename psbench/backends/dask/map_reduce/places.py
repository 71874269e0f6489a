"""The Dask workers of a MapReduce run: it waits for their results, and finds out which of them are lost."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from distributed import Client
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from psbench.backends.dask.place_search import PlaceSearch
from psbench.backends.dask.placement import Room
from psbench.backends.dask.rpc import ask_scheduler
from psbench.clusters.connection import ConnectionSettings
from psbench.errors import BackendError, PsbenchError

logger = logging.getLogger(__name__)

_T = TypeVar("_T", covariant=True)

#: seconds between looks which Dask workers are there
_LOOK_S = 0.5
#: seconds between looks whether one has answered
_ANSWER_S = 0.01


class Awaited(Protocol[_T]):
    """A future, of Dask or of Python."""

    def result(self, timeout: float | None = None) -> _T:
        """Return the result; raise TimeoutError if it takes longer."""
        ...


class RolesLost(PsbenchError):
    """Dask workers of the run are lost or frozen; `roles` are their roles."""

    def __init__(self, roles: Collection[str]) -> None:
        self.roles = sorted(roles)
        super().__init__(f"lost: {', '.join(self.roles)}")


class Places:
    """The Dask workers of the roles.

    Parameters
    ----------
    client : Client
        Dask's.
    placed : dict of role to address
        Changed when a role is placed again.
    limits : ConnectionSettings
    go_on : callable
        Called often while something is waited for; raises to give up.

    Attributes
    ----------
    bad : set of str
        Addresses of Dask workers that were found frozen; they are not to be used again.
    """

    def __init__(
        self, client: Client, placed: dict[str, str], limits: ConnectionSettings, go_on: Callable[[], None]
    ) -> None:
        self.client, self.placed, self._limits, self._go_on = client, placed, limits, go_on
        self.bad: set[str] = set()
        self._search = PlaceSearch(client, limits)

    def result(self, future: Awaited[_T], what: str, within_s: float = math.inf) -> _T:
        """Wait for a result, however long it takes while the Dask workers of the run answer.

        Raises
        ------
        RolesLost
            If some are gone, or have not answered within `answer_within_s`.
        BackendError
            If it takes longer than `within_s`, or the scheduler is gone.
        """
        began, next_line_s = time.monotonic(), self._limits.say_after_s
        try:
            while True:
                waited = time.monotonic() - began
                try:
                    return future.result(timeout=max(0.0, min(_LOOK_S, within_s - waited)))
                except TimeoutError:
                    pass
                except (KilledWorker, FutureCancelledError, OSError):
                    self._ask_all()
                    raise
                self._go_on()
                if waited >= within_s:
                    raise BackendError(
                        f"{what} was not loaded within {within_s:g} s (connection.start_within_s): are the "
                        "Dask workers busy?"
                    )
                if waited >= next_line_s:
                    next_line_s += self._limits.say_after_s
                    logger.warning("waiting for %s for %.0f s", what, waited)
                    self._search.ask({*self.placed.values()})
                self._check()
        finally:
            self._search.end_asking()

    def answering(self, room: Room, role: str) -> str:
        """Return a responding Dask worker for a role; all free ones are asked at once.

        Raises
        ------
        BackendError
            If none answers.
        """
        self._search.ask(room.free)
        try:
            while room.free.keys() - self._search.silent:
                if address := room.take(role, room.free.keys() - self._search.answered):
                    return address
                self._go_on()
                time.sleep(_ANSWER_S)
        finally:
            self._search.end_asking()
        raise BackendError(f"no free Dask worker responds, for {role}")

    def _ask_all(self) -> None:
        """Raise RolesLost unless all Dask workers answer: the scheduler may notice late that one is gone."""
        self._search.end_asking()  # what they have answered before says nothing of now
        asked = {*self.placed.values()}
        self._search.ask(asked)
        while not asked <= self._search.answered:
            self._check()
            time.sleep(_ANSWER_S)
        self._check()

    def _check(self) -> None:
        """Raise RolesLost if Dask workers are gone, or have not answered, and whatever `go_on` raises."""
        there = ask_scheduler(self.client, "nthreads", limits=self._limits, go_on=self._go_on)
        frozen = self._search.silent & {*self.placed.values()}
        self.bad |= frozen
        if lost := [role for role, at in self.placed.items() if at not in there or at in frozen]:
            raise RolesLost(lost)
