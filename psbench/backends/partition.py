"""Cutting a flat vector into the servers' slices, and putting them together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from psbench.core.part import Layout, Placement


@dataclass(frozen=True)
class Partition:
    """The entries of one server: one stretch of the vector, or several in order."""

    stretches: tuple[slice, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(s.stop - s.start for s in self.stretches)

    def of(self, vector: Tensor) -> Tensor:
        """Return the slice of a vector: a view if it is one stretch."""
        parts = [vector[stretch] for stretch in self.stretches] or [vector[:0]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def put(self, vector: Tensor, part: Tensor) -> None:
        """Write a slice where it belongs in a vector: what `of` reads."""
        begin = 0
        for stretch in self.stretches:
            end = begin + stretch.stop - stretch.start
            vector[stretch] = part[begin:end]
            begin = end

    @property
    def end(self) -> int:
        """Where the last stretch ends."""
        return max((stretch.stop for stretch in self.stretches), default=0)

    def spread(self, part: Tensor, length: int = 0) -> Tensor:
        """Return a vector at least so long that has the slice where it belongs, and anything elsewhere."""
        vector = part.new_empty(max(self.end, length))
        self.put(vector, part)
        return vector

    def without(self, other: Partition) -> Partition:
        """Return the entries that another cut does not have.

        >>> Cut((slice(0, 4), slice(6, 9))).without(Cut((slice(2, 7),))).stretches
        (slice(0, 2, None), slice(7, 9, None))
        """
        left = [(s.start, s.stop) for s in self.stretches]
        for theirs in other.stretches:
            left = [
                piece
                for start, stop in left
                for piece in ((start, min(stop, theirs.start)), (max(start, theirs.stop), stop))
                if piece[0] < piece[1]
            ]
        return Partition(tuple(slice(*piece) for piece in left))


def cuts(placement: Placement, layout: Layout) -> list[Partition]:
    """Return each server's cut at the start.

    >>> from psbench.placement import ParameterServer
    >>> [cut.size for cut in cuts(ParameterServer(servers=2), [("weight", 3), ("bias", 2)])]
    [3, 2]
    """
    return cuts_of(placement.ranges(layout))


def cuts_of(ranges: Sequence[Sequence[tuple[int, int]]]) -> list[Partition]:
    """Return each server's cut if it holds these stretches.

    >>> [cut.size for cut in cuts_of([[(0, 2), (4, 7)], [(2, 4)]])]
    [5, 2]
    """
    return [Partition(tuple(slice(*stretch) for stretch in own)) for own in ranges]


def together(parts: Sequence[Tensor], own: Sequence[Partition]) -> Tensor:
    """Return the vector that slices were cut from."""
    if len(parts) == 1:
        return parts[0]
    if all(len(cut.stretches) == 1 for cut in own):
        order = sorted(range(len(own)), key=lambda i: own[i].stretches[0].start)
        return torch.cat([parts[i] for i in order])
    vector = parts[0].new_empty(sum(cut.size for cut in own))
    for part, cut in zip(parts, own, strict=True):
        cut.put(vector, part)
    return vector


def slices(length: int, count: int) -> list[slice]:
    """Return `count` ranges that cover `length` entries, of equal length to within one.

    >>> slices(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    whole, more = divmod(length, count)
    ends = [whole * (i + 1) + min(i + 1, more) for i in range(count)]
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
