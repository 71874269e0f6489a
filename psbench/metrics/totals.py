"""Sums and counts along a growing log, updated from its new rows.

What is said of a whole log is the same, read at once; a live picture reads them many times in a run, at a
cost that depends on how much is new.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from psbench.arrays import Array
from psbench.core.log import ROW, EventLog, Kind
from psbench.metrics.clocks import Clocks, leads
from psbench.metrics.pushes import BatchSizes, PushCounts, Staleness
from psbench.metrics.rows import ANSWERED, Absences, Rows, pick, positions, sent
from psbench.metrics.spans import PHASES, Spans, continuing, reason_text, spans_of
from psbench.metrics.table import table
from psbench.metrics.traffic import bytes_of

if TYPE_CHECKING:
    import pandas as pd

#: seconds by worker and by a phase or reason, each by its number
_Sums: TypeAlias = dict[tuple[int, int], float]

_WAIT, _SHIFT = PHASES.index("wait"), 1 << 16


@dataclass
class _Seconds:
    """Seconds by worker and phase, and seconds of waiting by worker and reason (both by their numbers)."""

    phases: _Sums = field(default_factory=lambda: defaultdict(float))
    waits: _Sums = field(default_factory=lambda: defaultdict(float))

    def add(self, spans: Spans) -> None:
        """Add spans."""
        waits = Spans(*(column[spans.phase == _WAIT] for column in spans))
        for sums, part, code in ((self.phases, spans, spans.phase), (self.waits, waits, waits.reason)):
            both = (part.worker.astype(np.int64) << 32) + (code + _SHIFT)  # reasons may be negative
            found, place = np.unique(both, return_inverse=True)
            total = np.bincount(place, weights=part.end_s - part.start_s, minlength=len(found))
            for each, seconds in zip(found.tolist(), total.tolist(), strict=True):
                sums[each >> 32, (each & 0xFFFFFFFF) - _SHIFT] += seconds


class SpanTotals:
    """Total time of each worker's activities, and of its waits by reason.

    Attributes
    ----------
    end_s : float, seconds
        The time of the newest row.
    new_spans : pair of Spans
        Those that the newest rows ended, and those that are not over.
    """

    def __init__(self) -> None:
        self._absences = Absences()
        self._open = np.zeros(0, dtype=ROW)  # rows whose spans are not over
        self._over, self._now = _Seconds(), _Seconds()
        self._present: dict[int, float] = {}  # end of the last interval before a worker left
        self._joined: dict[int, float] = {}
        self._earlier: SpanTotals | None = None
        self.end_s = 0.0
        nothing = Spans(*(np.zeros(0, dtype=np.int64) for _ in Spans._fields))
        self.new_spans = nothing, nothing

    def read(self, log: EventLog, rows: Rows) -> None:
        """Read new rows of a log."""
        if not len(rows):
            return
        rows = self._absences.read(rows)
        self.end_s = float(rows["time_s"][-1])
        self._count_presence(rows)
        rows = np.concatenate([self._open, rows])
        spans = spans_of(log, rows, with_causes=False)
        self._open, begun = continuing(log, rows)
        late = np.full(int(max(spans.worker.max(initial=0), max(begun, default=0))) + 1, np.inf)
        late[list(begun)] = list(begun.values())
        is_over = spans.start_s < late[spans.worker]
        self._now = _Seconds()
        over, now = (Spans(*(column[which] for column in spans)) for which in (is_over, ~is_over))
        self._over.add(over)
        self._now.add(now)
        self.new_spans = over, now

    def _count_presence(self, rows: Rows) -> None:
        for row in pick(rows, Kind.JOIN, Kind.LEAVE):
            worker, time_s = int(row["worker"]), float(row["time_s"])
            if row["kind"] == Kind.JOIN:
                self._present.setdefault(worker, 0.0)
                self._joined[worker] = time_s
            elif worker in self._joined:
                self._present[worker] += time_s - self._joined.pop(worker)

    def count_from(self, earlier: SpanTotals) -> None:
        """Restart the count at an earlier state of the same log; neither is read further."""
        self._earlier = earlier

    @property
    def workers(self) -> list[int]:
        """Ids of all workers that ever joined."""
        return sorted(self._present)

    @property
    def _there(self) -> dict[int, float]:
        """Return the seconds for which each worker was active."""
        until = self.end_s
        there = {w: own + until - self._joined.get(w, until) for w, own in self._present.items()}
        before = {} if self._earlier is None else self._earlier._there
        return {worker: seconds - before.get(worker, 0.0) for worker, seconds in there.items()}

    def _sums(self, of: Callable[[_Seconds], _Sums]) -> _Sums:
        sums = _added(of(self._over), of(self._now))
        return sums if self._earlier is None else _added(sums, self._earlier._sums(of), -1.0)

    def phases_s(self) -> dict[tuple[int, str], float]:
        sums = self._sums(lambda seconds: seconds.phases)
        return {(worker, PHASES[phase]): seconds for (worker, phase), seconds in sorted(sums.items())}

    def phases(self) -> dict[tuple[int, str], float]:
        """Return the share of each worker's time in each phase, 0 to 1, by worker and phase."""
        sums, whole = self.phases_s(), defaultdict[int, float](float)
        for (worker, _), seconds in sums.items():
            whole[worker] += seconds
        return {(worker, phase): seconds / whole[worker] for (worker, phase), seconds in sums.items()}

    def waits_s(self, log: EventLog) -> dict[tuple[int, str], float]:
        """Return the seconds that each worker waited, by worker and reason."""
        sums: dict[tuple[int, str], float] = defaultdict(float)
        for (worker, number), seconds in self._sums(lambda seconds: seconds.waits).items():
            sums[worker, reason_text(log, number)] += seconds
        return dict(sorted(sums.items()))

    def waits(self, log: EventLog) -> dict[tuple[int, str], float]:
        """Return the share of its time that each worker waited, 0 to 1, by worker and reason."""
        there = self._there
        return {
            (worker, why): seconds / there[worker] for (worker, why), seconds in self.waits_s(log).items()
        }


def _added(first: _Sums, second: _Sums, factor: float = 1.0) -> _Sums:
    """Return the sum of both, without entries due to rounding only."""
    found = {key: first.get(key, 0.0) + factor * second.get(key, 0.0) for key in {**first, **second}}
    return {key: seconds for key, seconds in found.items() if seconds > 1e-12}


class PushTotals:
    """Totals of pushes: applied pushes by worker, staleness, clock lead, and bytes.

    Attributes
    ----------
    staleness, lead : int64 arrays
        How many applied pushes had that staleness, and how many steps began with that lead.
    counts : PushCounts
    batches : BatchSizes
    """

    def __init__(self) -> None:
        self._staleness, self._clocks = Staleness(), Clocks()
        self.staleness, self.lead = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.counts, self.batches = PushCounts(), BatchSizes()
        self._bytes = {"up": 0, "down": 0}
        self._last_replies = 0  # bytes of releases since the last message of a worker, or version

    def read(self, rows: Rows) -> None:
        """Read new rows of a log."""
        self.staleness = _tally(self.staleness, self._staleness.read(rows))
        self.lead = _tally(self.lead, leads(rows, self._clocks))
        self.counts.read(rows)
        self.batches.read(rows)
        self._bytes = {way: self._bytes[way] + own for way, own in bytes_of(rows).items()}
        answered = sent(rows, unanswered=True)
        before = 0 if len(positions(rows, *ANSWERED)) else self._last_replies
        self._last_replies = before + bytes_of(rows)["down"] - bytes_of(answered)["down"]

    def bytes(self, unanswered: bool = False) -> dict[str, int]:
        return {"up": self._bytes["up"], "down": self._bytes["down"] - unanswered * self._last_replies}

    def count_from(self, earlier: PushTotals) -> None:
        """Restart the count at an earlier state of the same log; neither is read further."""
        self.staleness[: len(earlier.staleness)] -= earlier.staleness
        self.lead[: len(earlier.lead)] -= earlier.lead
        self.counts.subtract(earlier.counts)
        self._bytes = {way: own - earlier._bytes[way] for way, own in self._bytes.items()}


def _tally(counts: Array, values: Array) -> Array:
    """Return a copy of counts with added whole numbers."""
    new = np.bincount(values.astype(np.intp), minlength=len(counts)).astype(np.int64)
    new[: len(counts)] += counts
    return new


def time_use(log: EventLog) -> dict[tuple[int, str], float]:
    """Return each worker's seconds in each phase, by worker and phase (one of `PHASES`)."""
    return _totals_of(log).phases_s()


def idle(log: EventLog) -> pd.DataFrame:
    """Return each worker's waiting time by reason.

    Returns
    -------
    DataFrame
        `worker`, `reason`, `idle_s` and `fraction` (of the time the worker was present); a worker that
        never waited has no row.
    """
    totals = _totals_of(log)
    seconds, shares = totals.waits_s(log), totals.waits(log)
    rows = [(worker, why, seconds[worker, why], share) for (worker, why), share in shares.items()]
    return table(rows, columns=("worker", "reason", "idle_s", "fraction"))


def idle_fraction(log: EventLog) -> dict[int, float]:
    """Return the share of its time, 0 to 1, that each worker waited; keys are the worker ids."""
    totals = _totals_of(log)
    found = dict.fromkeys(totals.workers, 0.0)
    for (worker, _), share in totals.waits(log).items():
        found[worker] += share
    return found


def _totals_of(log: EventLog) -> SpanTotals:
    totals = SpanTotals()
    totals.read(log, log.rows())
    return totals
