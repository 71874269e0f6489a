"""The time of a ring over links that differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
    passes, latencies = np.array(passes_s), np.array(latencies_s)
    has, free = np.zeros(len(passes)), np.zeros(len(passes))
    for _ in range(2 * (len(passes) - 1)):
        free = np.maximum(has, free) + passes
        has = np.roll(free + latencies, 1)
    return float(has.max())
