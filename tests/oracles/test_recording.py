"""Every table of a recording, and of its parts, is the one that plain loops over the log give."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import numpy as np
import pytest
from oracles import recordings
from oracles.small_runs import NAMES
from oracles.story import PHASES, end_of, rows_of, workers_of

from psbench.charts.growing import GrowingTables
from psbench.metrics.recording import Recording
from psbench.metrics.recording_reader import recording
from psbench.metrics.totals import PushTotals, SpanTotals
from psbench.results.run import Run

#: of the compositions of a run; those of most runs are not known
BOUNDS: dict[str, list[int | None]] = {"bounded": [2], "switched by hand": [1, 2], "switch": [None]}


def rows_in(recorded: Recording, name: str) -> list[dict[str, Any]]:
    """Return a table as rows, the codes of whys as texts."""
    columns = {column: values.tolist() for column, values in recorded.tables[name].items()}
    found = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [row | {"why": recorded.whys[row["why"]]} if "why" in row else row for row in found]


def check(recorded: Recording, expected: dict[str, list[dict[str, Any]]]) -> None:
    assert recorded.tables.keys() == expected.keys()
    for name, table in expected.items():
        found = rows_in(recorded, name)
        assert len(found) == len(table), name
        for ours, theirs in zip(table, found, strict=True):
            assert theirs == {
                column: pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value
                for column, value in ours.items()
            }, name


@pytest.mark.parametrize("name", NAMES)
def test_every_table_of_a_recording(runs: dict[str, list[Run]], name: str) -> None:
    run = runs[name][0]
    rows = rows_of(run.log)
    for bounds in {(), tuple(BOUNDS.get(name, ()))}:
        recorded = recording(run.log, bounds)
        check(recorded, recordings.tables_of(rows, bounds))
        assert (recorded.end_s, recorded.workers) == (end_of(rows), workers_of(rows))
        assert recorded.whys[0] == ""
        assert len({*recorded.whys}) == len(recorded.whys)


@pytest.mark.parametrize("name", ["bounded", "losses", "switch", "switched by hand", "moving", "discarded"])
def test_a_part_of_a_recording(runs: dict[str, list[Run]], name: str) -> None:
    """At times between rows and at times of rows, where what is cut off depends on `<` or `<=`."""
    run = runs[name][0]
    recorded = recording(run.log)
    expected = {table: rows_in(recorded, table) for table in recorded.tables}
    times = np.unique(run.log.rows()["time_s"])
    begin, end = float(times[len(times) // 3]), float(times[2 * len(times) // 3])
    sent = float(recorded.pushes["sent_s"][len(recorded.pushes["sent_s"]) // 2])
    parts = [(begin, end), (begin + 1e-6, end + 1e-6), (0.0, end), (begin, 10 * recorded.end_s), (0.0, sent)]
    for from_s, to_s in parts:
        part = recorded.between(from_s, to_s)
        check(part, recordings.between(expected, from_s, to_s))
        assert part.end_s == min(to_s, recorded.end_s)
        assert (part.workers, part.whys) == (recorded.workers, recorded.whys)


def steps_of_one(count: int) -> Recording:
    """A worker whose steps last a second each."""
    starts, none = np.arange(float(count)), np.zeros(count, dtype=np.int64)
    spans = {"worker": none, "phase": none + 1, "start_s": starts, "end_s": starts + 1}
    spans |= {"why": none, "waited_for": none - 1}
    empty = {"time_s": np.zeros(0)}
    pushes = {"sent_s": starts, "left_s": starts + 1}
    return Recording(float(count), [0], spans, [""], empty, empty, pushes, empty, empty, empty, empty)


@pytest.mark.parametrize(
    ("at_s", "begin", "end"),
    [(0.0, 0, 3), (5.0, 3, 6), (4.5, 3, 6), (7.0, 5, 8), (7.5, 6, 10), (8.0, 6, 10), (10.0, 6, 10)],
)
def test_the_surroundings_of_a_time(at_s: float, begin: int, end: int) -> None:
    """Four of ten: as many before as after, and at the end of the run what is left of it."""
    whole = steps_of_one(10)
    part, since = whole.around(at_s, limit=4)
    assert (since, part.end_s) == (begin, end)
    assert part.spans["start_s"].tolist() == list(range(begin, min(end + 1, 10)))
    assert whole.around(at_s, limit=10) == (whole, 0.0)


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        *(([0, 255], "u1"), ([1, 2], "u1"), ([], "u1"), ([0, 256], "u2"), ([0, 65535], "u2")),
        *(([0, 65536], "i4"), ([-1, 0], "i4"), ([-1, 300], "i4")),
    ],
)
def test_a_column_travels_in_as_few_bytes_as_hold_it(numbers: list[int], kind: str) -> None:
    epochs = {"epoch": np.array(numbers, dtype=np.int32)}
    packed = dataclasses.replace(steps_of_one(1), epochs=epochs).plain()["tables"]["epochs"]["epoch"]
    assert packed["as"] == kind
    assert np.frombuffer(base64.b64decode(packed["data"]), f"<{kind}").tolist() == numbers


@pytest.mark.by_day(36)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_sums_and_counts_since_an_earlier_state(runs: dict[str, list[Run]], name: str, share: float) -> None:
    log = runs[name][0].log
    rows = rows_of(log)
    cut = int(share * len(rows))
    spans, pushes = SpanTotals(), PushTotals()
    earlier = SpanTotals(), PushTotals()
    for stop in (cut, len(log)):
        start = 0 if stop == cut else cut
        spans.read(log, log.rows(start, stop))
        pushes.read(log.rows(start, stop))
    earlier[0].read(log, log.rows(0, cut))
    earlier[1].read(log.rows(0, cut))
    spans.count_from(earlier[0])
    pushes.count_from(earlier[1])
    expected = recordings.totals_since(rows, cut)
    found: dict[str, Any] = {"phases_s": spans.phases_s(), "phases": spans.phases()}
    found |= {"waits_s": spans.waits_s(log), "waits": spans.waits(log)}
    for field, values in found.items():
        assert values == pytest.approx(expected[field], rel=1e-6, abs=1e-9), field
    for field, counts in (("staleness", pushes.staleness), ("lead", pushes.lead)):
        seen = {value: count for value, count in enumerate(counts.tolist()) if count}
        assert seen == expected[field], field
    columns = pushes.counts.columns(spans.workers)
    for field in ("pushes", "applied", "samples"):
        assert columns[field].tolist() == expected[field], field
    total = sum(expected["applied"])
    assert columns["share"].tolist() == pytest.approx(
        [each / total if total else float("nan") for each in expected["applied"]], nan_ok=True
    )
    assert pushes.bytes() == expected["bytes"]
    assert spans.end_s == expected["end_s"]


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("name", ["bounded", "barrier", "dropped"])
def test_what_waiting_costs_and_buys(runs: dict[str, list[Run]], name: str, share: float) -> None:
    (run, *_) = runs[name]
    rows = rows_of(run.log)
    cut = int(share * len(rows))
    tables, earlier = (GrowingTables("own", run.meta) for _ in range(2))
    tables.read(run.log, 0, len(rows))
    earlier.read(run.log, 0, cut)
    tables.count_from(earlier)
    since = recordings.totals_since(rows, cut)
    stale = since["staleness"]
    applied = sum(stale.values())
    lasted_s = rows[-1].time_s - (rows[cut - 1].time_s if cut else 0.0)
    trade = tables.totals("trade")
    assert trade["per_100_s"] == pytest.approx([100 * lasted_s / applied])
    mean = sum(value * count for value, count in stale.items()) / applied
    assert trade["staleness"] == pytest.approx([mean])
    use = tables.totals("time_use")
    shares = dict(zip(zip(use["worker"], use["phase"], strict=True), use["fraction"], strict=True))
    assert shares == pytest.approx(since["phases"], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["barrier", "losses", "switch"])
def test_the_times_that_one_can_step_to(runs: dict[str, list[Run]], name: str) -> None:
    recorded = recording(runs[name][0].log)
    spans, versions = rows_in(recorded, "spans"), rows_in(recorded, "versions")
    arrived = [row["arrived_s"] for row in rows_in(recorded, "pushes")]
    made = [row["time_s"] for row in versions]
    waits = [row for row in spans if row["phase"] == PHASES.index("wait") and row["waited_for"] >= 0]
    expected = {
        "event": [*(row["start_s"] for row in spans), *made, *arrived],
        "update": made,
        "barrier": [row["time_s"] for row in versions if row["barrier"]],
        "epoch": [row["time_s"] for row in rows_in(recorded, "epochs")],
        "wait": [row["start_s"] for row in waits],
    }
    assert recorded.instants.keys() == expected.keys()
    for kind, times in expected.items():
        assert recorded.instants[kind].tolist() == sorted({*times})
        for at_s in (-1.0, 0.0, recorded.end_s / 3, *times[:1], recorded.end_s, recorded.end_s + 1):
            assert recorded.next(kind, at_s) == min((t for t in times if t > at_s), default=None)
            assert recorded.next(kind, at_s, back=True) == max((t for t in times if t < at_s), default=None)
    open_since = [row["start_s"] for row in spans if row["end_s"] >= recorded.end_s]
    assert recorded.settled_s == min(open_since, default=recorded.end_s)
