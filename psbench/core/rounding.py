"""Rounding: shares that keep their sum, and numbers that are whole but for the last bits of a float."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: the share of a number that floats may add or leave out: .29 * 100 is a little below 29, .07 * 100 above 7
_ROUNDING = 1e-9


def floor(number: float) -> int:
    """Return the floor of a number that may be slightly below an integer because of rounding.

    >>> floor(0.29 * 100), floor(28.5)
    (29, 28)
    """
    return math.floor(number + _ROUNDING * max(1.0, abs(number)))


def ceil(number: float) -> int:
    """Return the ceiling of a number that may be slightly above an integer because of rounding.

    >>> ceil(0.07 * 100), ceil(6.5)
    (7, 7)
    """
    return -floor(-number)


def largest_remainder(total: int, shares: Sequence[float]) -> list[int]:
    """Split an integer in proportion to `shares` (largest remainder method; ties go to the first).

    >>> largest_remainder(10, [1, 1, 1])
    [4, 3, 3]
    """
    exact = [total * share / sum(shares) for share in shares]
    whole = [int(part) for part in exact]
    order = sorted(range(len(exact)), key=lambda i: (whole[i] - exact[i], i))
    for i in order[: total - sum(whole)]:
        whole[i] += 1
    return whole
