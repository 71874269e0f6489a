"""A known cluster is found again from runs on it."""

import re

import numpy as np
import pytest
from scipy import stats

import psbench as ps
from psbench.twin.calibration import Calibration
from psbench.twin.fitted import RUN_TO_RUN
from psbench.twin.measures import measures_of
from tests.twin.known import TRUTH, stamped, steady


def test_a_known_cluster_is_found_again(measured):
    cluster, step = measured.cluster, measured.cluster["step_time"]
    assert np.array(cluster["speed"]) == pytest.approx(np.array(TRUTH["speed"]), rel=0.05)
    assert (
        pytest.approx(cluster["seconds_per_step"] + 32 * cluster["seconds_per_sample"], rel=0.03)
        == 5e-3 + 32 * 2e-4
    )
    assert cluster["seconds_per_sample"] == pytest.approx(2e-4, rel=0.15)
    assert step["correlation"] == pytest.approx(0.5, abs=0.1)
    assert (1 - step["shift"]) * step["sigma"] == pytest.approx(0.7 * 0.2, rel=0.15)
    assert cluster["service"] == {"message_s": pytest.approx(1e-4), "decision_s": pytest.approx(1e-4)}
    assert cluster["latency_s"] == pytest.approx(1e-3, rel=0.15)
    assert any("bandwidth" in each for each in measured.unknown)
    assert all(each.value > 0 and each.low <= each.value <= each.high for each in measured.fitted.values())
    steps = [measured.fitted[f"step of worker {worker}, s"] for worker in range(4)]
    slower = np.array([steps[0].value / each.value for each in steps])
    assert slower == pytest.approx(np.array(TRUTH["speed"]), rel=0.1)  # all told at one batch
    speed = measured.of_workers(8).drawn(3).cluster["speed"]
    assert speed[:4] == speed[4:] != cluster["speed"]  # one doubt of one machine


def test_what_each_worker_differs_by_from_run_to_run_is_drawn():
    """Six runs, in each of which every worker is quicker or slower by some 5 % of its own."""
    factors = np.exp(0.05 * np.random.default_rng(3).standard_normal((6, 4)))
    found = Calibration.of([steady(4, each) for each in factors])
    logs = np.log(factors)
    apart = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    student = stats.t.ppf(0.95, 15) / stats.norm.ppf(0.95)
    expected = student * np.sqrt((apart**2).sum() / 15)
    assert found.fitted[RUN_TO_RUN].value == pytest.approx(expected, rel=0.01)
    eight = found.of_workers(8)
    drawn = np.log([eight.drawn(seed).cluster["speed"] for seed in range(100)])
    assert (drawn[:, :4] - drawn[:, 4:]).std() == pytest.approx(2**0.5 * expected, rel=0.15)


def test_cores_that_workers_share_are_found_and_fewer_workers_predicted(crowded):
    """Four workers on two cores are measured; two of them have a core each, and take half as long."""
    runs, plain = crowded
    unstamped = ps.run(plain.but(strategy="all_reduce"))  # whose steps wait for cores
    found = Calibration.of([*runs, unstamped])
    assert found.cluster["cores"] == pytest.approx(2.0, abs=0.1)
    (busy,) = (each for each in found.remarks if each.startswith("steps: ") and "others compute" in each)
    assert 2 < float(re.search(r"; (\S+) others", busy)[1]) <= 3  # of four workers that hardly wait
    assert found.cluster["seconds_per_step"] == pytest.approx(5e-3, rel=0.02)
    for workers in (2, 4):
        fewer = {"cluster.workers": workers, "batch_size": 32 * workers}
        predicted = ps.predict(found, ["ssp"], seeds=2, settings=fewer).rows[0].update_s.mean
        machines = plain.cluster.model_dump() | {"workers": workers}
        truth = plain.but(strategy="ssp", cluster=machines, batch_size=32 * workers, stop={"epochs": 6})
        assert predicted == pytest.approx(measures_of(ps.run(truth)).update_s, rel=0.04)


def test_cores_are_not_fitted_where_steps_do_not_slow_each_other(crowded):
    runs, plain = crowded
    own = [run.experiment.but(cluster=plain.cluster.model_dump() | {"cores": 0.0}) for run in runs]
    seconds = (5e-3 + 32 * 2e-4, 5e-3 + 16 * 2e-4)
    found = Calibration.of([stamped(ps.run(each), s) for each, s in zip(own, seconds, strict=True)])
    assert "cores" not in found.cluster
    assert any("at least 4 cores" in each for each in found.unknown)
