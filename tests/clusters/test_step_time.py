"""Distributions: mean, limits, order statistics, streams, blocks, slow spells."""

import json

import numpy as np
import pytest

from psbench.clusters import (
    Constant,
    Custom,
    Homogeneous,
    LogNormal,
    Pareto,
    ShiftedExponential,
    StepTimes,
    Trace,
)
from psbench.core.part import REGISTRY
from psbench.errors import ParameterError
from psbench.seeds import Streams
from psbench_papers.theory import (
    exponential_order_statistic,
    local_sgd_step_seconds,
    shifted_exponential_slowest,
)

EXPONENTIAL = ShiftedExponential(spread=1.0)
#: distribution, standard deviation of its factor
MEAN_ONE = [
    (Constant(), 0.0),
    (ShiftedExponential(spread=0.0), 0.0),
    (ShiftedExponential(), 0.2),
    (EXPONENTIAL, 1.0),
    (LogNormal(sigma=0.2), np.sqrt(np.exp(0.2**2) - 1)),
    (LogNormal(sigma=0.7), np.sqrt(np.exp(0.7**2) - 1)),
    (Pareto(shape=3.0), np.sqrt(3.0 / ((3 - 1) ** 2 * (3 - 2))) * (2 / 3)),
    (Pareto(shape=6.0), np.sqrt(6.0 / ((6 - 1) ** 2 * (6 - 2))) * (5 / 6)),
]


def sampled(step_time, num_workers, steps, seed=1):
    """Seconds of steps of one second at speed 1, (steps, num_workers)."""
    cluster = Custom(workers=num_workers, step_time=step_time, seconds_per_sample=1, seconds_per_step=0)
    times = StepTimes(cluster.profile(), Streams(seed))
    return np.array([[times.next(w, 1, 0.0) for _ in range(steps)] for w in range(num_workers)]).T


@pytest.mark.parametrize(("step_time", "deviation"), MEAN_ONE, ids=lambda v: str(v))
def test_mean_is_one_and_deviation_is_as_documented(step_time, deviation):
    n = 40_000
    factors = step_time.draw(np.random.default_rng(7), 0, n)
    assert factors.shape == (n,)
    assert factors.min() > 0
    assert abs(factors.mean() - 1.0) <= 4 * deviation / np.sqrt(n) + 1e-12
    if not isinstance(step_time, Pareto):  # its fourth moment is too large for a sample of this size
        assert factors.std() == pytest.approx(deviation, rel=0.05, abs=1e-12)


def test_every_distribution_is_tried_here():
    tried = {step_time.name for step_time, _ in MEAN_ONE} | {"trace"}
    assert tried == set(REGISTRY["step_time"])


def test_shifted_exponential_has_a_floor_and_a_tail():
    factors = ShiftedExponential(spread=0.3).draw(np.random.default_rng(0), 0, 10_000)
    assert 0.7 <= factors.min() < 0.701
    # P(factor > 1) = exp(-1)
    assert np.mean(factors > 1) == pytest.approx(np.exp(-1), abs=0.02)


def test_pareto_tail_index():
    factors = Pareto(shape=2.5).draw(np.random.default_rng(0), 0, 100_000)
    smallest = 1.5 / 2.5
    assert factors.min() >= smallest
    assert np.mean(factors > 2 * smallest) == pytest.approx(2**-2.5, abs=0.005)


def test_trace_in_order_goes_round_for_every_worker():
    seconds = sampled(Trace(factors=[1, 2, 4], order="in_order"), num_workers=2, steps=7)
    assert seconds[:, 0].tolist() == [1, 2, 4, 1, 2, 4, 1]
    assert seconds[:, 1].tolist() == [1, 2, 4, 1, 2, 4, 1]


def test_trace_resampled_has_the_frequencies_of_the_trace():
    factors = Trace(factors=[1, 1, 1, 5]).draw(np.random.default_rng(3), 0, 40_000)
    assert set(factors.tolist()) == {1.0, 5.0}
    assert abs(np.mean(factors == 5.0) - 0.25) <= 4 * np.sqrt(0.25 * 0.75 / 40_000)


@pytest.mark.parametrize(("k", "expected"), [(1, 0.1250), (2, 0.2679), (4, 0.6345), (8, 2.7179)])
def test_order_statistics_of_exponential_steps(k, expected):
    assert exponential_order_statistic(k, 8) == pytest.approx(expected, abs=5e-5)
    kth = np.sort(sampled(EXPONENTIAL, num_workers=8, steps=20_000), axis=1)[:, k - 1]
    assert abs(kth.mean() - exponential_order_statistic(k, 8)) <= 4 * kth.std() / np.sqrt(len(kth))


def test_slowest_of_shifted_exponentials():
    slowest = sampled(ShiftedExponential(spread=0.2), num_workers=5, steps=20_000).max(axis=1)
    expected = shifted_exponential_slowest(5, 0.2)
    assert abs(slowest.mean() - expected) <= 4 * slowest.std() / np.sqrt(len(slowest))


@pytest.mark.slow
def test_adacomm_theorem_1_on_sampled_steps():
    assert local_sgd_step_seconds(16, 1, 1.0) == pytest.approx(4.3807, abs=5e-5)
    assert local_sgd_step_seconds(16, 10, 1.0) == pytest.approx(1.7337, abs=5e-5)
    periods = sampled(EXPONENTIAL, num_workers=16, steps=20_000).reshape(-1, 10, 16).mean(axis=1).max(axis=1)
    expected = local_sgd_step_seconds(16, 10, 0.0)
    assert abs(periods.mean() - expected) <= 4 * periods.std() / np.sqrt(len(periods))


def test_theory_refuses_what_it_cannot_compute():
    with pytest.raises(ParameterError, match="k = 9 must lie between 1 and n = 8"):
        exponential_order_statistic(9, 8)
    with pytest.raises(ParameterError, match="rate must be positive"):
        exponential_order_statistic(1, 8, rate=0.0)
    with pytest.raises(ParameterError, match="501 steps"):
        local_sgd_step_seconds(4, 501, 1.0)


def test_a_step_costs_its_overhead_its_samples_and_the_speed():
    cluster = Custom(
        workers=2, speed=[1, 0.25], step_time="constant", seconds_per_sample=0.5, seconds_per_step=2
    )
    times = StepTimes(cluster.profile(), Streams(0))
    assert [times.next(0, 4, 0.0), times.next(1, 4, 0.0), times.next(0, 0, 0.0)] == [4.0, 16.0, 2.0]
    assert cluster.profile().mean_step_s(1, 4) == 16.0


@pytest.mark.parametrize("name", sorted(set(REGISTRY["step_time"]) - {"trace"}))
@pytest.mark.parametrize("block", [1, 3, 1000])
def test_numbers_do_not_depend_on_the_block(name, block):
    profile = Homogeneous(workers=2, step_time=name).profile()
    usual, other = StepTimes(profile, Streams(5)), StepTimes(profile, Streams(5), block=block)
    for _ in range(300):
        assert usual.next(1, 3, 0.0) == other.next(1, 3, 0.0)


@pytest.mark.parametrize("order", ["resample", "in_order"])
def test_trace_does_not_depend_on_the_block(order):
    profile = Homogeneous(workers=1, step_time=Trace(factors=[1, 2, 3, 4, 5], order=order)).profile()
    usual, other = StepTimes(profile, Streams(5)), StepTimes(profile, Streams(5), block=3)
    assert [usual.next(0, 1, 0.0) for _ in range(100)] == [other.next(0, 1, 0.0) for _ in range(100)]


def test_a_worker_s_numbers_depend_on_no_other_worker():
    alone = StepTimes(Homogeneous(workers=2).profile(), Streams(9))
    crowd = StepTimes(Homogeneous(workers=50).profile(), Streams(9))
    expected = [alone.next(1, 8, 0.0) for _ in range(20)]
    got = []
    for _ in range(20):
        for other in (0, 7, 49):
            crowd.next(other, 8, 0.0)
        got.append(crowd.next(1, 8, 0.0))
    assert got == expected
    assert [crowd.next(2, 8, 0.0) for _ in range(20)] != expected


def test_seed_decides():
    def draws(seed):
        times = StepTimes(Homogeneous().profile(), Streams(seed))
        return [times.next(0, 1, 0.0) for _ in range(5)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_a_slowdown_slows_the_steps_that_begin_in_it():
    spell = {"worker": 1, "from_s": 10, "to_s": 20, "factor": 4}
    cluster = Homogeneous(workers=2, step_time="constant", slowdowns=[spell], seconds_per_step=1)
    times = StepTimes(cluster.profile(), Streams(0))
    assert [times.next(1, 0, t) for t in (9.999, 10.0, 19.999, 20.0)] == [1.0, 4.0, 4.0, 1.0]
    assert times.next(0, 0, 15.0) == 1.0


def test_slowdowns_that_overlap_multiply():
    spells = [
        {"worker": 0, "from_s": 0, "to_s": 10, "factor": 2},
        {"worker": 0, "from_s": 5, "to_s": 6, "factor": 3},
    ]
    times = StepTimes(
        Homogeneous(step_time="constant", slowdowns=spells, seconds_per_step=1).profile(), Streams(0)
    )
    assert [times.next(0, 0, t) for t in (0.0, 5.0, 6.0)] == [2.0, 6.0, 2.0]


def test_a_slowdown_leaves_the_stream_as_it_was():
    spell = {"worker": 0, "from_s": 0, "to_s": 1, "factor": 2}
    plain = StepTimes(Homogeneous().profile(), Streams(0))
    slowed = StepTimes(Homogeneous(slowdowns=[spell]).profile(), Streams(0))
    assert slowed.next(0, 1, 0.0) == 2 * plain.next(0, 1, 0.0)
    assert slowed.next(0, 1, 1.0) == plain.next(0, 1, 1.0)


@pytest.mark.parametrize("used", [0, 1, 8, 777])
def test_state_goes_on_where_it_was(used):
    profile = Homogeneous(workers=3).profile()
    times = StepTimes(profile, Streams(4))
    for _ in range(used):
        times.next(2, 1, 0.0)
    state = json.loads(json.dumps(times.state_dict()))
    assert state == {"used": [0, 0, used]}
    resumed = StepTimes(profile, Streams(4))
    resumed.next(0, 1, 0.0)  # what it did before does not matter
    resumed.load_state_dict(state)
    for worker in (2, 0, 1, 2):
        assert [resumed.next(worker, 1, 0.0) for _ in range(200)] == [
            times.next(worker, 1, 0.0) for _ in range(200)
        ]
