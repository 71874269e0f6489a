"""A server's part of All-Reduce through servers: it sums the workers' contributions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.messages import RingPiece, Summand
from psbench.core.arithmetic import weighted_sum
from psbench.strategies.codecs import decode


class Adder:
    """Sums contributions in the members' order, one sum after another, and sends all members the result.

    No member begins the next sum without the answer to this one. What is there of a sum that was broken off,
    as a member was lost, is dropped with the first summand of a later order.

    Parameters
    ----------
    send : callable
        Sends a worker, by its name, a message.
    """

    def __init__(self, send: Callable[[str, Message], object]) -> None:
        self._send, self._order = send, 0
        self._given: dict[int, tuple[str, Summand]] = {}

    def take(self, sender: str, summand: Summand) -> None:
        """Add a member's contribution to the sum; send all members the result after the last one."""
        if summand.ring < self._order:
            return
        if summand.ring > self._order:
            self._order = summand.ring
            self._given.clear()
        self._given[summand.place] = sender, summand
        if len(self._given) == summand.size:
            members = [self._given.pop(place) for place in range(summand.size)]
            total = _total([each for _, each in members])
            for name, own in members:
                self._send(name, RingPiece(own.ring, own.server, total))


def _total(summands: list[Summand]) -> Tensor:
    """Return the weighted sum of vectors and of their trailing entries; encoded messages are concatenated."""
    first = summands[0].payload
    if first.dtype == torch.uint8:
        return torch.cat([each.payload for each in summands])
    end = len(first) - summands[0].behind
    vectors = [decode(each.payload) for each in summands]
    total = weighted_sum([vector[:end] for vector in vectors], [each.weight for each in summands])
    behind = weighted_sum([vector[end:] for vector in vectors], [each.share for each in summands])
    return torch.cat([total, behind]).to(first.dtype) if len(behind) else total.to(first.dtype)
