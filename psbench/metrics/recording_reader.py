"""Reads a log, whole or from any of its rows on, into the tables of a `Recording`."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import numpy as np

from psbench.arrays import Array
from psbench.core.log import ROW, EventLog, Kind
from psbench.metrics.clocks import Clocks, clocks_between
from psbench.metrics.recording import STAGES, SWITCHING, Recording, Table, newest
from psbench.metrics.rows import Absences, Rows, end_of, pick, positions, workers_of
from psbench.metrics.spans import PHASES, Spans, continuing, spans_of
from psbench.metrics.wait_reasons import DRAINS, STALENESS, WHY, explanations

_STATES = (*Clocks.BREAKS, Kind.PUSH, Kind.HOLD, Kind.APPLY)
_MODEL = "time_s", "worker", "version"


def recording(
    log: EventLog,
    bounds: Sequence[int | None] = (),
    since: LogPrefix | None = None,
    stop: int | None = None,
) -> Recording:
    """Return a log as tables from which any moment follows.

    Parameters
    ----------
    log : EventLog
    bounds : sequence of int or None, steps
        The staleness bound of each composition, which the log does not hold.
    since : LogPrefix, optional
        What was before the rows that are to be shown, which are all if it is not given. It stays as it is.
    stop : int, optional
        Up to which row.
    """
    since = since or LogPrefix(bounds)
    rows = copy.deepcopy(since.absences).read(log.rows(since.row, stop))
    spans = spans_of(log, np.concatenate([since.open, rows])).in_order()
    states = _States(log, rows, since)
    whys, codes = explanations(log, spans, states.leads)
    switching = [place for place, why in enumerate(whys) if why in (WHY["switch"], WHY["hand-over"])]
    spans.phase[np.isin(codes, switching)] = STAGES.index(SWITCHING)
    spans, whys, codes = _with_switches(spans, whys, codes, _switches(rows, since.asked_s, end_of(rows))[0])
    handed, evaluated = pick(rows, Kind.HANDOVER), pick(rows, Kind.EVALUATED)
    return Recording(
        end_s=end_of(rows),
        workers=sorted({*workers_of(rows), *since.clocks.of, *since.presence["worker"].tolist()}),
        spans={
            "worker": spans.worker.astype(np.int64),
            "phase": spans.phase.astype(np.uint8),
            "start_s": spans.start_s,
            "end_s": spans.end_s,
            "why": codes,
            "waited_for": spans.waited_for.astype(np.int32),
        },
        whys=whys,
        clocks=states.clocks,
        models=_joined(since.models, _columns(pick(rows, Kind.RELEASE), *_MODEL)),
        pushes=_pushes(np.concatenate([since.pushes, rows])),
        versions=states.versions,
        epochs={"time_s": evaluated["time_s"].copy(), "epoch": evaluated["id"].copy()},
        compositions={
            "time_s": np.append(0.0, handed["time_s"]),
            "index": np.append(since.composition, handed["id"]),
        },
        presence=_joined(since.presence, _presence(rows)),
    )


class LogPrefix:
    """State at a row of a log, from which later rows can be read.

    Parameters
    ----------
    bounds : sequence of int or None, steps
        The staleness bound of each composition.

    Attributes
    ----------
    row : int
        The number of rows that were read.
    """

    def __init__(self, bounds: Sequence[int | None] = ()) -> None:
        self.row = 0
        self.bounds, self.clocks, self.composition = bounds, Clocks(), 0
        self.absences = Absences()
        self.open = self.pushes = np.zeros(0, dtype=ROW)
        self.asked_s: float | None = None  #: since when a switch is under way
        self.presence = _presence(self.open)
        self.leads, self.versions, self.models = _NO_LEADS, _NO_VERSIONS, _columns(self.open, *_MODEL)

    def read(self, log: EventLog, stop: int) -> None:
        """Move on to a row."""
        if stop <= self.row:
            return
        rows = self.absences.read(log.rows(self.row, stop))
        states = _States(log, rows, self)
        self.clocks, self.composition = states.reached
        self.leads, self.versions = _in_force(states.leads), _in_force(states.versions)
        self.models = _in_force(_joined(self.models, _columns(pick(rows, Kind.RELEASE), *_MODEL)))
        self.pushes = np.concatenate([self.pushes, pick(rows, Kind.PUSH)])
        self.presence = _in_force(_joined(self.presence, _presence(rows)))
        self.asked_s = _switches(rows, self.asked_s, np.inf)[1]
        settled = pick(rows, Kind.APPLY, Kind.DISCARD)["id"]
        self.pushes = self.pushes[~np.isin(self.pushes["id"], settled)]
        self.open, _ = continuing(log, np.concatenate([self.open, rows]))
        self.row = stop


def _in_force(table: Table) -> Table:
    kept = newest(table, np.inf)
    return {name: values[kept] for name, values in table.items()}


def _joined(first: Table, second: Table) -> Table:
    return {name: np.concatenate([values, second[name]]) for name, values in first.items()}


def _presence(rows: Rows) -> Table:
    """Return the workers' arrivals and departures, from rows in which absent workers have left."""
    rows = pick(rows, Kind.JOIN, Kind.LEAVE)
    here = (rows["kind"] == Kind.JOIN).astype(np.int64)
    return _columns(rows, "time_s", "worker") | {"here": here}


def _switches(
    rows: Rows, asked_s: float | None, end_s: float
) -> tuple[list[tuple[float, float]], float | None]:
    """Return the intervals of finished switches, and the start of a pending one."""
    found: list[tuple[float, float]] = []
    for row in pick(rows, Kind.SWITCH_REQUESTED, Kind.HANDOVER):
        time_s = float(row["time_s"])
        if row["kind"] == Kind.SWITCH_REQUESTED:
            asked_s = time_s if asked_s is None else asked_s
        else:
            found += [] if asked_s is None else [(asked_s, time_s)]
            asked_s = None
    return found + ([] if asked_s is None else [(asked_s, end_s)]), asked_s


def _with_switches(
    spans: Spans, whys: list[str], codes: Array, switches: Sequence[tuple[float, float]]
) -> tuple[Spans, list[str], Array]:
    """Split waits at a switch request: from then on the reason is the drain."""
    wait = PHASES.index("wait")
    for begin, end in switches:
        cut = (spans.phase == wait) & (spans.start_s < begin) & (spans.end_s > begin)
        after = Spans(*(column[cut].copy() for column in spans))
        after.start_s[:] = begin
        spans.end_s[cut] = begin
        codes = np.concatenate([codes, codes[cut]])
        spans = Spans(*(np.concatenate(both) for both in zip(spans, after, strict=True)))
        order = np.lexsort((spans.start_s, spans.worker))
        spans, codes = Spans(*(column[order] for column in spans)), codes[order]
        drained = (spans.phase == wait) & (spans.start_s >= begin) & (spans.start_s < end)
        spans.phase[drained] = STAGES.index(SWITCHING)
        if DRAINS not in whys:
            whys = [*whys, DRAINS]
        codes[drained] = whys.index(DRAINS)
    return spans, whys, codes


class _States:
    """Clocks, leads of held workers, and the pushes of each version, along the rows."""

    def __init__(self, log: EventLog, rows: Rows, since: LogPrefix) -> None:
        self._clocks, self._bounds = copy.deepcopy(since.clocks), since.bounds
        self._composition = since.composition
        self._held = log.number(STALENESS) if STALENESS in log.texts else -1
        begin = float(rows["time_s"][0]) if len(rows) else 0.0
        self._rises: list[Table] = [self._now(begin)] if self._clocks.of else []
        self._made: list[Table] = []
        self._leads: list[Table] = [since.leads]
        self._before = since.versions
        rows = pick(rows, *_STATES)
        start = 0
        for stop in [*positions(rows, *Clocks.BREAKS).tolist(), len(rows)]:
            self._between(rows[start:stop])
            if stop < len(rows):
                self._break(rows[stop])
            start = stop + 1

    @property
    def reached(self) -> tuple[Clocks, int]:
        """The clocks and the composition after the rows."""
        return self._clocks, self._composition

    def _between(self, rows: Rows) -> None:
        """Read rows between which no worker joins or leaves."""
        applied = pick(rows, Kind.APPLY)
        if len(applied):
            self._made.append(
                _columns(applied, "time_s", "version")
                | {"active": np.full(len(applied), len(self._clocks.of))}
            )
        rows = pick(rows, Kind.PUSH, Kind.HOLD)
        if len(rows):
            rows = rows[np.isin(rows["worker"], list(self._clocks.of))]
        if not len(rows):
            return
        clock, lead = clocks_between(rows, self._clocks.of)
        pushed = rows["kind"] == Kind.PUSH
        self._rises.append(_columns(rows[pushed], "time_s", "worker") | {"clock": clock[pushed]})
        held = ~pushed & (rows["text"] == self._held)
        bound = self._bounds[self._composition] if self._composition < len(self._bounds) else None
        known = np.full(int(held.sum()), -1 if bound is None else bound)
        self._leads.append(_columns(rows[held], "time_s", "worker") | {"lead": lead[held], "bound": known})

    def _break(self, row: np.void) -> None:
        self._clocks.change(row)
        worker, time_s = int(row["worker"]), float(row["time_s"])
        if row["kind"] == Kind.HANDOVER:
            self._composition = int(row["id"])
            self._rises.append(self._now(time_s))
        elif worker in self._clocks.of:  # the others' clocks are what they were
            self._rises.append(self._now(time_s, [worker]))

    def _now(self, time_s: float, workers: Collection[int] | None = None) -> Table:
        clocks = self._clocks.of
        if workers is not None:
            clocks = {worker: clocks[worker] for worker in workers}
        return {
            "time_s": np.full(len(clocks), time_s),
            "worker": np.array(list(clocks), dtype=np.int64),
            "clock": np.array(list(clocks.values()), dtype=np.int64),
        }

    @property
    def clocks(self) -> Table:
        return _stacked(self._rises, time_s=float, worker=int, clock=int)

    @property
    def leads(self) -> Table:
        """`time_s`, `worker`, `lead` and `bound` (-1 for none) of each hold by the staleness bound."""
        return _stacked(self._leads, time_s=float, worker=int, lead=int, bound=int)

    @property
    def versions(self) -> Table:
        """`Recording.versions`: pushes that make one version are applied one after the other."""
        made = _stacked(self._made, time_s=float, version=int, active=int)
        version = made["version"]
        last = np.flatnonzero(np.append(version[1:] != version[:-1], True)[: len(version)])
        count = np.diff(np.append(-1, last))
        barrier = (count >= made["active"][last]) & (made["active"][last] > 1)
        columns = {name: made[name][last] for name in ("time_s", "version")}
        columns |= {"pushes": count.astype(np.int32), "barrier": barrier.astype(np.int32)}
        return _joined(self._before, columns)


def _pushes(rows: Rows) -> Table:
    push, settled = pick(rows, Kind.PUSH), pick(rows, Kind.APPLY, Kind.DISCARD)
    left, version = np.full(len(push), np.inf), np.full(len(push), -1, dtype=np.int32)
    order = np.argsort(push["id"], kind="stable")
    if len(push):
        place = np.minimum(np.searchsorted(push["id"][order], settled["id"]), len(push) - 1)
        place = order[place]
        is_here = push["id"][place] == settled["id"]  # or it arrived before the first row
        settled, place = settled[is_here], place[is_here]
        left[place] = settled["time_s"]
        version[place] = np.where(settled["kind"] == Kind.APPLY, settled["version"], -1)
    return {
        "worker": push["worker"].copy(),
        "sent_s": push["time_s"] - push["send_s"],
        "arrived_s": push["time_s"].copy(),
        "left_s": left,
        "base_version": push["version"].copy(),
        "version": version,
    }


def _columns(rows: Rows, *names: str) -> Table:
    return {name: np.ascontiguousarray(rows[name]) for name in names}


def _stacked(parts: Sequence[Table], **types: type) -> Table:
    kinds = {name: np.float64 if kind is float else np.int32 for name, kind in types.items()}
    return {
        name: np.concatenate([np.zeros(0, kind), *(part[name] for part in parts)]).astype(kind)
        for name, kind in kinds.items()
    }


_NO_LEADS = _stacked([], time_s=float, worker=int, lead=int, bound=int)
_NO_VERSIONS = _stacked([], time_s=float, version=int, pushes=int, barrier=int)
