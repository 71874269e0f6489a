"""Our number for a row, from the runs: its interval, and its tests against other numbers.

A ratio is estimated by its logarithm, and runs are compared in pairs with the same seed, which takes out what
both drew alike: the data, the start of the model, the order of the samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

from psbench.arrays import Doubles
from psbench_papers.schema import NEUTRAL, Form

#: the level of printed intervals
CONFIDENCE = 0.95
#: the power that is enough, which `fewest_seeds` plans for
ENOUGH = 0.8
MOST_SEEDS = 2000


@dataclass(frozen=True)
class RunMeasure:
    """A measure of one run; None means that the target was never reached, within `given`."""

    value: float | None
    given: float = math.nan


@dataclass(frozen=True)
class Estimate(ABC):
    """Our number over seeds.

    Attributes
    ----------
    form : Form
    seeds : int
        Runs on each side.
    never, bounds : int
        Runs, and runs of the baseline, that ended before they reached their target. Such times are censored:
        it is known only that they are longer than the run was.
    """

    form: Form
    seeds: int
    never: int
    bounds: int

    @property
    @abstractmethod
    def mean(self) -> float:
        """The estimate: a geometric mean for ratios."""

    @abstractmethod
    def limit(self, level: float) -> tuple[float, float]:
        """Return the ends of a confidence interval."""

    @abstractmethod
    def above(self, value: float) -> float:
        """Return the one-sided p-value of "it is above `value`"."""

    @abstractmethod
    def below(self, value: float) -> float:
        """Return the one-sided p-value of "it is below `value`"."""

    @abstractmethod
    def power(self, effect: float, level: float) -> float:
        """Return the power of the test for this effect size, with as many seeds and this noise.

        Parameters
        ----------
        effect : float
            A number of this form that is not neutral.
        level : float
            Of the one-sided test.
        """

    @abstractmethod
    def within_power(self, low: float, value: float, high: float, level: float) -> float:
        """Return the chance to find a true `value` between `low` and `high`, by both one-sided tests."""

    @abstractmethod
    def with_seeds(self, seeds: int) -> Estimate:
        """Return the estimate with the same noise and another number of seeds."""

    @abstractmethod
    def moved(self, start: Estimate, end: Estimate) -> Estimate:
        """Return the estimate shifted, on its own scale, by the difference between `start` and `end`."""

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.limit(CONFIDENCE)[0]

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.limit(CONFIDENCE)[1]

    @property
    def is_censored(self) -> bool:
        """Return True if any run ended before its target."""
        return bool(self.never or self.bounds)


def fewest_seeds(found: Sequence[Estimate], power: Callable[[Sequence[Estimate]], float]) -> int | None:
    """Return the fewest seeds with a power of 80 %; None if 2,000 have less, or from one seed."""
    if any(each.seeds < 2 for each in found):  # which says nothing about noise
        return None
    seeds = range(2, MOST_SEEDS + 1)
    enough = bisect_left(seeds, ENOUGH, key=lambda n: power([each.with_seeds(n) for each in found]))
    return seeds[enough] if enough < len(seeds) else None


@dataclass(frozen=True)
class MeanEstimate(Estimate):
    """A mean over seeds, of logarithms if `log`, with Student's t distribution.

    Attributes
    ----------
    centre, error, freedom : float
        On the scale of the logarithms if `log`.
    ranks : tuple of two floats or None
        Where times are censored: the p-values of the log-rank test for above and below "no effect". A
        direction then takes both tests.
    """

    centre: float
    error: float
    freedom: float
    log: bool
    ranks: tuple[float, float] | None = None

    @property
    def mean(self) -> float:
        """See the base."""
        return self._back(self.centre)

    def limit(self, level: float) -> tuple[float, float]:
        """See the base."""
        if self._tells_nothing:
            return math.nan, math.nan
        half = float(special.stdtrit(self.freedom, (1 + level) / 2)) * self.error
        return self._back(self.centre - half), self._back(self.centre + half)

    def above(self, value: float) -> float:
        """See the base."""
        return self._tail(self.centre - self._scaled(value), value, 0)

    def below(self, value: float) -> float:
        """See the base."""
        return self._tail(self._scaled(value) - self.centre, value, 1)

    def power(self, effect: float, level: float) -> float:
        """See the base: the noncentral t distribution."""
        shift = abs(self._scaled(effect))  # what is neutral is 0 on either scale
        if self._tells_nothing or not math.isfinite(self.error) or not shift:
            return 0.0
        if self.error == 0:
            return 1.0
        limit = -float(special.stdtrit(self.freedom, level))
        found = 1.0 - float(special.nctdtr(self.freedom, shift / self.error, limit))
        return 1.0 if math.isnan(found) else found  # the distribution has no value far out, where it is 1

    def within_power(self, low: float, value: float, high: float, level: float) -> float:
        """See the base; the noise counts as known."""
        if self._tells_nothing or not math.isfinite(self.error):
            return 0.0
        if self.error == 0:
            return 1.0
        least = float(special.stdtrit(self.freedom, level))
        above, below = (self._scaled(high) - self._scaled(value), self._scaled(low) - self._scaled(value))
        ends = special.stdtr(self.freedom, [above / self.error + least, below / self.error - least])
        return max(0.0, float(ends[0] - ends[1]))

    def moved(self, start: Estimate, end: Estimate) -> Estimate:
        """See the base."""
        return replace(self, centre=self.centre + self._scaled(end.mean) - self._scaled(start.mean))

    @property
    def _tells_nothing(self) -> bool:
        """Return True if the spread is unusable: one seed has none, and two seeds may agree by chance."""
        return self.seeds < 2 or (self.seeds == 2 and self.error == 0)

    def with_seeds(self, seeds: int) -> MeanEstimate:
        """See the base."""
        scale = (seeds - 1) / (self.seeds - 1)
        error = self.error * math.sqrt(self.seeds / seeds)
        return replace(self, seeds=seeds, freedom=self.freedom * scale, error=error, ranks=None)

    def _tail(self, distance: float, value: float, side: int) -> float:
        if self._tells_nothing or math.isnan(distance) or math.isnan(self.error):
            return 1.0
        if self.error == 0:
            found = 0.0 if distance > 0 else 1.0
        else:
            found = float(special.stdtr(self.freedom, -distance / self.error))
        if self.ranks is not None and value == NEUTRAL[self.form]:
            return max(found, self.ranks[side])
        return found

    def _scaled(self, value: float) -> float:
        if not self.log:
            return value
        return math.log(value) if value > 0 else -math.inf

    def _back(self, value: float) -> float:
        if not self.log:
            return value
        return math.exp(value) if value < 700 else math.inf


@dataclass(frozen=True)
class SpreadEstimate(Estimate):
    """The ratio of two standard deviations over two seeds or more, with the F distribution."""

    ratio: float

    @property
    def mean(self) -> float:
        """See the base: the ratio of the two deviations."""
        return self.ratio

    def limit(self, level: float) -> tuple[float, float]:
        """See the base."""
        n = self.seeds - 1
        high = float(special.fdtri(n, n, (1 + level) / 2))
        return self.ratio / math.sqrt(high), self.ratio * math.sqrt(high)  # equal seeds: symmetric

    def above(self, value: float) -> float:
        """See the base."""
        return self._tail(value, special.fdtrc)

    def below(self, value: float) -> float:
        """See the base."""
        return self._tail(value, special.fdtr)

    def power(self, effect: float, level: float) -> float:
        """See the base."""
        if effect <= 0 or effect == 1:
            return 0.0
        n, size = self.seeds - 1, max(effect, 1 / effect) ** 2  # equal seeds: symmetric
        return float(special.fdtrc(n, n, special.fdtri(n, n, 1 - level) / size))

    def within_power(self, low: float, value: float, high: float, level: float) -> float:
        """See the base."""
        n = self.seeds - 1
        limit = float(special.fdtri(n, n, level))  # a squared ratio this far below a bound is just below it
        ends = special.fdtr(n, n, [(high / value) ** 2 * limit, (low / value) ** 2 / limit])
        return max(0.0, float(ends[0] - ends[1]))

    def moved(self, start: Estimate, end: Estimate) -> Estimate:
        """See the base."""
        return replace(self, ratio=self.ratio * end.mean / start.mean)

    def with_seeds(self, seeds: int) -> SpreadEstimate:
        """See the base."""
        return replace(self, seeds=seeds)

    def _tail(self, value: float, tail: Callable[[int, int, float], float]) -> float:
        if value <= 0:
            return 1.0
        return float(tail(self.seeds - 1, self.seeds - 1, (self.ratio / value) ** 2))


def estimate(
    form: Form,
    runs: Sequence[RunMeasure],
    baseline: Sequence[RunMeasure] = (),
    *minus: Sequence[RunMeasure],
) -> Estimate | None:
    """Return our estimate from the runs of an experiment and of its baseline.

    Parameters
    ----------
    form : Form
        "value", "speed_up" (baseline / run), "ratio" (run / baseline), "difference" (run - baseline) or
        "sd_ratio" (ratio of the standard deviations over seeds).
    runs, baseline : sequence of RunMeasure, one per seed, in the order of the seeds
    minus : two sequences of RunMeasure
        An experiment and its baseline, whose difference is subtracted from the first.

    Returns
    -------
    Estimate or None
        None where the runs say nothing: a value is missing, or no run reached its target on either side.

    Notes
    -----
    Where a run ended before its target, all times are cut at the shortest time that such a run was given. The
    ratio is then that of the restricted means, which is nearer to 1 than the ratio of the times is, and a
    direction takes the log-rank test as well.

    Examples
    --------
    >>> found = estimate("speed_up", [RunMeasure(2.0), RunMeasure(2.0)], [RunMeasure(4.0), RunMeasure(9.0)])
    >>> round(found.mean, 9)
    3.0
    >>> estimate("difference", *([RunMeasure(x)] for x in (0.9, 0.8, 0.7, 0.65))).mean  # doctest: +ELLIPSIS
    0.05...
    """
    if minus:
        return _difference_of_differences(runs, baseline, *minus)
    never = sum(run.value is None for run in runs)
    bounds = sum(run.value is None for run in baseline)
    if not runs or never + bounds == len(runs) + len(baseline):
        return None
    if never or bounds:
        return _restricted(form, runs, baseline, never, bounds)
    values = np.array([run.value for run in runs], dtype=np.float64)
    others = np.array([run.value for run in baseline], dtype=np.float64)
    if not (np.isfinite(values).all() and np.isfinite(others).all()):
        return None
    if form == "sd_ratio":
        return _spread_ratio(values, others)
    log = form != "difference" and bool((values > 0).all() and (others > 0).all())
    if form in ("speed_up", "ratio") and not log:
        return None
    return _of_sample(form, _pairs(form, values, others, log), log)


def _pairs(form: Form, runs: Doubles, baseline: Doubles, log: bool) -> Doubles:
    if form == "value":
        return np.log(runs) if log else runs
    if form == "difference":
        return runs - baseline
    sign = 1.0 if form == "ratio" else -1.0
    return sign * (np.log(runs) - np.log(baseline))


def _difference_of_differences(*groups: Sequence[RunMeasure]) -> Estimate | None:
    values = np.array([[np.nan if run.value is None else run.value for run in group] for group in groups])
    if not values.size or not np.isfinite(values).all():
        return None
    return _of_sample("difference", values[0] - values[1] - (values[2] - values[3]), log=False)


def _of_sample(form: Form, sample: Doubles, log: bool) -> MeanEstimate:
    n = len(sample)
    error = float(sample.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    if np.ptp(sample) <= 1e-12 * max(1.0, abs(float(sample[0]))):
        error = 0.0 if n > 1 else math.nan  # equal but for rounding
    return MeanEstimate(form, n, 0, 0, float(sample.mean()), error, n - 1, log)


def _spread_ratio(runs: Doubles, baseline: Doubles) -> SpreadEstimate | None:
    if len(runs) < 2 or np.ptp(runs) == 0 or np.ptp(baseline) == 0:
        return None
    return SpreadEstimate("sd_ratio", len(runs), 0, 0, float(np.std(runs, ddof=1) / np.std(baseline, ddof=1)))


def _restricted(
    form: Form, runs: Sequence[RunMeasure], baseline: Sequence[RunMeasure], never: int, bounds: int
) -> MeanEstimate | None:
    """Return the ratio of restricted means; None for a single number or a difference of censored times."""
    if form not in ("speed_up", "ratio"):
        return None
    end = min(run.given for run in (*runs, *baseline) if run.value is None)
    mine, other = (
        np.array([min(run.given if run.value is None else run.value, end) for run in group])
        for group in (runs, baseline)
    )
    if len(mine) < 2 or (np.ptp(mine) == 0 and np.ptp(other) == 0 and mine[0] == other[0]):
        return None
    parts = [group.var(ddof=1) / len(group) / group.mean() ** 2 for group in (mine, other)]
    error, total = math.sqrt(sum(parts)), sum(parts)
    freedom = total**2 / sum(part**2 / (len(mine) - 1) for part in parts) if total else len(mine) - 1
    centre = math.log(mine.mean() / other.mean())
    longer = _log_rank(mine, other, end)
    shorter = _log_rank(other, mine, end)
    if form == "speed_up":
        centre, longer, shorter = -centre, shorter, longer
    return MeanEstimate(
        form, len(mine), never, bounds, centre, error, freedom, log=True, ranks=(longer, shorter)
    )


def _log_rank(times: Doubles, others: Doubles, end: float) -> float:
    """Return the one-sided p-value of "`times` are longer"; values of `end` are censored."""
    groups = [stats.CensoredData.right_censored(group, group >= end) for group in (times, others)]
    return float(stats.logrank(*groups, alternative="less").pvalue)
