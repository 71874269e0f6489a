"""The exchange graph of workers with models of their own and no server."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from psbench.core.peer_to_peer import sends_before_step
from psbench.core.view import ClusterView, Status

if TYPE_CHECKING:
    from psbench.core.parts import Communication
    from psbench.core.peer_to_peer import PeerToPeer


class Neighbourhood:
    """The placement's graph restricted to active workers; parts find it in the view.

    Parameters
    ----------
    view : ClusterView
    placement : PeerToPeer
    communication : Communication

    Attributes
    ----------
    sends_first : bool
        Whether a worker sends the model that its step begins with, so that it travels meanwhile.
    """

    def __init__(self, view: ClusterView, placement: PeerToPeer, communication: Communication) -> None:
        self._view, self._placement = view, placement
        self.sends_first = sends_before_step(communication)

    def senders(self, worker: int) -> list[int]:
        """Return the workers whose models a worker receives at its next exchange, in graph order."""
        return self._there(worker, self._placement.senders)

    def receivers(self, worker: int, exchange: int | None = None) -> list[int]:
        """Return the workers that receive a worker's model at an exchange, its next one, in graph order."""
        return self._there(worker, self._placement.receivers, exchange)

    def degree(self, worker: int, exchange: int) -> int:
        """Return the number of active receivers of a worker at that exchange."""
        return len(self.receivers(worker, exchange))

    def is_ready(self, worker: int, advanced: Collection[int] = (), begun: Collection[int] = ()) -> bool:
        """Return whether all messages for a worker's next exchange have been sent.

        In this answer `advanced` workers exchange and are released, and `begun` ones are released.
        """
        version = self._view.workers[worker].version
        return all(
            self._has_sent(other, version, other in advanced, other in begun)
            for other in self.senders(worker)
        )

    def _has_sent(self, worker: int, version: int, advanced: bool, begun: bool) -> bool:
        seen = self._view.workers[worker]
        now = seen.version + advanced
        if now != version:
            return now > version
        if self.sends_first:
            return advanced or begun or seen.status is not Status.NEW
        return seen.status is Status.PUSHED and not advanced

    def _there(
        self, worker: int, ask: Callable[[int, int, int], list[int]], exchange: int | None = None
    ) -> list[int]:
        """Return the neighbours that are present and had joined by this exchange."""
        workers = self._view.workers
        version = workers[worker].version if exchange is None else exchange
        found = ask(worker, version, self._view.num_workers)
        return [
            other
            for other in found
            if (seen := workers.get(other)) is not None
            and seen.status is not Status.GONE
            and seen.first_version <= version
        ]
