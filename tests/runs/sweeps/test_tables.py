"""What a sweep shows: frames, means over seeds, the best setting of each strategy, charts."""

from __future__ import annotations

import io
import math
import re
import sys
from dataclasses import replace

import pandas as pd
import pytest

import psbench as ps
from psbench.errors import ParameterError, UnknownName
from psbench.metrics import interval
from psbench.runs.sweeps.cells import Cell, CellOutcome
from psbench.runs.sweeps.display import Display
from psbench.runs.sweeps.execution import Progress
from psbench.runs.sweeps.pictures import _is_dark
from psbench.testing import toy_experiment

RATES = [0.01, 0.1]


@pytest.fixture(scope="module")
def swept():
    """Two strategies at two rates, two seeds."""
    grid = {"strategy": ["bsp", "asp"], "optimizer.lr": RATES}
    return ps.sweep(toy_experiment(), grid, seeds=2, processes=1, progress=False)


@pytest.fixture(scope="module")
def damaged(swept):
    """The same, of which one run failed, another diverged and a third has a warning."""
    outcomes = list(swept.outcomes)
    outcomes[0] = CellOutcome(outcomes[0].cell, error="RuntimeError: mine")
    run = replace(outcomes[2].run, meta=outcomes[2].run.meta | {"status": "diverged"})
    outcomes[2] = CellOutcome(outcomes[2].cell, _run=run)
    run = replace(outcomes[5].run, meta=outcomes[5].run.meta | {"incidents": ["the disk is full"]})
    outcomes[5] = CellOutcome(outcomes[5].cell, _run=run)
    return replace(swept, outcomes=outcomes)


def row(frame: pd.DataFrame, **values) -> pd.Series:
    for name, value in values.items():
        frame = frame[frame[name.replace("__", ".")] == value]
    (only,) = frame.to_dict("records")
    return only


# ------------------------------------------------------------------ tables


def test_a_row_of_the_frame_is_a_run(swept):
    frame = swept.frame(target=0.5)
    assert list(frame)[:5] == ["strategy", "optimizer.lr", "seed", "status", "error"]
    assert len(frame) == 8
    found = row(frame, strategy="asp", optimizer__lr=0.1, seed=1)
    summary = ps.run(toy_experiment("asp", seed=1)).summary()
    assert found["val_accuracy"] == summary["final"]["val_accuracy"]
    assert found["best_val_accuracy"] == summary["best_val_accuracy"]
    assert (found["updates"], found["time_s"]) == (summary["updates"], summary["time_s"])
    assert found["megabytes"] == sum(summary["bytes"].values()) / 1e6


def test_a_target_that_is_never_reached_takes_for_ever(swept):
    frame = swept.frame(target=1.0)
    never = frame["best_val_accuracy"] < 1.0
    assert never.any()
    assert (frame["time_to_target_s"] == float("inf")).equals(never)
    aiming = ps.Sweep(swept.outcomes, target=1.0)
    assert "0 of 2, ≥ " in aiming.text(200)
    plain = aiming.to_dict()
    assert [each["time_to_target_s"] is None for each in plain["runs"]] == never.tolist()
    assert plain["target"] == 1.0
    failed = [CellOutcome(outcome.cell, error="none") for outcome in swept.outcomes]
    assert ps.Sweep(failed).to_dict()["target"] is None


def test_the_target_is_given_or_the_stop_rule_s_or_what_half_reach(swept):
    best = sorted(swept.frame()["best_val_accuracy"])
    half = f"{math.floor(best[3] * 1000) / 10:.4g}\u00a0%, which half of the runs reached"
    assert swept.remarks[0] == f"target: validation accuracy {half}"
    assert (swept.frame()["time_to_target_s"] < float("inf")).sum() >= 4
    own = toy_experiment(stop={"epochs": 1, "target_accuracy": 0.9})
    found = ps.sweep(own, {"strategy": ["bsp"]}, processes=1, progress=False)
    assert found.remarks == ["target: validation accuracy 90\u00a0%, at which all experiments stop"]


def test_a_row_of_the_table_is_the_mean_of_its_seeds(swept):
    found = row(swept.table(), strategy="bsp", optimizer__lr=0.1)
    values = [run.summary()["final"]["val_accuracy"] for run in swept.runs[2:4]]
    assert (found["val_accuracy"], found["val_accuracy_ci"]) == pytest.approx(interval(values))
    assert (found["n"], found["failed"]) == (2, 0)


def test_a_mean_is_of_all_seeds_or_of_none(damaged):
    frame, table = damaged.frame(), damaged.table()
    assert frame["status"].tolist()[:3] == ["failed", "finished", "diverged"]
    assert frame["error"][0] == "RuntimeError: mine"
    assert math.isnan(frame["val_accuracy"][2])  # what a diverged run ended with is no accuracy
    assert table["failed"].tolist() == [1, 0, 0, 0]
    assert table["diverged"].tolist() == [0, 1, 0, 0]
    assert table["val_accuracy"].isna().tolist() == [True, True, False, False]
    assert damaged.to_dict()["runs"][0]["time_s"] is None
    assert "2, 1 failed" in damaged.text(200)
    assert any(line.startswith("warning: ") and "the disk is full" in line for line in damaged.remarks)


def test_a_setting_without_a_parameter_is_a_row_in_the_order_of_the_grid():
    grids = [{"strategy": ["ssp"], "strategy.staleness_bound": [3, 1]}, {"strategy": ["asp"]}]
    found = ps.sweep(toy_experiment(), grids, processes=1, progress=False)
    table = found.table()
    assert table["strategy"].tolist() == ["ssp", "ssp", "asp"]
    assert table["strategy.staleness_bound"].tolist()[:2] == [3, 1]
    best = found.best("strategy.staleness_bound", "val_loss")
    assert len(best) == 3
    assert best["strategy"].tolist() == ["ssp", "ssp", "asp"]
    sheet = found.lines("strategy")
    titles = [chart["title"] for chart in sheet.to_dict()["vconcat"]]
    assert [title.rpartition(" ")[2] for title in titles] == ["3.0", "1.0", "nan"]
    along = found.lines("strategy.staleness_bound", by="strategy").to_dict()["vconcat"][0]
    assert {layer["encoding"]["x"]["title"] for layer in along["layer"]} == {"staleness bound"}
    one = ps.Sweep(found.outcomes[1:])  # a single bound, and none
    assert len(one.lines("strategy").to_dict()["vconcat"]) == 2
    compared = found.comparison(unequal=True).groups
    assert [run.experiment.strategy.name for (run,) in compared.values()] == ["ssp", "asp"]


def test_text_leaves_out_columns_before_it_breaks_a_line(swept):
    wide, narrow = swept.text(200), swept.text(60)
    assert "MB sent" in wide
    assert "MB sent" not in narrow
    assert "val. accuracy" in narrow
    assert max(len(line.rstrip()) for line in narrow.splitlines() if "±" not in line[:2]) <= 70
    assert "val. accuracy" in swept._repr_html_()


# ------------------------------------------------------------------ the best of each


def test_the_best_setting_of_each_strategy(swept):
    best = swept.best()
    table = swept.table()
    for name in ("bsp", "asp"):
        own = table[table["strategy"] == name]
        found = row(best, strategy=name)
        assert found["val_accuracy"] == own["val_accuracy"].max()
        assert (found["trials"], found["n"]) == (2, 2)
    fastest = swept.best(value="val_loss")
    assert row(fastest, strategy="asp")["val_loss"] == table[table["strategy"] == "asp"]["val_loss"].min()


def test_the_comparison_is_of_the_best_runs(swept):
    best = swept.best(value="val_loss")
    compared = swept.comparison(value="val_loss")
    assert list(compared.groups) == ["bsp", "asp"]
    for label, runs in compared.groups.items():
        assert {run.experiment.optimizer.lr for run in runs} == {row(best, strategy=label)["optimizer.lr"]}
        assert len(runs) == 2


def test_more_trials_of_one_strategy_are_refused_unless_said(swept):
    uneven = replace(swept, outcomes=swept.outcomes[2:])
    with pytest.raises(ParameterError, match=r"different numbers of settings were tried \(bsp 1, asp 2\)"):
        uneven.best()
    assert uneven.best(unequal=True)["trials"].tolist() == [1, 2]


def test_a_setting_that_failed_was_tried_and_is_the_worst(damaged):
    best = damaged.best()
    assert best["trials"].tolist() == [2, 2]
    assert math.isnan(row(best, strategy="bsp")["val_accuracy"])
    assert list(damaged.comparison().groups) == ["bsp", "asp"]


def test_the_best_of_half_a_sweep_is_refused(swept):
    stopped = [*swept.outcomes[:-1], CellOutcome(swept.outcomes[-1].cell, error="not run", was_run=False)]
    with pytest.raises(ParameterError, match="stopped before all settings were tried"):
        ps.Sweep(stopped).best()


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda s: s.best(by="strateg"), "did you mean 'strategy'?"),
        (lambda s: s.best(value="val_acuracy"), "did you mean 'val_accuracy'?"),
        (lambda s: s.heatmap("lr", "batch_size"), "unknown parameter of the sweep 'batch_size'"),
        (lambda s: s.heatmap("lr", "lr"), "on both axes"),
        (lambda s: s.lines("lr", by="lr"), "already on the axis"),
        (lambda s: s.lines("lr", where={"strategy": "ssp"}), "unknown value of strategy 'ssp'"),
    ],
)
def test_what_is_not_there_is_one_line(ask, says, swept):
    with pytest.raises((UnknownName, ParameterError), match=says):
        ask(swept)


# ------------------------------------------------------------------ charts


def data_of(chart):
    """The specification of a sheet of one chart, and its data."""
    spec = chart.to_dict()
    (rows,) = spec["datasets"].values()
    return spec, pd.DataFrame(rows)


def test_the_heat_map_has_the_table_s_means_by_short_name(swept):
    spec, data = data_of(swept.heatmap("lr", "strategy"))
    assert len(spec["vconcat"]) == 1
    assert data["value"].tolist() == pytest.approx(swept.table()["val_accuracy"].tolist(), rel=1e-5)
    assert data["x"].tolist() == ["0.01", "0.1"] * 2
    assert data["text"].str.contains("%").all()
    assert sorted(data) == ["dark", "half", "text", "value", "x", "y"]


def test_text_on_a_dark_colour_is_light():
    three = pd.Series([5.0, 6.0, 7.0])
    assert _is_dark(three, False).tolist() == [False, False, True]
    assert _is_dark(three, True).tolist() == [True, False, False]
    assert not _is_dark(pd.Series([3.0, 3.0]), False).any()


def test_a_heat_map_says_what_failed_and_what_never_came(damaged, swept):
    _, data = data_of(damaged.heatmap("lr", "strategy"))
    assert data["text"].tolist()[:2] == ["failed", "diverged"]
    assert data["value"].isna().tolist() == [True, True, False, False]
    _, data = data_of(ps.Sweep(swept.outcomes, target=1.0).heatmap("lr", "strategy", "time_to_target_s"))
    assert any(text.startswith("0 of 2, ≥ ") for text in data["text"])


def test_lines_have_the_intervals_over_seeds(swept):
    _, data = data_of(swept.lines("lr", "val_loss", by="strategy"))
    table = swept.table()
    assert set(data["label"]) == {"bsp", "asp"}
    assert data["value"].tolist() == pytest.approx(table["val_loss"].tolist(), rel=1e-5)
    halves = table["val_loss_ci"].to_numpy()
    assert (data["high"] - data["value"]).to_numpy() == pytest.approx(halves, rel=1e-3)
    assert (data["value"] - data["low"]).to_numpy() == pytest.approx(halves, rel=1e-3)


def test_a_further_parameter_has_a_chart_for_each_value_or_is_chosen(swept):
    assert len(swept.lines("lr").to_dict()["vconcat"]) == 2
    spec, data = data_of(swept.lines("lr", where={"strategy": "asp"}))
    assert len(spec["vconcat"]) == 1
    assert len(data) == 2
    paths = ("strategy", "optimizer.lr", "batch_size", "evaluate_every")
    settings = [dict(zip(paths, values, strict=True)) for values in (("bsp", 1, 12, 1), ("asp", 2, 24, 2))]
    cells = [Cell(toy_experiment(), setting) for setting in settings]
    with pytest.raises(ParameterError, match="batch_size, evaluate_every vary too; choose one value of each"):
        ps.Sweep([CellOutcome(cell, error="none") for cell in cells]).heatmap("lr", "strategy")


def test_a_chart_says_what_it_leaves_out(damaged):
    spec, data = data_of(damaged.lines("lr", by="strategy"))
    assert len(data) == 2
    assert spec["vconcat"][0]["title"]["subtitle"] == [
        "2 of 4 settings failed, diverged or did not reach the target with every seed"
    ]


# ------------------------------------------------------------------ progress


HALF = Progress(done=1, total=4, failed=1, fraction=0.25, running=("asp, seed 0",), spent_s=10.0)


def test_progress_where_there_is_no_terminal_is_a_line(capsys, monkeypatch):
    monkeypatch.setattr("psbench.runs.sweeps.display.FIRST_LINE_S", 0.0)
    with Display() as shown:
        shown(HALF)
        shown(HALF)  # too soon
    assert capsys.readouterr().err == "sweep: 1 of 4 runs done, 1 failed, about 30 s left\n"


def test_progress_in_a_terminal_is_a_bar_on_one_line(monkeypatch, capsys):
    """What does not fit is cut off, and brackets in a name are no markup."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    for running in (("sizes=[small], seed 0",), ("sizes=[small]", "a label " * 20)):
        sys.stderr.seek(sys.stderr.truncate(0))
        with Display() as shown:
            shown(replace(HALF, running=running))
        written = sys.stderr.getvalue()
        *_, last, after = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written).split("\r")
        assert re.match("━{6}╺━{17} 1 of 4 runs done, 1 failed, about 30 s left sizes=\\[small\\][,;] ", last)
        assert (last.count("\n"), len(last.rstrip("\n"))) == (1, 100)
        assert last.endswith("…\n") == (len(running) > 1)
        assert after == ""
        assert written.endswith("\x1b[1A\x1b[2K")  # at its end the line is taken away
    assert capsys.readouterr().out == ""


def test_progress_in_a_notebook_is_one_line_that_is_replaced(monkeypatch):
    import IPython.display

    class Handle:
        def update(self, content, raw):
            assert raw  # the content is a MIME bundle, and no object to be shown
            seen.append(content["text/plain"])

    def display(content, raw, display_id):
        assert raw
        assert display_id  # without it nothing can be replaced
        seen.append(content["text/plain"])
        return Handle()

    seen = []
    monkeypatch.setattr("psbench.runs.sweeps.display._in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", display)
    with Display() as shown:
        shown(HALF)
        shown(replace(HALF, done=4, fraction=1.0))
    assert seen == ["1 of 4 runs done, 1 failed, about 30 s left", "4 of 4 runs done, 1 failed"]
