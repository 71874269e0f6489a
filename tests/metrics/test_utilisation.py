"""Utilisation over time: the integral of each curve is the total that is printed."""

from __future__ import annotations

import numpy as np
import pytest

import psbench as ps
from psbench.metrics import time_use, total_bytes, utilisation
from psbench.metrics.totals import SpanTotals
from psbench.metrics.utilisation import MOST, Intervals, Utilisation
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster

SLOW_LINKS = toy_cluster([1.0, 0.5, 0.25], latency_s=0.001, bandwidth_mbit_s=0.5)


def integrals(frame):
    return (frame["value"] * frame["width_s"]).groupby(frame["series"]).sum()


@pytest.mark.parametrize(
    "strategy",
    [
        *("asp", "bsp", "all_reduce", "ad_psgd", {"name": "selsync", "delta": 0.2}),
        *({"name": "k_bsp", "k": 2}, {"name": "osp", "local_steps": 2}),
    ],
)
def test_the_integral_of_each_curve_is_the_total(strategy):
    run = ps.run(toy_experiment(strategy, cluster=SLOW_LINKS))
    found = integrals(utilisation(run.log, run.meta))
    use, sent = time_use(run.log), total_bytes(run.log, run.meta["unanswered"])
    of_phase = {phase: sum(s for (_, p), s in use.items() if p == phase) for _, phase in use}
    assert found["computing"] == pytest.approx(of_phase["compute"], rel=1e-9)
    messages = of_phase.get("send", 0.0) + of_phase.get("pull", 0.0)
    assert found["sending"] == pytest.approx(messages, rel=1e-9, abs=1e-12)
    assert found["up"] == pytest.approx(sent["up"], rel=1e-12)
    assert found["down"] == pytest.approx(sent["down"], rel=1e-12)


def test_asp_keeps_all_workers_busy_and_bsp_waits_for_the_slowest():
    """Without links, three workers compute all the time; at a barrier 3, then 2, then 1 of them."""
    busy = utilisation(ps.run(toy_experiment("asp")).log, {}).query("series == 'computing'")
    np.testing.assert_allclose(busy["value"], 3.0, rtol=1e-9)
    waits = utilisation(ps.run(toy_experiment("bsp")).log, {}).query("series == 'computing'")
    mean = (waits["value"] * waits["width_s"]).sum() / waits["width_s"].sum()
    assert mean == pytest.approx((20 + 10 + 5) / 20, rel=1e-9)


def test_intervals_cover_a_run_and_are_not_too_many():
    run = ps.run(toy_experiment("asp", cluster=SLOW_LINKS))
    frame = utilisation(run.log, run.meta)
    for _, own in frame.groupby("series"):
        assert MOST / 2 <= len(own) <= MOST
        ends = own["time_s"] + own["width_s"] / 2
        np.testing.assert_allclose(ends.iloc[:-1], (own["time_s"] - own["width_s"] / 2).iloc[1:], rtol=1e-9)
        assert ends.iloc[-1] == pytest.approx(run.log.rows()["time_s"][-1])


def test_amounts_are_spread_over_the_intervals_that_they_last():
    found = Intervals(width_s=1.0)
    times = np.array([[0.5, 3.5], [1.25, 1.5], [2.0, 2.0]])
    found.add(times[:, 0], times[:, 1], np.array([6.0, 1.0, 5.0]))
    assert found.sums[:5].tolist() == [1.0, 3.0, 7.0, 1.0, 0.0]
    found.reach(1.5 * MOST)
    assert found.width_s == 2.0
    assert found.sums[:3].tolist() == [4.0, 8.0, 0.0]


def test_rounding_leaves_nothing_behind_the_last_amount():
    """Rates are added and taken away again, and .1 + .2 - .1 - .2 is not 0."""
    found = Intervals(width_s=1.0)
    found.add(np.array([0.5, 0.5]), np.array([2.5, 3.5]), np.array([0.2, 0.6]))
    assert found.end_s == found.copy().end_s == 3.5
    assert found.sums[3] > 0
    assert not found.sums[4:].any()


@pytest.mark.parametrize("strategy", ["asp", {"name": "osp", "local_steps": 2}])
def test_curves_of_a_growing_log_are_those_of_the_whole(strategy):
    run = ps.run(toy_experiment(strategy, cluster=SLOW_LINKS))
    rows = run.log.rows()
    spans, found = SpanTotals(), Utilisation()
    for begin in range(0, len(rows), 11):
        part = rows[begin : begin + 11]
        spans.read(run.log, part)
        found.read(part, *spans.new_spans)
    whole = utilisation(run.log, {})
    grown = found.columns({})
    assert grown["series"] == whole["series"].tolist()
    np.testing.assert_allclose(grown["value"], whole["value"], rtol=1e-6, atol=1e-6)


def test_sampled_cpu_seconds_are_drawn_and_sum_to_their_total():
    run = ps.run(toy_experiment("asp"))
    one = {"samples": [(0.0, 0.0), (0.01, 0.004), (0.05, 0.03)]}
    meta = {"usage": [one, {"samples": []}], "server_usage": [{"samples": [(0.0, 0.0), (0.02, 0.002)]}]}
    frame = utilisation(run.log, meta)
    found = integrals(frame)
    assert found["cpu_workers"] == pytest.approx(0.03)
    assert found["cpu_servers"] == pytest.approx(0.002)
    own = frame[frame["series"] == "cpu_workers"]
    early, late = own[own["time_s"] < 0.009], own[(own["time_s"] > 0.011) & (own["time_s"] < 0.049)]
    np.testing.assert_allclose(early["value"], 0.4, rtol=1e-9)
    np.testing.assert_allclose(late["value"], 0.026 / 0.04, rtol=1e-9)


def test_an_empty_log_has_no_curve_above_zero():
    assert not utilisation(ps.EventLog(), {})["value"].any()
