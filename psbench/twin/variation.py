"""Variation of measured times: a correlated, shifted log-normal if a test accepts it, else resampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from psbench.arrays import Array, Doubles, Integers
from psbench.percents import percent
from psbench.seeds import Streams

#: spread below which a series counts as constant
_CONSTANT = 1e-3
#: probability below which the log-normal is rejected, and the correlation up to which one is noise
_REJECT, _SHIFTS = 0.01, 20
#: deviations beyond which a step is a stall, and the share up to which they are rare
_FAR, _RARE = 6.0, 0.03
#: steps that are drawn together, and how often
_STRETCH, _DRAWS = 16, 200
#: measured values that a profile keeps, so that it stays a page
_KEPT = 240

Series = Sequence[Doubles]


def variation_of(series: Series) -> tuple[dict[str, Any], str]:
    """Return the step-time part for series of factors with mean 1, one per worker and run, with a reason.

    A log-normal over a shift, whose logarithm is an AR(1), if the Kolmogorov-Smirnov test of its innovations
    does not reject it; else the measured factors, of which blocks are drawn (a circular block bootstrap).

    Raises
    ------
    ValueError
        Without any factor.
    """
    whole = np.concatenate([each for each in series if len(each)])
    if whole.std() < _CONSTANT:
        return {"name": "constant"}, f"varies by less than {percent(_CONSTANT, 1)}"
    smooth, stalls = without_stalls([each for each in series if len(each)])
    factors = np.concatenate(smooth)
    shift, sigma = _shifted_lognormal(factors)
    normal = [_standard(each, shift, sigma) for each in smooth]
    rho = max(0.0, correlation(normal))
    fresh = np.concatenate([each[1:] - rho * each[:-1] for each in normal]) / math.sqrt(1.0 - rho**2)
    p = float(stats.kstest(fresh, "norm").pvalue) if len(fresh) else 1.0
    if p >= _REJECT:
        part = {"name": "lognormal", "sigma": _rounded(sigma), "correlation": _rounded(rho)}
        rare = f", and {len(whole) - len(factors)} stalls" if stalls else ", no stalls"
        why = f"shifted log-normal, AR(1) not rejected (p = {p:.2g}){rare}, of {len(whole)} steps"
        return part | {"shift": _rounded(shift)} | stalls, why
    return {"name": "trace", "order": "blocks", "factors": kept(whole)}, (
        f"measured blocks: the shifted log-normal is rejected (p = {p:.1g})"
    )


def deviation_of(series: Series) -> tuple[float, float, float]:
    """Return the standard deviation of all factors, with a 90 % interval from a block bootstrap.

    Source
    ------
    Künsch (1989): stretches keep what follows each other.
    """
    whole = np.concatenate(series)
    squares = [np.add.reduceat((each - 1.0) ** 2, _stretches(each)) for each in series if len(each)]
    counts = [np.diff([*_stretches(each), len(each)]) for each in series if len(each)]
    square, count = np.concatenate(squares), np.concatenate(counts)
    drawn = Streams(0).generator("deviation").integers(len(square), size=(_DRAWS, len(square)))
    means = square[drawn].sum(axis=1) / count[drawn].sum(axis=1)
    value = max(float(whole.std()), _CONSTANT * 1e-3)
    low, high = np.sqrt(np.quantile(means, (0.05, 0.95)))
    return value, min(float(low), value), max(float(high), value)


def _stretches(values: Doubles) -> Integers:
    return np.arange(0, len(values), _STRETCH)


def without_stalls(series: Series) -> tuple[list[Doubles], dict[str, float]]:
    """Return the series without rare long stalls, scaled to a mean of 1, and the stalls' parameters.

    A stall is beyond six deviations of the logarithms, taken from their middle (the median of distances from
    the median), and they are at most 3 % of all. More are no rare ones, and stay.
    """
    whole = np.concatenate(series)
    logs = np.log(whole)
    middle = float(np.median(logs))
    limit = math.exp(middle + _FAR * 1.4826 * float(np.median(np.abs(logs - middle))))
    stalled, share = whole[whole > limit], float((whole > limit).mean())
    if not 0 < share <= _RARE:
        return list(series), {}
    mean = float(whole[whole <= limit].mean())
    smooth = [each[each <= limit] / mean for each in series]
    length = float(stalled.mean()) / mean - 1.0
    return [each for each in smooth if len(each)], {"stalls": _rounded(share), "stall": _rounded(length)}


def together(worker: Array, begun_s: Doubles, factors: Doubles) -> Series:
    """Return the correlation of workers' steps at the same time, and its 90 % interval: (r, low, high).

    Of the means of the logarithms in windows of about five steps, over all pairs of workers. Empty if there
    are fewer than eight windows.
    """
    workers = np.unique(worker)
    windows = len(factors) // (5 * len(workers)) if len(workers) > 1 else 0
    if windows < 8:
        return []
    edges = np.linspace(begun_s.min(), begun_s.max() + 1e-9, windows + 1)
    place, table = np.searchsorted(edges, begun_s, "right") - 1, np.full((len(workers), windows), np.nan)
    for row, each in enumerate(workers.tolist()):
        for window in range(windows):
            own = factors[(worker == each) & (place == window)]
            table[row, window] = np.log(own).mean() if len(own) else np.nan
    table = table[:, ~np.isnan(table).any(axis=0)]
    if table.shape[1] < 8 or not (table.std(axis=1) > _CONSTANT).all():
        return []
    found = np.corrcoef(table)
    r = float(found[np.triu_indices(len(workers), 1)].mean())
    pairs = len(workers) * (len(workers) - 1) / 2
    wide = 1.645 / math.sqrt(pairs * (table.shape[1] - 3))
    return [np.array([r, math.tanh(math.atanh(r) - wide), math.tanh(math.atanh(r) + wide)])]


def correlation(series: Series) -> float:
    """Return the correlation of a value with the previous one, over all series; 0 for too few values."""
    pairs = [(each[:-1] - each.mean(), each[1:] - each.mean()) for each in series if len(each) > 2]
    before, after = (np.concatenate([pair[i] for pair in pairs] or [np.zeros(0)]) for i in (0, 1))
    size = float(np.sqrt((before**2).sum() * (after**2).sum()))
    return min(0.999, float((before * after).sum()) / size) if size else 0.0


def half_width(values: Doubles, level: float = 0.9) -> float:
    """Return the half-width of a confidence interval of a mean, allowing for autocorrelation."""
    rho = max(0.0, correlation([values]))
    effective = max(2.0, len(values) * (1.0 - rho) / (1.0 + rho))
    return float(stats.t.ppf((1 + level) / 2, effective - 1) * values.std() / math.sqrt(effective))


def kept(values: Doubles, most: int = _KEPT) -> list[float]:
    """Return at most `most` values, in eight evenly spaced blocks, with three digits.

    Stretches keep what follows each other. The kept ones are scaled to the mean of all.
    """
    if len(values) > most:
        length = most // 8
        begins = np.linspace(0, len(values) - length, 8).astype(int)
        mean, values = values.mean(), np.concatenate([values[at : at + length] for at in begins])
        values = values * (mean / values.mean())
    return [_rounded(value) for value in values.tolist()]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _shifted_lognormal(factors: Doubles) -> tuple[float, float]:
    """Return the maximum-likelihood shift and sigma of factors with mean 1."""
    best = (-math.inf, 0.0, 0.0)
    for share in np.linspace(0.0, 0.95, _SHIFTS):
        shift = float(share * factors.min())
        logs = np.log((factors - shift) / (1.0 - shift))
        sigma = float(logs.std())
        likelihood = -len(logs) * math.log(sigma) - float(np.log(factors - shift).sum())
        best = max(best, (likelihood, shift, sigma))
    return best[1], best[2]


def _standard(factors: Doubles, shift: float, sigma: float) -> Doubles:
    logs = np.log((factors - shift) / (1.0 - shift))
    return (logs + sigma**2 / 2) / sigma
