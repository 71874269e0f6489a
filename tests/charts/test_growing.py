"""Live charts' tables, made from new rows, are those of the whole log, however it is divided."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from psbench import charts, metrics
from psbench.charts import tables
from psbench.charts.growing import GrowingTables
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run

SWITCH = {"name": "strategy_switch", "rule": {"name": "empirical", "window": 2, "threshold": 0.5}}


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


@pytest.mark.parametrize("pieces", [1, 7, 400])
def test_tables_of_a_log_that_grows_are_those_of_the_whole(done: Run, pieces: int) -> None:
    found = grown(done, pieces)
    spans = metrics.timeline(done.log)
    whole = {
        "time_use": tables.worker_time_table(spans),
        "idle": tables.waiting_table(done.log, spans),
        "share": tables.share_table(done, "own")[["label", "worker", "applied", "share", "equal"]],
        "staleness": charts.counts(metrics.staleness(done.log)["staleness"].to_numpy(), "own"),
        "lead": charts.counts(metrics.clock_lead(done.log)["lead"].to_numpy(), "own"),
    }
    for name, table in whole.items():
        if table.empty:  # nobody waits
            assert found.totals(name) == {}
            continue
        ours, theirs = pd.DataFrame(found.totals(name)), pd.DataFrame(columns(table))
        by = [name for name in ("worker", "phase", "reason", "value") if name in theirs]
        theirs = theirs.sort_values(by, ignore_index=True)
        pd.testing.assert_frame_equal(ours.sort_values(by, ignore_index=True), theirs, check_dtype=False)
    rule = tables.rule_table(done)
    if rule["value"].notna().any():
        assert found.totals("rule") == columns(rule)
    evaluated = tables.evaluation_table(done, "own")
    for name in ("val_accuracy", "train_accuracy", "val_loss"):
        expected = evaluated[["label", *charts.AXES, name]]
        assert found.curves.lines[name].columns == columns(expected)
    training = tables.training_table(done, "own")
    assert found.curves.lines["train_loss"].columns == columns(training)
    marks = pd.DataFrame(found.curves.marks, columns=["label", *charts.AXES, "event"])
    assert columns(marks) == columns(tables.switch_table(done, "own"))


def test_a_long_curve_is_thinned_and_keeps_its_ends(done: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psbench.charts.growing.Line.__init__.__defaults__", (40,))
    whole = columns(tables.training_table(done, "own"))["time_s"]
    for pieces in (1, 13):
        line = grown(done, pieces).curves.lines["train_loss"]
        times = line.columns["time_s"]
        assert 10 <= len(times) <= 41
        assert (times[0], times[-1]) == (whole[0], whole[-1])
        assert set(times) <= set(whole)
