"""The exchange graph of workers with models of their own and no server."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from psbench.core.peer_to_peer import sends_before_step
from psbench.core.view import ClusterView, Status

if TYPE_CHECKING:
    from psbench.core.parts import Communication
    from psbench.core.peer_to_peer import PeerToPeer

#: longer lists of neighbours are not kept: in a complete graph each worker has one of all others
_MOST_KEPT = 64


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
        #: exchange and neighbours, by worker, parity of the exchange, and whether they send or receive
        self._kept: dict[tuple[int, int, bool], tuple[int, list[int]]] = {}
        self._membership = view.membership  #: the one of these neighbours

    def senders(self, worker: int) -> list[int]:
        """Return the workers whose models a worker receives at its next exchange, in graph order."""
        return self._there(worker, self._view.workers[worker].version, sends=True)

    def receivers(self, worker: int, exchange: int | None = None) -> list[int]:
        """Return the workers that receive a worker's model at an exchange, its next one, in graph order."""
        version = self._view.workers[worker].version if exchange is None else exchange
        return self._there(worker, version, sends=False)

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

    def _there(self, worker: int, exchange: int, sends: bool) -> list[int]:
        """Return the neighbours that are present and had joined by this exchange.

        A step of a worker asks eight times, also about its neighbours' neighbours, so each worker's are kept
        for two exchanges.
        """
        view, place = self._view, (worker, exchange % 2, sends)
        if self._membership != view.membership:
            self._kept, self._membership = {}, view.membership
        elif (kept := self._kept.get(place)) is not None and kept[0] == exchange:
            return [*kept[1]]
        ask = self._placement.senders if sends else self._placement.receivers
        found = [
            other
            for other in ask(worker, exchange, view.num_workers)
            if (seen := view.workers.get(other)) is not None
            and seen.status is not Status.GONE
            and seen.first_version <= exchange
        ]
        if len(found) <= _MOST_KEPT:
            self._kept[place] = exchange, found
        return [*found]
