"""The bytes of an encoded model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psbench.core.parts import CodecPart, Layout, Placement


class WireSize(NamedTuple):
    """Size of an encoded model: its tensors, and the bytes of its buffers.

    `ranges`: entries that each server holds now; None for those at the start (`Placement.ranges`).
    """

    layout: Layout = ()
    buffer_bytes: int = 0
    ranges: Sequence[Sequence[tuple[int, int]]] | None = None

    def of(self, codec: CodecPart, placement: Placement) -> int:
        """Return the encoded bytes; each server's slice is encoded by itself."""
        if not self.layout:
            return self.buffer_bytes
        ranges = placement.ranges(self.layout) if self.ranges is None else self.ranges
        sizes = (sum(stop - start for start, stop in own) for own in ranges)
        return sum(map(codec.num_bytes, sizes)) + self.buffer_bytes

    @property
    def whole(self) -> int:
        """Bytes as 32-bit floats."""
        return 4 * sum(size for _, size in self.layout) + self.buffer_bytes
