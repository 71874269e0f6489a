"""Contention between concurrent messages on a link with unknown rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psbench.arrays import Booleans, Doubles, Integers
from psbench.seeds import Streams

#: messages of one run that are drawn together: those that follow each other are alike
_STRETCH = 32
_DRAWS, _GRID = 200, 24
#: shortest time that is tried, seconds
_SHORTEST_S = 1e-5


class Passage(NamedTuple):
    """A run's messages to the servers and back: begin and duration in seconds, (n,) for each direction.

    `worker`: (n,). `counts`: (n,), whether nothing else is known to have kept one, as a server's queue.
    """

    begin_s: tuple[Doubles, Doubles]
    took_s: tuple[Doubles, Doubles]
    worker: Integers
    counts: Booleans


def shared_s(begin_s: Doubles, alone_s: float) -> Doubles:
    """Return the times in seconds of messages that share a link equally; alone each takes `alone_s`.

    >>> shared_s(np.array([0.0, 0.5]), 1.0).tolist()
    [1.5, 1.5]
    """
    ends, under_way = np.empty(len(begin_s)), deque[tuple[float, int]]()
    now = share = 0.0  # `share`: of the link, what a message has had that passes since the beginning

    def until(later: float) -> None:
        nonlocal now, share
        while under_way:
            done, which = under_way[0]
            if (end := now + (done - share) * len(under_way)) > later:
                share += (later - now) / len(under_way)
                break
            ends[which], now, share = end, end, done
            under_way.popleft()
        now = later

    for which in np.argsort(begin_s, kind="stable").tolist():
        until(float(begin_s[which]))
        under_way.append((share + alone_s, which))
    until(float("inf"))
    return ends - begin_s


def seconds_alone(passages: Sequence[Passage]) -> tuple[float, float, float] | None:
    """Return the time of a single message on a shared link, with a 90 % interval; seconds.

    Processes that share cores, sockets and interrupts are such a link too. It is the time that leaves the
    latencies of each worker, both ways together as clocks may differ, closest to their median (least
    absolute deviations, as latencies have long tails). The interval is of a block bootstrap over stretches.

    Returns
    -------
    (value, low, high), or None if there are too few messages to tell.

    Source
    ------
    Künsch (1989): the block bootstrap.
    """
    took = np.concatenate([(each.took_s[0] + each.took_s[1])[each.counts] for each in passages])
    worker = np.concatenate([each.worker[each.counts] for each in passages])
    if len(took) < 4 * _STRETCH:
        return None
    longest = max(2 * _SHORTEST_S, float(np.quantile(took, 0.9)))
    tried = np.array([0.0, *np.geomspace(_SHORTEST_S, longest, _GRID)])
    errors = np.array([_errors(took - _passing(passages, alone_s), worker) for alone_s in tried])
    edges = np.arange(0, errors.shape[1], _STRETCH)
    parts = np.add.reduceat(errors, edges, axis=1)
    rng = Streams(0).generator("sharing")
    drawn = [parts[:, rng.integers(len(edges), size=len(edges))].sum(axis=1).argmin() for _ in range(_DRAWS)]
    low, high = np.quantile(tried[drawn], (0.05, 0.95))
    half = (tried[2] / tried[1]) ** 0.5  # between two that were tried
    return float(tried[errors.sum(axis=1).argmin()]), float(low) / half, float(high) * half


def _passing(passages: Sequence[Passage], alone_s: float) -> Doubles:
    """Return the transfer times of the selected messages, both directions together; seconds."""
    found: Doubles = np.concatenate(
        [
            (shared_s(each.begin_s[0], alone_s) + shared_s(each.begin_s[1], alone_s))[each.counts]
            for each in passages
        ]
    )
    return found


def _errors(latency: Doubles, worker: Integers) -> Doubles:
    """Return the deviation of each latency from its worker's median."""
    medians = {each: np.median(latency[worker == each]) for each in np.unique(worker).tolist()}
    found: Doubles = np.abs(latency - np.array([medians[each] for each in worker.tolist()]))
    return found
