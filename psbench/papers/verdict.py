"""Whether a published number is reproduced: pure functions of their number and of ours.

The rules are fixed beforehand and the same for every row, and nobody writes a verdict by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from psbench.metrics import interval
from psbench.papers.schema import UNITS, Form, Published

Verdict: TypeAlias = Literal["reproduced", "direction only", "not reproduced", "not run"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "direction only", "not reproduced", "not run")

#: half-width of an interval, in published effects, above which agreement says nothing
_WIDEST = 3.0
#: below this a t-test calls a difference suspicious
_SUSPICIOUS = 0.05


@dataclass(frozen=True)
class Estimate:
    """Our number: its mean over seeds, its 95 % interval, and how many seeds there were.

    Attributes
    ----------
    low, high : float
        Equal to the mean with one seed, which has no interval.
    never : int
        Seeds in which the experiment never reached its target.
    bounds : int
        Seeds in which the baseline never did: their ratios are lower bounds, from the time it was given.
    """

    mean: float
    low: float
    high: float
    seeds: int
    never: int = 0
    bounds: int = 0


@dataclass(frozen=True)
class Measured:
    """A measure of one run; None means that the target was never reached, within `given`."""

    value: float | None
    given: float = math.nan


def estimate(form: Form, runs: Sequence[Measured], baseline: Sequence[Measured] = ()) -> Estimate:
    """Return our number from the runs of an experiment and those of its baseline, seed by seed.

    Parameters
    ----------
    form : Form
        "value", "speed_up" (baseline / run), "ratio" (run / baseline), "difference" (run - baseline) or
        "sd_ratio" (ratio of the standard deviations over seeds, whose interval is that of the F test).
    runs, baseline : sequence of Measured, one per seed, in the order of the seeds

    Notes
    -----
    Never is counted as never: a run that did not reach its target has a speed-up of 0. A baseline that did
    not reach it counts with the time that it was given, which makes the ratio a lower bound.

    Examples
    --------
    >>> estimate("speed_up", [Measured(2.0), Measured(2.0)], [Measured(4.0), Measured(6.0)]).mean
    2.5
    >>> estimate("speed_up", [Measured(None, 9.0)], [Measured(3.0)]).mean
    0.0
    """
    never = sum(run.value is None for run in runs)
    bounds = sum(run.value is None for run in baseline)
    if form == "sd_ratio":
        return _spread_ratio([_reached(run) for run in runs], [_reached(run) for run in baseline])
    if form == "value":
        found = [_reached(run) for run in runs]
    else:
        found = [_paired(form, run, other) for run, other in zip(runs, baseline, strict=True)]
    if math.inf in found:  # never, where less is better: no interval
        return Estimate(math.inf, math.inf, math.inf, len(found), never, bounds)
    mean, half = interval(found)
    wide = half or 0.0
    return Estimate(mean, mean - wide, mean + wide, len(found), never, bounds)


def _reached(run: Measured) -> float:
    return run.given if run.value is None else run.value


def _paired(form: Form, run: Measured, other: Measured) -> float:
    if form == "difference":
        return _reached(run) - _reached(other)
    if run.value is None:
        return 0.0 if form == "speed_up" else math.inf
    top, bottom = (_reached(other), run.value) if form == "speed_up" else (run.value, _reached(other))
    return top / bottom if bottom else math.inf


def _spread_ratio(runs: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """Return the ratio of two standard deviations with its 95 % interval, for normal values."""
    from scipy.stats import f  # type: ignore[import-untyped]

    if len(runs) < 2 or len(baseline) < 2:
        return Estimate(math.nan, math.nan, math.nan, len(runs))
    top, bottom = np.var(runs, ddof=1), np.var(baseline, ddof=1)
    if bottom == 0:
        return Estimate(math.inf, math.inf, math.inf, len(runs))
    ratio = float(top / bottom)
    low, high = f.ppf([0.025, 0.975], len(runs) - 1, len(baseline) - 1)
    return Estimate(math.sqrt(ratio), math.sqrt(ratio / high), math.sqrt(ratio / low), len(runs))


def judge(theirs: Published, ours: Estimate) -> Verdict:
    """Return the verdict on a row.

    A number is reproduced if the printed one, with what it was rounded by and may have been misread by, lies
    in our interval, or if ours is better; but not if our interval is wider than three times the published
    effect on either side, which says nothing. A statement ("faster than") is reproduced if our whole interval
    agrees with it. Otherwise, if our mean is on the same side of "no effect" (1 for ratios, 0 for
    differences), only the direction is. An experiment that missed its target with some seeds can have the
    direction at most, and only if it reached the target with more than half of them; unless the statement is
    that it is slower.

    Parameters
    ----------
    theirs : Published
        In its own unit.
    ours : Estimate
        In the units of psbench.
    """
    factor = 1.0 if theirs.form in ("speed_up", "ratio", "sd_ratio") else UNITS[theirs.unit]
    mean, low, high = (factor * value for value in (ours.mean, ours.low, ours.high))
    if math.isnan(mean):
        return "not reproduced"
    if theirs.relation != "=":
        found = _statement(float(theirs.value), theirs.relation, mean, low, high)
    else:
        found = _number(theirs, mean, low, high)
    slower = theirs.form == "speed_up" and theirs.relation == "<"  # never is slower than anything
    if ours.never and not slower:
        agrees = found != "not reproduced" and 2 * ours.never < ours.seeds
        return "direction only" if agrees else "not reproduced"
    return found


def _statement(value: float, relation: str, mean: float, low: float, high: float) -> Verdict:
    sign = 1 if relation == ">" else -1
    if sign * (mean - value) <= 0:
        return "not reproduced"
    return "reproduced" if min(sign * (low - value), sign * (high - value)) > 0 else "direction only"


def _number(theirs: Published, mean: float, low: float, high: float) -> Verdict:
    value = float(theirs.value)
    within = theirs.rounding + theirs.reading_error
    agrees = low <= value + within and high >= value - within
    is_better = (theirs.better == "higher" and mean > value) or (theirs.better == "lower" and mean < value)
    if (agrees or is_better) and not _too_wide(theirs, value, high - low):
        return "reproduced"
    if theirs.neutral is not None and (mean - theirs.neutral) * (value - theirs.neutral) > 0:
        return "direction only"
    return "not reproduced"


def _too_wide(theirs: Published, value: float, width: float) -> bool:
    """Return whether an interval is so wide that nearly any number would lie in it."""
    return theirs.neutral is not None and width / 2 > _WIDEST * abs(value - theirs.neutral) + theirs.rounding


def holds_no_effect(theirs: Published, ours: Estimate) -> bool:
    """Return whether our interval also holds "no effect", so that agreement says little."""
    return theirs.neutral is not None and ours.low < theirs.neutral < ours.high


def suspicious(runs: Sequence[float], synchronous: Sequence[float], *, less_is_better: bool) -> float | None:
    """Return the p-value if runs are better than synchronous training on equal samples; else None.

    Welch's one-sided t-test; below 0.05 a result is worth a second look, since staleness, or fewer averages,
    cannot be expected to make a sample teach more.

    Parameters
    ----------
    runs, synchronous : sequence of float, at least two each
        Final values after equal samples, or samples to a target.

    Examples
    --------
    >>> suspicious([0.97, 0.971, 0.972], [0.95, 0.951, 0.952], less_is_better=False) < 0.001
    True
    >>> suspicious([0.95, 0.96, 0.97], [0.96, 0.95, 0.97], less_is_better=False) is None
    True
    """
    from scipy.stats import ttest_ind_from_stats

    if len(runs) < 2 or len(synchronous) < 2 or (np.ptp(runs) == 0 and np.ptp(synchronous) == 0):
        return None
    side = "less" if less_is_better else "greater"
    ours, theirs = ((np.mean(x), np.std(x, ddof=1), len(x)) for x in (runs, synchronous))
    found = float(ttest_ind_from_stats(*ours, *theirs, equal_var=False, alternative=side).pvalue)
    return found if found < _SUSPICIOUS else None
