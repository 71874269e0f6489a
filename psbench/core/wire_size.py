"""The bytes of an encoded model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psbench.core.arithmetic import Shapes
from psbench.core.parts import CodecPart, FragmentRanges, Layout, Placement


class WireSize(NamedTuple):
    """Size of an encoded model: its tensors, and the bytes of its buffers.

    `ranges`: entries that each server holds now; None for those at the start (`Placement.ranges`). `shapes`:
    of the tensors.
    """

    layout: Layout = ()
    buffer_bytes: int = 0
    ranges: Sequence[Sequence[tuple[int, int]]] | None = None
    shapes: Shapes = ()

    def of(
        self,
        codec: CodecPart,
        placement: Placement,
        fragment: FragmentRanges | None = None,
        vectors: int = 1,
        setting: int = -1,
    ) -> int:
        """Return the encoded bytes of `vectors` vectors or fragments, summed over servers.

        `setting`: the codec's, of a push.
        """
        if not self.layout:
            return self.buffer_bytes
        ranges = placement.ranges(self.layout) if self.ranges is None else self.ranges
        sizes = [vectors * (_size(own) if fragment is None else _common(own, fragment)) for own in ranges]
        sent = (size for size in sizes if size or fragment is None)
        return sum(codec.at(setting, size).num_bytes(size) for size in sent) + self.buffer_bytes

    def whole(self, vectors: int = 1) -> int:
        """Return the bytes of `vectors` vectors as 32-bit floats."""
        return 4 * vectors * sum(size for _, size in self.layout) + self.buffer_bytes


def _size(ranges: FragmentRanges) -> int:
    return sum(stop - start for start, stop in ranges)


def _common(left: FragmentRanges, right: FragmentRanges) -> int:
    """Return the number of common entries."""
    return sum(max(0, min(b, d) - max(a, c)) for a, b in left for c, d in right)
