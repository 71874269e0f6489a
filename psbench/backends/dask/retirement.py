"""Detection of retiring Dask workers, from events that the scheduler publishes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from distributed import Client

from psbench.errors import ServerLost


class ServerRetired(ServerLost):
    """The Dask worker of a parameter server is being retired; the run has a checkpoint of that moment.

    `leaving` has the addresses of all Dask workers that are.
    """

    def __init__(self, reason: str, leaving: Collection[str]) -> None:
        super().__init__(reason)
        self.leaving = frozenset(leaving)


class Leavers:
    """Detects which Dask workers of a run are retiring.

    Parameters
    ----------
    client : Client
        Dask's.

    Attributes
    ----------
    addresses : set of str
        Of those that are.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.addresses: set[str] = set()
        self._watched: set[str] = set()
        self._returned: set[str] = set()  # roles there that `of` has returned

    def watch(self, role: str, address: str) -> None:
        """Subscribe to the scheduler's events about a Dask worker with a role."""
        self._returned.discard(role)
        self._watched.add(address)
        self._client.subscribe_topic(address, partial(self._note, address))

    def _note(self, address: str, event: tuple[float, Any]) -> None:
        """Record a Dask worker's new status; called in Dask's own thread."""
        said = event[1]
        if isinstance(said, dict) and said.get("status") == "closing_gracefully":
            self.addresses.add(address)

    def of(self, placed: Mapping[str, str]) -> list[str]:
        """Return the roles whose Dask workers are retiring, each role once."""
        if not self.addresses:
            return []
        found = [role for role, at in placed.items() if at in self.addresses and role not in self._returned]
        self._returned.update(found)
        return found

    def end(self) -> None:
        """Unsubscribe from all Dask workers."""
        for address in self._watched:
            with suppress(ValueError):  # it was not subscribed to
                self._client.unsubscribe_topic(address)
