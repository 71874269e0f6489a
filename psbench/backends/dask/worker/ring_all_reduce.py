"""The order of a ring All-Reduce, without sockets: which piece a member sends and receives when.

Source
------
Patarasuk and Yuan (2009).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from psbench.backends.partition import even_ranges, ring_shares

#: send a piece to the next member: (step, piece)
SendPiece: TypeAlias = Callable[[int, Tensor], None]
#: wait for the piece of that step from the member before
ReceivePiece: TypeAlias = Callable[[int], Tensor]
#: what a receiver decodes of a piece: the piece itself without a codec
Wired: TypeAlias = Callable[[Tensor], Tensor]


def all_reduce(
    vector: Tensor, place: int, size: int, send: SendPiece, receive: ReceivePiece, wired: Wired | None = None
) -> None:
    """Replace each member's vector by the sum over members, in place.

    Each piece is added up along the ring in the same order for all, and all get the one sum:
    the members' results are bit-identical. A piece that was sent is not written to before the next member
    has it, since what overwrites it was made from it, so pieces may be sent without a copy.

    Parameters
    ----------
    vector : float32 tensor, (length,)
    place : int
        Our place in the ring, from 0.
    size : int
        Number of members.
    wired : callable or None
        Given if the wire rounds: who has a sum then keeps what the others get of it.
    """
    own = reduce_scatter(vector, place, size, send, receive)
    if wired is not None:
        own.copy_(wired(own))
    behind = size - 1
    all_gather(
        vector, place, size, lambda step, piece: send(behind + step, piece), lambda s: receive(behind + s)
    )


def reduce_scatter(vector: Tensor, place: int, size: int, send: SendPiece, receive: ReceivePiece) -> Tensor:
    """Sum in place, and return this member's share of the sum; all other entries are undefined.

    The first half of `all_reduce`; see `ring_shares` for which entries it has.
    """
    pieces = [vector[part] for part in even_ranges(len(vector), size)]
    for step in range(size - 1):
        send(step, pieces[(place - step) % size])
        pieces[(place - step - 1) % size].add_(receive(step))
    return vector[ring_shares(len(vector), size)[place]]


def all_gather(vector: Tensor, place: int, size: int, send: SendPiece, receive: ReceivePiece) -> None:
    """Replace a vector by the members' shares; the second half of `all_reduce`."""
    pieces = [vector[part] for part in even_ranges(len(vector), size)]
    for step in range(size - 1):
        send(step, pieces[(place + 1 - step) % size])
        pieces[(place - step) % size].copy_(receive(step))
