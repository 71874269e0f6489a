"""Partition of a flat vector among parameter servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from psbench.core.parts import Layout, Placement
from psbench.core.strategy import Strategy

#: more ranges than this, of fewer entries each, are read and written by index
_FEW, _SHORT = 64, 8


@dataclass(frozen=True)
class Partition:
    """The entries of the vector that one server holds: one range, or several in order."""

    ranges: tuple[slice, ...]

    @cached_property
    def size(self) -> int:
        """Number of entries."""
        return sum(r.stop - r.start for r in self.ranges)

    @cached_property
    def _places(self) -> Tensor | None:
        """The entries one by one, if the ranges are many and short."""
        if len(self.ranges) <= _FEW or self.size > _SHORT * len(self.ranges):
            return None
        return torch.cat([torch.arange(r.start, r.stop) for r in self.ranges])

    @cached_property
    def end(self) -> int:
        return max((r.stop for r in self.ranges), default=0)

    def of(self, vector: Tensor) -> Tensor:
        """Return these entries of a vector: a view if they are one range."""
        if self._places is not None:
            return vector[self._places]
        parts = [vector[r] for r in self.ranges] or [vector[:0]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def put(self, vector: Tensor, part: Tensor) -> None:
        """Write these entries into a vector; the inverse of `of`."""
        if self._places is not None:
            vector[self._places] = part
            return
        begin = 0
        for own in self.ranges:
            end = begin + own.stop - own.start
            vector[own] = part[begin:end]
            begin = end

    def scatter(self, part: Tensor, length: int = 0) -> Tensor:
        """Return a vector of at least that length with these entries set; all others are undefined."""
        vector = part.new_empty(max(self.end, length))
        self.put(vector, part)
        return vector

    def of_several(self, vectors: int, length: int) -> Partition:
        """Return these entries in each of `vectors` concatenated vectors of that length.

        >>> Partition((slice(0, 2),)).of_several(2, length=10).ranges
        (slice(0, 2, None), slice(10, 12, None))
        """
        starts = range(0, vectors * length, length)
        return Partition(tuple(slice(b + r.start, b + r.stop) for b in starts for r in self.ranges))

    def without(self, other: Partition) -> Partition:
        """Return the entries that another partition lacks.

        >>> Partition((slice(0, 4), slice(6, 9))).without(Partition((slice(2, 7),))).ranges
        (slice(0, 2, None), slice(7, 9, None))
        """
        left = [(r.start, r.stop) for r in self.ranges]
        for theirs in other.ranges:
            left = [
                piece
                for start, stop in left
                for piece in ((start, min(stop, theirs.start)), (max(start, theirs.stop), stop))
                if piece[0] < piece[1]
            ]
        return Partition(tuple(slice(*piece) for piece in left))

    def holding(self, start: int, stop: int) -> list[slice]:
        """Return the positions in this part of the whole vector's entries from start to stop.

        >>> Partition((slice(0, 4), slice(6, 9))).holding(2, 7)
        [slice(2, 4, None), slice(4, 5, None)]
        """
        found, begin = [], 0
        for own in self.ranges:
            first, last = max(own.start, start), min(own.stop, stop)
            if first < last:
                found.append(slice(begin + first - own.start, begin + last - own.start))
            begin += own.stop - own.start
        return found


def partitions(placement: Placement, layout: Layout) -> list[Partition]:
    """Return each server's partition at the start.

    >>> from psbench.strategies.placement import ParameterServer
    >>> [part.size for part in partitions(ParameterServer(servers=2), [("weight", 3), ("bias", 2)])]
    [3, 2]
    """
    return partitions_of(placement.ranges(layout))


def partitions_of(ranges: Sequence[Sequence[tuple[int, int]]]) -> list[Partition]:
    """Return each server's partition, given the ranges that each holds.

    >>> [part.size for part in partitions_of([[(0, 2), (4, 7)], [(2, 4)]])]
    [5, 2]
    """
    return [Partition(tuple(slice(*limits) for limits in own)) for own in ranges]


def pushed_to(composition: Strategy, own: Sequence[Partition]) -> list[Partition]:
    """Return the entries of a push that each server receives, given the partition of the model."""
    return _of_several(own, composition.vectors_of_a_push)


def answered_by(composition: Strategy, own: Sequence[Partition]) -> list[Partition]:
    """Return the entries of a worker's answer that each server sends, given the partition of the model."""
    return _of_several(own, composition.vectors_of_an_answer)


def _of_several(own: Sequence[Partition], vectors: int) -> list[Partition]:
    length = sum(part.size for part in own)
    return [part.of_several(vectors, length) for part in own] if vectors > 1 else [*own]


def fragments_of(composition: Strategy, layout: Layout) -> list[Partition]:
    """Return the entries of each fragment that pushes carry; empty if pushes carry all entries."""
    return partitions_of(composition.communication.fragments(layout))


def within(inner: Partition, outer: Partition) -> Partition:
    """Return the positions in `outer`'s vector of the entries shared with `inner`.

    >>> within(Partition((slice(2, 7),)), Partition((slice(0, 4), slice(6, 9)))).ranges
    (slice(2, 4, None), slice(4, 5, None))
    """
    return Partition(tuple(cut for r in inner.ranges for cut in outer.holding(r.start, r.stop)))


def gather(parts: Sequence[Tensor], own: Sequence[Partition]) -> Tensor:
    """Return the whole vector from the servers' parts; with one server, the part itself."""
    if len(parts) == 1:
        return parts[0]
    if all(len(partition.ranges) == 1 for partition in own):
        order = sorted(range(len(own)), key=lambda i: own[i].ranges[0].start)
        return torch.cat([parts[i] for i in order])
    vector = parts[0].new_empty(sum(partition.size for partition in own))
    for part, partition in zip(parts, own, strict=True):
        partition.put(vector, part)
    return vector


def parts_of(vector: Tensor, own: Sequence[Partition]) -> list[Tensor]:
    """Return the servers' parts of a whole vector; with one server, the vector itself.

    >>> [part.tolist() for part in parts_of(torch.arange(3), partitions_of([[(0, 1)], [(1, 3)]]))]
    [[0], [1, 2]]
    """
    return [vector] if len(own) == 1 else [partition.of(vector) for partition in own]


def even_ranges(length: int, count: int) -> list[slice]:
    """Return `count` ranges that cover `length` entries, with lengths that differ by at most one.

    >>> even_ranges(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    whole, more = divmod(length, count)
    ends = [whole * (i + 1) + min(i + 1, more) for i in range(count)]
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def ring_shares(length: int, count: int) -> list[slice]:
    """Return the entries whose sum each ring member has after the first half, by place.

    >>> ring_shares(5, 2)
    [slice(3, 5, None), slice(0, 3, None)]
    """
    first, *others = even_ranges(length, count)
    return [*others, first]
