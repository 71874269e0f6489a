"""How measured times vary: as a correlated, shifted log-normal where a test allows it, or as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

#: spread below which a series counts as constant
_CONSTANT = 1e-3
#: probability below which the log-normal is rejected, and the correlation up to which one is noise
_REJECT, _SHIFTS = 0.01, 20
#: measured values that a profile keeps, so that it stays a page
_KEPT = 240

Series = Sequence[NDArray[np.float64]]


def variation_of(series: Series) -> tuple[dict[str, Any], str]:
    """Return the step-time part for series of factors of mean 1, one for each worker and run, and why it is.

    A log-normal over a shift, whose logarithm is an AR(1), if the Kolmogorov-Smirnov test of its innovations
    does not reject it; else the measured factors, of which blocks are drawn (a circular block bootstrap).

    Raises
    ------
    ValueError
        Without any factor.
    """
    factors = np.concatenate([each for each in series if len(each)])
    if factors.std() < _CONSTANT:
        return {"name": "constant"}, f"varies by less than {_CONSTANT:.1%}"
    shift, sigma = _shifted_lognormal(factors)
    normal = [_standard(each, shift, sigma) for each in series if len(each)]
    rho = max(0.0, correlation(normal))
    fresh = np.concatenate([each[1:] - rho * each[:-1] for each in normal]) / math.sqrt(1.0 - rho**2)
    p = float(stats.kstest(fresh, "norm").pvalue) if len(fresh) else 1.0
    if p >= _REJECT:
        part = {"name": "lognormal", "sigma": _rounded(sigma), "correlation": _rounded(rho)}
        return part | {"shift": _rounded(shift)}, f"shifted log-normal, AR(1) not rejected (p = {p:.2g})"
    return {"name": "trace", "order": "blocks", "factors": kept(factors)}, (
        f"measured blocks: the shifted log-normal is rejected (p = {p:.1g})"
    )


def correlation(series: Series) -> float:
    """Return the correlation of a value with the one before, over all series; 0 of too few."""
    pairs = [(each[:-1] - each.mean(), each[1:] - each.mean()) for each in series if len(each) > 2]
    before, after = (np.concatenate([pair[i] for pair in pairs] or [np.zeros(0)]) for i in (0, 1))
    size = float(np.sqrt((before**2).sum() * (after**2).sum()))
    return min(0.999, float((before * after).sum()) / size) if size else 0.0


def half_width(values: NDArray[np.float64], level: float = 0.9) -> float:
    """Return the half-width of a confidence interval of a mean, with the values' own correlation."""
    rho = max(0.0, correlation([values]))
    effective = max(2.0, len(values) * (1.0 - rho) / (1.0 + rho))
    return float(stats.t.ppf((1 + level) / 2, effective - 1) * values.std() / math.sqrt(effective))


def kept(values: NDArray[np.float64], most: int = _KEPT) -> list[float]:
    """Return at most so many of the values, in eight stretches that lie evenly in them, of three digits.

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


def _shifted_lognormal(factors: NDArray[np.float64]) -> tuple[float, float]:
    """Return the shift and sigma of the greatest likelihood, of factors of mean 1."""
    best = (-math.inf, 0.0, 0.0)
    for share in np.linspace(0.0, 0.95, _SHIFTS):
        shift = float(share * factors.min())
        logs = np.log((factors - shift) / (1.0 - shift))
        sigma = float(logs.std())
        likelihood = -len(logs) * math.log(sigma) - float(np.log(factors - shift).sum())
        best = max(best, (likelihood, shift, sigma))
    return best[1], best[2]


def _standard(factors: NDArray[np.float64], shift: float, sigma: float) -> NDArray[np.float64]:
    logs = np.log((factors - shift) / (1.0 - shift))
    return (logs + sigma**2 / 2) / sigma
