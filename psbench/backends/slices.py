"""Cutting a flat vector into contiguous ranges."""

from __future__ import annotations


def slices(length: int, count: int) -> list[slice]:
    """Return `count` ranges that cover `length` entries, of equal length to within one.

    >>> slices(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    whole, more = divmod(length, count)
    ends = [whole * (i + 1) + min(i + 1, more) for i in range(count)]
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
