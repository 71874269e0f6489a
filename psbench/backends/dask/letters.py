"""The two letters that every step sends, packed by hand; all others are plain JSON."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

from psbench.backends.dask.wire import FIRST_FREE_KIND

#: a worker has computed a step; kind of letter
PUSH = FIRST_FREE_KIND
#: a worker may go on
RELEASE = FIRST_FREE_KIND + 1
#: a piece of the vector that a ring adds up
PIECE = FIRST_FREE_KIND + 2

_PUSH = struct.Struct("<qqIddf?")
_RELEASE = struct.Struct("<qqI?")
_PIECE = struct.Struct("<qI")


@dataclass(slots=True)
class Pushed:
    """What a worker says of a step.

    `sent_s` is when it was sent, on the conductor's clock; `is_finite` whether loss and gradient are numbers.
    """

    ticket: int
    version: int
    samples: int
    compute_s: float
    sent_s: float
    loss: float
    is_finite: bool

    def encode(self) -> bytes:
        """Return the body of the letter."""
        return _PUSH.pack(
            *(self.ticket, self.version, self.samples, self.compute_s, self.sent_s, self.loss, self.is_finite)
        )

    @classmethod
    def decode(cls, body: bytes) -> Pushed:
        """Read the body of the letter."""
        ticket, version, samples, compute_s, sent_s, loss, is_finite = _PUSH.unpack(body)
        return cls(ticket, version, samples, compute_s, sent_s, loss, is_finite)


@dataclass(slots=True)
class Released:
    """What a worker is told: take a step of so many samples from that version.

    `fresh` says that the model comes with it; a server that is not the first sends only ticket and model.
    """

    ticket: int
    version: int
    samples: int
    fresh: bool
    orders: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the body of the letter."""
        orders = json.dumps(self.orders).encode() if self.orders else b""
        return _RELEASE.pack(self.ticket, self.version, self.samples, self.fresh) + orders

    @classmethod
    def decode(cls, body: bytes) -> Released:
        """Read the body of the letter."""
        orders = json.loads(body[_RELEASE.size :]) if len(body) > _RELEASE.size else {}
        ticket, version, samples, fresh = _RELEASE.unpack_from(body)
        return cls(ticket, version, samples, fresh, orders)


def encode_piece(ring: int, step: int) -> bytes:
    """Return the body of a ring's letter."""
    return _PIECE.pack(ring, step)


def decode_piece(body: bytes) -> tuple[int, int]:
    """Return the ring's number and the step within it."""
    ring, step = _PIECE.unpack(body)
    return ring, step
