"""Rounding shares to integers that keep their sum."""

from __future__ import annotations

from collections.abc import Sequence


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
