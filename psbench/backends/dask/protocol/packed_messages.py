"""The messages that are sent in every step, with bodies packed by hand; all others are in `messages`."""

from __future__ import annotations

import json
import struct
from dataclasses import field
from typing import Any, Literal, Self

import torch
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor

from psbench.backends.dask.protocol.decoder import Message
from psbench.core.actions import Release
from psbench.core.events import Push
from psbench.core.log import ROW

_PUSH = struct.Struct("<qqIIdddB")
_RELEASE = struct.Struct("<qqIdBi")
_PIECE = struct.Struct("<qI")
_SUMMAND = struct.Struct("<qIIIddI")
_TEXTS = struct.Struct("<I")
_IS_FINITE, _OVERLAPPING = 1, 2
_SENT, _AGGREGATE, _PUSHES, _STAMPED = 1, 2, 4, 8
_STATISTICS = TypeAdapter(dict[str, float], config=ConfigDict(strict=True))
_ORDERS = TypeAdapter(dict[str, Any])
_STRINGS = TypeAdapter(list[str], config=ConfigDict(strict=True))


class PushMessage(Message, kind=1):
    """A worker's push: what the engine needs to know of it, and one server's slice as payload.

    `sent_s` is when it was sent, on the coordinator's clock; `is_finite` whether loss and payload are free
    of NaN and infinity; `stats` the declared statistics that only the worker knows. The first server's
    payload ends with the model's buffers.
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
    payload: Tensor | None = None

    @classmethod
    def of(cls, push: Push, sent_s: float, is_finite: bool, payload: Tensor | None = None) -> PushMessage:
        """Return the message of a push."""
        step = push.ticket, push.base_version, push.samples, push.steps, push.compute_s
        return cls(*step, sent_s, push.loss, is_finite, push.overlapping, push.stats, payload)

    def encode(self) -> tuple[bytes, Tensor | None]:
        """Pack the body."""
        flags = self.is_finite * _IS_FINITE + self.overlapping * _OVERLAPPING
        step = self.ticket, self.version, self.samples, self.steps, self.compute_s
        body = _PUSH.pack(*step, self.sent_s, self.loss, flags)
        return body + json.dumps(self.stats).encode() if self.stats else body, self.payload

    @classmethod
    def decode(cls, body: bytes, payload: Tensor | None) -> Self:
        """Unpack the body."""
        *facts, flags = _PUSH.unpack_from(body)
        stats = _STATISTICS.validate_json(body[_PUSH.size :]) if len(body) > _PUSH.size else None
        facts += bool(flags & _IS_FINITE), bool(flags & _OVERLAPPING), stats, payload
        return cls(*facts)


class ReleaseMessage(Message, kind=2):
    """Tells a worker to take steps of so many samples from a version, or to push.

    `sent` says that something comes with it: the model, a `fragment` of it, or the last commit's
    `aggregate`; `epoch` gives the rate of the worker's own steps; `stamped` asks for the worker's stamps of
    what it does until the next release. A server that is not the first sends only ticket and payload.
    """

    ticket: int
    version: int
    samples: int
    sent: bool
    aggregate: bool = False
    then: Literal["step", "push"] = "step"
    epoch: float = 0.0
    fragment: int = -1
    orders: dict[str, Any] = field(default_factory=dict)
    payload: Tensor | None = None
    stamped: bool = False

    @classmethod
    def of(cls, release: Release, samples: int, payload: Tensor | None = None) -> ReleaseMessage:
        """Return the message of a release, under which the worker takes steps of so many samples."""
        what = release.ticket, release.load, samples, release.send, release.aggregate, release.then
        return cls(*what, release.epoch, release.fragment, release.orders, payload)

    def encode(self) -> tuple[bytes, Tensor | None]:
        """Pack the body."""
        flags = self.sent * _SENT + self.aggregate * _AGGREGATE + (self.then == "push") * _PUSHES
        flags += self.stamped * _STAMPED
        body = _RELEASE.pack(self.ticket, self.version, self.samples, self.epoch, flags, self.fragment)
        return body + json.dumps(self.orders).encode() if self.orders else body, self.payload

    @classmethod
    def decode(cls, body: bytes, payload: Tensor | None) -> Self:
        """Unpack the body."""
        orders = _ORDERS.validate_json(body[_RELEASE.size :]) if len(body) > _RELEASE.size else {}
        ticket, version, samples, epoch, flags, fragment = _RELEASE.unpack_from(body)
        then: Literal["step", "push"] = "push" if flags & _PUSHES else "step"
        sent, aggregate = bool(flags & _SENT), bool(flags & _AGGREGATE)
        facts = ticket, version, samples, sent, aggregate, then, epoch, fragment, orders, payload
        return cls(*facts, bool(flags & _STAMPED))


class RingPiece(Message, kind=3):
    """A piece of the vector that a ring adds up: the ring's number, the step in it, and the entries."""

    ring: int
    step: int
    payload: Tensor

    def encode(self) -> tuple[bytes, Tensor | None]:
        """Pack the body."""
        return _PIECE.pack(self.ring, self.step), self.payload

    @classmethod
    def decode(cls, body: bytes, payload: Tensor | None) -> Self:
        """Unpack the body."""
        ring, step = _PIECE.unpack(body)
        return cls(ring, step, torch.empty(0) if payload is None else payload)


class Summand(Message, kind=6):
    """What one of `size` members gives to a sum that a server makes; it is answered with a `RingPiece`.

    `ring` is the number of the order, and the answer's `step` that of the server. `place` is the member's.
    The vector counts by `weight`, and the last entries, so many as `behind`, by `share`. Bytes are not added
    up but handed on.
    """

    ring: int
    server: int
    place: int
    size: int
    weight: float
    share: float
    behind: int
    payload: Tensor

    def encode(self) -> tuple[bytes, Tensor | None]:
        """Pack the body."""
        facts = self.ring, self.server, self.place, self.size, self.weight, self.share, self.behind
        return _SUMMAND.pack(*facts), self.payload

    @classmethod
    def decode(cls, body: bytes, payload: Tensor | None) -> Self:
        """Unpack the body."""
        ring, server, place, size, weight, share, behind = _SUMMAND.unpack(body)
        vector = torch.empty(0) if payload is None else payload
        return cls(ring, server, place, size, weight, share, behind, vector)


class LogRows(Message, kind=4):
    """What the log has grown by, for the client: packed rows, and the texts that they name."""

    texts: list[str]
    rows: bytes

    def encode(self) -> tuple[bytes, Tensor | None]:
        """Pack the body."""
        texts = json.dumps(self.texts).encode()
        return _TEXTS.pack(len(texts)) + texts + self.rows, None

    @classmethod
    def decode(cls, body: bytes, payload: Tensor | None) -> Self:
        """Unpack the body."""
        start = _TEXTS.size + _TEXTS.unpack_from(body)[0]
        texts = _STRINGS.validate_python(json.loads(body[_TEXTS.size : start]))
        if payload is not None or (len(body) - start) % ROW.itemsize:
            raise ValueError(f"{len(body) - start} bytes are no whole rows of {ROW.itemsize}")
        return cls(texts, body[start:])
