"""Verdicts on hand-made numbers, and estimates against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from psbench.papers.schema import Published
from psbench.papers.verdict import Estimate, Measured, estimate, holds_no_effect, judge, suspicious


def row(value, form="speed_up", **more):
    needs = {} if form == "value" else {"baseline": "b"}
    unit = "points" if form == "difference" else "x"
    return Published(
        **{"exhibit": "T", "row": "r", "place": "p", "value": value, "unit": unit, "form": form},
        **{"experiment": "a", "measure": "time_s"} | needs | more,
    )


def point(mean, half=0.0, seeds=3, **more):
    return Estimate(mean, mean - half, mean + half, seeds, **more)


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict"),
    [
        (row("2.07"), point(1.9, 0.2), "reproduced"),  # 2.07 lies in 1.7 to 2.1
        (row("2.07"), point(1.9, 0.1), "direction only"),  # ends at 2.0, but faster than 1
        (row("2.07"), point(0.9, 0.05), "not reproduced"),  # slower
        (row("2.07"), point(2.065), "reproduced"),  # 2.07 was rounded: 2.065 to 2.075
        (row("2.07"), point(2.064), "direction only"),
        (row("2.07", reading_error=0.1), point(1.97), "reproduced"),
        (row("2.07", better="higher"), point(3.0), "reproduced"),
        (row("2.07"), point(3.0), "direction only"),  # above is not said to be better
        (row("0.4", form="ratio", better="lower"), point(0.2), "reproduced"),
        (row("-0.9", form="difference"), point(-0.009), "reproduced"),  # ours is a share, theirs points
        (row("-0.9", form="difference"), point(-0.02), "direction only"),
        (row("-0.9", form="difference"), point(0.01), "not reproduced"),
        (
            row("-0.1", form="difference"),
            point(-0.001, 0.19),
            "direction only",
        ),  # 0.1 +- 19 points says nothing
        (row("-0.1", form="difference", better="higher"), point(0.01, 0.19), "not reproduced"),
        (row("26", form="value"), point(27.0), "not reproduced"),  # a number alone has no direction
        (row("1", relation=">"), point(1.2, 0.1), "reproduced"),
        (row("1", relation=">"), point(1.2, 0.3), "direction only"),
        (row("1", relation=">"), point(0.9, 0.3), "not reproduced"),
        (row("1", relation="<"), point(0.8, 0.1), "reproduced"),
        (row("2"), point(2.0, 3.5), "reproduced"),  # three effects wide, and what 2 was rounded by
        (row("2"), point(2.0, 3.6), "direction only"),
        (row("2"), point(math.nan), "not reproduced"),  # a run that diverged
    ],
)
def test_verdict(theirs, ours, verdict):
    assert judge(theirs, ours) == verdict


def test_never_is_at_most_a_direction():
    """However good the seeds were that reached the target."""
    assert judge(row("2", better="higher"), point(5.0, 1.0, never=1)) == "direction only"
    assert judge(row("2", better="higher"), point(5.0, 1.0, never=2)) == "not reproduced"
    assert judge(row("2", better="higher"), point(5.0, 1.0, seeds=2, never=1)) == "not reproduced"  # half
    assert judge(row("1", relation="<"), point(0.0, never=3)) == "reproduced"  # slower, as was said


def test_agreement_that_says_little_is_seen():
    assert holds_no_effect(row("1.1"), point(1.05, 0.1))
    assert not holds_no_effect(row("1.1"), point(1.05, 0.01))
    assert not holds_no_effect(row("26", form="value"), point(27.0, 5.0))


def test_estimates_are_of_ratios_seed_by_seed_with_students_interval():
    runs, baseline = [2.0, 2.5, 2.2], [4.0, 4.1, 5.0]
    found = estimate("speed_up", [*map(Measured, runs)], [*map(Measured, baseline)])
    ratios = np.divide(baseline, runs)
    low, high = stats.t.interval(0.95, 2, ratios.mean(), stats.sem(ratios))
    assert (found.mean, found.low, found.high) == pytest.approx((ratios.mean(), low, high))


def test_the_ratio_of_deviations_has_the_interval_of_the_f_test():
    rng = np.random.default_rng(0)
    runs, baseline = rng.normal(0, 1, 5), rng.normal(0, 2, 6)
    found = estimate("sd_ratio", [*map(Measured, runs)], [*map(Measured, baseline)])
    ratio = runs.var(ddof=1) / baseline.var(ddof=1)
    # where the two-sided test of equal variances has p = 0.05
    at_low = stats.f.cdf(ratio / found.low**2, 4, 5)
    at_high = stats.f.sf(ratio / found.high**2, 4, 5)
    assert (found.mean**2, at_low, at_high) == pytest.approx((ratio, 0.975, 0.975))


def test_one_seed_has_no_interval():
    found = estimate("value", [Measured(3.0)])
    assert (found.mean, found.low, found.high, found.seeds) == (3.0, 3.0, 3.0, 1)


def test_never_counts_as_never():
    """A run that never arrives has a speed-up of 0; a baseline that never does makes a lower bound."""
    found = estimate("speed_up", [Measured(None, 9.0), Measured(2.0)], [Measured(4.0), Measured(None, 12.0)])
    assert (found.mean, found.never, found.bounds) == (3.0, 1, 1)  # (0 + at least 12 / 2) / 2


def test_suspicion_is_welchs_one_sided_test():
    better, sync = [0.97, 0.98, 0.975], [0.95, 0.96, 0.955]
    p = stats.ttest_ind(better, sync, equal_var=False, alternative="greater").pvalue
    assert suspicious(better, sync, less_is_better=False) == pytest.approx(p)
    assert suspicious(sync, better, less_is_better=False) is None
    assert suspicious(sync, better, less_is_better=True) == pytest.approx(p)
    assert suspicious([0.97], sync, less_is_better=False) is None  # one run says nothing
