"""A run as tables from which the panel shows the state at any time.

The tables hold intervals and instants, so that "what was at time t" is a search in sorted columns, which the
page makes (`js/recording.js`). They are plain arrays, and travel to a page or into a file as such.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from psbench.arrays import Array, Booleans
from psbench.core.log import ROW, EventLog, Kind
from psbench.metrics.clocks import Clocks, clocks_between
from psbench.metrics.rows import Absences, Rows, end_of, pick, positions, workers_of
from psbench.metrics.spans import PHASES, Spans, continuing, reason_text, spans_of

#: why a worker waits, by the reason that the strategy gave; other reasons are said as they are
WHY: Mapping[str, str] = {
    "barrier": "no worker continues before all have pushed",
    "k pushes": "the next version is not complete",
    "neighbours": "a neighbour has not sent its model of the same step",
    "vote": "no worker continues before all have voted",
    "switch": "a switch is under way, and all work ends first",
    "hand-over": "the model is being handed over",
    "end of the epoch": "it has done its share of the epoch",
    "answer": "its answer is on the way, or the server is busy",
}
STALENESS = "staleness bound"
#: what workers wait for while a switch is under way is drawn as a phase of its own; its place follows theirs
SWITCHING = "switching"
STAGES = (*PHASES, SWITCHING)
#: why, where the strategy gave another reason before the switch was asked for
_DRAINS = "the strategies are being switched, and all work under way ends first"

Table = dict[str, Array]
_STATES = (*Clocks.BREAKS, Kind.PUSH, Kind.HOLD, Kind.APPLY)


@dataclass(frozen=True)
class Recording:
    """A run's activities, as tables of equally long columns.

    Attributes
    ----------
    end_s : float, seconds
    workers : list of int
        All that ever joined.
    spans : Table
        `worker`, `phase` (place in `STAGES`), `start_s`, `end_s`, `why` (place in `whys`, 0 for none),
        `waited_for` (worker, -1 for none); by worker, then by time.
    whys : list of str
        Why workers waited, in words.
    clocks : Table
        `time_s`, `worker`, `clock`: each worker's clock from then on.
    models : Table
        `time_s`, `worker`, `version`: the model that a worker was sent.
    pushes : Table
        `worker`, `sent_s`, `arrived_s`, `left_s` (when it was applied or discarded; infinite if neither),
        `base_version`, `version` (that it made; -1 for none).
    versions : Table
        `time_s`, `version`, `pushes` (that made it), `barrier` (1 if they were all workers').
    epochs : Table
        `time_s`, `epoch` of each evaluation.
    compositions : Table
        `time_s`, `index`: which composition is in force from then on.
    presence : Table
        `time_s`, `worker`, `here`: who comes (1) and goes (0).
    """

    end_s: float
    workers: list[int]
    spans: Table
    whys: list[str]
    clocks: Table
    models: Table
    pushes: Table
    versions: Table
    epochs: Table
    compositions: Table
    presence: Table

    @property
    def tables(self) -> dict[str, Table]:
        names = ("spans", "clocks", "models", "pushes", "versions", "epochs", "compositions", "presence")
        return {name: getattr(self, name) for name in names}

    def plain(self) -> dict[str, Any]:
        """Return the recording as plain data for a page; columns are base64 of little-endian numbers."""
        tables = {
            name: {column: packed(values) for column, values in table.items()}
            for name, table in self.tables.items()
        }
        named = {"end_s": self.end_s, "workers": self.workers, "phases": list(STAGES), "whys": self.whys}
        return named | {"tables": tables}

    def between(self, from_s: float, to_s: float) -> Recording:
        """Return the part of the recording between two times, with the state at its beginning.

        What is under way at its edges is there whole: a wait is as long as it was.
        """
        cut: dict[str, Table] = {}
        for name, table in self.tables.items():
            if name == "spans":
                keep = (table["start_s"] <= to_s) & (table["end_s"] > from_s)
            elif name == "pushes":
                keep = (table["sent_s"] <= to_s) & (table["left_s"] >= from_s)
            else:
                keep = (table["time_s"] <= to_s) & ((table["time_s"] >= from_s) | _newest(table, from_s))
            cut[name] = {column: values[keep] for column, values in table.items()}
        return Recording(end_s=min(to_s, self.end_s), workers=self.workers, whys=self.whys, **cut)

    def around(self, at_s: float, limit: int) -> tuple[Recording, float]:
        """Return a part with at most about `limit` spans around a time, and its beginning."""
        starts = self._starts
        if len(starts) <= limit:
            return self, 0.0
        first = int(np.clip(np.searchsorted(starts, at_s) - limit // 2, 0, len(starts) - limit))
        # the time asked for is in it however many spans begin at one time
        begin, end = min(at_s, float(starts[first])), max(at_s, float(starts[first + limit - 1]))
        begin, end = max(0.0, begin), self.end_s if first + limit >= len(starts) else end
        return self.between(begin, end), begin

    @property
    def step_s(self) -> Array:
        """Mean duration of each worker's steps (s), in the order of `workers`; 0 for one without a step.

        A step that is cut off by the end of the log counts only for a worker that has no other.
        """
        spans = self.spans
        computes = spans["phase"] == PHASES.index("compute")
        place = np.searchsorted(self.workers, spans["worker"])
        lasts, is_whole = spans["end_s"] - spans["start_s"], spans["end_s"] < self.end_s
        cut, whole = (
            _means(place[chosen], lasts[chosen], len(self.workers))
            for chosen in (computes & ~is_whole, computes & is_whole)
        )
        return np.where(whole > 0, whole, cut)

    @property
    def waiting(self) -> Array:
        """Share of its time that each worker waits, 0 to 1, in the order of `workers`."""
        spans = self.spans
        place, lasts = np.searchsorted(self.workers, spans["worker"]), spans["end_s"] - spans["start_s"]
        waits = np.isin(spans["phase"], (PHASES.index("wait"), STAGES.index(SWITCHING)))
        of_each = [np.bincount(place, weights, len(self.workers)) for weights in (lasts * waits, lasts)]
        shares: Array = of_each[0] / np.maximum(of_each[1], np.finfo(float).tiny)
        return shares

    def waiting_along(self, parts: int) -> Array:
        """Share of waiting workers, 0 to 1, in each of that many equal parts of the run."""
        spans = self.spans
        waits = np.isin(spans["phase"], (PHASES.index("wait"), STAGES.index(SWITCHING)))
        edges = np.linspace(0.0, self.end_s, parts + 1)
        waited, present = (
            np.diff(_elapsed(spans["start_s"][chosen], spans["end_s"][chosen], edges))
            for chosen in (waits, slice(None))
        )
        shares: Array = np.clip(waited / np.maximum(present, np.finfo(float).tiny), 0.0, 1.0)
        return shares

    @cached_property
    def _starts(self) -> Array:
        return np.sort(self.spans["start_s"])

    @cached_property
    def settled_s(self) -> float:
        """Time before which the recording is final, if the log continues; later spans may still grow."""
        spans = self.spans
        under_way = spans["start_s"][spans["end_s"] >= self.end_s]
        return float(under_way.min()) if len(under_way) else self.end_s

    @cached_property
    def instants(self) -> dict[str, Array]:
        """The times that a viewer can step to, in order, by kind: event, update, barrier, epoch, wait."""
        spans, versions = self.spans, self.versions
        for_somebody = (spans["phase"] == PHASES.index("wait")) & (spans["waited_for"] >= 0)
        return {
            "event": np.unique(
                np.concatenate([spans["start_s"], versions["time_s"], self.pushes["arrived_s"]])
            ),
            "update": np.unique(versions["time_s"]),
            "barrier": np.unique(versions["time_s"][versions["barrier"] > 0]),
            "epoch": np.unique(self.epochs["time_s"]),
            "wait": np.unique(spans["start_s"][for_somebody]),
        }

    def next(self, kind: str, at_s: float, back: bool = False) -> float | None:
        """Return the next instant of a kind after a time, or the previous one; None if there is none."""
        times = self.instants[kind]
        place = int(np.searchsorted(times, at_s, side="left" if back else "right")) - back
        return float(times[place]) if 0 <= place < len(times) else None


def _elapsed(start_s: Array, end_s: Array, times: Array) -> Array:
    """Return the summed seconds of all spans before each of the times."""

    def since(begin_s: Array) -> Array:
        begin_s = np.sort(begin_s)
        count = np.searchsorted(begin_s, times)
        sums: Array = count * times - np.concatenate([[0.0], np.cumsum(begin_s)])[count]
        return sums

    return since(start_s) - since(end_s)


def _newest(table: Table, at_s: float) -> Booleans:
    """Return a mask of the newest rows before a time, one for each worker if rows have workers."""
    before = int(np.searchsorted(table["time_s"], at_s))
    kept = np.zeros(len(table["time_s"]), dtype=bool)
    if "worker" not in table:
        kept[max(0, before - 1) : before] = True
    else:
        _, from_behind = np.unique(table["worker"][:before][::-1], return_index=True)
        kept[before - 1 - from_behind] = True
    return kept


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
        """Advance to a row."""
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


_MODEL = "time_s", "worker", "version"


def _in_force(table: Table) -> Table:
    kept = _newest(table, np.inf)
    return {name: values[kept] for name, values in table.items()}


def _joined(first: Table, second: Table) -> Table:
    return {name: np.concatenate([values, second[name]]) for name, values in first.items()}


def recording(
    log: EventLog,
    bounds: Sequence[int | None] = (),
    since: LogPrefix | None = None,
    stop: int | None = None,
) -> Recording:
    """Return a log as tables from which the state at any time follows.

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
    whys, codes = _whys(log, spans, states.leads)
    switched = [place for place, why in enumerate(whys) if why in (WHY["switch"], WHY["hand-over"])]
    spans.phase[np.isin(codes, switched)] = STAGES.index(SWITCHING)
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
        if _DRAINS not in whys:
            whys = [*whys, _DRAINS]
        codes[drained] = whys.index(_DRAINS)
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
        """Read rows without joins or leaves."""
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
        """`time_s`, `worker`, `lead` and `bound` (-1 for none) of each hold due to the staleness bound."""
        return _stacked(self._leads, time_s=float, worker=int, lead=int, bound=int)

    @property
    def versions(self) -> Table:
        """`Recording.versions`: the pushes of one version are applied one after another."""
        made = _stacked(self._made, time_s=float, version=int, active=int)
        version = made["version"]
        last = np.flatnonzero(np.append(version[1:] != version[:-1], True)[: len(version)])
        count = np.diff(np.append(-1, last))
        barrier = (count >= made["active"][last]) & (made["active"][last] > 1)
        columns = {name: made[name][last] for name in ("time_s", "version")}
        columns |= {"pushes": count.astype(np.int32), "barrier": barrier.astype(np.int32)}
        return _joined(self._before, columns)


def _ahead(lead: int, bound: int) -> str:
    steps = f"it is {lead} step{'s' if lead != 1 else ''} ahead of the slowest"
    if bound < 0:
        return steps
    more = {1: "one"}.get(lead - bound, str(lead - bound))
    return f"{steps}: {more} more than its bound of {bound} allows"


def _whys(log: EventLog, spans: Spans, leads: Table) -> tuple[list[str], Array]:
    """Return the explanations that occur, the empty one first, and each span's index among them."""
    places: dict[str, int] = {"": 0}
    codes = np.zeros(len(spans.worker), dtype=np.uint16)
    waits = np.flatnonzero(spans.phase == PHASES.index("wait"))
    reason = spans.reason[waits]
    for number in np.unique(reason).tolist():
        own, name = waits[reason == number], reason_text(log, number)
        if name != STALENESS:
            codes[own] = places.setdefault(WHY.get(name, name), len(places))
            continue
        for text, which in _by_lead(spans.worker[own].astype(np.int64), spans.start_s[own], leads):
            codes[own[which]] = places.setdefault(text, len(places))
    return list(places), codes


def _by_lead(worker: Array, start: Array, leads: Table) -> Iterator[tuple[str, Array]]:
    """Yield the explanations of waits due to the staleness bound, each with its waits."""
    times = np.unique(leads["time_s"])
    keys = leads["worker"].astype(np.int64) * (len(times) + 1) + np.searchsorted(times, leads["time_s"])
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(times, start)
    wanted = worker * (len(times) + 1) + place
    at = np.searchsorted(keys[order], wanted, side="right") - 1  # of two at one time, the later
    known = (at >= 0) & np.isin(start, times)
    known &= keys[order[at]] == wanted if len(keys) else False
    found = order[at] if len(keys) else np.zeros(len(start), dtype=np.int64)
    said = np.full((len(start), 2), -1)
    said[known] = np.stack([leads["lead"], leads["bound"]], axis=1)[found[known]]
    pairs, place = np.unique(said, axis=0, return_inverse=True)
    for number, (lead, bound) in enumerate(pairs.tolist()):
        yield (_ahead(lead, bound) if lead >= 0 else STALENESS), place.reshape(-1) == number


def _means(place: Array, values: Array, count: int) -> Array:
    """Return the mean of the values at each index, 0 without values."""
    sums = np.bincount(place, weights=values, minlength=count)
    means: Array = sums / np.maximum(np.bincount(place, minlength=count), 1)
    return means


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


def packed(values: Array) -> dict[str, str]:
    """Return a column as `{"as": type, "data": base64}`, in the smallest exact type."""
    if values.dtype.kind == "f":
        kind = "f8"
    else:
        held = (small for small in ("u1", "u2") if np.array_equal(values.astype(small), values))
        kind = next(held, "i4")
    small = values.astype(f"<{kind}")
    return {"as": kind, "data": base64.b64encode(small.tobytes()).decode("ascii")}


_NO_LEADS = _stacked([], time_s=float, worker=int, lead=int, bound=int)
_NO_VERSIONS = _stacked([], time_s=float, version=int, pushes=int, barrier=int)
