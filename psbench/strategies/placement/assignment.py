"""Assignment of parameters to servers: rules that divide a model's vector among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

from psbench.core.parts import Layout

#: entries from (included) to (excluded)
Range: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class TensorBlock:
    """A run of entries that is dealt out as one, named after its tensor."""

    name: str
    start: int
    size: int

    def cut(self, pieces: int) -> list[TensorBlock]:
        """Return `pieces` pieces of equal length, up to one entry; fewer if there are fewer entries."""
        whole, more = divmod(self.size, pieces)
        sizes = [whole + (i < more) for i in range(min(pieces, self.size))]
        starts = [self.start + sum(sizes[:i]) for i in range(len(sizes))]
        return [
            TensorBlock(f"{self.name}/{i}", start, size)
            for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
        ]


def contiguous(layout: Layout, servers: int, threshold: int) -> list[list[TensorBlock]]:
    """Cut the whole vector in ranges of equal length, to within one entry."""
    total = sum(size for _, size in layout)
    return [[piece] for piece in TensorBlock("model", 0, total).cut(servers)]


def by_layer(layout: Layout, servers: int, threshold: int) -> list[list[TensorBlock]]:
    """Deal tensor j to server j mod S."""
    blocks = blocks_of(layout)
    return [blocks[server::servers] for server in range(servers)]


def by_hash(layout: Layout, servers: int, threshold: int) -> list[list[TensorBlock]]:
    """Give each tensor to the server with the highest random weight.

    The weight is a hash of the tensor's name and the server's number, so that one server more takes over
    some tensors and moves no other.
    """
    held: list[list[TensorBlock]] = [[] for _ in range(servers)]
    for block in blocks_of(layout):
        held[max(range(servers), key=lambda server: _hash(f"{block.name}@{server}"))].append(block)
    return held


def by_size(layout: Layout, servers: int, threshold: int) -> list[list[TensorBlock]]:
    """Cut tensors of at least `threshold` entries over all servers; assign smaller ones to single servers."""
    held: list[list[TensorBlock]] = [[] for _ in range(servers)]
    for block in blocks_of(layout):
        if block.size >= threshold:
            for server, piece in enumerate(block.cut(servers)):
                held[server].append(piece)
        else:
            held[_hash(block.name) % servers].append(block)
    return held


def best_fit(layout: Layout, servers: int, threshold: int) -> list[list[TensorBlock]]:
    """Distribute tensors by size so that sizes and requests are balanced.

    In descending order of size: what is larger than a server's fair share is cut into pieces of that size;
    what is above 1 % of it goes where the least room remains that still fits it, or else where there is most
    room; what is smaller, to the server with the fewest requests.
    """
    share = max(1, -(-sum(size for _, size in layout) // servers))
    pieces = [piece for b in blocks_of(layout) for piece in b.cut(-(-b.size // share))]
    held: list[list[TensorBlock]] = [[] for _ in range(servers)]
    room = [share] * servers
    for piece in sorted(pieces, key=lambda block: -block.size):
        server = _fitting(piece.size, room, held, share)
        held[server].append(piece)
        room[server] -= piece.size
    return held


def _fitting(size: int, room: list[int], held: list[list[TensorBlock]], share: int) -> int:
    everyone = range(len(room))
    if size * 100 < share:
        return min(everyone, key=lambda server: len(held[server]))
    fits = [server for server in everyone if room[server] >= size]
    if fits:
        return min(fits, key=lambda server: room[server])
    return max(everyone, key=lambda server: room[server])


POLICIES: dict[str, Callable[[Layout, int, int], list[list[TensorBlock]]]] = {
    "contiguous": contiguous,
    "layer": by_layer,
    "hash": by_hash,
    "size_threshold": by_size,
    "best_fit": best_fit,
}


def blocks_of(layout: Layout) -> list[TensorBlock]:
    """Return each tensor as a block; one without entries is left out."""
    blocks, start = [], 0
    for name, size in layout:
        if size:
            blocks.append(TensorBlock(name, start, size))
        start += size
    return blocks


def ranges_of(blocks: Iterable[TensorBlock]) -> list[Range]:
    """Return the entries of blocks in order, neighbours together.

    >>> ranges_of([TensorBlock("b", 4, 2), TensorBlock("a", 0, 2), TensorBlock("c", 6, 1)])
    [(0, 2), (4, 7)]
    """
    return joined([(block.start, block.start + block.size) for block in blocks])


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in order, neighbours as one.

    >>> joined([(4, 6), (0, 2), (6, 7)])
    [(0, 2), (4, 7)]
    """
    found: list[Range] = []
    for start, stop in sorted(ranges):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
