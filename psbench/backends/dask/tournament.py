"""Rounds of a tournament: every two meet once, and in a round none of them meets two others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")


def rounds(players: Sequence[_T]) -> list[list[tuple[_T, _T]]]:
    """Return the pairs of each round, by the circle method: one player stays, and the others turn round it.

    With an odd number of players one sits out in each round, a different one each time.

    >>> rounds("abcd")
    [[('a', 'd'), ('b', 'c')], [('a', 'c'), ('d', 'b')], [('a', 'b'), ('c', 'd')]]
    >>> rounds("abc")
    [[('b', 'c')], [('a', 'c')], [('a', 'b')]]
    """
    circle: list[_T | None] = [*players]
    if len(circle) % 2:
        circle.append(None)
    found = list[list[tuple[_T, _T]]]()
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(one, other) for one, other in pairs if one is not None and other is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found
