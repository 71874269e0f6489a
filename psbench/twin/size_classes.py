"""A link as a latency and a rate by message size, if measured times determine them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

#: megabits in a byte
MBIT = 8e-6
#: shortest latency that is fitted, seconds
_SHORTEST_S = 1e-6
#: standard errors by which a message must take longer than the latency for its rate to be known
_SURE = 3.0
#: half-width of a 90 % interval in standard errors
Z90 = 1.645
#: sizes, and rates, whose ratio is below this are one class
_LIKE_SIZE, _LIKE_RATE = 1.5, 1.15


class SizeClasses(NamedTuple):
    """Times of a link: latency + bytes / rate of the size class.

    `rates` are (bytes from which on, Mbit/s), the smallest first, and `between` the limits of each with
    90 %; `unknown` says of which sizes the rate is not identified, with its bound.
    """

    latency_s: float
    rates: tuple[tuple[float, float], ...]
    between: tuple[tuple[float, float], ...]
    unknown: tuple[str, ...]


def size_classes(seconds: Mapping[int, Sequence[float]]) -> SizeClasses | None:
    """Fit a link to one-way seconds of single messages by size in bytes; 0: nearly empty messages.

    The latency is that of the smallest size, less its bytes at the rate of the next one; the rate of a size
    is its bytes over what it takes beyond the latency. A class reaches halfway (geometrically) to the sizes
    beside it; neighbours of like rates are one.

    Returns
    -------
    SizeClasses or None
        None if there is one size only: the cost of its bytes cannot be separated from the latency.

    Examples
    --------
    >>> size_classes({0: [0.01, 0.01], 1000: [0.018, 0.018], 100_000: [0.11, 0.11]})[:2]
    (0.01, ((0.0, 1.0), (10000.0, 8.0)))
    """
    sizes = _apart(sorted(seconds))
    if len(sizes) < 2:
        return None
    mean = {size: float(np.mean(seconds[size])) for size in sizes}
    error = {size: _error_s(seconds[size]) for size in sizes}
    first, second, *_ = sizes
    slope = max(0.0, mean[second] - mean[first]) / (second - first)
    latency = max(_SHORTEST_S, mean[first] - first * slope)
    known, unknown = list[tuple[int, float, float, float]](), list[str]()
    for size in sizes[0 if first else 1 :]:
        passes, doubt = mean[size] - latency, _SURE * (error[size] + error[first])
        if passes > doubt:
            bits, wide = MBIT * size, Z90 / _SURE * doubt
            known.append((size, bits / passes, bits / (passes + wide), bits / (passes - wide)))
        else:
            bound = MBIT * size / max(passes + doubt, _SHORTEST_S)
            unknown.append(f"rate of messages of {size:,} bytes: at least {bound:.3g} Mbit/s")
    classes = _merged(known)
    rates = tuple((begin, rate) for begin, rate, _, _ in classes)
    between = tuple((low, high) for _, _, low, high in classes)
    return SizeClasses(latency, rates, between, tuple(unknown))


def rate_at(rates: Sequence[tuple[float, float]], num_bytes: float) -> float | None:
    """Return the Mbit/s of a message of that size; None if no class contains it.

    >>> [rate_at(((100.0, 1.0), (10_000.0, 8.0)), size) for size in (10, 100, 9999, 1e6)]
    [None, 1.0, 1.0, 8.0]
    """
    return next((mbit_s for begin, mbit_s in reversed(rates) if num_bytes >= begin), None)


def _error_s(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _apart(sizes: Sequence[int]) -> list[int]:
    """Return the sizes without those that are hardly larger than the previous one."""
    found: list[int] = []
    for size in sizes:
        if not found or size >= _LIKE_SIZE * max(found[-1], 1):
            found.append(size)
    return found


def _merged(
    known: Sequence[tuple[int, float, float, float]],
) -> list[tuple[float, float, float, float]]:
    classes: list[tuple[float, float, float, float]] = []
    for place, (size, rate, low, high) in enumerate(known):
        begin = 0.0 if place == 0 else float(f"{(known[place - 1][0] * size) ** 0.5:.4g}")
        if not classes or not 1 / _LIKE_RATE < rate / classes[-1][1] < _LIKE_RATE:
            classes.append((begin, _rounded(rate), _rounded(low), _rounded(high)))
    return classes


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
