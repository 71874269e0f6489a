"""Targets of any metric: what ends a run, time to it, and what a comparison and a sweep make of it."""

from __future__ import annotations

import pytest
import torch

import psbench as ps
from psbench.cli import main
from psbench.core.target import target_of
from psbench.errors import PsbenchError
from psbench.metrics import time_to_target
from psbench.testing import toy_experiment
from tests.metrics import functions

LOW = {"function": functions.doubt, "better": "lower"}
TWICE = {"f1": "macro_f1", "doubt": LOW}


def first(run, column, reached):
    """Return the first evaluation of a value that is good enough, from the log alone."""
    return next(row for row in run.log.evaluations() if reached(row[column]))


@pytest.mark.parametrize(
    ("target", "column", "reached"),
    [
        ({"metric": "f1", "at_least": 0.6}, "val_f1", lambda v: v >= 0.6),
        ({"metric": "doubt", "at_most": 0.5}, "val_doubt", lambda v: v <= 0.5),
        ({"metric": "loss", "at_most": 0.8}, "val_loss", lambda v: v <= 0.8),
        ("train_loss <= 0.8", "train_loss", lambda v: v <= 0.8),
        ({"metric": "accuracy", "at_least": 0.6}, "val_accuracy", lambda v: v >= 0.6),
    ],
)
def test_a_run_ends_where_its_log_first_reaches_the_target(target, column, reached):
    whole = ps.run(toy_experiment(metrics=TWICE, stop={"epochs": 9}))
    run = ps.run(toy_experiment(metrics=TWICE, stop={"epochs": 9, "target": target}))
    row = first(whole, column, reached)
    assert 0 < row["time_s"] < whole.summary()["time_s"]
    assert time_to_target(whole.log, target_of(target)) == row["time_s"]
    found = run.summary()
    assert (found["status"], found["time_to_target_s"]) == ("finished", row["time_s"])
    assert "reached" in found["reason"]
    assert f"target {target_of(target)} on" in ps.compare([whole, run]).text(width=300)
    assert found["final"][column] == row[column]


def test_comparison_and_sweep_go_by_the_metric_and_its_direction(tmp_path):
    experiment = toy_experiment(metrics=TWICE, stop={"epochs": 3}, cluster={"workers": 2})
    swept = ps.sweep(
        experiment, {"strategy": ["bsp", "asp"], "optimizer.lr": [0.01, 0.1]}, seeds=2, processes=1
    )
    frame = swept.frame(target="doubt <= 0.6")
    for row, outcome in zip(frame.to_dict("records"), swept.outcomes, strict=True):
        found = [e["time_s"] for e in outcome.run.log.evaluations() if e["val_doubt"] <= 0.6]
        assert row["time_to_target_s"] == (found[0] if found else float("inf"))
    means = swept.table().groupby("strategy")["val_doubt"]
    assert swept.best(value="doubt")["val_doubt"].tolist() == means.min().loc[["bsp", "asp"]].tolist()
    means = swept.table().groupby("strategy")["val_f1"]
    assert swept.best(value="f1")["val_f1"].tolist() == means.max().loc[["bsp", "asp"]].tolist()
    low = {"metric": "doubt", "at_most": 0.6}
    comparison = ps.compare(swept.comparison(value="doubt").runs, target=low, test=True)
    best = swept.best(value="doubt")["val_doubt"].tolist()
    assert comparison.table()["val_doubt"].tolist() == pytest.approx(best)
    headings, _ = comparison.cells()
    assert headings[headings.index("f1") :][:3] == ["f1", "doubt", "time to target (s)"]
    assert "target: doubt at most 0.6" in comparison.text(width=200)
    assert {"f1", "doubt"} <= set(comparison.tests()["measure"])
    assert comparison.to_dict()["target"] == low
    assert comparison.chart("val_doubt").to_dict()


def test_a_declared_metric_is_a_specification_that_a_file_holds(tmp_path):
    metrics = {"doubt": {"function": "tests.metrics.functions:doubt", "better": "lower"}}
    stop = {"epochs": 2, "target": {"metric": "doubt", "at_most": 0.6}}
    experiment = toy_experiment(metrics=metrics, stop=stop)
    experiment.to_yaml(tmp_path / "experiment.yaml")
    read = ps.Experiment.from_yaml(tmp_path / "experiment.yaml")
    assert read == experiment
    assert read.spec()["stop"]["target"] == {"metric": "doubt", "at_most": 0.6}
    run = ps.run(read, folder=tmp_path / "run")
    assert ps.Run.load(tmp_path / "run").summary() == run.summary()
    assert torch.equal(run.parameters, ps.run(toy_experiment(metrics={"doubt": LOW}, stop=stop)).parameters)


BAD = {
    "unknown": ({"metric": "f2", "at_least": 0.5}, "unknown metric of stop.target 'f2'; did you mean 'f1'"),
    "direction": (
        {"metric": "doubt", "at_least": 0.5},
        "'doubt' is better if it is lower; give at_most",
    ),
    "loss": ("loss >= 0.5", "'loss' is better if it is lower; give at_most"),
    "none": ({"metric": "f1"}, "give either at_least or at_most for 'f1'"),
    "accuracy": ({"metric": "accuracy", "at_least": 90}, "up to 1, got at_least = 90"),
    "text": ("f1 > 0.9", "or 'f1 >= 0.9', got"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_target_that_cannot_be_is_refused_with_the_remedy(case):
    target, expected = BAD[case]
    with pytest.raises(PsbenchError) as refused:
        toy_experiment(metrics=TWICE, stop={"epochs": 1, "target": target})
    assert expected in str(refused.value)


def test_a_target_that_no_run_would_have_is_refused_before_any(tmp_path, capsys, monkeypatch):
    def started(*_):
        raise AssertionError("a run has started")

    monkeypatch.setattr("psbench.runs.execution.stop_on_signals", started)
    toy = toy_experiment(metrics=TWICE)
    with pytest.raises(PsbenchError, match="metric of compare's target 'f2'; did you mean 'f1'"):
        ps.compare([toy], target="f2 >= 0.5")
    with pytest.raises(PsbenchError, match="sweep's target: 'doubt' is better if it is lower"):
        ps.sweep(toy, {"strategy": ["bsp"]}, target="doubt >= 0.5", processes=1)
    toy_experiment().to_yaml(tmp_path / "toy.yaml")
    assert main(["compare", str(tmp_path / "toy.yaml"), "--target", "f1 >= 0.5"]) == 2
    assert "unknown metric of --target 'f1'" in capsys.readouterr().err
