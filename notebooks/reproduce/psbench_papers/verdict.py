"""Verdicts on claims: pure functions of the printed numbers and of ours.

The rules are fixed beforehand and the same for every claim; no verdict is written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Literal, TypeAlias, get_args

import numpy as np
from scipy import special, stats

from psbench_papers.claim import Claim
from psbench_papers.estimates import ENOUGH, Estimate, fewest_seeds
from psbench_papers.schema import NEUTRAL, PublishedNumber

Verdict: TypeAlias = Literal[
    "confirmed",
    "confirmed in direction",
    "exceeds",
    "inconclusive",
    "not found",
    "contradicted",
    "underpowered there",
    "not testable here",
    "not run",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

#: verdicts that say that an effect was found
_EFFECTS: tuple[Verdict, ...] = ("confirmed", "confirmed in direction", "exceeds")

#: of each one-sided test over all claims of a paper: half of the usual 5 %
ALPHA = 0.025
#: share of the draws of assumed numbers in which a finding has to be made
_DRAWS = 0.9
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

    @property
    def missing(self) -> float:
        """The p-value of "it is too small"; 1 if the interval contains no "no effect" on its side."""
        return 1.0 if self.short is None or self.agrees <= ALPHA else self.short


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
        That at least one is not there: it falls short of its size, and its own interval holds "no effect".
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
    rows: tuple[RowTest, ...] = field(default=(), repr=False)


def examine(claim: Claim, theirs: PublishedNumber, ours: Estimate) -> RowTest:
    """Test a row of a claim by an estimate."""
    if claim.test == "same":
        return _same(claim, theirs, ours)
    if claim.test == "number":
        return _number(claim, theirs, ours)
    return _effect(claim, theirs, ours)


def bounds(claim: Claim, theirs: PublishedNumber) -> tuple[float, float]:
    """Return the limits within which ours has the printed size, or counts as the same, in our unit."""
    value, within = theirs.printed, theirs.rounding + theirs.reading_error
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
    """Return whether the printed effect is positive."""
    if theirs.relation != "=":
        return theirs.relation == ">"
    return theirs.printed > (NEUTRAL[theirs.form] or 0.0)


def _effect(claim: Claim, theirs: PublishedNumber, ours: Estimate) -> RowTest:
    neutral = NEUTRAL[theirs.form] or 0.0
    if theirs.relation != "=":
        neutral = theirs.printed / theirs.factor
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
    """Combine the tests of a claim's rows; the claim is that all rows hold.

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
        short=min(1.0, len(tests) * min(test.missing for test in tests)),
        there=max(known) if known else None,
        rows=tuple(tests),
    )


def drawn(test: RowTest, draws: Sequence[RowTest | None]) -> RowTest:
    """Return a row's tests with the assumed numbers drawn: each is the worst but for one draw in ten.

    A draw without a number, None, shows nothing.

    Examples
    --------
    >>> drawn(RowTest(0.01, 1.0, 0.01), [RowTest(0.02, 1.0, 0.02)] * 10 + [RowTest(0.5, 1.0, 0.6)] * 2)
    RowTest(agrees=0.5, opposes=1.0, sized=0.6, beyond=None, short=None)
    """
    kept = math.ceil(_DRAWS * len(draws))
    found = [
        None if own is None else max(own, sorted(1.0 if p is None else p for p in each)[kept - 1])
        for own, *each in zip(
            *map(astuple, [test, *(RowTest(1.0, 1.0) if draw is None else draw for draw in draws)]),
            strict=True,
        )
    ]
    return RowTest(found[0] or 0.0, found[1] or 0.0, *found[2:])


def undrawn(claim: Claim, test: RowTest) -> RowTest:
    """Return the tests of a row that assumed numbers affect and were not drawn for: no size counts."""
    agrees = test.agrees if claim.test == "effect" else 1.0
    return replace(test, agrees=agrees, sized=None, beyond=None, short=None)


def _largest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def judge(tests: Sequence[ClaimTest], family: int | None = None) -> list[Verdict]:
    """Return the verdicts on claims of a paper that were run.

    A finding counts if it is significant at 2.5 % on its side after Holm's correction over the `family`
    claims of the paper, by default those that were run; its size is then tested at the level that it was
    found at. What is significantly the other way round is contradicted, whatever else is true of it. An
    effect is not found if ours is significantly smaller than the printed one, and not there even without
    the correction. Where the paper's own deviations do not show the effect, ours may show its direction, and
    no size counts.
    """
    found = holm([test.agrees for test in tests], ALPHA, family)
    opposed = holm([test.opposes for test in tests], ALPHA, family)
    better = holm([1.0 if test.beyond is None else test.beyond for test in tests], ALPHA, family)
    short = holm([test.short for test in tests], ALPHA, family)
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
        return "inconclusive" if short is None else "not found"
    if shown_there and test.sized is not None and test.sized <= found:
        return "confirmed"
    if shown_there and test.beyond is not None and test.beyond <= found:
        return "exceeds"
    return "confirmed in direction"


def controlled(claim: Claim, verdict: Verdict, control: Verdict) -> Verdict:
    """Return the verdict on "no difference", given a control that shows whether losses are detectable."""
    none = verdict == "not found" or (verdict == "confirmed" and claim.test == "same")
    return "inconclusive" if none and control not in _EFFECTS else verdict


def at_edge(verdict: Verdict) -> Verdict:
    """Return the verdict on strategies, one of whose best rates is at the edge of the tried rates.

    Examples
    --------
    >>> at_edge("confirmed"), at_edge("contradicted"), at_edge("not run")
    ('inconclusive', 'inconclusive', 'not run')
    """
    return "inconclusive" if verdict in (*_EFFECTS, "not found", "contradicted") else verdict


def holm(values: Sequence[float], level: float, family: int | None = None) -> list[float | None]:
    """Return the level at which each p-value is significant by Holm's test; None if it is not.

    `family` is the number of tests with those that were not made, by default all of `values`.

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
    tests = len(values) if family is None else family
    for rank, place in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        allowed = level / (tests - rank)
        if values[place] > allowed:
            break
        found[place] = allowed
    return found


def levels(values: Sequence[float], level: float, family: int | None = None) -> list[float]:
    """Return the largest p-value with which each test would be significant, given the others.

    Examples
    --------
    >>> levels([0.9, 0.001, 0.02], 0.06)
    [0.06, 0.03, 0.03]
    """
    tests = len(values) if family is None else family
    others = ([*values[:place], 1.0, *values[place + 1 :]] for place in range(len(values)))
    return [level / (tests - sum(p is not None for p in holm(each, level, tests))) for each in others]


def separated_there(theirs: PublishedNumber) -> float | None:
    """Return the two-sided p-value from the printed deviations; None if none were printed.

    Welch's test of two means, or the F test of two deviations.
    """
    if not theirs.runs:
        return None
    if theirs.form == "sd_ratio":
        ratio = theirs.printed**2
        n = theirs.runs - 1
        return float(min(1.0, 2 * special.fdtrc(n, n, max(ratio, 1 / ratio))))
    if theirs.form != "difference" or theirs.sd is None or theirs.baseline_sd is None:
        return None
    value = theirs.printed / theirs.factor
    groups = (value, theirs.sd, theirs.runs, 0.0, theirs.baseline_sd, theirs.runs)
    return float(stats.ttest_ind_from_stats(*groups, equal_var=False).pvalue)


def power(
    claim: Claim, pairs: Sequence[tuple[PublishedNumber, Estimate]], level: float, verdict: Verdict
) -> tuple[float | None, int | None]:
    """Return the probability of a verdict if the paper is right, and the seeds for 80 %.

    For "confirmed", that all rows have the printed size, or are the same, or the number; for other verdicts
    on an effect, that all have its direction. With our seeds, our noise, and the level at which the claim is
    tested. Rows may depend on each other, so it is at least this: the chances that single rows fail are
    added. None and None where no size was printed. The seeds are None if 2,000 are too few.
    """

    def chance(found: Sequence[Estimate]) -> float:
        rows = zip(pairs, found, strict=True)
        return max(0.0, 1 - sum(1 - row_power(claim, row, each, level, verdict) for (row, _), each in rows))

    if not pairs or any(row.relation != "=" for row, _ in pairs):
        return None, None
    ours = [found for _, found in pairs]
    return chance(ours), fewest_seeds(ours, chance)


def row_power(claim: Claim, theirs: PublishedNumber, ours: Estimate, level: float, verdict: Verdict) -> float:
    """Return the chance of a verdict in one row, see `power`."""
    effect = theirs.printed / theirs.factor
    if claim.test == "effect" and verdict != "confirmed":
        return ours.power(effect, level)
    low, high = bounds(claim, theirs)
    truth = NEUTRAL[theirs.form] or 0.0 if claim.test == "same" else effect
    return ours.within_power(low, truth, high, level)


def was_missed(
    claim: Claim, pairs: Sequence[tuple[PublishedNumber, Estimate]], test: ClaimTest, level: float
) -> bool:
    """Return whether a row was not found although the power was sufficient."""
    rows = zip(pairs, test.rows, strict=True)
    return any(
        row_power(claim, theirs, ours, level, "not found") >= ENOUGH
        for (theirs, ours), row in rows
        if row.missing * len(pairs) <= ALPHA
    )


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
