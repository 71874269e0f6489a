"""Sums and counts of a log that grows, kept up to date from its new rows alone.

They are those of `timeline`, `idle`, `staleness`, `clock_lead` and the like of the whole log, at a cost that
depends on how much is new. A live picture reads them many times in a run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from psbench.core.log import ROW, EventLog, Kind
from psbench.metrics.clocks import Clocks, leads
from psbench.metrics.rows import Array, Rows, pick, positions
from psbench.metrics.spans import PHASES, Spans, continuing, reason_text, spans_of

#: seconds by worker and by a phase or reason, each by its number
_Sums: TypeAlias = dict[tuple[int, int], float]

_WAIT, _SHIFT = PHASES.index("wait"), 1 << 16


class Membership:
    """Has a worker that is dropped leave, once, and one that is readmitted join."""

    def __init__(self) -> None:
        self._gone: set[int] = set()

    def convert(self, rows: Rows) -> Rows:
        """Return new rows of a log so; see `rows.with_membership`."""
        dropped, readmitted = positions(rows, Kind.DROP), positions(rows, Kind.READMIT)
        changes = positions(rows, Kind.DROP, Kind.READMIT, Kind.JOIN, Kind.LEAVE)
        if not len(changes):
            return rows
        rows = rows.copy()
        rows["kind"][dropped] = Kind.LEAVE
        rows["kind"][readmitted] = Kind.JOIN
        for place in changes.tolist():
            worker = int(rows["worker"][place])
            if rows["kind"][place] == Kind.JOIN:
                self._gone.discard(worker)
            elif worker in self._gone:
                rows["kind"][place] = Kind.NOTE
            else:
                self._gone.add(worker)
        return rows


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
    """For how long each worker did what, and waited for which reason.

    Attributes
    ----------
    end_s : float, seconds
        The time of the newest row.
    """

    def __init__(self) -> None:
        self._membership = Membership()
        self._open = np.zeros(0, dtype=ROW)  # rows whose spans are not over
        self._over, self._now = _Seconds(), _Seconds()
        self._present: dict[int, float] = {}  # seconds that were over when somebody left last
        self._joined: dict[int, float] = {}
        self._earlier: SpanTotals | None = None
        self.end_s = 0.0

    def read(self, log: EventLog, rows: Rows) -> None:
        """Read new rows of a log."""
        if not len(rows):
            return
        rows = self._membership.convert(rows)
        self.end_s = float(rows["time_s"][-1])
        self._count_presence(rows)
        rows = np.concatenate([self._open, rows])
        spans = spans_of(log, rows, whom=False)
        self._open, begun = continuing(log, rows)
        late = np.full(int(max(spans.worker.max(initial=0), max(begun, default=0))) + 1, np.inf)
        late[list(begun)] = list(begun.values())
        is_over = spans.start_s < late[spans.worker]
        self._now = _Seconds()
        self._over.add(Spans(*(column[is_over] for column in spans)))
        self._now.add(Spans(*(column[~is_over] for column in spans)))

    def _count_presence(self, rows: Rows) -> None:
        for row in pick(rows, Kind.JOIN, Kind.LEAVE):
            worker, time_s = int(row["worker"]), float(row["time_s"])
            if row["kind"] == Kind.JOIN:
                self._present.setdefault(worker, 0.0)
                self._joined[worker] = time_s
            elif worker in self._joined:
                self._present[worker] += time_s - self._joined.pop(worker)

    def count_from(self, earlier: SpanTotals) -> None:
        """Count from where an earlier state of the same log was: both are read no further."""
        self._earlier = earlier

    @property
    def workers(self) -> list[int]:
        """All that ever joined."""
        return sorted(self._present)

    @property
    def _there(self) -> dict[int, float]:
        """The seconds that each worker was there."""
        until = self.end_s
        there = {w: own + until - self._joined.get(w, until) for w, own in self._present.items()}
        before = {} if self._earlier is None else self._earlier._there
        return {worker: seconds - before.get(worker, 0.0) for worker, seconds in there.items()}

    def _sums(self, of: Callable[[_Seconds], _Sums]) -> _Sums:
        sums = _added(of(self._over), of(self._now))
        return sums if self._earlier is None else _added(sums, self._earlier._sums(of), -1.0)

    def phases(self) -> dict[tuple[int, str], float]:
        """Return the share of each worker's time in each phase, 0 to 1, by worker and phase."""
        sums = self._sums(lambda seconds: seconds.phases)
        whole: dict[int, float] = defaultdict(float)
        for (worker, _), seconds in sums.items():
            whole[worker] += seconds
        return {(w, PHASES[p]): seconds / whole[w] for (w, p), seconds in sorted(sums.items()) if whole[w]}

    def waits(self, log: EventLog) -> dict[tuple[int, str], float]:
        """Return the share of its time that each worker waited, 0 to 1, by worker and reason."""
        sums: dict[tuple[int, str], float] = defaultdict(float)
        for (worker, number), seconds in self._sums(lambda seconds: seconds.waits).items():
            sums[worker, reason_text(log, number)] += seconds
        there = self._there
        return {(w, why): seconds / there[w] for (w, why), seconds in sorted(sums.items()) if there[w]}


def _added(first: _Sums, second: _Sums, factor: float = 1.0) -> _Sums:
    """Return the sum of both, without what is nothing but rounding."""
    found = {key: first.get(key, 0.0) + factor * second.get(key, 0.0) for key in {**first, **second}}
    return {key: seconds for key, seconds in found.items() if seconds > 1e-12}


class PushTotals:
    """Whose pushes were applied, how stale they were, how far workers led, and what was sent.

    Attributes
    ----------
    staleness, lead : int64 arrays
        How many applied pushes had that staleness, and how many steps began with that lead.
    applied : dict of worker to int
    bytes : dict
        `up` and `down`.
    batches : list of (worker, seconds, samples a step)
        Where a batch size was seen first, or changed.
    """

    def __init__(self) -> None:
        self._bases = np.zeros(0, dtype=np.int64)  # version that each push started from, by its number
        self._clocks = Clocks()
        self._batch: dict[int, tuple[float, float]] = {}
        self.staleness, self.lead = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.applied: dict[int, int] = defaultdict(int)
        self.bytes = {"up": 0, "down": 0}
        self.batches: list[tuple[int, float, float]] = []

    def read(self, rows: Rows) -> None:
        """Read new rows of a log."""
        push, apply = pick(rows, Kind.PUSH), pick(rows, Kind.APPLY)
        self._note_bases(push)
        self.staleness = _tally(self.staleness, apply["version"] - 1 - self._bases[apply["id"]])
        self.lead = _tally(self.lead, leads(rows, self._clocks))
        workers, counts = np.unique(apply["worker"], return_counts=True)
        for worker, count in zip(workers.tolist(), counts.tolist(), strict=True):
            self.applied[worker] += count
        self.bytes["up"] += int(push["bytes"].sum(dtype=np.int64))
        self.bytes["down"] += int(pick(rows, Kind.RELEASE)["bytes"].sum(dtype=np.int64))
        self._note_batches(push)

    def count_from(self, earlier: PushTotals) -> None:
        """Count from where an earlier state of the same log was: both are read no further."""
        self.staleness[: len(earlier.staleness)] -= earlier.staleness
        self.lead[: len(earlier.lead)] -= earlier.lead
        for worker, count in earlier.applied.items():
            self.applied[worker] -= count
        self.bytes = {way: sent - earlier.bytes[way] for way, sent in self.bytes.items()}

    def last_batches(self) -> list[tuple[int, float, float]]:
        """Return the newest batch size of each worker, as `batches`."""
        return [(worker, time_s, size) for worker, (time_s, size) in sorted(self._batch.items())]

    def _note_bases(self, push: Rows) -> None:
        if not len(push):
            return
        most = int(push["id"].max()) + 1
        if most > len(self._bases):
            self._bases = np.concatenate([self._bases, np.zeros(most, dtype=np.int64)])
        self._bases[push["id"]] = push["version"]

    def _note_batches(self, push: Rows) -> None:
        push = push[np.argsort(push["worker"], kind="stable")]
        size = push["samples"] / np.maximum(push["steps"], 1)
        worker = push["worker"]
        first = np.append(True, worker[1:] != worker[:-1])[: len(push)]
        last = np.append(first[1:], True)[: len(push)]
        changed = np.append(True, size[1:] != size[:-1])[: len(push)] & ~first
        for place in np.flatnonzero(first | changed).tolist():
            row = int(worker[place]), float(push["time_s"][place]), float(size[place])
            if changed[place] or self._batch.get(row[0], (0.0, None))[1] != row[2]:
                self.batches.append(row)
        for place in np.flatnonzero(last).tolist():
            self._batch[int(worker[place])] = float(push["time_s"][place]), float(size[place])


def _tally(counts: Array, values: Array) -> Array:
    """Return counts to which whole numbers were added."""
    new = np.bincount(values, minlength=len(counts)).astype(np.int64)
    new[: len(counts)] += counts
    return new
