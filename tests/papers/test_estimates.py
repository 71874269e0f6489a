"""Estimates against scipy, and censored times by hand."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from psbench_papers.estimates import RunMeasure, estimate, fewest_seeds
from psbench_papers.verdict import ALPHA


def measured(*values, given=math.nan):
    return [RunMeasure(value, given) for value in values]


def test_a_ratio_is_of_logarithms_seed_by_seed_with_students_interval():
    runs, baseline = [2.0, 2.5, 2.2], [4.0, 4.1, 5.0]
    found = estimate("speed_up", measured(*runs), measured(*baseline))
    logs = np.log(baseline) - np.log(runs)
    expected = np.exp([logs.mean(), *stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))])
    assert (found.mean, found.low, found.high) == pytest.approx(tuple(expected))
    p = stats.ttest_1samp(logs, math.log(1.5), alternative="greater").pvalue
    assert (found.above(1.5), found.below(1.5)) == pytest.approx((p, 1 - p))
    assert (found.above(0.0), found.below(0.0)) == (0.0, 1.0)
    turned = estimate("ratio", measured(*runs), measured(*baseline))
    assert (turned.low, turned.high) == pytest.approx((1 / found.high, 1 / found.low))


def test_a_difference_is_of_pairs():
    runs, baseline = [0.91, 0.95, 0.93], [0.90, 0.93, 0.92]
    found = estimate("difference", measured(*runs), measured(*baseline))
    p = stats.ttest_rel(runs, baseline, alternative="greater").pvalue
    assert (found.mean, found.above(0.0)) == pytest.approx((0.04 / 3, p))


def test_a_gap_of_gaps_is_of_seeds():
    """Four experiments, seed by seed; without one of their values there is no number."""
    groups = [0.91, 0.95, 0.93], [0.95, 0.96, 0.99], [0.80, 0.85, 0.83], [0.90, 0.93, 0.92]
    found = estimate("difference", *(measured(*each) for each in groups))
    gaps = [(a - b) - (c - d) for a, b, c, d in zip(*groups, strict=True)]
    p = stats.ttest_1samp(gaps, 0.0, alternative="greater").pvalue
    assert (found.mean, found.above(0.0), found.seeds) == pytest.approx((np.mean(gaps), p, 3))
    assert estimate("difference", *(measured(*each) for each in groups[:3]), measured(0.9, None, 0.8)) is None


def test_the_ratio_of_deviations_has_the_f_test():
    rng = np.random.default_rng(0)
    runs, baseline = rng.normal(0, 1, 5), rng.normal(0, 2, 5)
    found = estimate("sd_ratio", measured(*runs), measured(*baseline))
    ratio = runs.var(ddof=1) / baseline.var(ddof=1)
    assert (found.mean, found.below(1.0)) == pytest.approx((math.sqrt(ratio), stats.f.cdf(ratio, 4, 4)))
    assert stats.f.cdf(ratio / found.low**2, 4, 4) == pytest.approx(0.975)
    assert stats.f.sf(ratio / found.high**2, 4, 4) == pytest.approx(0.975)
    # the power of equality: the share of ratios, where there is no difference, that pass both tests
    drawn = [replace(found, ratio=math.sqrt(f)) for f in stats.f.ppf((np.arange(2000) + 0.5) / 2000, 4, 4)]
    passed = [max(each.above(1 / 4), each.below(4.0)) <= ALPHA for each in drawn]
    assert found.within_power(1 / 4, 1.0, 4.0, ALPHA) == pytest.approx(np.mean(passed), abs=1e-3)
    assert found.within_power(1 / 1.1, 1.0, 1.1, ALPHA) == 0.0
    passed = [
        max(replace(e, ratio=e.ratio / 3).above(1 / 20), replace(e, ratio=e.ratio / 3).below(1.0))
        for e in drawn
    ]
    told = found.within_power(1 / 20, 1 / 3, 1.0, ALPHA)
    assert told == pytest.approx(np.mean(np.array(passed) <= ALPHA), abs=1e-3)
    smaller = [replace(each, ratio=each.ratio / 5).below(1.0) <= ALPHA for each in drawn]
    assert found.power(1 / 5, ALPHA) == pytest.approx(np.mean(smaller), abs=1e-3)
    assert (found.above(0.0), found.power(0.0, ALPHA), found.power(1.0, ALPHA)) == (1.0, 0.0, 0.0)
    assert estimate("sd_ratio", measured(1.0, 2.0), measured(1.0, 3.0)).mean == pytest.approx(0.5)


def test_a_censored_time_is_no_zero_and_no_time():
    """The baseline never arrives in two of five seeds: restricted means, and both tests for a direction."""
    runs = measured(4.0, 5.0, 6.0, 5.5, 4.5, given=20.0)
    baseline = [*measured(9.0, 11.0, 10.0), *measured(None, None, given=12.0)]
    found = estimate("speed_up", runs, baseline)
    assert found.mean == pytest.approx((9 + 11 + 10 + 12 + 12) / 5 / 5.0)  # cut at 12
    assert (found.never, found.bounds) == (0, 2)
    late = stats.CensoredData.right_censored([9.0, 11.0, 10.0, 12.0, 12.0], [0, 0, 0, 1, 1])
    early = stats.CensoredData([4.0, 5.0, 6.0, 5.5, 4.5])
    p = stats.logrank(late, early, alternative="less").pvalue  # fewer hazards: later
    assert found.above(1.0) >= p
    assert found.above(1.0) < 0.01 < 0.9 < found.below(1.0)
    assert found.is_censored
    cut = np.array([[4.0, 5.0, 6.0, 5.5, 4.5], [9.0, 11.0, 10.0, 12.0, 12.0]])
    parts = stats.sem(cut, axis=1) ** 2 / cut.mean(axis=1) ** 2  # of the logarithm of each mean
    assert found.error**2 == pytest.approx(parts.sum())
    assert found.freedom == pytest.approx(parts.sum() ** 2 / (parts**2 / 4).sum())
    assert estimate("ratio", baseline, runs).above(1.0) == pytest.approx(found.above(1.0))
    turned = estimate("ratio", runs, baseline)
    assert (turned.below(1.0), turned.above(1.0)) == pytest.approx((found.above(1.0), found.below(1.0)))


def test_half_of_the_runs_that_arrive_are_enough():
    never = [*measured(None, None, given=12.0)]
    found = estimate("speed_up", [*measured(2.0, 3.0, given=20.0)], never)
    assert (found.mean, found.never, found.bounds) == (pytest.approx(12 / 2.5), 0, 2)


def test_runs_with_several_limits_are_cut_at_the_shortest():
    """The ratio of the areas under scipy's Kaplan-Meier curves, to the shortest limit that a run came to."""
    runs = [*measured(4.0, 5.0, given=40.0), *measured(None, given=9.0)]
    baseline = [*measured(8.0, 16.0, given=40.0), *measured(None, given=25.0)]
    found = estimate("speed_up", runs, baseline)

    def area(times, ended, end):
        curve = stats.ecdf(stats.CensoredData.right_censored(times, np.logical_not(ended))).sf
        edges = [0.0, *curve.quantiles[curve.quantiles < end], end]
        return sum((b - a) * curve.evaluate(a) for a, b in pairwise(edges))

    ended = [True, True, False]
    assert found.mean == pytest.approx(area([8, 16, 25], ended, 9) / area([4, 5, 9], ended, 9))
    assert found.mean == pytest.approx((8 + 9 + 9) / (4 + 5 + 9))  # and not (8 + 16 + 25) / (4 + 5 + 9)
    turned = estimate("speed_up", baseline, runs)
    assert turned.mean == pytest.approx(1 / found.mean)  # whichever side the shortest limit is on


def test_times_beyond_the_shortest_censored_run_are_cut():
    """A run that was given longer is not compared for longer."""
    runs = [*measured(4.0, 30.0, given=40.0)]
    baseline = [*measured(8.0, given=40.0), *measured(None, given=10.0)]
    assert estimate("speed_up", runs, baseline).mean == pytest.approx((8 + 10) / (4 + 10))


@pytest.mark.parametrize(
    ("form", "runs", "baseline"),
    [
        ("speed_up", measured(None, None, given=9.0), measured(None, None, given=9.0)),  # neither arrives
        ("value", measured(None, 3.0, given=9.0), ()),
        ("ratio", measured(None, given=9.0), measured(3.0)),
        ("ratio", measured(9.0, None, given=9.0), measured(9.0, 9.0)),
        ("difference", measured(None, 3.0, given=9.0), measured(1.0, 2.0)),
        ("ratio", measured(math.nan, 3.0), measured(1.0, 2.0)),
        ("difference", measured(math.nan, 3.0), measured(1.0, 2.0)),
        ("ratio", measured(0.0, 3.0), measured(1.0, 2.0)),
        ("sd_ratio", measured(1.0, 1.0), measured(1.0, 2.0)),
        ("ratio", (), ()),
    ],
)
def test_runs_that_say_nothing_give_no_estimate(form, runs, baseline):
    assert estimate(form, runs, baseline) is None


def test_equal_runs_are_no_evidence_for_either_side():
    found = estimate("ratio", measured(3.0, 4.0, 5.0), measured(3.0, 4.0, 5.0))
    assert (found.above(1.0), found.below(1.0)) == (1.0, 1.0)
    assert found.power(2.0, ALPHA) == found.within_power(1 / 1.1, 1.0, 1.1, ALPHA) == 1.0  # nothing varies
    rounded = estimate("difference", measured(1e6, 1e6 + 1e-7, 1e6), measured(0.0, 0.0, 0.0))
    assert rounded.error == 0.0
    assert found.above(0.9) == rounded.above(0.9) == 0.0


@pytest.mark.parametrize(
    ("runs", "baseline"),
    [
        (measured(3.0, 3.0), measured(6.0, 6.0)),
        (measured(3.0, 4.0), measured(6.0, 8.0)),
        (measured(3.0, 3.0, given=9.0), measured(None, None, given=9.0)),
    ],
)
def test_two_seeds_that_agree_by_chance_give_no_p(runs, baseline):
    """They have no spread to judge by; scipy's t-test of two equal values is no better than of one."""
    found = estimate("speed_up", runs, baseline)
    assert found.error == 0.0
    assert {found.above(1.0), found.below(1.0), found.above(1.9), found.below(2.1)} == {1.0}
    assert found.power(2.0, ALPHA) == found.within_power(0.5, 1.0, 2.0, ALPHA) == 0.0
    assert all(map(math.isnan, found.limit(0.95)))


def test_an_estimate_moves_on_its_own_scale():
    ours = estimate("ratio", measured(2.0, 2.5), measured(4.0, 4.1))
    start, end = (estimate("ratio", measured(value), measured(1.0)) for value in (2.0, 3.0))
    moved = ours.moved(start, end)
    assert (moved.mean, moved.low, moved.high) == pytest.approx(
        (1.5 * ours.mean, 1.5 * ours.low, 1.5 * ours.high)
    )
    ours = estimate("difference", measured(2.0, 2.5), measured(4.0, 4.1))
    start, end = (estimate("difference", measured(value), measured(1.0)) for value in (2.0, 3.0))
    assert ours.moved(start, end).mean == pytest.approx(ours.mean + 1)


def test_two_seeds_are_the_fewest_and_say_how_many_would_be_enough():
    found = estimate("difference", measured(1.0, 1.4), measured(0.0, 0.1))
    assert found.limit(0.95)[0] < found.mean < found.limit(0.95)[1]
    assert found.within_power(-100.0, 0.0, 100.0, 0.05) > 0
    shift = 0.6 / (0.3 / 2)  # pairs of 1.0 and 1.3, whose mean has an error of half of what they differ by
    assert found.power(0.6, 0.05) == pytest.approx(stats.nct.sf(stats.t.ppf(0.95, 1), 1, shift))
    enough = fewest_seeds([found], lambda others: others[0].power(0.5, 0.05))
    assert enough is not None
    assert found.with_seeds(enough).power(0.5, 0.05) >= 0.8 > found.with_seeds(enough - 1).power(0.5, 0.05)
    assert fewest_seeds([found], lambda others: others[0].power(100.0, 0.05)) == 2
    assert found.above(0.0) < 0.05
    three = estimate("difference", measured(1.0, 1.4, 1.1), measured(0.0, 0.1, 0.2))
    assert (three.freedom, three.with_seeds(5).freedom) == (2, 4)
    one = estimate("difference", measured(1.0), measured(0.0))
    assert one.within_power(-100.0, 0.0, 100.0, 0.05) == 0.0
    assert fewest_seeds([found, one], lambda _: 1.0) is None
