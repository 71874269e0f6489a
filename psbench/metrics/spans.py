"""Every worker's activity at every moment, and the reasons for its waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from psbench.arrays import Array
from psbench.core.events import COLLECTIVE
from psbench.core.log import EventLog, Kind
from psbench.metrics.rows import Rows, categorical, end_of, optional, pick, positions, with_membership
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd

#: what a worker may be doing; the code of a phase is its place here
PHASES = ("pull", "compute", "send", "wait", "cancelled")
_PULL, _COMPUTE, _SEND, _WAIT, _CANCELLED = range(5)

#: reasons that no part gives, by numbers that no text has; the empty text is number 0 of every log
_NONE, _ANSWER, _UNFINISHED, _HANDOVER, _LOST = range(0, -5, -1)
_OURS = {_ANSWER: "answer", _UNFINISHED: "not finished", _HANDOVER: "hand-over", _LOST: "left"}

_OWN = (Kind.JOIN, Kind.LEAVE, Kind.PUSH, Kind.VOTE, Kind.RELEASE, Kind.HOLD, Kind.CANCEL)
_SPEAKS = (Kind.JOIN, Kind.LEAVE, Kind.PUSH, Kind.VOTE, Kind.REPORT)
_EVENTS = (*_SPEAKS, Kind.TIMER, Kind.EVALUATED, Kind.SWITCH_REQUESTED)
_END = 255  # what follows a worker's last row
#: what a step was that ended in no push, and why, by what followed
_UNPUSHED = (
    *((Kind.VOTE, _COMPUTE, _NONE), (_END, _COMPUTE, _UNFINISHED)),
    *((Kind.CANCEL, _CANCELLED, _NONE), (Kind.LEAVE, _CANCELLED, _LOST)),
)


def timeline(log: EventLog) -> pd.DataFrame:
    """Return every worker's activities as spans without gaps or overlaps.

    Returns
    -------
    DataFrame
        `worker`, `phase` (one of `PHASES`), `start_s`, `end_s`, `reason` (of a wait: what the strategy
        said), `waited_for` (the worker whose message ended the wait, or NA). By worker, then by time.

    Notes
    -----
    From a release at t0 to the push's arrival at t1: pull for t1 - t0 - compute - send, then compute, then
    send. From a push to the next release: wait. A wait has the reason of its hold, and is cut in two where
    the reason changes; without one the reason is "answer" (the server was busy). A ring, and in virtual time
    a tree, is a send of the worker that began it, and the others, who wait for that worker, pull as long;
    the trees of a live job are in the pull before its steps. A cancelled step, or one whose worker left, is
    "cancelled". A step that ends in a vote is all compute, and from the order to push to the push is all
    send: how long each part of them took is not recorded. At the end of the run spans are cut; a step then
    under way counts as compute, "not finished". A worker that goes on while its push is under way (overlap)
    computes from when it sends a push for as long as the next one tells, and then does what of the exchange
    is not over: sends, waits, pulls. A worker that has left has no spans until it joins again.
    """
    spans = spans_of(log, with_membership(log.rows())).in_order()
    return table(
        {
            "worker": spans.worker.astype(np.int64),
            "phase": categorical(spans.phase, PHASES),
            "start_s": spans.start_s,
            "end_s": spans.end_s,
            "reason": _reasons(log, spans.reason),
            "waited_for": optional(spans.waited_for, spans.waited_for < 0),
        }
    )


def sends_beside(log: EventLog) -> pd.DataFrame:
    """Return the sends that overlap with computation, which `timeline` shows as computing.

    Returns
    -------
    DataFrame
        As that of `timeline`; every span is a "send", from when a push was sent until it had arrived, or the
        worker was done with the steps that it had meanwhile. By worker, then by time.
    """
    pushes = pick(log.rows(), Kind.PUSH)
    pushes = pushes[np.argsort(pushes["worker"], kind="stable")]
    arrived = pushes["time_s"]
    begun = arrived - pushes["send_s"]
    computes = np.append(pushes["compute_s"][1:].astype(np.float64), np.inf)
    computes[:-1][pushes["worker"][1:] != pushes["worker"][:-1]] = np.inf  # no next push: unknown
    ended = np.minimum(arrived, begun + computes)
    kept = np.isin(pushes["text"], _overlapping(log, pushes)) & (ended > begun)
    count = int(kept.sum())
    return table(
        {
            "worker": pushes["worker"][kept].astype(np.int64),
            "phase": categorical(np.full(count, _SEND), PHASES),
            "start_s": begun[kept],
            "end_s": ended[kept],
            "reason": np.full(count, "while it computes", dtype=object),
            "waited_for": optional(np.zeros(count), np.ones(count, dtype=bool)),
        }
    )


class Spans(NamedTuple):
    """The columns of `timeline` as arrays, in any order.

    `phase` is the place in `PHASES`, `reason` a number (see `reason_text`), `waited_for` -1 for none.
    """

    worker: Array
    phase: Array
    start_s: Array
    end_s: Array
    reason: Array
    waited_for: Array

    def in_order(self) -> Spans:
        """Return the spans by worker, then by time."""
        order = np.lexsort((self.start_s, self.worker))
        return Spans(*(column[order] for column in self))


def spans_of(log: EventLog, rows: Rows, with_causes: bool = True) -> Spans:
    """Return the spans of rows with `with_membership` applied; `log` has their texts.

    `with_causes`: whether to determine the workers that caused waits.
    """
    own = _Own(log, rows, with_causes)
    spans = _Parts()
    _add_overlaps(own, spans)
    _add_waits(own, spans)
    _add_work(own, spans)
    return Spans(*(np.concatenate(part) for part in zip(*spans.parts, strict=True)))


class _Own:
    """The rows of each worker in order, paired with the next row of the same worker."""

    def __init__(self, log: EventLog, rows: Rows, with_causes: bool = True) -> None:
        #: the rows of events, which end waits
        self.answered = positions(rows, *_EVENTS) if with_causes else np.zeros(0, dtype=np.int64)
        place = positions(rows, *_OWN)
        place = place[np.argsort(rows["worker"][place], kind="stable")]
        here = rows[place]
        same = here["worker"][1:] == here["worker"][:-1]
        self.worker = here["worker"]
        self.kind = here["kind"]
        self.told_to_push = (self.kind == Kind.RELEASE) & (here["id"] == 1)
        self.text = here["text"]
        self.goes_on = (self.kind == Kind.PUSH) & np.isin(self.text, _overlapping(log, here))
        self.collective = _ends_of_collectives(log, rows)
        #: rows whose span is drawn by `_add_overlaps`
        self.overlapped = np.zeros(len(here), dtype=bool)
        self.start = here["time_s"].copy()
        self.sent = self.start - here["send_s"]  # of a push: when it began to travel

        def following(values: Array, last: float) -> Array:
            """Return for each row the value of the same worker's next row, or `last`."""
            return np.append(np.where(same, values[1:], last), last)[: len(values)].astype(values.dtype)

        self.next, self.stop = following(self.kind, _END), following(self.start, end_of(rows))
        self.next_place = following(place, -1)
        # of the next row, which is read only where that is a push of the same worker
        self.compute, self.send = (np.roll(here[name], -1).astype(float) for name in ("compute_s", "send_s"))
        self.handover = _handover_cost(rows, place, self.kind == Kind.RELEASE)
        self.rows = rows


class _Parts:
    """Spans collected as arrays."""

    def __init__(self) -> None:
        self.parts: list[tuple[Array, ...]] = []

    def add(
        self,
        worker: Array,
        phase: int,
        start: Array,
        stop: Array,
        reason: Array | int,
        other: Array | int = -1,
    ) -> None:
        keep = stop > start
        more = (np.broadcast_to(each, keep.shape) for each in (phase, reason, other))
        phases, reasons, others = (column[keep].astype(np.int64) for column in more)
        self.parts.append((worker[keep], phases, start[keep], stop[keep], reasons, others))


def reason_text(log: EventLog, number: int) -> str:
    return _OURS[number] if number in _OURS else log.text(number)


def _reasons(log: EventLog, numbers: Array) -> pd.Categorical[str]:
    used, codes = np.unique(numbers, return_inverse=True)
    texts = [reason_text(log, number) for number in used.tolist()]
    names = sorted(set(texts))  # a part may say "left" too
    return categorical(np.array([names.index(text) for text in texts], dtype=np.int64)[codes], names)


def _add_waits(own: _Own, spans: _Parts) -> None:
    held = (own.kind == Kind.HOLD) & ~own.overlapped
    spoke = np.isin(own.kind, (Kind.JOIN, Kind.PUSH, Kind.VOTE, Kind.CANCEL)) & (own.next != Kind.PUSH)
    spoke &= ~own.overlapped
    i = np.flatnonzero(held | spoke)
    stop = own.stop[i] - _collective_s(own, i)
    reason = np.where(held[i], own.text[i].astype(np.int64), _ANSWER)
    spans.add(own.worker[i], _WAIT, own.start[i], stop, reason, _ended_by(own, i))
    spans.add(own.worker[i], _PULL, stop, own.stop[i], _NONE)
    i = np.flatnonzero(own.handover > 0)
    stop = np.minimum(own.start[i] + own.handover[i], own.stop[i])
    spans.add(own.worker[i], _WAIT, own.start[i], stop, _HANDOVER)


def _collective_s(own: _Own, i: Array) -> Array:
    """Return the duration of the collective operation that ended each wait."""
    ends, rows = own.collective, own.rows
    if not len(ends):
        return np.zeros(len(i))
    by = ends[np.maximum(np.searchsorted(ends, own.next_place[i]) - 1, 0)]
    same = (rows["time_s"][by] == own.stop[i]) & (rows["worker"][by] != own.worker[i])
    same &= own.next_place[i] > by
    return np.where(same, np.minimum(rows["send_s"][by], own.stop[i] - own.start[i]), 0.0)


def _ended_by(own: _Own, i: Array) -> Array:
    """Return the worker whose message ended each span; -1 without one."""
    answered = own.answered
    if not len(answered):
        return np.full(len(i), -1)
    by = answered[np.maximum(np.searchsorted(answered, own.next_place[i]) - 1, 0)]
    spoke = np.isin(own.rows["kind"][by], _SPEAKS) & np.isin(own.next[i], (Kind.RELEASE, Kind.HOLD))
    other = np.where(spoke, own.rows["worker"][by].astype(np.int64), -1)
    return np.where(other == own.worker[i], -1, other)


def _ends_of_collectives(log: EventLog, rows: Rows) -> Array:
    """Return the positions of the pushes that completed a ring or tree."""
    pushes = positions(rows, Kind.PUSH)
    return pushes[np.isin(rows["text"][pushes], _with_word(log, rows[pushes], COLLECTIVE))]


def _overlapping(log: EventLog, rows: Rows) -> list[int]:
    """Return the texts of pushes after which workers continued computing."""
    return _with_word(log, pick(rows, Kind.PUSH), "goes_on")


def _with_word(log: EventLog, pushes: Rows, word: str) -> list[int]:
    """Return the texts of pushes that contain a keyword."""
    used = np.unique(pushes["text"]).tolist()
    return [number for number in used if f'"{word}"' in log.text(number)]


def _add_overlaps(own: _Own, spans: _Parts) -> None:
    """Add the spans of overlapping pushes: from one push to the worker's next."""
    for first in np.flatnonzero(own.goes_on).tolist():
        last = first  # the row before the next push, which is the release, or the worker's last row
        while own.next[last] not in (Kind.PUSH, Kind.LEAVE, _END):
            last += 1
        own.overlapped[first : last + 1] = True
        _add_exchange(own, first, last, spans)


def _add_exchange(own: _Own, first: int, last: int, spans: _Parts) -> None:
    """Add one exchange: computation, then the remaining exchange."""

    def add(phase: int, start: float, stop: float, reason: int = _NONE, place: int = first) -> None:
        other = _ended_by(own, np.array([place])) if phase == _WAIT else -1
        spans.add(own.worker[first : first + 1], phase, np.array([start]), np.array([stop]), reason, other)

    begun = own.sent[first]
    if own.next[last] != Kind.PUSH:  # it is not known when the worker stopped
        has_left = own.next[last] == Kind.LEAVE
        add(_CANCELLED if has_left else _COMPUTE, begun, own.stop[last], _LOST if has_left else _UNFINISHED)
        return
    ended = own.sent[last + 1]
    idle = begun + own.compute[last]
    if ended - idle < 1e-6 * (ended - begun):  # durations are recorded to seven digits
        idle = ended
    add(_COMPUTE, begun, idle)
    add(_SEND, idle, min(own.start[first], ended))
    for row in range(first, last):
        reason = int(own.text[row]) if own.kind[row] == Kind.HOLD else _ANSWER
        add(_WAIT, max(idle, own.start[row]), min(own.stop[row], ended), reason, row)
    add(_PULL, max(idle, own.start[last]), ended)
    if not own.goes_on[last + 1]:  # else the worker computes meanwhile, in the next exchange
        add(_SEND, ended, own.start[last + 1])


def _add_work(own: _Own, spans: _Parts) -> None:
    begin = np.minimum(own.start + own.handover, own.stop)
    pushed = (own.next == Kind.PUSH) & ~own.overlapped
    i = np.flatnonzero(pushed & own.told_to_push)
    spans.add(own.worker[i], _SEND, begin[i], own.stop[i], _NONE)
    i = np.flatnonzero(pushed & ~own.told_to_push)
    send = np.where(np.append(own.goes_on[1:], False)[i], 0.0, own.send[i])  # or it computes while it sends
    stop = own.stop[i] - (own.send[i] - send)
    _add_steps(own.worker[i], begin[i], stop, own.compute[i], send, spans)
    released = (own.kind == Kind.RELEASE) & ~own.overlapped
    for following, phase, reason in _UNPUSHED:
        i = np.flatnonzero(released & (own.next == following))
        spans.add(own.worker[i], phase, begin[i], own.stop[i], reason)


def _add_steps(worker: Array, start: Array, stop: Array, compute: Array, send: Array, spans: _Parts) -> None:
    send_from = np.maximum(stop - send, start)
    compute_from = np.maximum(send_from - compute, start)
    # durations are recorded to seven digits: a shorter pull than that counts as no pull
    compute_from = np.where(compute_from - start < 1e-6 * (stop - start), start, compute_from)
    spans.add(worker, _PULL, start, compute_from, _NONE)
    spans.add(worker, _COMPUTE, compute_from, send_from, _NONE)
    spans.add(worker, _SEND, send_from, stop, _NONE)


def _handover_cost(rows: Rows, place: Array, released: Array) -> Array:
    """Return the seconds by which a hand-over in the same answer delays each release; usually 0."""
    cost = np.zeros(len(place))
    events = np.append(positions(rows, *_EVENTS), len(rows))
    for switch in positions(rows, Kind.HANDOVER).tolist():
        until = events[np.searchsorted(events, switch)]
        cost[released & (place > switch) & (place < until)] = rows["compute_s"][switch]
    return cost


def continuing(log: EventLog, rows: Rows) -> tuple[Rows, dict[int, float]]:
    """Return the rows before a cut that are needed for spans across the cut.

    Parameters
    ----------
    log : EventLog
        Has the rows' texts.
    rows : structured array
        With `with_membership` applied: the beginning of a log, or what this returned and the rows since.

    Returns
    -------
    structured array, dict of worker to seconds
        Rows to be put before the next ones; and when each worker's spans begin that are not over.
    """
    place = positions(rows, *_OWN)
    going_on = _overlapping(log, rows[place])
    handed = positions(rows, Kind.HANDOVER)
    kept, begun = list[int](), dict[int, float]()
    for own in _by_worker(rows, place):
        exchange = _exchange_under_way(rows[own], going_on)
        first = rows[own[-1] if exchange is None else own[exchange]]
        sent_for = 0.0 if exchange is None else float(first["send_s"])
        begun[int(first["worker"])] = float(first["time_s"]) - sent_for
        kept += own[-1 if exchange is None else exchange :].tolist()
    kept = sorted({*kept, *_collective_just_over(log, rows)})
    parts = [_with_handover(rows, each, handed) for each in kept]
    if len(handed) and not len(positions(rows[handed[-1] + 1 :], *_EVENTS)):
        parts.append(rows[handed[-1] : handed[-1] + 1])  # more releases of its answer may follow
    return np.concatenate([rows[:0], *parts]), begun


def _collective_just_over(log: EventLog, rows: Rows) -> list[int]:
    """Return the index of the push that has just ended a collective operation: releases may follow."""
    ends = _ends_of_collectives(log, rows)[-1:]
    found: list[int] = ends[rows["time_s"][ends] == rows["time_s"][-1:]].tolist()
    return found


def _by_worker(rows: Rows, place: Array) -> list[Array]:
    place = place[np.argsort(rows["worker"][place], kind="stable")]
    worker = rows["worker"][place]
    return [part for part in np.split(place, np.flatnonzero(worker[1:] != worker[:-1]) + 1) if len(part)]


def _exchange_under_way(own: Rows, going_on: list[int]) -> int | None:
    """Return the position of a worker's newest push if it overlaps and its exchange is unfinished."""
    pushes = positions(own, Kind.PUSH)
    if not going_on or not len(pushes) or int(own["text"][pushes[-1]]) not in going_on:
        return None
    return None if len(positions(own[pushes[-1] :], Kind.LEAVE)) else int(pushes[-1])


def _with_handover(rows: Rows, place: int, handed: Array) -> Rows:
    """Return a row between the hand-over that delays it and the end of the answer."""
    row, before = rows[place : place + 1], handed[handed < place]
    is_late = row["kind"][0] == Kind.RELEASE and len(before)
    if not is_late or len(positions(rows[before[-1] + 1 : place], *_EVENTS)):
        return row
    end = row.copy()
    end["kind"] = Kind.EVALUATED  # an event that has no span
    return np.concatenate([rows[before[-1] : before[-1] + 1], row, end])


def seconds_without_computing(log: EventLog) -> float:
    """Return the seconds in which no worker computed: all sent, waited, pulled or were absent."""
    spans = spans_of(log, with_membership(log.rows()))
    ours = spans.phase == PHASES.index("compute")
    start_s, end_s = spans.start_s[ours], spans.end_s[ours]
    order = np.argsort(start_s, kind="stable")
    start_s, latest = start_s[order], np.maximum.accumulate(end_s[order])
    covered = np.maximum(0.0, latest - np.maximum(start_s, np.concatenate([[0.0], latest[:-1]])))
    return float(end_of(log.rows()) - covered.sum())
