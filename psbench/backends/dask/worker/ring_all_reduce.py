"""Ring All-Reduce: each member sends to the next and receives from the one before.

Source
------
Patarasuk and Yuan (2009).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from psbench.backends.partition import even_ranges

#: send a piece to the next member: (step, piece)
Send: TypeAlias = Callable[[int, Tensor], None]
#: wait for the piece of that step from the member before
Receive: TypeAlias = Callable[[int], Tensor]
#: what a receiver decodes of a piece: the piece itself without a codec
Wired: TypeAlias = Callable[[Tensor], Tensor]


def all_reduce(
    vector: Tensor, place: int, size: int, send: Send, receive: Receive, wired: Wired | None = None
) -> None:
    """Turn each member's vector into the sum of all, in place.

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
    pieces = [vector[part] for part in even_ranges(len(vector), size)]
    for step in range(size - 1):
        send(step, pieces[(place - step) % size])
        pieces[(place - step - 1) % size].add_(receive(step))
    if wired is not None:
        pieces[(place + 1) % size].copy_(wired(pieces[(place + 1) % size]))
    for step in range(size - 1):
        send(size - 1 + step, pieces[(place + 1 - step) % size])
        pieces[(place - step) % size].copy_(receive(size - 1 + step))
