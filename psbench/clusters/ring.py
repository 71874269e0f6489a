"""The times of rings over links that differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from psbench.arrays import Doubles


class Hops(NamedTuple):
    """Seconds of each member's piece on its way to the next member of a ring.

    `passes_s`: for which the piece keeps the member's link. `latencies_s`: until it arrives after that.
    """

    members: Sequence[int]
    passes_s: Sequence[float]
    latencies_s: Sequence[float]


def ring_s(passes_s: Sequence[float], latencies_s: Sequence[float]) -> float:
    """Return the seconds of 2 (n - 1) rounds in which each of n members sends the next one a piece.

    A member sends as soon as it has the piece before and its link is free, so that a slow link holds up the
    others only by as much as its pieces queue there, and latencies count along the ring and not the longest
    in every round.

    Parameters
    ----------
    passes_s, latencies_s : sequence of float, (n,)
        Of each member's piece on its way to the next one.

    Examples
    --------
    Equal links: 2 (n - 1) times a piece. A slow link of three: 4 pieces that queue there.

    >>> ring_s([1.0, 1.0, 1.0], [0.5, 0.5, 0.5]), ring_s([3.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    (6.0, 12.0)

    One latency is long: it is waited for twice, as no piece goes round more often.

    >>> ring_s([0.0, 0.0, 0.0], [9.0, 1.0, 1.0])
    20.0
    """
    return two_levels_s([], [Hops(range(len(passes_s)), passes_s, latencies_s)], len(passes_s))


def two_levels_s(groups: Sequence[Hops], between: Sequence[Hops], pieces: int) -> float:
    """Return the seconds of rings within groups, which stop half-way for rings between the groups.

    As in `ring_s`; in a ring between groups a member begins when it has the sum of its group.

    Parameters
    ----------
    groups, between : sequence of Hops
        Each worker is in at most one ring of either.
    pieces : int
        Into how many the vector is cut within groups; who has none of them sends none.

    Examples
    --------
    A group of three hands one piece round, 2 seconds a hop, and waits for the other group half-way.

    >>> both = Hops([0, 1, 2], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]), Hops([3], [9.0], [0.0])
    >>> two_levels_s(both, [Hops([2, 3], [1.0, 1.0], [0.5, 0.5])], pieces=1)
    11.0
    """
    workers = 1 + max(worker for ring in (*groups, *between) for worker in ring.members)
    has, free = np.zeros(workers), np.zeros(workers)
    for ring in groups:
        _go_round(ring, pieces, range(len(ring.members) - 1), has, free)
    for ring in between:
        _go_round(ring, len(ring.members), range(2 * (len(ring.members) - 1)), has, free)
    for ring in groups:
        size = len(ring.members)
        _go_round(ring, pieces, range(size - 1, 2 * (size - 1)), has, free)
    return float(has.max())


def _go_round(ring: Hops, pieces: int, steps: Iterable[int], has: Doubles, free: Doubles) -> None:
    """Advance a ring by some steps.

    `has` and `free` are updated: seconds at which each worker has the piece that it awaits, and its link.
    """
    members, size = list(ring.members), len(ring.members)
    own, links = has[members], free[members]
    passes, latencies, places = np.array(ring.passes_s), np.array(ring.latencies_s), np.arange(size)
    for step in steps:
        sends = (places - step) % size < pieces
        links = np.where(sends, np.maximum(own, links) + passes, links)
        own = np.maximum(own, np.roll(np.where(sends, links + latencies, 0.0), 1))
    has[members], free[members] = own, links
