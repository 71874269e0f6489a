"""Runs compared at an equal amount of bytes, time, samples or updates."""

from __future__ import annotations

import json

import pytest

import psbench as ps
from psbench.errors import ParameterError, UnknownName
from psbench.metrics import evaluations, total_bytes
from psbench.results.equal import cut_equal
from psbench.testing import toy_experiment

COLUMNS = {"bytes": "bytes", "time": "time_s", "samples": "epoch", "updates": "updates"}


@pytest.fixture(scope="module")
def runs():
    """Three strategies that use very different amounts for the same epochs."""
    return [
        ps.run(toy_experiment(strategy, seed=seed, stop={"epochs": 8}, evaluate_every=0.25))
        for strategy in ("bsp", "asp", {"name": "local_sgd", "local_steps": 4})
        for seed in (0, 1)
    ]


@pytest.mark.parametrize("equal", COLUMNS)
def test_runs_count_until_the_least_amount_that_one_used(runs, equal):
    compared = ps.compare(runs, equal=equal)
    column = COLUMNS[equal]
    least = min(evaluations(run.log)[column].iloc[-1] for run in runs)
    table = compared.table().set_index("strategy")
    for label, group in compared.groups.items():
        accuracies, amounts = [], []
        for run in runs:
            if run.experiment.title == group[0].experiment.title:
                curve = evaluations(run.log)
                within = [row for row in curve.to_dict("records") if row[column] <= least]
                accuracies.append(within[-1]["val_accuracy"])
                amounts.append(within[-1][column])
        assert table.loc[label, "val_accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))
        if equal == "updates":
            assert table.loc[label, "updates"] == pytest.approx(sum(amounts) / len(amounts))
        if equal == "bytes":
            assert all(sum(total_bytes(r.log, r.meta["unanswered"]).values()) <= least for r in group)
    assert compared.budget.startswith(f"equal {equal}: ")
    shorter = any(len(cut.log) < len(run.log) for cut, run in zip(compared.runs, runs, strict=True))
    assert shorter == (equal != "samples")  # all had the same epochs
    # who used the least is compared as it is, with its model
    assert any(cut is run for cut, run in zip(compared.runs, runs, strict=True))
    assert bool(compared.no_speed_up) == (equal == "time")
    assert compared.renamed({"asp": "ours"}).budget == compared.budget


def test_the_charts_and_the_report_are_of_the_cut_runs(runs, tmp_path):
    compared = ps.compare(runs, equal="bytes")
    assert compared.frame("curves")["bytes"].max() <= min(
        evaluations(run.log)["bytes"].iloc[-1] for run in runs
    )
    assert '"title": "bytes sent' in compared.chart("val_accuracy").to_json()
    assert '"title": "epochs' in compared.chart("val_accuracy", x="samples").to_json()
    with pytest.raises(UnknownName, match="unknown axis 'steps'"):
        compared.chart(x="steps")
    assert "equal bytes" in compared.report(tmp_path / "r.html").read_text().split("<script>")[0]


def test_a_run_that_is_evaluated_too_seldom_is_said(runs):
    seldom = ps.run(toy_experiment("bsp", seed=0, stop={"epochs": 8}, evaluate_every=5, name="seldom"))
    assert any(
        "evaluate more often" in text for text in ps.compare([*runs[2:4], seldom], equal="time").warnings
    )
    assert not any("evaluate more often" in text for text in ps.compare(runs, equal="samples").warnings)
    at_its_start = ps.compare([runs[4], seldom], equal="bytes")
    assert min(evaluations(run.log)["epoch"].iloc[-1] for run in at_its_start.runs) == 0
    assert at_its_start.chart("time_use", "val_accuracy")


@pytest.mark.by_day(1)
@pytest.mark.parametrize("baseline", ["asp", "bsp"])
def test_runs_that_are_cut_at_their_start_have_no_speed_up(baseline, tmp_path):
    """ASP makes three times as many updates an epoch, so it had made too many at its first evaluation."""
    runs = [ps.run(toy_experiment(each)) for each in ("bsp", "asp")]
    compared = ps.compare(runs, equal="updates", baseline=baseline)
    assert compared.table()["time_s"].min() == 0
    assert compared.table()["speed_up"].dropna().tolist() == ([1.0] if baseline == "bsp" else [])
    json.dumps(compared.to_dict(), allow_nan=False)
    page = compared.report(tmp_path / "report.html").read_text()
    assert "cut at their start took no time" in page


def test_what_is_not_equal_for_all_is_refused(runs):
    with pytest.raises(UnknownName, match="did you mean 'bytes'"):
        ps.compare(runs, equal="byte")
    live = ps.Run(runs[0].experiment, runs[0].log, runs[0].meta | {"backend": "dask"})
    with pytest.raises(ParameterError, match="virtual and wall-clock seconds cannot be compared"):
        ps.compare([runs[0], live], equal="time")
    elsewhere = ps.run(toy_experiment("bsp", data="digits"))
    with pytest.raises(ParameterError, match=r"the runs are on different data \(digits, mixture\)"):
        ps.compare([runs[0], elsewhere], equal="samples")
    timed = ps.run(toy_experiment("bsp", timing_only=True))
    with pytest.raises(ParameterError, match="is timing-only, so it is never evaluated"):
        ps.compare([runs[0], timed], equal="bytes")
    with pytest.raises(ParameterError, match="was never evaluated"):
        cut_equal([timed], "bytes")


@pytest.mark.parametrize("equal", ["bytes", "time", "samples"])
def test_what_a_cut_run_sent_is_what_its_last_evaluation_says(equal):
    strategies = ("bsp", "asp", {"name": "local_sgd", "local_steps": 4})
    runs = [ps.run(toy_experiment(each, stop={"updates": 12}, evaluate_every=0.25)) for each in strategies]
    compared, cut = ps.compare(runs, equal=equal), 0
    whole = {run.experiment.title: run for run in runs}
    for label, (run,) in compared.groups.items():
        if len(run.log) < len(whole[run.experiment.title].log):
            cut += 1
            (summary,) = compared.summaries[label]
            assert sum(summary["bytes"].values()) == evaluations(run.log)["bytes"].iloc[-1]
    assert cut
