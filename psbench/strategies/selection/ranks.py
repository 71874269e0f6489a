"""Draws by rank under a selection pressure, which several rules share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from psbench.arrays import Doubles, Integers
from psbench.core import parameter
from psbench.core.selection import Rng


def pressure_at(passes: float, start: float, end: float, over: float) -> float:
    """Return the pressure after that many passes: it changes geometrically, and then stays constant.

    >>> [round(pressure_at(passes, 100.0, 1.0, 10.0), 6) for passes in (0, 5, 10, 20)]
    [100.0, 10.0, 1.0, 1.0]
    """
    done = min(passes / over, 1.0)
    return math.exp((1 - done) * math.log(start) + done * math.log(end))


def drawn_ranks(size: int, count: int, pressure: float, rng: Rng) -> Integers:
    """Draw ranks from 0 to `count` - 1 with probabilities proportional to exp(-i log(pressure) / count).

    The first rank is drawn `pressure` times as often as the last; with 1 all are drawn equally often. The
    distribution is inverted in closed form, so that a draw takes the same time for any `count`.
    """
    u = rng.random(size)
    logarithm = math.log(pressure)
    share = u if logarithm < 1e-12 else -np.log1p(u * math.expm1(-logarithm)) / logarithm
    return np.minimum((share * count).astype(np.int64), count - 1)


def drawn_by(weights: Doubles, size: int, rng: Rng) -> Integers:
    """Draw places with probabilities proportional to their weights, each independently of the others.

    >>> drawn_by(np.array([0.0, 2.0, 0.0]), 3, np.random.default_rng(0)).tolist()
    [1, 1, 1]
    """
    bounds = np.cumsum(weights)
    found: Integers = np.searchsorted(bounds, rng.random(size) * bounds[-1], side="right").astype(np.int64)
    return found


def pressure_field(default: float, what: str, source: str) -> Any:
    """Declare a selection pressure as a hyper-parameter."""
    what = f"{what}: ratio between the probabilities of the first and the last rank"
    return parameter(default, what, source=source, ge=1, le=1e6)
