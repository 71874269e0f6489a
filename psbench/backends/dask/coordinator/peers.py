"""Who takes part in a live run: the peers that are expected, ready, and gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psbench.backends.dask.protocol.roles import worker_name, worker_number
from psbench.backends.dask.protocol.transport import FIRST_FREE_KIND, ServerSocket

#: nothing to read; sending it finds out whether the peer is there
PING = FIRST_FREE_KIND + 4


class Peers:
    """The peers of a run.

    Parameters
    ----------
    hub : Hub
        Where they report.
    crew : sequence of str
        The names of all that are expected.
    """

    def __init__(self, hub: ServerSocket, crew: Sequence[str]) -> None:
        self._hub, self._crew = hub, list(crew)
        self.ready: dict[str, dict[str, Any]] = {}  #: what each that is ready has told
        self.met: set[str] = set()
        self.gone: set[str] = set()

    @property
    def missing(self) -> list[str]:
        """Those who are not ready yet."""
        return [name for name in self._crew if name not in self.ready]

    def workers(self) -> list[int]:
        """Return the training workers that are there."""
        numbers = (worker_number(name) for name in self._crew if name not in self.gone)
        return sorted(number for number in numbers if number is not None)

    @property
    def lost(self) -> set[int]:
        """Workers whose processes are dead."""
        return {worker for name in self.gone if (worker := worker_number(name)) is not None}

    @property
    def rings(self) -> dict[int, Any]:
        """Where each worker that is there hears from others in a ring."""
        return {number: self.ready[worker_name(number)]["ring"] for number in self.workers()}

    def silent(self, name: str) -> bool:
        """Whether a letter cannot be sent to a peer, because its process died."""
        return not self._hub.send(name, PING, b"")

    def lose(self, name: str) -> None:
        """Do without a peer."""
        self.gone.add(name)
        self._hub.forget(name)
