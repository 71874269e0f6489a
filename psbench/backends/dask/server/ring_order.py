"""The places of workers in rings: in one, or in those of their groups and in one ring between groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from psbench.backends.dask.protocol.messages import RingPlace
from psbench.backends.dask.protocol.roles import Address
from psbench.clusters import Network
from psbench.core.collective import Collective, in_words


class RingOrder:
    """Orders the members of sums, in one ring or first within groups, as the placement chooses.

    Parameters
    ----------
    placement : Collective
    network : Network
        Whose numbers the placement compares; hosts are those of the addresses.
    num_bytes : int
        Of the vector that is added up.
    address_of : callable
        Returns the address of a worker; None without a process.
    say : callable
        Called with the groups and their times in words, once for each form that they take.
    """

    def __init__(
        self,
        placement: Collective,
        network: Network,
        num_bytes: int,
        address_of: Callable[[int], Address | None],
        say: Callable[[str], None],
    ) -> None:
        self._placement, self._network, self._num_bytes = placement, network, num_bytes
        self._address_of, self._say = address_of, say
        self._said = ""

    def levels(self, workers: Sequence[int]) -> dict[int, list[RingPlace]]:
        """Return each worker's places in the rings of groups and between them; nothing of one ring."""
        if not self._placement.has_groups:
            return {}
        hosts = [_host(self._address_of(worker)) for worker in workers]
        members = self._network, self._num_bytes, workers, hosts
        groups, said = self._placement.groups(*members), in_words(self._placement, *members)
        if said != self._said:
            self._said = said
            self._say(said)
        return two_levels(groups) if len(groups) > 1 else {}


def _host(address: Address | None) -> str | None:
    return None if address is None else urlsplit(address.url).hostname


def one_ring(members: Sequence[int]) -> list[RingPlace]:
    """Return the members' places in a ring, in their order.

    >>> one_ring([4, 2])
    [RingPlace(place=0, size=2, pieces=2, following=2), RingPlace(place=1, size=2, pieces=2, following=4)]
    """
    size = len(members)
    return [RingPlace(place, size, size, members[(place + 1) % size]) for place in range(size)]


def two_levels(groups: Sequence[Sequence[int]]) -> dict[int, list[RingPlace]]:
    """Return the places of each worker: in the ring of its group, and in a ring with one of each other group.

    The vector is cut into as many pieces as the smallest group has workers. A worker of a larger group that
    has no piece is in the ring of its group only.

    >>> {worker: [(ring.following, ring.pieces) for ring in rings]
    ...  for worker, rings in two_levels([[0, 1], [2, 3, 4]]).items()}
    {0: [(1, 2), (2, 2)], 1: [(0, 2), (4, 2)], 2: [(3, 2), (0, 2)], 3: [(4, 2)], 4: [(2, 2), (1, 2)]}
    """
    pieces = min(map(len, groups))
    found: dict[int, list[RingPlace]] = {}
    for group in groups:
        size = len(group)
        for place, worker in enumerate(group):
            found[worker] = [RingPlace(place, size, pieces, group[(place + 1) % size])]
    for piece in range(pieces):  # whose sum is at the place before it; see `Ring.cut`
        holders = [group[(piece - 1) % len(group)] for group in groups]
        for worker, place in zip(holders, one_ring(holders), strict=True):
            found[worker].append(place)
    return found
