"""Clocks of the workers, rebuilt from the log, and their leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from psbench.arrays import Array
from psbench.core.log import EventLog, Kind
from psbench.metrics.rows import Rows, pick, positions
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd


class Clocks:
    """The clocks of the active workers, as in the engine.

    A clock rises with every push. A worker that joins starts at the slowest clock, one that has left no
    longer counts as slowest, and a hand-over sets all clocks to the highest. Where none is left, the next
    to join starts at the clock that was the slowest last.

    Attributes
    ----------
    of : dict of worker to int
        Completed steps (exchanges, if there are local steps) of each worker that is here.

    Examples
    --------
    >>> clocks = Clocks()
    >>> clocks.join(0), clocks.rise(0, 3), clocks.join(1), clocks.rise(1), clocks.of
    (None, None, None, None, {0: 3, 1: 4})
    """

    #: rows that change who is here, or set clocks equal; between them clocks only rise
    BREAKS = (Kind.JOIN, Kind.READMIT, Kind.LEAVE, Kind.DROP, Kind.HANDOVER)

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self._slowest = 0

    def change(self, row: np.void) -> None:
        """Apply a row of one of the kinds in `BREAKS`."""
        worker, kind = int(row["worker"]), row["kind"]
        if kind in (Kind.JOIN, Kind.READMIT):
            self.join(worker)
        elif kind in (Kind.LEAVE, Kind.DROP):
            self.leave(worker)
        else:
            self.level()

    def join(self, worker: int) -> None:
        self._slowest = min(self.of.values(), default=self._slowest)
        self.of[worker] = self._slowest

    def leave(self, worker: int) -> None:
        """Remove a worker, if it is active."""
        self._slowest = min(self.of.values(), default=self._slowest)
        self.of.pop(worker, None)

    def level(self) -> None:
        """Set all clocks to the highest, as a hand-over does."""
        self.of = dict.fromkeys(self.of, max(self.of.values(), default=0))

    def rise(self, worker: int, pushes: int = 1) -> None:
        self.of[worker] += pushes


def clock_lead(log: EventLog) -> pd.DataFrame:
    """Return the lead over the slowest active worker at the start of every step.

    This, not staleness, is what SSP bounds, and it is bounded where a step starts: a worker that has just
    finished may lead by one more.

    Returns
    -------
    DataFrame
        `time_s` (of the release), `worker`, `clock` and `lead` (steps; exchanges if there are local steps).

    Notes
    -----
    See `Clocks` for joining, leaving and hand-overs. Between such changes the slowest clock is c from where
    the last worker reached c: no row is visited one by one.
    """
    rows, clock, lead = _leads(log.rows(), Clocks())
    return table({"time_s": rows["time_s"], "worker": rows["worker"], "clock": clock, "lead": lead})


def leads(rows: Rows, clocks: Clocks) -> Array:
    """Return the lead at the start of every step among new rows of a log, and advance the clocks."""
    return _leads(rows, clocks)[2]


def _leads(rows: Rows, clocks: Clocks) -> tuple[Rows, Array, Array]:
    """Return the step starts among rows, with their clocks and leads."""
    rows = pick(rows, *Clocks.BREAKS, Kind.PUSH, Kind.RELEASE)
    breaks = positions(rows, *Clocks.BREAKS).tolist()
    begin, none = 0, np.zeros(0, dtype=np.int64)
    found = [(rows[:0], none, none)]
    for stop in [*breaks, len(rows)]:
        if stop > begin:
            found.append(_between(rows[begin:stop], clocks.of))
        if stop < len(rows):
            clocks.change(rows[stop])
        begin = stop + 1
    starts, clock, lead = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return starts, clock, lead


def _between(rows: Rows, clocks: dict[int, int]) -> tuple[Rows, Array, Array]:
    """Return the step starts, clocks and leads among rows without membership changes; advance `clocks`."""
    starts = np.flatnonzero((rows["kind"] == Kind.RELEASE) & (rows["id"] == 0))
    clock, lead = clocks_between(rows, clocks)
    return rows[starts], clock[starts], lead[starts]


def clocks_between(rows: Rows, clocks: dict[int, int]) -> tuple[Array, Array]:
    """Return for each row the worker's clock after it, and its lead, among rows without membership changes.

    Parameters
    ----------
    rows : structured array
        Of workers that are here, with no row of `Clocks.BREAKS`.
    clocks : dict of worker to int
        Before the rows; moved to what they are after them.
    """
    workers = np.array(sorted(clocks))
    base = np.array([clocks[worker] for worker in workers.tolist()])
    code = np.searchsorted(workers, rows["worker"])
    is_push = rows["kind"] == Kind.PUSH
    clock = base[code] + _count_within(code, is_push)
    after = base + np.bincount(code[is_push], minlength=len(workers))
    floor, top = int(base.min()), int(after.min())
    reached = np.full(top - floor, -1)  # where the last worker reached floor + 1, floor + 2, ...
    slot = clock - floor - 1
    counts = is_push & (slot >= 0) & (slot < top - floor)
    np.maximum.at(reached, slot[counts], np.flatnonzero(counts))
    lead = clock - floor - np.searchsorted(reached, np.arange(len(rows)))
    clocks.update(zip(workers.tolist(), after.tolist(), strict=True))
    return clock, lead


def _count_within(code: Array, flag: Array) -> Array:
    """Return for each entry the number of flagged entries in its group up to and including it."""
    order = np.argsort(code, kind="stable")
    total = np.cumsum(flag[order])
    grouped = code[order]
    first = np.flatnonzero(np.append(True, grouped[1:] != grouped[:-1]))
    before = np.zeros(len(code), dtype=np.int64)
    before[first[1:]] = np.diff(np.append(0, total[first[1:] - 1]))
    counted = np.empty(len(code), dtype=np.int64)
    counted[order] = total - np.cumsum(before)
    return counted
