"""Measured and autocorrelated step times, and links that are not as fast up as down: against closed forms."""

from __future__ import annotations

import errno
import os

import numpy as np
import pandas as pd
import pytest
import torch

import psbench as ps
from psbench.clusters import Custom, LogNormal, Network, StepTimes, Trace, timing
from psbench.errors import PsbenchError
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster

SECONDS = [[0.1, 0.2, 0.3], [0.5], [0.25, 0.75]]


def traced(trace, workers=3, **changes):
    return Custom(workers=workers, step_time={"name": "trace", **trace}, **changes)


def steps(cluster, worker, count, samples=4):
    times = StepTimes(cluster.profile(), Streams(0))
    return [times.next(worker, samples, 0.0) for _ in range(count)]


@pytest.fixture(params=["list", "csv", "parquet"])
def trace(request, tmp_path):
    """The same trace in each form, to be replayed; in files the workers' rows are mixed."""
    if request.param == "list":
        return {"seconds": SECONDS, "order": "in_order"}
    rows = [(worker, seconds) for worker, own in enumerate(SECONDS) for seconds in own]
    frame = pd.DataFrame(rows[::2] + rows[1::2], columns=["worker", "seconds"])
    frame = frame.sort_values("seconds", ignore_index=True)
    frame["note"] = "x"
    path = tmp_path / f"trace.{request.param}"
    frame.to_csv(path, index=False) if request.param == "csv" else frame.to_parquet(path)
    return {"path": str(path), "order": "in_order"}


def test_each_worker_takes_its_own_seconds_again_and_again(trace):
    cluster = traced(trace, speed=[1, 5, 0.1])
    for worker, own in enumerate(SECONDS):
        assert steps(cluster, worker, 7) == (own * 7)[:7]


def test_a_run_takes_the_times_of_its_trace_and_says_that_it_was_repeated(trace, monkeypatch):
    """Under a barrier and free messages an update takes as long as the slowest worker's step."""
    cluster = toy_cluster([1.0, 1.0, 1.0]) | {"step_time": {"name": "trace", **trace}}
    said = []
    monkeypatch.setattr(timing.logger, "warning", lambda text, *of: said.append(text % of))
    run = ps.run(toy_experiment("bsp", cluster=cluster, stop={"updates": 4}))
    slowest = [max(own[step % len(own)] for own in SECONDS) for step in range(4)]
    assert run.summary()["time_s"] == pytest.approx(sum(slowest))
    assert "worker 1 took 4 steps, but its trace has 1, so the trace was repeated" in "".join(said)
    again = ps.run(ps.Experiment.from_spec(run.experiment.spec()))
    assert again.log.digest() == run.log.digest()
    assert torch.equal(again.parameters, run.parameters)


def test_seconds_may_go_with_the_batch_and_with_slowdowns():
    slow = [{"worker": 0, "from_s": 0, "to_s": 1, "factor": 3}]
    exact = {"seconds": [[0.1, 0.2]], "order": "in_order"}
    cluster = traced(exact | {"samples": 8}, workers=1, slowdowns=slow)
    assert steps(cluster, 0, 2, samples=4) == pytest.approx([0.15, 0.3])


def test_seconds_may_be_drawn_from_each_workers_own():
    cluster = traced({"seconds": SECONDS, "order": "resample"})
    drawn = steps(cluster, 0, 3000)
    assert set(drawn) == set(SECONDS[0])
    assert np.mean(drawn) == pytest.approx(0.2, abs=4 * np.std(SECONDS[0]) / np.sqrt(3000))


RISING = [list(range(1, 101))]


@pytest.mark.parametrize("order", [None, "blocks"])
def test_without_an_order_seconds_come_in_blocks_of_steps(order):
    drawn = steps(traced({"seconds": RISING} | ({"order": order} if order else {}), workers=1), 0, 5000)
    blocks = np.array(drawn).reshape(-1, 10)  # the root of 100 steps
    assert ((np.diff(blocks, axis=1) - 1) % 100 == 0).all()  # the last is followed by the first
    begins, times = np.unique(blocks[:, 0], return_counts=True)
    assert len(begins) > 95  # any step, all alike
    assert times.max() < 20
    assert steps(traced({"seconds": RISING, "block": 1000}, workers=1), 0, 100) != drawn[:100]


def test_blocks_of_one_step_are_single_draws():
    one, other = ({"seconds": SECONDS, "order": "resample"}, {"seconds": SECONDS, "block": 1})
    assert steps(traced(one), 0, 300) == steps(traced(other), 0, 300)
    factors = {"factors": [1, 2, 4, 8]}  # which are drawn singly, unless blocks are asked for
    single, blocks = (steps(traced(factors | more), 1, 300) for more in ({}, {"order": "blocks", "block": 1}))
    assert single == blocks
    pairs = {
        b / a for a, b in zip(*[iter(steps(traced(factors | {"order": "blocks"}), 1, 300))] * 2, strict=True)
    }
    assert pairs == {2.0, 0.125}


@pytest.mark.slow
def test_every_seed_has_a_course_of_its_own_unless_the_trace_is_replayed():
    def times_s(trace):
        cluster = toy_cluster([1.0, 1.0, 1.0]) | {"step_time": {"name": "trace", "seconds": SECONDS} | trace}
        spec = toy_experiment("bsp", cluster=cluster, stop={"updates": 12}, timing_only=True)
        return [ps.run(spec.but(seed=seed)).summary()["time_s"] for seed in range(4)]

    assert len(set(times_s({}))) > 1
    assert len(set(times_s({"order": "in_order"}))) == 1


@pytest.mark.parametrize(("trace", "following"), [({"order": "in_order"}, SECONDS[0][1]), ({}, None)])
def test_a_resumed_trace_goes_on_where_it_was(trace, following):
    profile = traced({"seconds": SECONDS} | trace).profile()
    times = StepTimes(profile, Streams(0))
    for _ in range(4):
        times.next(0, 4, 0.0)
    later = StepTimes(profile, Streams(0))
    later.load_state_dict(times.state_dict())
    assert [later.next(0, 4, 0.0) for _ in range(9)] == (after := [times.next(0, 4, 0.0) for _ in range(9)])
    assert following in (None, after[0])


# ------------------------------------------------------------------ autocorrelation


def test_correlation_leaves_the_distribution_and_correlates_by_its_powers():
    """Over many series, so that samples are independent and their standard errors known."""
    sigma, rho, count = 0.5, 0.8, 4000
    step_time = LogNormal(sigma=sigma, correlation=rho)
    series = [step_time.series(0, Streams(1).generator("series", n))(24) for n in range(count)]
    factors = np.array(series)
    for step in (0, 23):  # it begins, and stays, in the stationary distribution
        logarithms = np.log(factors[:, step])
        assert logarithms.mean() == pytest.approx(-(sigma**2) / 2, abs=4 * sigma / np.sqrt(count))
        assert logarithms.std() == pytest.approx(sigma, rel=4 / np.sqrt(2 * count))
        assert factors[:, step].mean() == pytest.approx(1, abs=4 * np.sqrt(np.expm1(sigma**2) / count))
    for lag in (1, 3, 10):
        found = np.corrcoef(np.log(factors[:, 5]), np.log(factors[:, 5 + lag]))[0, 1]
        assert found == pytest.approx(rho**lag, abs=4 * (1 - rho ** (2 * lag)) / np.sqrt(count))
        plain = np.corrcoef(factors[:, 5], factors[:, 5 + lag])[0, 1]
        assert plain == pytest.approx(np.expm1(sigma**2 * rho**lag) / np.expm1(sigma**2), abs=0.06)


def test_correlated_steps_do_not_depend_on_the_size_of_the_blocks():
    profile = Custom(workers=2, step_time={"name": "lognormal", "correlation": 0.9}).profile()
    one, many = (StepTimes(profile, Streams(0), block) for block in (1, 128))
    first, other = ([times.next(1, 4, 0.0) for _ in range(50)] for times in (one, many))
    assert first == other
    later = StepTimes(profile, Streams(0))
    later.load_state_dict(one.state_dict())
    assert later.next(1, 4, 0.0) == one.next(1, 4, 0.0)


def test_the_ends_of_correlation():
    none, usual = (
        LogNormal(**given).draw(np.random.default_rng(3), 0, 9) for given in ({"correlation": 0}, {})
    )
    assert none.tolist() == usual.tolist()
    assert len(set(LogNormal(correlation=1).draw(np.random.default_rng(3), 0, 9).tolist())) == 1


# ------------------------------------------------------------------ links


def test_links_may_be_slower_up_than_down():
    """8 Mbit/s are a megabyte a second."""
    given = {"bandwidth_mbit_s": [8, 16], "bandwidth_down_mbit_s": [80, 16], "latency_s": 0.0}
    network = Network(Custom(workers=2, server_bandwidth_mbit_s=1e9, **given).profile())
    assert network.up(0, 1e6, 0.0) == pytest.approx(1.0, rel=1e-6)
    assert network.down(0, 1e6, 0.0) == pytest.approx(0.1, rel=1e-6)
    assert network.up(1, 1e6, 0.0) == network.down(1, 1e6, 0.0) == pytest.approx(0.5, rel=1e-6)
    assert network.ring(2e6, [0, 1]) == pytest.approx(2.0)  # two rounds of a megabyte over the slowest link


def test_equal_links_given_twice_are_links_given_once():
    once = {"workers": 3, "bandwidth_mbit_s": 50}
    twice = once | {"bandwidth_down_mbit_s": [50, 50, 50]}
    first, other = (ps.run(toy_experiment("ssp", cluster=cluster)) for cluster in (once, twice))
    assert first.log.digest() == other.log.digest()


# ------------------------------------------------------------------ what is refused


def written(tmp_path, text):
    (tmp_path / "trace.csv").write_text(text)
    return {"path": str(tmp_path / "trace.csv")}


BAD = {
    "other workers": (lambda _: {"seconds": SECONDS[:2]}, "seconds of 2 workers, but the cluster has 3"),
    "no step": (lambda _: {"seconds": [[0.1], [], [0.1]]}, "worker 1 has no step"),
    "zero": (lambda _: {"seconds": [[0.1], [0.2, 0], [0.1]]}, "step 1 of worker 1 takes 0.0"),
    "two of them": (lambda _: {"seconds": SECONDS, "factors": [2]}, "factors and seconds are given"),
    "samples of factors": (lambda _: {"factors": [2], "samples": 4}, "samples applies only to seconds"),
    "a block alone": (lambda _: {"factors": [1, 2], "block": 2}, "block applies only if steps are drawn"),
    "no list": (lambda _: {"seconds": [0.1, 0.2, 0.3]}, "seconds.0"),
    "no file": (lambda tmp: {"path": str(tmp / "trace.csv")}, os.strerror(errno.ENOENT)),
    "column": (lambda tmp: written(tmp, "worker,time\n0,1\n"), "has no column 'seconds'"),
    "worker": (lambda tmp: written(tmp, "worker,seconds\n0,1\n1.5,1\n"), "row 1: worker is 1.5"),
    "seconds": (lambda tmp: written(tmp, "worker,seconds\n0,1\n1,soon\n"), "row 1: seconds is 'soon'"),
    "endless": (lambda tmp: written(tmp, f"worker,seconds\n0,{'9' * 400}\n1,1\n"), "row 0: seconds is 999"),
    "negative": (lambda tmp: written(tmp, "worker,seconds\n0,1\n1,-1\n"), "expected positive seconds"),
    "gap": (lambda tmp: written(tmp, "worker,seconds\n0,1\n2,1\n"), "has no steps of worker 1"),
    "only a head": (lambda tmp: written(tmp, "worker,seconds\n"), "has no steps, only the names"),
    "a large gap": (lambda tmp: written(tmp, "worker,seconds\n0,1\n900000000,1\n"), "no steps of worker 1"),
    "no first worker": (lambda tmp: written(tmp, "worker,seconds\n1,1\n2,1\n"), "no steps of worker 0"),
    "workers of a file": (lambda tmp: written(tmp, "worker,seconds\n0,1\n"), "has steps of 1 workers"),
    "correlation": (lambda _: {"name": "lognormal", "correlation": 1.1}, "correlation"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_trace_that_cannot_be_is_one_line(case, tmp_path):
    given, expected = BAD[case]
    with pytest.raises(PsbenchError) as refused:
        ps.run(toy_experiment(cluster={"workers": 3, "step_time": {"name": "trace", **given(tmp_path)}}))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("down", "expected"), [([1, 2], "2 values for 3 workers"), (0, "must be positive")])
def test_a_link_that_cannot_be_is_one_line(down, expected):
    with pytest.raises(PsbenchError, match=expected):
        Custom(workers=3, bandwidth_down_mbit_s=down)


def test_a_trace_from_arrays_is_plain_data():
    trace = Trace(seconds=[np.array([0.1, 0.2]), [0.3]])
    assert trace.model_dump(mode="json")["seconds"] == [[0.1, 0.2], [0.3]]
