"""The tables of a recording, and sums and counts of a part of a log, from the log's definition."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from oracles.story import (
    PHASES,
    ROUNDING_S,
    Row,
    Rows,
    end_of,
    presence_of,
    pushes_of,
    spans_of,
    stalenesses,
    starts_of,
    with_absences,
    workers_of,
)

from psbench.metrics.wait_reasons import WHY

Table = list[dict[str, Any]]


def tables_of(rows: Rows, bounds: Sequence[int | None] = ()) -> dict[str, Table]:
    """Return every table of `recording` as rows; `why` of a span is the text itself."""
    return {
        "spans": _spans(rows, bounds),
        "clocks": _clocks(rows),
        "models": [
            {"time_s": row.time_s, "worker": row.worker, "version": row.version}
            for row in rows
            if row.kind == "RELEASE"
        ],
        "pushes": _pushes(rows),
        "versions": _versions(rows),
        "epochs": [{"time_s": row.time_s, "epoch": row.id} for row in rows if row.kind == "EVALUATED"],
        "compositions": [
            {"time_s": 0.0, "index": 0},
            *({"time_s": row.time_s, "index": row.id} for row in rows if row.kind == "HANDOVER"),
        ],
        "presence": [
            {"time_s": row.time_s, "worker": row.worker, "here": int(row.kind == "JOIN")}
            for row in with_absences(rows)
            if row.kind in ("JOIN", "LEAVE")
        ],
    }


def _spans(rows: Rows, bounds: Sequence[int | None]) -> Table:
    said = _ahead(rows, bounds)
    found = []
    for span in spans_of(rows):
        why = ""
        if span.phase == "wait":
            why = WHY.get(span.reason, span.reason)
            if span.reason == "staleness bound":
                why = said.get((span.worker, span.start_s), why)
        found.append(
            {"worker": span.worker, "phase": PHASES.index(span.phase)}
            | {"start_s": span.start_s, "end_s": span.end_s, "why": why}
            | {"waited_for": -1 if span.whom is None else span.whom}
        )
    for span in found:
        if span["why"] in (WHY["switch"], WHY["hand-over"]):
            span["phase"] = SWITCHING
    for begin, end in _switches(rows):
        found = [part for span in found for part in _drained(span, begin, end)]
    return found


#: the place of the phase that follows those of `PHASES`
SWITCHING = len(PHASES)
DRAINS = "the strategies are being switched, and all work under way ends first"


def _switches(rows: Rows) -> list[tuple[float, float]]:
    """Return from when to when a switch was asked for and not made; one at the end lasts until then."""
    found, asked = [], None
    for row in rows:
        if row.kind == "SWITCH_REQUESTED" and asked is None:
            asked = row.time_s
        if row.kind == "HANDOVER":
            if asked is not None:
                found.append((asked, row.time_s))
            asked = None
    return found + ([] if asked is None else [(asked, end_of(rows))])


def _drained(span: dict[str, Any], begin: float, end: float) -> Table:
    """Return a span, or a wait before a switch was asked for and what of it the switch made last."""
    if span["phase"] != PHASES.index("wait"):
        return [span]
    late = span | {"phase": SWITCHING, "why": DRAINS}
    if begin <= span["start_s"] < end:
        return [late]
    if span["start_s"] < begin < span["end_s"]:
        return [span | {"end_s": begin}, late | {"start_s": begin}]
    return [span]


class _Clocks:
    """The workers' clocks, moved along the rows one by one."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self._slowest = 0

    def move(self, row: Row) -> bool:
        """Take a row; return whether it changes who is here, or all clocks."""
        if self.of:
            self._slowest = min(self.of.values())
        if row.kind == "JOIN":
            self.of[row.worker] = self._slowest
        elif row.kind == "LEAVE":
            self.of.pop(row.worker, None)
        elif row.kind == "HANDOVER":
            self.of = dict.fromkeys(self.of, max(self.of.values(), default=0))
        elif row.kind == "PUSH" and row.worker in self.of:
            self.of[row.worker] += 1
        return row.kind in ("JOIN", "LEAVE", "HANDOVER")


def _beyond(lead: int, bound: int | None) -> str:
    if bound is None:
        return ""
    more = "one" if lead - bound == 1 else str(lead - bound)
    return f", {more} more than its bound of {bound} allows"


def _ahead(rows: Rows, bounds: Sequence[int | None]) -> dict[tuple[int, float], str]:
    """Return why each worker was held by the staleness bound, by worker and time."""
    clocks, in_force = _Clocks(), 0
    found = {}
    for row in with_absences(rows):
        clocks.move(row)
        if row.kind == "HANDOVER":
            in_force = row.id
        if row.kind == "HOLD" and row.text == "staleness bound" and row.worker in clocks.of:
            lead = clocks.of[row.worker] - min(clocks.of.values())
            text = f"it is {lead} step{'' if lead == 1 else 's'} ahead of the slowest"
            bound = bounds[in_force] if in_force < len(bounds) else None
            found[row.worker, row.time_s] = text + _beyond(lead, bound)
    return found


def _clocks(rows: Rows) -> Table:
    clocks = _Clocks()
    found = []
    for row in with_absences(rows):
        if clocks.move(row):
            moved = clocks.of if row.kind == "HANDOVER" else clocks.of.keys() & {row.worker}
            found += [{"time_s": row.time_s, "worker": w, "clock": clocks.of[w]} for w in moved]
        elif row.kind == "PUSH" and row.worker in clocks.of:
            found.append({"time_s": row.time_s, "worker": row.worker, "clock": clocks.of[row.worker]})
    return found


def _pushes(rows: Rows) -> Table:
    left = {row.id: row.time_s for row in rows if row.kind in ("APPLY", "DISCARD")}
    return [
        {
            "worker": push.row.worker,
            "sent_s": push.row.time_s - push.row.send_s,
            "arrived_s": push.row.time_s,
            "left_s": left.get(push.row.id, math.inf),
            "base_version": push.row.version,
            "version": -1 if push.version is None else push.version,
        }
        for push in pushes_of(rows)
    ]


def _versions(rows: Rows) -> Table:
    clocks = _Clocks()
    found: Table = []
    for row in with_absences(rows):
        clocks.move(row)
        if row.kind != "APPLY":
            continue
        if not found or found[-1]["version"] != row.version:
            found.append({"time_s": row.time_s, "version": row.version, "pushes": 0, "barrier": 0})
        found[-1]["pushes"] += 1
        here = len(clocks.of)
        found[-1]["barrier"] = int(1 < here <= found[-1]["pushes"])
    return found


def between(tables: dict[str, Table], from_s: float, to_s: float) -> dict[str, Table]:
    """Return the part of a recording between two times, with what was in force when it begins.

    A wait for a worker that is under way at the end is there with the push that ends it, and its clock, and
    with what the one that waits does next.
    """
    found: dict[str, Table] = {}
    over_s = to_s
    next_of: set[tuple[int, float]] = set()
    for row in tables["spans"]:
        if row["waited_for"] >= 0 and row["start_s"] <= to_s and row["end_s"] > from_s:
            over_s = max(over_s, row["end_s"])
            own = [other for other in tables["spans"] if other["worker"] == row["worker"]]
            later = [other for other in own if other["start_s"] >= row["end_s"]]
            if later:
                next_of.add((row["worker"], min(other["start_s"] for other in later)))
    for name, table in tables.items():
        if name == "spans":
            found[name] = [
                row
                for row in table
                if (row["start_s"] <= to_s and row["end_s"] > from_s)
                or (row["worker"], row["start_s"]) in next_of
            ]
        elif name == "pushes":
            found[name] = [row for row in table if row["sent_s"] <= over_s and row["left_s"] >= from_s]
        else:
            last_s = over_s if name == "clocks" else to_s
            newest = {row.get("worker"): place for place, row in enumerate(table) if row["time_s"] < from_s}
            found[name] = [
                row
                for place, row in enumerate(table)
                if (from_s <= row["time_s"] <= last_s)
                or (newest.get(row.get("worker")) == place and row["time_s"] <= last_s)
            ]
    return found


# -------------------------------------------------------------------- sums and counts of the end of a log


def totals_since(rows: Rows, cut: int) -> dict[str, Any]:
    """Return what is summed and counted of a log but for its first rows; shares are of the time since then.

    Work under way at the cut has no phase yet but computing: what it turns out to be is counted afterwards.
    """
    before = Rows(rows[:cut])
    phases = _less(_phases(rows), _phases(before))
    waits = _less(_waits(rows), _waits(before))
    there, earlier = presence_of(rows), presence_of(before)
    worked: Counter[int] = Counter()
    for (worker, _), seconds in phases.items():
        worked[worker] += seconds  # type: ignore[assignment]
    later = rows[cut:]
    workers = workers_of(rows)
    applied = [row for row in later if row.kind == "APPLY"]
    return {
        "phases_s": phases,
        "phases": {key: seconds / worked[key[0]] for key, seconds in phases.items()},
        "waits_s": waits,
        "waits": {key: s / (there[key[0]] - earlier.get(key[0], 0.0)) for key, s in waits.items()},
        "staleness": Counter(stalenesses(rows)[sum(row.kind == "APPLY" for row in before) :]),
        "lead": Counter(start.lead for start in starts_of(rows)[len(starts_of(before)) :]),
        "pushes": [sum(row.kind == "PUSH" and row.worker == worker for row in later) for worker in workers],
        "applied": [sum(row.worker == worker for row in applied) for worker in workers],
        "samples": [sum(row.samples for row in applied if row.worker == worker) for worker in workers],
        "bytes": {
            "up": sum(row.bytes for row in later if row.kind == "PUSH"),
            "down": sum(row.bytes for row in later if row.kind == "RELEASE"),
        },
        "end_s": end_of(rows),
    }


def _phases(rows: Rows) -> dict[tuple[int, str], float]:
    found: Counter[tuple[int, str]] = Counter()
    for span in spans_of(rows):
        found[span.worker, span.phase] += span.lasted  # type: ignore[assignment]
    return dict(found)  # type: ignore[arg-type]


def _waits(rows: Rows) -> dict[tuple[int, str], float]:
    found: Counter[tuple[int, str]] = Counter()
    for span in spans_of(rows):
        if span.phase == "wait":
            found[span.worker, span.reason] += span.lasted  # type: ignore[assignment]
    return dict(found)  # type: ignore[arg-type]


def _less(
    whole: dict[tuple[int, str], float], part: dict[tuple[int, str], float]
) -> dict[tuple[int, str], float]:
    found = {key: seconds - part.get(key, 0.0) for key, seconds in whole.items()}
    return {key: seconds for key, seconds in found.items() if seconds > ROUNDING_S}
