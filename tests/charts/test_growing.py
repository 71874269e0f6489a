"""Live charts' tables, made from new rows, are those of the whole log, however it is divided."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from psbench import charts, metrics
from psbench.charts import tables
from psbench.charts.growing import GrowingTables, Line, tables_of
from psbench.core.log import Kind
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run

SWITCH = {"name": "strategy_switch", "rule": {"name": "empirical", "window": 2, "threshold": 0.9}}


@pytest.fixture(scope="module", params=["ssp", "dbs_sgd", SWITCH], ids=["ssp", "dbs_sgd", "switch"])
def done(request: pytest.FixtureRequest) -> Run:
    return run(Experiment(strategy=request.param, stop={"epochs": 4}))


def grown(done: Run, pieces: int) -> GrowingTables:
    found, size = GrowingTables("own", done.meta), len(done.log)
    for i in range(pieces):
        found.read(done.log, i * size // pieces, (i + 1) * size // pieces)
    found.end()
    return found


def columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    rows = charts.records(table)
    return {name: [row[name] for row in rows] for name in table}


@pytest.mark.parametrize("pieces", [7, 60])
def test_tables_do_not_depend_on_how_a_log_is_divided(done: Run, pieces: int) -> None:
    found, whole = grown(done, pieces), grown(done, 1)
    for name in ("time_use", "idle", "share", "staleness", "lead", "bytes", "trade", "batch_size", "rule"):
        ours, theirs = found.totals(name), whole.totals(name)
        assert {column: charts.plain(ours[column]) for column in ours} == {
            column: charts.plain(theirs[column]) for column in theirs
        }
        assert GrowingTables("own", done.meta).totals(name) == {}
    for name, line in whole.curves.lines.items():
        assert found.curves.lines[name].columns == line.columns
    assert found.curves.marks == whole.curves.marks


def test_there_is_nothing_to_sum_up_before_the_first_push(done: Run) -> None:
    first = int((done.log.rows()["kind"] == Kind.PUSH).argmax())
    found = GrowingTables("own", done.meta)
    found.read(done.log, 0, first)
    assert first > 0
    assert [found.totals(name) for name in ("time_use", "share", "bytes")] == [{}, {}, {}]
    found.read(done.log, first, first + 1)
    assert sum(found.totals("share")["pushes"]) == 1


def test_curves_of_a_whole_log_are_its_metrics(done: Run) -> None:
    lines = grown(done, 1).curves.lines
    evaluated = tables.evaluation_table(done, "own")
    for name in ("val_accuracy", "train_accuracy", "val_loss"):
        assert lines[name].columns == columns(evaluated[["label", *charts.AXES, name]])
    assert lines["train_loss"].columns == columns(tables.training_table(done, "own"))


def test_marks_of_switches_and_what_a_rule_saw_are_those_of_the_log(done: Run) -> None:
    switches = metrics.switches(done.log, done.meta["dataset_size"], done.meta["compositions"])
    assert bool(switches) == (done.experiment.strategy.name == "strategy_switch")
    assert grown(done, 7).curves.marks == [tables.mark_of(switch, "own") for switch in switches]
    seen = metrics.rule_values(done.log)["value"].tolist()
    missing = [None] * len(switches) if seen else []
    assert grown(done, 7).totals("rule").get("value", []) == [*seen, *missing]


def test_a_long_curve_is_thinned_and_keeps_its_ends(done: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psbench.charts.growing.Line.__init__.__defaults__", (40,))
    whole = columns(tables.training_table(done, "own"))["time_s"]
    for found in (tables_of(done, "own"), grown(done, 13)):
        line = found.curves.lines["train_loss"]
        times = line.columns["time_s"]
        assert 10 <= len(times) <= 41
        assert (times[0], times[-1]) == (whole[0], whole[-1])
        assert set(times) <= set(whole)


@pytest.mark.parametrize(("points", "kept"), [(5, [0, 4]), (6, [0, 4, 5]), (9, [0, 4, 8]), (4, [0, 1, 2, 3])])
def test_the_last_point_of_a_line_is_kept_once(points: int, kept: list[int]) -> None:
    line = Line(longest=4)
    line.add({"x": [*range(points)]})
    line.end()
    line.end()
    assert line.columns == {"x": kept}
