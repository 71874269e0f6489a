"""The state of a run in words and as a number, kept up with its log row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from psbench.core.log import EventLog, Kind
from psbench.experiment import Stop
from psbench.metrics.rows import trained

#: rows after which a worker's state is what they say
_STATES = (
    *(Kind.JOIN, Kind.LEAVE, Kind.DROP, Kind.READMIT),
    *(Kind.PUSH, Kind.VOTE, Kind.RELEASE, Kind.HOLD, Kind.CANCEL),
)
#: more waiting workers than this are counted, not listed
_LISTED = 6


class RunProgress:
    """What a run has done so far: counts, and what each worker is doing.

    Parameters
    ----------
    stop : Stop
    meta : dict
        `dataset_size`, `num_workers`, `compositions` and `backend` of the run.
    """

    def __init__(self, stop: Stop, meta: dict[str, Any]) -> None:
        self._stop = stop
        self._size = max(int(meta.get("dataset_size", 1)), 1)
        self._names: Sequence[str] = meta.get("compositions", ())
        self.samples = 0
        self.updates = 0
        self.now = 0.0
        self.composition = 0
        self._clocks: dict[int, int] = {}
        self._holds: dict[int, str] = {}  # worker -> why it waits

    @property
    def epoch(self) -> float:
        """Samples applied over the size of the data."""
        return self.samples / self._size

    def read(self, log: EventLog, start: int, stop: int) -> None:
        """Take in the rows from `start` to `stop`."""
        rows = log.rows(start, stop)
        kinds = rows["kind"]
        applied = rows[kinds == Kind.APPLY]
        self.samples += int(trained(rows)["samples"].sum(dtype=np.int64))
        if len(applied):
            self.updates = int(applied["version"][-1])
        self.now = float(rows["time_s"][-1])
        for row in rows[kinds == Kind.HANDOVER]:
            self.composition = int(row["id"])
            self._level()
        self._read_workers(log, rows[np.isin(kinds, _STATES)])

    def _read_workers(self, log: EventLog, rows: Any) -> None:
        pushed, counts = np.unique(rows["worker"][rows["kind"] == Kind.PUSH], return_counts=True)
        for worker, count in zip(pushed.tolist(), counts.tolist(), strict=True):
            self._clocks[worker] = self._clocks.get(worker, self._slowest()) + count
        # of each worker only its last row matters
        workers, places = np.unique(rows["worker"][::-1], return_index=True)
        for worker, place in zip(workers.tolist(), places.tolist(), strict=True):
            self._state(log, worker, rows[len(rows) - 1 - place])

    def _state(self, log: EventLog, worker: int, row: Any) -> None:
        self._holds.pop(worker, None)
        if row["kind"] in (Kind.LEAVE, Kind.DROP):
            self._clocks.pop(worker, None)
            return
        self._clocks.setdefault(worker, self._slowest())
        if row["kind"] == Kind.HOLD:
            self._holds[worker] = log.text(int(row["text"]))

    def _slowest(self) -> int:
        return min(self._clocks.values(), default=0)

    def _level(self) -> None:
        """Set all clocks equal, as a hand-over does."""
        top = max(self._clocks.values(), default=0)
        self._clocks = dict.fromkeys(self._clocks, top)

    def fraction(self) -> float | None:
        """Return how much is done, 0 to 1, by the stop rule that is nearest; None if no rule can tell."""
        stop = self._stop
        pairs = ((self.epoch, stop.epochs), (self.now, stop.seconds), (self.updates, stop.updates))
        known = [done / most for done, most in pairs if most]
        return min(max(known), 1.0) if known else None

    def words(self, backend: str) -> str:
        """Return the state as in "epoch 7 of 20, virtual 03:12, ssp: workers 2 and 5 wait for 8"."""
        stop = self._stop
        most = f" of {stop.epochs:g}" if stop.epochs else ""
        # an epoch is under way from its first sample on, the last one until the end
        epoch = (
            min(math.floor(self.epoch) + 1, math.ceil(stop.epochs))
            if stop.epochs
            else math.floor(self.epoch) + 1
        )
        clock = "virtual" if backend == "simulated" else "wall"
        name = self._names[self.composition] if self.composition < len(self._names) else ""
        return f"epoch {epoch}{most}, {clock} {clock_time(self.now)}, {name}: {self._waiting()}"

    def _waiting(self) -> str:
        if not self._holds:
            return "nobody waits"
        waiting = sorted(self._holds)
        under_way = sorted(self._clocks.keys() - self._holds.keys())
        reasons = set(self._holds.values())
        reason = f" ({next(iter(reasons))})" if len(reasons) == 1 else ""
        if reasons == {"staleness bound"}:
            slowest = min((self._clocks[w] for w in under_way), default=0)
            under_way = [w for w in under_way if self._clocks[w] == slowest]
        verb = "waits" if len(waiting) == 1 else "wait"
        whom = f" for {_workers(under_way)}" if under_way else ""
        return f"{_workers(waiting)} {verb}{whom}{reason}"


def _workers(ids: Sequence[int]) -> str:
    return (
        f"worker {ids[0]}"
        if len(ids) == 1
        else f"{len(ids)} workers"
        if len(ids) > _LISTED
        else f"workers {_list(ids)}"
    )


def _list(ids: Sequence[int]) -> str:
    texts = [str(i) for i in ids]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def clock_time(seconds: float) -> str:
    """Return seconds as a clock shows them.

    >>> clock_time(192), clock_time(3725), clock_time(4.25)
    ('03:12', '1:02:05', '00:04')
    """
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    tail = f"{minutes:02d}:{whole % 60:02d}"
    return f"{hours}:{tail}" if hours else tail


def time_left(fraction: float | None, spent_s: float) -> str:
    """Return how long it will still take, in words; empty before anybody can know.

    >>> time_left(0.25, 10.0), time_left(0.001, 10.0)
    ('about 30 s left', '')
    """
    if fraction is None or fraction < 0.02 or spent_s < 0.3:
        return ""
    left = spent_s * (1 - fraction) / fraction
    if left < 1:
        return "nearly done"
    return f"about {left:.0f} s left" if left < 120 else f"about {left / 60:.0f} min left"
