"""Contributions: the gradients of each worker by age at use, and unused gradients by reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from psbench.arrays import Array, Booleans
from psbench.core.log import EventLog, Kind
from psbench.metrics.pushes import Staleness
from psbench.metrics.rows import Absences, Rows, optional, pick, positions
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd

#: by worker and age, or by worker and reason (a number): gradients, and the samples in them
_Sums: TypeAlias = dict[tuple[int, int], Array]
#: by worker: used gradients, and unused ones by reason
Counts: TypeAlias = tuple[dict[int, int], dict[int, dict[str, int]]]

#: reasons that no part gives, by numbers that no text has
_CANCELLED, _LEFT, _VOTE, _WEIGHT, _BUFFERED = range(-1, -6, -1)
_OURS = {
    _CANCELLED: "cancelled",
    _LEFT: "its worker left",
    _VOTE: "its worker left before an answer to its vote",
    _WEIGHT: "applied with weight 0",
    _BUFFERED: "buffered at the end",
}
#: rows that say whether a worker has a step under way
_TURNS = (Kind.JOIN, Kind.LEAVE, Kind.RELEASE, Kind.PUSH, Kind.VOTE, Kind.CANCEL)
#: a worker of whose gradients a smaller share is used is starved, if it finished so many
STARVED, _ENOUGH = 0.1, 10


def contributions(log: EventLog) -> pd.DataFrame:
    """Return the gradients of each worker by fate: used at an age, or unused for a reason.

    Returns
    -------
    DataFrame
        `worker`, `fate` ("used", or the reason for which they were not), `age` (staleness of those used, in
        versions), `gradients`, `samples` (0 for work that ended before it was a push).

    Notes
    -----
    A gradient is what a push carries: with local steps, all of them. A step that a worker keeps after a vote
    is used at age 0. Work under way at the end has no fate. A push that the aggregation part applies with
    weight 0 is not used.
    """
    work = Work()
    work.read(log.rows())
    rows = work.rows(log)
    frame = table(rows, columns=("worker", "fate", "age", "gradients", "samples"))
    ages = np.array([-1 if row[2] is None else row[2] for row in rows], dtype=np.int64)
    frame["age"] = optional(ages, ages < 0)
    return frame


class Work:
    """The fates of each worker's gradients, along a growing log."""

    def __init__(self) -> None:
        self._staleness, self._absences = Staleness(), Absences()
        self._used: _Sums = {}
        self._unused: _Sums = {}
        self._pushes = np.zeros(
            (3, 0), dtype=np.int64
        )  # of each push: worker, samples, 1 while it is pending
        self._turns = np.full(0, int(Kind.JOIN))  # the last of `_TURNS` of each worker

    def read(self, rows: Rows) -> None:
        """Read new rows of a log."""
        self._read_pushes(rows)
        self._read_turns(self._absences.read(rows))

    def _read_pushes(self, rows: Rows) -> None:
        push, apply, discard = (pick(rows, kind) for kind in (Kind.PUSH, Kind.APPLY, Kind.DISCARD))
        kept = pick(rows, Kind.RELEASE)
        kept = kept[kept["samples"] > 0]
        ages = self._staleness.read(rows)
        more = int(max(push["id"].max(initial=-1), discard["id"].max(initial=-1))) + 1 - self._pushes.shape[1]
        self._pushes = np.pad(self._pushes, ((0, 0), (0, max(more, 0))))
        self._pushes[:, push["id"]] = push["worker"], push["samples"], np.ones(len(push))
        self._pushes[2, apply["id"]] = self._pushes[2, discard["id"]] = 0
        counts = is_used(apply)
        used, void = apply[counts], apply[~counts]
        _add(self._used, used["worker"], ages[counts], used["samples"])
        _add(self._used, kept["worker"], np.zeros(len(kept)), kept["samples"])
        _add(self._unused, void["worker"], np.full(len(void), _WEIGHT), void["samples"])
        _add(self._unused, discard["worker"], discard["text"], self._pushes[1, discard["id"]])

    def _read_turns(self, rows: Rows) -> None:
        rows = pick(rows, *_TURNS)
        more = int(rows["worker"].max(initial=0)) + 1 - len(self._turns)
        self._turns = np.append(self._turns, np.full(max(more, 0), int(Kind.JOIN)))
        begin = 0
        for place in [*positions(rows, Kind.LEAVE).tolist(), len(rows)]:
            part = rows[begin:place]
            self._turns[part["worker"]] = part["kind"]  # of several of a worker, the last
            if place < len(rows):
                worker = int(rows["worker"][place])
                lost = {Kind.RELEASE: _LEFT, Kind.VOTE: _VOTE}.get(Kind(self._turns[worker]))
                if lost is not None:
                    _add(self._unused, np.array([worker]), np.array([lost]), np.zeros(1))
                self._turns[worker] = Kind.LEAVE
            begin = place + 1
        cancelled = pick(rows, Kind.CANCEL)
        codes = np.full(len(cancelled), _CANCELLED)
        _add(self._unused, cancelled["worker"], codes, np.zeros(len(cancelled)))

    def count_from(self, earlier: Work) -> None:
        """Subtract the counts of an earlier state of the same log."""
        for sums, before in ((self._used, earlier._used), (self._unused, earlier._unused)):
            for key, counted in before.items():
                sums[key] = sums[key] - counted

    def rows(self, log: EventLog) -> list[tuple[int, str, int | None, int, int]]:
        """Return the rows of `contributions` by worker, used gradients first."""
        worker, samples, pending = self._pushes
        unused = {**self._unused}
        codes = np.full(int(pending.sum()), _BUFFERED)
        _add(unused, worker[pending > 0], codes, samples[pending > 0])
        found: list[tuple[int, str, int | None, int, int]] = [
            (worker, "used", age, int(sums[0]), int(sums[1]))
            for (worker, age), sums in sorted(self._used.items())
        ]
        reasons = {
            (worker, _OURS[code] if code in _OURS else log.text(code)): sums
            for (worker, code), sums in unused.items()
        }
        found += [
            (worker, why, None, int(sums[0]), int(sums[1])) for (worker, why), sums in sorted(reasons.items())
        ]
        return sorted((row for row in found if row[3]), key=lambda row: (row[0], row[2] is None))

    def counts(self, log: EventLog) -> Counts:
        """Return the numbers of used gradients of each worker, and of unused ones by reason."""
        used: dict[int, int] = {}
        unused: dict[int, dict[str, int]] = {}
        for worker, fate, age, gradients, _ in self.rows(log):
            if age is None:
                unused.setdefault(worker, {})[fate] = gradients
            else:
                used[worker] = used.get(worker, 0) + gradients
        return used, unused


def is_used(applied: Rows) -> Booleans:
    """Return a mask of the applied pushes that moved the model: a part may give weight 0."""
    found: Booleans = applied["loss"] != 0
    return found


def _add(sums: _Sums, workers: Array, codes: Array, samples: Array) -> None:
    """Add gradients to sums in new arrays; arrays of an earlier state do not change."""
    if not len(workers):
        return
    both = (workers.astype(np.int64) << 32) + codes.astype(np.int64) + 8  # reasons of ours are negative
    keys, place, count = np.unique(both, return_inverse=True, return_counts=True)
    total = np.bincount(place, weights=samples, minlength=len(keys)).astype(np.int64)
    for key, gradients, each in zip(keys.tolist(), count.tolist(), total.tolist(), strict=True):
        who = key >> 32, (key & 0xFFFFFFFF) - 8
        sums[who] = sums.get(who, np.zeros(2, dtype=np.int64)) + np.array([gradients, each])


def counted(log: EventLog) -> Counts:
    """Return the numbers of used gradients of each worker, and of unused ones by reason."""
    work = Work()
    work.read(log.rows())
    return work.counts(log)


def totals(counts: Counts) -> dict[str, Any]:
    """Return the numbers of used gradients, and of unused ones by reason, as plain data."""
    used, unused = counts
    reasons: dict[str, int] = {}
    for own in unused.values():
        for why, gradients in own.items():
            reasons[why] = reasons.get(why, 0) + gradients
    return {"used": sum(used.values()), "unused": dict(sorted(reasons.items()))}


def unused_share(found: Mapping[str, Any]) -> float | None:
    """Return the share of finished gradients that were not used, 0 to 1, of `totals`; None without any.

    >>> unused_share({"used": 3, "unused": {"late": 1}})
    0.25
    """
    unused = sum(found["unused"].values())
    return unused / (found["used"] + unused) if found["used"] + unused else None


def starved_workers(counts: Counts, workers: Sequence[int]) -> list[str]:
    """Return a warning for each of the workers whose gradients were used rarely or never."""
    used, unused = counts
    if not used:
        return []
    return [
        f"worker {worker}: {text}"
        for worker in workers
        if (text := _starved(used.get(worker, 0), unused.get(worker, {})))
    ]


def _starved(used: int, unused: Mapping[str, int]) -> str:
    """Return the warning about a worker; empty if enough of its gradients are used.

    >>> _starved(0, {"late": 3, "delay": 9})
    '0 of 12 gradients used (9 delay, 3 late), so the model never learned its shard'
    """
    finished = used + sum(unused.values())
    why = ", ".join(
        f"{count} {reason}" for reason, count in sorted(unused.items(), key=lambda each: -each[1])
    )
    if not finished:
        return "it finished no gradient, so the model never learned its shard"
    if not used:
        return f"0 of {finished} gradients used ({why}), so the model never learned its shard"
    if finished >= _ENOUGH and used < STARVED * finished:
        return f"{used} of {finished} gradients used ({why}): it is starved"
    return ""
