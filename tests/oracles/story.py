"""What a log says, read row by row in plain loops: slow, and obvious."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from psbench.core.log import ROW, EventLog, Kind

NAMES = {int(kind): kind.name for kind in Kind}
#: messages, and what else the engine is told: what they decide comes after them in the log
EVENTS = ("JOIN", "LEAVE", "PUSH", "VOTE", "REPORT", "TIMER", "EVALUATED", "SWITCH_REQUESTED")
SAID_BY_A_WORKER = ("JOIN", "LEAVE", "PUSH", "VOTE", "REPORT")
#: sums of seconds that are no longer than this are nothing
ROUNDING_S = 1e-12
#: what a worker may be doing
PHASES = ("pull", "compute", "send", "wait", "cancelled")
#: rows after which a worker does something else
TURNS = ("JOIN", "LEAVE", "PUSH", "VOTE", "RELEASE", "HOLD", "CANCEL")


@dataclass
class Row:
    """A row of a log, its kind and its text in words."""

    time_s: float
    kind: str
    worker: int
    id: int
    version: int
    samples: int
    steps: int
    bytes: int
    compute_s: float
    send_s: float
    loss: float
    text: str

    @cached_property
    def facts(self) -> dict[str, Any]:
        return json.loads(self.text or "{}")


class Rows(list[Row]):
    """Rows of a log that grows no more: what is found out about them is found out once."""

    __hash__ = object.__hash__


@cache
def rows_of(log: EventLog) -> Rows:
    """Return the rows as they were written."""
    columns = [log.rows()[name].tolist() for name in ROW.names]
    return Rows(
        Row(time_s, NAMES[kind], *rest, log.text(number))
        for time_s, kind, *rest, number in zip(*columns, strict=True)
    )


def with_absences(rows: list[Row]) -> list[Row]:
    """Have a worker that is dropped leave, once, and join when it is readmitted."""
    found, gone = [], set()
    for row in rows:
        kind = {"DROP": "LEAVE", "READMIT": "JOIN"}.get(row.kind, row.kind)
        if kind == "LEAVE" and row.worker in gone:
            continue
        if kind == "LEAVE":
            gone.add(row.worker)
        if kind == "JOIN":
            gone.discard(row.worker)
        found.append(replace(row, kind=kind))
    return found


def workers_of(rows: list[Row]) -> list[int]:
    return sorted({row.worker for row in rows if row.kind == "JOIN"})


def end_of(rows: list[Row]) -> float:
    return rows[-1].time_s if rows else 0.0


# -------------------------------------------------------------------- what workers did when


@dataclass
class Span:
    """What a worker did from one time to another; `whom` is the worker it waited for."""

    worker: int
    phase: str
    start_s: float
    end_s: float
    reason: str = ""
    whom: int | None = None

    @property
    def lasted(self) -> float:
        return self.end_s - self.start_s


@dataclass
class _Turn:
    """A worker's row, the hand-over that delays it, whose message it answers, and after how long a ring."""

    row: Row
    handover_s: float
    answers: int | None
    ring_s: float = 0.0


@cache
def spans_of(rows: Rows) -> list[Span]:
    """Return what every worker did, by worker, then by time."""
    rows = with_absences(rows)
    turns: dict[int, list[_Turn]] = defaultdict(list)
    answered, handover_s = None, 0.0
    ring = Row(-1.0, "", -1, *[0] * 8, "")  # the push with which a ring or a tree ended
    for row in rows:
        if row.kind == "PUSH" and "collective_s" in row.facts:
            ring = row
        if row.kind in EVENTS:
            answered, handover_s = (row.worker if row.kind in SAID_BY_A_WORKER else None), 0.0
        if row.kind == "HANDOVER":
            handover_s = row.compute_s
        if row.kind in TURNS:
            waited_s = ring.send_s if row.time_s == ring.time_s and row.worker != ring.worker else 0.0
            late_s = handover_s if row.kind == "RELEASE" else 0.0
            turns[row.worker].append(_Turn(row, late_s, answered, waited_s))
    found = []
    for worker in sorted(turns):
        found += _spans_of_worker(turns[worker], end_of(rows))
    return [span for span in found if span.end_s > span.start_s]


def sent_beside(rows: Rows) -> list[Span]:
    """Return what was sent while its worker computed on: until it had arrived, or the worker pushed again."""
    found = []
    for worker in workers_of(rows):
        pushes = [row for row in rows if row.kind == "PUSH" and row.worker == worker]
        for push, after in zip(pushes, [*pushes, None][1:], strict=True):
            if "goes_on" in push.facts:
                begun = push.time_s - push.send_s
                ended = push.time_s if after is None else min(push.time_s, begun + after.compute_s)
                found.append(Span(worker, "send", begun, ended, "while it computes"))
    return [span for span in found if span.end_s > span.start_s]


def _spans_of_worker(turns: list[_Turn], end_s: float) -> list[Span]:
    found: list[Span] = []
    place = 0
    while place < len(turns):
        if turns[place].row.kind == "PUSH" and "goes_on" in turns[place].row.facts:
            last = place
            while last + 1 < len(turns) and turns[last + 1].row.kind not in ("PUSH", "LEAVE"):
                last += 1
            following = turns[last + 1] if last + 1 < len(turns) else None
            found += _exchange(turns[place : last + 1], following, end_s)
            place = last + 1
        else:
            found += _until_next(turns[place], turns[place + 1] if place + 1 < len(turns) else None, end_s)
            place += 1
    return sorted(found, key=lambda span: span.start_s)


def _wait(turn: _Turn, following: _Turn | None, start_s: float, end_s: float, reason: str) -> Span:
    whom = following.answers if following and following.row.kind in ("RELEASE", "HOLD") else None
    return Span(turn.row.worker, "wait", start_s, end_s, reason, None if whom == turn.row.worker else whom)


def _until_next(turn: _Turn, following: _Turn | None, end_s: float) -> list[Span]:
    """Return what a worker did from one of its rows to the next."""
    row, start = turn.row, turn.row.time_s
    stop = end_s if following is None else following.row.time_s
    then = None if following is None else following.row.kind
    worker = row.worker
    if row.kind == "LEAVE":
        return []
    if row.kind != "RELEASE":  # it is held; or it joined, pushed, voted, or its step was cancelled
        if row.kind != "HOLD" and then == "PUSH":
            return []
        begun = stop - (min(following.ring_s, stop - start) if following else 0.0)
        reason = row.text if row.kind == "HOLD" else "answer"
        return [_wait(turn, following, start, begun, reason), Span(worker, "pull", begun, stop)]
    begin = min(start + turn.handover_s, stop)
    late = [Span(worker, "wait", start, begin, "hand-over")]
    if then is None:
        return [*late, Span(worker, "compute", begin, stop, "not finished")]
    if then == "VOTE":
        return [*late, Span(worker, "compute", begin, stop)]
    if then == "CANCEL":
        return [*late, Span(worker, "cancelled", begin, stop)]
    if then == "LEAVE":
        return [*late, Span(worker, "cancelled", begin, stop, "left")]
    assert following is not None
    assert then == "PUSH"
    push = following.row
    if row.id == 1:  # the order to push, after a vote
        return [*late, Span(worker, "send", begin, stop)]
    sent_s = stop - push.send_s
    if "goes_on" in push.facts:  # while it sends, it computes: that is part of the exchange
        stop = sent_s
    sent_s = max(sent_s, begin)
    computed_s = max(sent_s - push.compute_s, begin)
    if computed_s - begin < 1e-6 * (stop - begin):  # durations are kept to seven digits
        computed_s = begin
    return [
        *late,
        Span(worker, "pull", begin, computed_s),
        Span(worker, "compute", computed_s, sent_s),
        Span(worker, "send", sent_s, stop),
    ]


def _exchange(turns: list[_Turn], following: _Turn | None, end_s: float) -> list[Span]:
    """Return what a worker did that went on while its push was under way, until it sent the next one."""
    push = turns[0].row
    worker, begin = push.worker, push.time_s - push.send_s
    if following is None:
        return [Span(worker, "compute", begin, end_s, "not finished")]
    if following.row.kind == "LEAVE":
        return [Span(worker, "cancelled", begin, following.row.time_s, "left")]
    after = following.row
    end = after.time_s - after.send_s
    computed = begin + after.compute_s
    if end - computed < 1e-6 * (end - begin):
        computed = end
    found = [Span(worker, "compute", begin, computed), Span(worker, "send", computed, min(push.time_s, end))]
    for own, other in pairwise(turns):
        start, stop = max(computed, own.row.time_s), min(other.row.time_s, end)
        found.append(_wait(own, other, start, stop, own.row.text if own.row.kind == "HOLD" else "answer"))
    found.append(Span(worker, "pull", max(computed, turns[-1].row.time_s), end))
    if "goes_on" not in after.facts:  # its next push ends the overlap
        found.append(Span(worker, "send", end, after.time_s))
    return found


def presence_of(rows: list[Row]) -> dict[int, float]:
    """Return the seconds that each worker was there."""
    rows = with_absences(rows)
    there = dict.fromkeys(workers_of(rows), 0.0)
    since: dict[int, float] = {}
    for row in rows:
        if row.kind == "JOIN":
            since[row.worker] = row.time_s
        elif row.kind == "LEAVE":
            there[row.worker] += row.time_s - since.pop(row.worker)
    for worker, start in since.items():
        there[worker] += end_of(rows) - start
    return there


def waits_of(rows: Rows) -> dict[tuple[int, str], float]:
    """Return the seconds that each worker waited for each reason."""
    found: dict[tuple[int, str], float] = defaultdict(float)
    for span in spans_of(rows):
        if span.phase == "wait":
            found[span.worker, span.reason] += span.lasted
    return {key: seconds for key, seconds in found.items() if seconds > ROUNDING_S}


def idle_of(rows: Rows) -> dict[tuple[int, str], float]:
    """Return the share of the time that each worker was there in which it waited, by reason."""
    there = presence_of(rows)
    return {(worker, why): seconds / there[worker] for (worker, why), seconds in waits_of(rows).items()}


# -------------------------------------------------------------------- clocks


@dataclass
class Start:
    """The start of a step: the worker's clock, and its lead over the slowest worker that is there."""

    time_s: float
    worker: int
    clock: int
    lead: int


@cache
def starts_of(rows: Rows) -> list[Start]:
    """Return the start of every step."""
    clocks: dict[int, int] = {}
    slowest = 0
    found = []
    for row in with_absences(rows):
        if clocks:
            slowest = min(clocks.values())
        if row.kind == "JOIN":
            clocks[row.worker] = slowest
        elif row.kind == "LEAVE":
            clocks.pop(row.worker, None)
        elif row.kind == "HANDOVER":
            clocks = {worker: max(clocks.values()) for worker in clocks}
        elif row.kind == "PUSH":
            clocks[row.worker] += 1
        elif row.kind == "RELEASE" and row.id == 0:
            clock = clocks[row.worker]
            found.append(Start(row.time_s, row.worker, clock, clock - min(clocks.values())))
    return found


# -------------------------------------------------------------------- pushes


@dataclass
class Pushed:
    """A push and what became of it."""

    row: Row
    fate: str = "buffered"
    applied_s: float = math.nan
    version: int | None = None

    @property
    def staleness(self) -> int | None:
        """Versions that were made between the one it started from and its own."""
        return None if self.version is None else self.version - self.row.version - 1


def pushes_of(rows: list[Row]) -> list[Pushed]:
    """Return the pushes in the order of their arrival."""
    found: dict[int, Pushed] = {}
    for row in rows:
        if row.kind == "PUSH":
            found[row.id] = Pushed(row)
        elif row.kind == "DISCARD":
            found[row.id].fate = "discarded"
        elif row.kind == "APPLY":
            push = found[row.id]
            push.fate, push.applied_s, push.version = "committed", row.time_s, row.version
    return list(found.values())


def stalenesses(rows: list[Row]) -> list[int]:
    """Return the staleness of each committed push, in the order in which they were applied."""
    base = {row.id: row.version for row in rows if row.kind == "PUSH"}
    return [row.version - base[row.id] - 1 for row in rows if row.kind == "APPLY"]


def sent(rows: list[Row], unanswered: bool) -> list[Row]:
    """Leave out the releases of the last answer if they were not sent."""
    if not unanswered:
        return rows
    last = max(place for place, row in enumerate(rows) if row.kind in ("PUSH", "APPLY", "VOTE"))
    return [row for place, row in enumerate(rows) if place < last or row.kind != "RELEASE"]


def lost_with_their_workers(rows: list[Row]) -> int:
    """Return how many workers left while they took a step; one that waits for an answer takes none."""
    doing: dict[int, str] = {}
    lost = 0
    for row in with_absences(rows):
        if row.kind == "LEAVE":
            lost += doing.get(row.worker) == "RELEASE"
        if row.kind in ("JOIN", "LEAVE", "RELEASE", "PUSH", "VOTE", "CANCEL"):
            doing[row.worker] = row.kind
    return lost
