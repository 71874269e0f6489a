"""Strategies that were not fitted are predicted."""

from dataclasses import replace

import numpy as np
import pytest

import psbench as ps
from psbench.twin.measures import measures_of
from psbench.twin.prediction_page import prediction_table
from tests.twin.known import PLAIN, TRUTH


@pytest.mark.by_day(1)
@pytest.mark.parametrize("strategy", ["ssp", "k_bsp", "local_sgd", "all_reduce"])
def test_a_strategy_that_was_not_fitted_is_predicted(measured, strategy):
    """Within 5 % of the known cluster, and its idle share within 3 points.

    Each seed draws every number, the latency between workers, which was not measured, from a wide interval.
    """
    found = ps.predict(measured, [strategy], seeds=8 if strategy == "all_reduce" else 2).rows[0]
    truth = measures_of(ps.run(PLAIN.but(strategy=strategy, seed=9, stop={"epochs": 30})))
    assert found.update_s.mean == pytest.approx(truth.update_s, rel=0.05)
    assert np.mean([each.idle for each in found.runs]) == pytest.approx(truth.idle, abs=0.03)


def test_energy_and_cost_of_an_epoch_are_predicted(measured, tmp_path):
    """They are those of a run on the true cluster, in the bands; no time depends on them."""
    costs = {"busy_watts": 100.0, "idle_watts": 40.0, "price_per_hour": 3.6}
    settings = {f"cluster.costs.{name}": value for name, value in costs.items()}
    predicted = ps.predict(measured, ["bsp"], seeds=2, settings=settings)
    (row,) = predicted.rows
    true = ps.run(PLAIN.but(cluster=TRUTH | {"costs": costs}, stop={"updates": 100}))
    found = measures_of(true)
    size = true.meta["dataset_size"]
    assert size * found.joules == pytest.approx(row.epoch_joules.mean, rel=0.05)
    assert size * found.cost == pytest.approx(row.epoch_cost.mean, rel=0.05)
    assert "J an epoch" in str(predicted)
    assert str(row.epoch_cost) in predicted.write(tmp_path / "page.html").read_text()
    assert "J an epoch" not in str(replace(predicted, rows=[replace(row, epoch_joules=None)]))


@pytest.mark.parametrize(
    ("strategy", "settings", "reason"),
    [
        ("bsp", {"cluster.workers": 5}, "4 workers were measured, not 5"),
        ("bsp", {"batch_size": 1024}, "batch of 256 samples was not measured; only 16 to 32"),
        ("bsp", {"model.name": "cnn"}, "model.name was not measured"),
        ("d_psgd", {}, "exchanges under 'gossip' were not measured; calibrate with links"),
        ("double_squeeze", {}, r"the time of codec one_bit\(.*bucket=64\) was not measured"),
    ],
)
def test_what_was_not_measured_is_refused(measured, strategy, settings, reason):
    with pytest.raises(ps.SpecError, match=reason):
        ps.predict(measured, [strategy], settings=settings)


def test_ranking_and_curve(measured, tmp_path):
    """ASP is quickest; a strategy and itself are not told apart; a curve keeps its order and is drawn."""
    found = ps.predict(measured, ["bsp", "asp", {"name": "ssp", "staleness_bound": 0}], seeds=2)
    assert found.rows[0].name == "asp"
    assert [{"bsp", "ssp"}] == [set(tie) for tie in found.ties()]
    curve = ps.predict(measured, ["ssp"], seeds=2, over=("strategy.staleness_bound", [0, 8]))
    short = ps.predict(measured, ["ssp"], seeds=2, batches=100).rows[0]
    pushes = [len(row.runs[0].staleness) for row in (short, curve.rows[0])]
    assert pushes[0] / pushes[1] == pytest.approx(100 / 400, rel=0.1)
    assert [row.setting for row in curve.rows] == ["staleness_bound=0", "staleness_bound=8"]
    assert curve.best() == ("ssp staleness_bound=8", ["ssp staleness_bound=0"])  # of two seeds
    assert str(curve).endswith("fastest: ssp staleness_bound=8\nnot distinguishable: ssp staleness_bound=0")
    ends = [[row.epoch_s.mean, row.epoch_s.low, row.epoch_s.high] for row in curve.rows]
    table = prediction_table(curve)
    assert table[["value", "low", "high"]].to_numpy() == pytest.approx(np.maximum(ends, 0.0))
    assert (list(table["x"]), list(table["label"])) == ([0, 8], ["ssp", "ssp"])
    assert "<svg" in curve.write(tmp_path / "bound.svg").read_text()
    text = curve.write(tmp_path / "bound.html").read_text()
    assert all(word in text for word in ("staleness_bound=8", "Fastest: ssp", "90 %", '"low"'))
    assert found.chart().to_dict()["vconcat"][0]["height"] == 3 * 34  # a row for each strategy
    with pytest.raises(ps.SpecError, match=r"must end in \.html, \.svg"):
        curve.write(tmp_path / "bound.doc")
    assert "not distinguishable: ssp" in str(found) or "not distinguishable: bsp" in str(found)


def test_a_target_is_trained_for_and_one_that_is_not_reached_is_said(measured):
    """Seconds to it are those of a run on the machines, and what does not reach it says so."""
    trained = replace(measured, experiment={**measured.experiment, "timing_only": False})
    short = {"stop.epochs": 3}
    found = ps.predict(trained, ["bsp", "asp"], seeds=2, target=0.6, settings=short)
    assert all(row.target_s is not None for row in found.rows)
    assert found.rows[0].target_s.mean <= found.rows[1].target_s.mean
    run = ps.run(PLAIN.but(strategy="asp", timing_only=False, stop={"epochs": 3, "target_accuracy": 0.6}))
    asp = next(row for row in found.rows if row.name == "asp")
    assert asp.target_s.mean == pytest.approx(ps.metrics.time_to_target(run.log, 0.6), rel=0.5)
    never = ps.predict(trained, ["asp"], seeds=2, target=0.9999, settings=short)
    assert never.rows[0].target_s is None
    assert "not reached" in str(never)
