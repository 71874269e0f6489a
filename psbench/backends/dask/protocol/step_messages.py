"""The messages of every step; all others are in `messages`."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from psbench.backends.dask.protocol.decoder import Message, VectorMessage
from psbench.core.actions import Release
from psbench.core.events import Push
from psbench.core.log import ROW


class PushMessage(VectorMessage, kind=1):
    """A worker's push: metadata for the engine, and one server's slice as payload.

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
        step = push.ticket, push.base_version, push.samples, push.steps, push.compute_s
        return cls(*step, sent_s, push.loss, is_finite, push.overlapping, push.stats, payload)


class ReleaseMessage(VectorMessage, kind=2):
    """Orders a worker to take steps of a number of samples from a version, or to push.

    `sent` says that something comes with it: the model, a `fragment` of it, or the last commit's
    `aggregate`; `epoch` and `epochs_per_step` give the rates of the worker's own steps; `allowance` limits
    their samples; `stamped` asks for the worker's stamps of what it does until the next release. A server
    that is not the first sends only ticket and payload. Who `halts` is dropped in the same answer: it still
    sends what neighbours mix, and takes no step.
    """

    ticket: int
    version: int
    samples: int
    sent: bool
    aggregate: bool = False
    then: Literal["step", "push"] = "step"
    epoch: float = 0.0
    epochs_per_step: float = 0.0
    fragment: int = -1
    allowance: int = -1
    orders: dict[str, Any] = {}
    payload: Tensor | None = None
    stamped: bool = False
    halts: bool = False

    @classmethod
    def of(cls, release: Release, samples: int, payload: Tensor | None = None) -> ReleaseMessage:
        """Return the message of a release, for steps of `samples` samples."""
        what = release.ticket, release.load, samples, release.send, release.aggregate, release.then
        own = release.epoch, release.epochs_per_step, release.fragment, release.allowance
        return cls(*what, *own, release.orders, payload)


class RingPiece(VectorMessage, kind=3):
    """A piece of the vector that a ring adds up: the ring's number, the step in it, and the entries."""

    ring: int
    step: int
    payload: Tensor


class Summand(VectorMessage, kind=6):
    """The contribution of one of `size` members to a sum that a server makes; the answer is a `RingPiece`.

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


class LogRows(Message, kind=4):
    """New rows of the log for the client: packed rows, and the texts that they name."""

    texts: list[str]
    rows: bytes

    def __post_init__(self) -> None:
        """Raise unless the bytes are whole rows."""
        if len(self.rows) % ROW.itemsize:
            raise ValueError(f"{len(self.rows)} bytes are not a multiple of the row size, {ROW.itemsize}")
