"""The order of an All-Reduce in rings, without sockets: which piece a member sends and receives when.

Source
------
Patarasuk and Yuan (2009); in two levels: Mikami et al. (2018), Horovod's `HOROVOD_HIERARCHICAL_ALLREDUCE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from psbench.backends.partition import even_ranges

#: send a piece to the next member: (step, piece)
SendPiece: TypeAlias = Callable[[int, Tensor], None]
#: wait for the piece of that step from the member before
ReceivePiece: TypeAlias = Callable[[int], Tensor]
#: what a receiver decodes of a piece: the piece itself without a codec
Wired: TypeAlias = Callable[[Tensor], Tensor]


@dataclass
class Ring:
    """A member's part in one ring.

    Parameters
    ----------
    place, size : int
        Our place, from 0, among so many members.
    pieces : int
        Into how many the vector is cut, at most one for each member.
    send, receive : callable
    """

    place: int
    size: int
    pieces: int
    send: SendPiece
    receive: ReceivePiece

    def cut(self, vector: Tensor) -> list[Tensor]:
        """Return a piece for each member, empty beyond `pieces`; the sum of the next one is ours."""
        found = [vector[part] for part in even_ranges(len(vector), self.pieces)]
        return [*found, *[vector[:0]] * (self.size - self.pieces)]


def all_reduce(vector: Tensor, rings: Sequence[Ring], wired: Wired | None = None) -> None:
    """Replace each member's vector by the sum over members, in place.

    With one ring each piece is added up along it. With several a member adds up one piece in the first ring,
    with the workers of its group, then this piece in the next one, with a member of every other group, and
    hands it round in the first: so of a vector of B bytes and n = k H workers in groups of k, 2 (k - 1) B/k
    travel within groups and 2 (H - 1) B/n between them, in 2 (k - 1) and 2 (H - 1) messages of a member.

    Each entry is added up in the same order for all, and all get the one sum: the members' results are
    bit-identical. A piece that was sent is not written to before the next member has it, since what
    overwrites it was made from it, so pieces may be sent without a copy.

    Parameters
    ----------
    vector : float32 tensor, (length,)
    rings : sequence of Ring
        Of this member, the first one first.
    wired : callable or None
        Given if the wire rounds: who has a sum then keeps what the others get of it.
    """
    ring, *others = rings
    own = reduce_scatter(vector, ring)
    if others:
        all_reduce(own, others, wired)
    elif wired is not None and len(own):
        own.copy_(wired(own))
    all_gather(vector, ring, ring.size - 1)


def reduce_scatter(vector: Tensor, ring: Ring) -> Tensor:
    """Sum in place, and return this member's share of the sum; all other entries are undefined.

    The first half of `all_reduce`; see `ring_shares` for which entries it has.
    """
    pieces, place, size = ring.cut(vector), ring.place, ring.size
    for step in range(size - 1):
        if len(sent := pieces[(place - step) % size]):
            ring.send(step, sent)
        if len(taken := pieces[(place - step - 1) % size]):
            taken.add_(ring.receive(step))
    return pieces[(place + 1) % size]


def all_gather(vector: Tensor, ring: Ring, first: int = 0) -> None:
    """Replace a vector by the members' shares, from step `first` on; the second half of `all_reduce`."""
    pieces, place, size = ring.cut(vector), ring.place, ring.size
    for step in range(size - 1):
        if len(sent := pieces[(place + 1 - step) % size]):
            ring.send(first + step, sent)
        if len(taken := pieces[(place - step) % size]):
            taken.copy_(ring.receive(first + step))
