"""What communication buys, and who is on the front, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

import psbench as ps
from psbench import metrics
from psbench.charts.figures import comparison_figures
from psbench.charts.learning import curves
from psbench.charts.pareto import pareto_table
from psbench.testing import toy_experiment


@pytest.fixture(scope="module")
def groups():
    cluster = {"workers": 3, "step_time": "constant", "latency_s": 0.01}
    strategies = ("bsp", "asp", {"name": "local_sgd", "local_steps": 4}, "all_reduce")
    runs = [ps.run(toy_experiment(each, cluster=cluster, stop={"epochs": 4})) for each in strategies]
    return {run.experiment.title: [run] for run in runs}


def test_seconds_without_computing_are_those_of_a_fine_grid(groups):
    for (run,) in groups.values():
        end = run.summary()["time_s"]
        grid = (np.arange(20000) + 0.5) * end / 20000
        busy = np.zeros(len(grid), dtype=bool)
        spans = metrics.timeline(run.log)
        for span in spans[spans["phase"] == "compute"].to_dict("records"):
            busy |= (span["start_s"] <= grid) & (grid < span["end_s"])
        found = metrics.seconds_without_computing(run.log)
        assert found == pytest.approx((~busy).mean() * end, abs=2e-3 * end)
    (bsp,), (asp,) = groups["bsp"], groups["asp"]
    assert metrics.seconds_without_computing(bsp.log) > metrics.seconds_without_computing(asp.log)


def test_the_front_is_what_no_other_beats(groups):
    table = pareto_table(groups)
    rows = table.to_dict("records")
    for cost in ("bytes", "silent_s"):
        for row in rows:
            beaten = any(
                each[cost] <= row[cost]
                and each["loss"] <= row["loss"]
                and (each[cost], each["loss"]) != (row[cost], row["loss"])
                for each in rows
            )
            assert row[f"front_{cost}"] == (not beaten)
    assert table["front_bytes"].any()
    for row in rows:
        (run,) = groups[row["label"]]
        assert row["bytes"] == sum(metrics.total_bytes(run.log, bool(run.meta.get("unanswered"))).values())


def test_a_comparison_shows_both_and_one_strategy_has_nothing_to_choose(groups):
    names = [figure.name for figure in comparison_figures(groups)]
    assert names[-2:] == ["pareto_bytes", "pareto_silent_s"]
    two = {name: groups[name] for name in ("bsp", "asp")}
    assert [figure.name for figure in comparison_figures(two)][-2:] == names[-2:]
    alone = {"bsp": groups["bsp"]}
    assert "pareto_bytes" not in [figure.name for figure in comparison_figures(alone)]


def size_of_output(output, y):
    return float(output.abs().mean())


def test_with_a_target_it_goes_by_that_metric_and_its_direction(groups):
    changes = {
        "metrics": {"size": {"function": size_of_output, "better": "higher"}},
        "stop": {"epochs": 1, "target": {"metric": "size", "at_least": 1e9}},
    }
    runs = {name: [ps.run(run.experiment.but(**changes))] for name, (run,) in groups.items()}
    table = pareto_table(runs)
    assert "loss" not in table
    for row in table.to_dict("records"):
        beaten = (table["bytes"] <= row["bytes"]) & (table["val_size"] >= row["val_size"])
        beaten &= (table["bytes"] < row["bytes"]) | (table["val_size"] > row["val_size"])
        assert row["front_bytes"] == (not beaten.any())
    figures = {each.name: each for each in comparison_figures(runs)}
    assert figures["pareto_bytes"].chart.to_dict()["title"] == "Bytes against size"
    short = {"stop": {"epochs": 1, "target_accuracy": 0.999}}
    assert "val_accuracy" in pareto_table(
        {n: [ps.run(r.experiment.but(**short))] for n, (r,) in groups.items()}
    )
    mixed = runs | {"bsp": groups["bsp"]}  # which has another target
    assert "loss" in pareto_table(mixed)
    assert "val_size" in [figure.name for figure in curves([run for (run,) in mixed.values()], [*mixed])]
