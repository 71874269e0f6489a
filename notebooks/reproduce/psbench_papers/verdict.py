"""Whether a claim holds here: pure functions of the printed numbers and of ours.

The rules are fixed beforehand and the same for every claim; no verdict is written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from scipy import special, stats

from psbench_papers.claim import Claim
from psbench_papers.estimates import Estimate
from psbench_papers.schema import NEUTRAL, PublishedNumber

Verdict: TypeAlias = Literal[
    "confirmed",
    "confirmed in direction",
    "exceeds",
    "inconclusive",
    "contradicted",
    "underpowered there",
    "not run",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

#: verdicts that say that an effect was found
_EFFECTS: tuple[Verdict, ...] = ("confirmed", "confirmed in direction", "exceeds")

#: of each one-sided test over all claims of a paper: half of the usual 5 %
ALPHA = 0.025
#: two-sided level at which the paper's own deviations separate two methods
_SEPARATED = 0.05
#: share of the printed effect by which ours may be smaller or larger
_SIZE = 0.5
#: below this a t-test calls a difference suspicious
_SUSPICIOUS = 0.05


@dataclass(frozen=True)
class RowTest:
    """A row's tests of its claim, as one-sided p-values.

    Attributes
    ----------
    agrees : float
        That there is an effect in the printed direction, or that two are the same, or that a number is ours.
    opposes : float
        That there is one in the other direction, or that two differ for the worse, or that a number is not.
    sized : float or None
        That the effect has the printed size; None where none was printed or censored times cannot tell.
    beyond : float or None
        That it is larger than that, or better than "the same".
    short : float or None
        That it is smaller than that, if there is one at all.
    """

    agrees: float
    opposes: float
    sized: float | None = None
    beyond: float | None = None
    short: float | None = None


@dataclass(frozen=True)
class ClaimTest:
    """The tests of all rows of a claim, combined.

    Attributes
    ----------
    agrees : float
        That all rows agree: the largest of their p-values.
    opposes : float
        That at least one opposes: the smallest, times the number of rows.
    sized, beyond : float or None
        The largest, where every row has one.
    short : float
        That at least one falls short of its size.
    there : float or None
        The largest p-value of the printed deviations, where there are any: above 0.05 the paper's own runs do
        not show all of the claim.
    """

    agrees: float
    opposes: float
    sized: float | None
    beyond: float | None
    short: float = 1.0
    there: float | None = None


def examine(claim: Claim, theirs: PublishedNumber, ours: Estimate) -> RowTest:
    """Test a row of a claim by an estimate."""
    if claim.test == "same":
        return _same(claim, theirs, ours)
    if claim.test == "number":
        return _number(claim, theirs, ours)
    return _effect(claim, theirs, ours)


def bounds(claim: Claim, theirs: PublishedNumber) -> tuple[float, float]:
    """Return the limits within which ours has the printed size, or counts as the same, in our unit."""
    value, within = float(theirs.value), theirs.rounding + theirs.reading_error
    if claim.test == "same":
        neutral = NEUTRAL[theirs.form] or 0.0
        half = claim.margin / theirs.factor
        return (neutral - half, neutral + half) if neutral == 0 else (1 / claim.margin, claim.margin)
    low, high = value - within, value + within
    if claim.test == "number":
        return low / claim.margin / theirs.factor, high * claim.margin / theirs.factor
    if theirs.form == "difference":
        sign = 1 if value > 0 else -1
        least, most = max(0.0, abs(value) - within), abs(value) + within
        ends = sorted((sign * least * (1 - _SIZE), sign * most * (1 + _SIZE)))
        return ends[0] / theirs.factor, ends[1] / theirs.factor
    sign = 1 if value > 1 else -1
    least, most = sorted(max(0.0, sign * math.log(end)) for end in (low, high))
    factor = math.log(claim.margin)
    ends = sorted((sign * (least - min(factor, least * _SIZE)), sign * (most + min(factor, most * _SIZE))))
    return math.exp(ends[0]), math.exp(ends[1])


def _rises(theirs: PublishedNumber) -> bool:
    """Return whether the printed effect is above "no effect"."""
    if theirs.relation != "=":
        return theirs.relation == ">"
    return float(theirs.value) > (NEUTRAL[theirs.form] or 0.0)


def _effect(claim: Claim, theirs: PublishedNumber, ours: Estimate) -> RowTest:
    neutral = NEUTRAL[theirs.form] or 0.0
    if theirs.relation != "=":
        neutral = float(theirs.value) / theirs.factor
    up, down = ours.above(neutral), ours.below(neutral)
    if ours.low == ours.high == NEUTRAL[theirs.form]:  # as below: nothing can be told from it
        return RowTest(1.0, 1.0)
    rises = _rises(theirs)
    agrees, opposes = (up, down) if rises else (down, up)
    if theirs.relation != "=" or ours.is_censored:
        return RowTest(agrees, opposes)
    low, high = bounds(claim, theirs)
    beyond, short = (ours.above(high), ours.below(low)) if rises else (ours.below(low), ours.above(high))
    return RowTest(agrees, opposes, max(ours.above(low), ours.below(high)), beyond, short)


def _same(claim: Claim, theirs: PublishedNumber, ours: Estimate) -> RowTest:
    low, high = bounds(claim, theirs)
    if ours.low == ours.high == NEUTRAL[theirs.form]:  # the same runs, or both at the end of a scale
        return RowTest(1.0, 1.0)
    above, below = ours.above(high), ours.below(low)
    good = {"higher": above, "lower": below}.get(theirs.better)
    worse = {"higher": below, "lower": above}.get(theirs.better, min(1.0, 2 * min(above, below)))
    return RowTest(max(ours.above(low), ours.below(high)), worse, sized=0.0, beyond=good)


def _number(claim: Claim, theirs: PublishedNumber, ours: Estimate) -> RowTest:
    low, high = bounds(claim, theirs)
    outside = min(1.0, 2 * min(ours.above(high), ours.below(low)))
    return RowTest(max(ours.above(low), ours.below(high)), outside, sized=0.0)


def together(tests: Sequence[RowTest], there: Sequence[float | None] = ()) -> ClaimTest:
    """Combine the tests of a claim's rows; the claim is that all of them hold.

    Examples
    --------
    >>> together([RowTest(0.01, 0.99), RowTest(0.2, 0.8)])
    ClaimTest(agrees=0.2, opposes=1.0, sized=None, beyond=None, short=1.0, there=None)
    """
    known = [p for p in there if p is not None]
    return ClaimTest(
        agrees=max(test.agrees for test in tests),
        opposes=min(1.0, len(tests) * min(test.opposes for test in tests)),
        sized=_largest([test.sized for test in tests]),
        beyond=_largest([test.beyond for test in tests]),
        short=min(1.0, len(tests) * min(1.0 if test.short is None else test.short for test in tests)),
        there=max(known) if known else None,
    )


def _largest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def judge(tests: Sequence[ClaimTest]) -> list[Verdict]:
    """Return the verdicts on all claims of a paper that were run.

    A finding counts if it is significant at 2.5 % on its side after Holm's correction over the claims; its
    size is then tested at the level that it was found at. What is significantly the other way round is
    contradicted, whatever else is true of it; so is an effect that is not found where the printed one would
    have been: ours is significantly smaller. Where the paper's own deviations do not show the effect, ours
    may show its direction, and no size counts.
    """
    found = holm([test.agrees for test in tests], ALPHA)
    opposed = holm([test.opposes for test in tests], ALPHA)
    better = holm([1.0 if test.beyond is None else test.beyond for test in tests], ALPHA)
    short = holm([test.short for test in tests], ALPHA)
    return [_verdict(*each) for each in zip(tests, found, opposed, better, short, strict=True)]


def _verdict(
    test: ClaimTest, found: float | None, opposed: float | None, better: float | None, short: float | None
) -> Verdict:
    shown_there = test.there is None or test.there <= _SEPARATED
    if opposed is not None:
        return "contradicted"
    if found is None:
        if better is not None:
            return "exceeds"  # outside of "the same", on the good side
        if not shown_there:
            return "underpowered there"
        return "inconclusive" if short is None else "contradicted"
    if shown_there and test.sized is not None and test.sized <= found:
        return "confirmed"
    if shown_there and test.beyond is not None and test.beyond <= found:
        return "exceeds"
    return "confirmed in direction"


def controlled(verdict: Verdict, control: Verdict) -> Verdict:
    """Return the verdict on an equality beside that on the effect which shows that a loss could be found.

    Examples
    --------
    >>> controlled("confirmed", "contradicted"), controlled("confirmed", "confirmed in direction")
    ('inconclusive', 'confirmed')
    """
    return "inconclusive" if verdict == "confirmed" and control not in _EFFECTS else verdict


def holm(values: Sequence[float], level: float) -> list[float | None]:
    """Return the level at which each p-value is significant by Holm's step-down test; None where it is not.

    Examples
    --------
    >>> holm([0.03, 0.001, 0.024], 0.05)
    [0.05, 0.016666666666666666, 0.025]
    >>> holm([0.03, 0.001, 0.026], 0.05)
    [None, 0.016666666666666666, None]
    >>> holm([0.05], 0.05)
    [0.05]
    """
    found: list[float | None] = [None] * len(values)
    for rank, place in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        allowed = level / (len(values) - rank)
        if values[place] > allowed:
            break
        found[place] = allowed
    return found


def separated_there(theirs: PublishedNumber) -> float | None:
    """Return the two-sided p-value of the printed deviations; None where none were printed.

    Welch's test of two means, or the F test of two deviations.
    """
    if not theirs.runs:
        return None
    if theirs.form == "sd_ratio":
        ratio = float(theirs.value) ** 2
        n = theirs.runs - 1
        return float(min(1.0, 2 * special.fdtrc(n, n, max(ratio, 1 / ratio))))
    if theirs.form != "difference" or theirs.sd is None or theirs.baseline_sd is None:
        return None
    value = float(theirs.value) / theirs.factor
    groups = (value, theirs.sd, theirs.runs, 0.0, theirs.baseline_sd, theirs.runs)
    return float(stats.ttest_ind_from_stats(*groups, equal_var=False).pvalue)


def power(
    claim: Claim, theirs: PublishedNumber, ours: Estimate, claims: int
) -> tuple[float | None, int | None]:
    """Return the chance that a row's test succeeds if the paper is right, and how many seeds make it 80 %.

    For an effect, that its direction is found if it has the printed size; None and None if no size was
    printed. For "the same", that it is found if there is no difference. With our seeds and our noise, at the
    strictest level of Holm's correction. The seeds are None if 2,000 are too few.
    """
    level = ALPHA / claims
    if claim.test == "same":
        half = claim.margin / theirs.factor if theirs.form == "difference" else claim.margin

        def chance(found: Estimate) -> float:
            return found.equal_power(half, level)

    elif claim.test == "number" or theirs.relation != "=":
        return None, None
    else:
        effect = float(theirs.value) / theirs.factor

        def chance(found: Estimate) -> float:
            return found.power(effect, level)

    return chance(ours), ours.seeds_for(chance)


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
    if len(runs) < 2 or len(synchronous) < 2 or (np.ptp(runs) == 0 and np.ptp(synchronous) == 0):
        return None
    side = "less" if less_is_better else "greater"
    ours, theirs = ((np.mean(x), np.std(x, ddof=1), len(x)) for x in (runs, synchronous))
    found = float(stats.ttest_ind_from_stats(*ours, *theirs, equal_var=False, alternative=side).pvalue)
    return found if found < _SUSPICIOUS else None
