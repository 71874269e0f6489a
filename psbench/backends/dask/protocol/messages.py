"""The letters that every step sends, packed by hand; all others are plain JSON."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, Literal

from psbench.backends.dask.protocol.transport import FIRST_FREE_KIND
from psbench.core.actions import Release
from psbench.core.events import Push

#: a worker has pushed; kind of letter
PUSH = FIRST_FREE_KIND
#: a worker may go on
RELEASE = FIRST_FREE_KIND + 1
#: a piece of the vector that a ring adds up
PIECE = FIRST_FREE_KIND + 2

_PUSH = struct.Struct("<qqIIdddB")
_RELEASE = struct.Struct("<qqIdB")
_PIECE = struct.Struct("<qI")

_IS_FINITE, _OVERLAPPING = 1, 2
_SENT, _AGGREGATE, _PUSHES = 1, 2, 4


@dataclass(slots=True)
class PushMessage:
    """What a worker says of its steps.

    `sent_s` is when it was sent, on the conductor's clock; `is_finite` whether loss and payload, as they
    travel, are numbers; `stats` the declared statistics that only the worker knows.
    """

    ticket: int
    version: int
    samples: int
    steps: int
    compute_s: float
    sent_s: float
    loss: float
    is_finite: bool = True
    overlapping: bool = False
    stats: dict[str, float] | None = None

    @classmethod
    def of(cls, push: Push, sent_s: float, is_finite: bool) -> PushMessage:
        """Return what is said of a push."""
        return cls(
            *(push.ticket, push.base_version, push.samples, push.steps, push.compute_s, sent_s, push.loss),
            *(is_finite, push.overlapping, push.stats),
        )

    def encode(self) -> bytes:
        """Return the body of the letter."""
        flags = self.is_finite * _IS_FINITE + self.overlapping * _OVERLAPPING
        body = _PUSH.pack(
            *(self.ticket, self.version, self.samples, self.steps, self.compute_s, self.sent_s, self.loss),
            flags,
        )
        return body + json.dumps(self.stats).encode() if self.stats else body

    @classmethod
    def decode(cls, body: bytes) -> PushMessage:
        """Read the body of the letter."""
        ticket, version, samples, steps, compute_s, sent_s, loss, flags = _PUSH.unpack_from(body)
        stats = json.loads(body[_PUSH.size :]) if len(body) > _PUSH.size else None
        return cls(
            *(ticket, version, samples, steps, compute_s, sent_s, loss),
            *(bool(flags & _IS_FINITE), bool(flags & _OVERLAPPING), stats),
        )


@dataclass(slots=True)
class ReleaseMessage:
    """What a worker is told: take steps of so many samples from that version, or push.

    `sent` says that something comes with it: the model, or the last commit's `aggregate`; `epoch` gives the
    rate of its own steps. A server that is not the first sends only ticket and payload.
    """

    ticket: int
    version: int
    samples: int
    sent: bool
    aggregate: bool = False
    then: Literal["step", "push"] = "step"
    epoch: float = 0.0
    orders: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, release: Release, samples: int) -> ReleaseMessage:
        """Return what a worker is told of a release, under which it takes steps of so many samples."""
        return cls(
            *(release.ticket, release.load, samples, release.send, release.aggregate),
            *(release.then, release.epoch, release.orders),
        )

    def encode(self) -> bytes:
        """Return the body of the letter."""
        flags = self.sent * _SENT + self.aggregate * _AGGREGATE + (self.then == "push") * _PUSHES
        body = _RELEASE.pack(self.ticket, self.version, self.samples, self.epoch, flags)
        return body + json.dumps(self.orders).encode() if self.orders else body

    @classmethod
    def decode(cls, body: bytes) -> ReleaseMessage:
        """Read the body of the letter."""
        orders = json.loads(body[_RELEASE.size :]) if len(body) > _RELEASE.size else {}
        ticket, version, samples, epoch, flags = _RELEASE.unpack_from(body)
        then: Literal["step", "push"] = "push" if flags & _PUSHES else "step"
        sent, aggregate = bool(flags & _SENT), bool(flags & _AGGREGATE)
        return cls(ticket, version, samples, sent, aggregate, then, epoch, orders)


def encode_piece(ring: int, step: int) -> bytes:
    """Return the body of a ring's letter."""
    return _PIECE.pack(ring, step)


def decode_piece(body: bytes) -> tuple[int, int]:
    """Return the ring's number and the step within it."""
    ring, step = _PIECE.unpack(body)
    return ring, step
