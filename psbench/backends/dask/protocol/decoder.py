"""The one decoder: numbered kinds of typed messages, and the refusal of everything else.

A message is a struct with a number (`class Vote(Message, kind=31)`). Its body is MessagePack: an array with a
value for each field. Tensors travel as the payload, and the body has their shapes.
"""

from __future__ import annotations

import json
import math
from collections import UserDict
from typing import Any, ClassVar, Self

import msgspec
import torch
from torch import Tensor

from psbench.errors import BackendError


class MessageRefused(BackendError):
    """A message cannot be decoded: unknown kind, or a field missing, unknown or of the wrong type."""

    def __init__(self, reason: str, sender: str = "") -> None:
        self.reason, self.sender = reason, sender
        super().__init__(f"a message{f' of {sender}' if sender else ''} was rejected: {reason}")

    def __reduce__(self) -> tuple[type[MessageRefused], tuple[str, str]]:
        return MessageRefused, (self.reason, self.sender)


class Json(UserDict[str, Any]):
    """Plain data that travels as JSON: states of random numbers have integers of 128 bits."""


_KINDS: dict[int, type[Message]] = {}
_EMPTY = torch.empty(0)
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class _Numbered(msgspec.StructMeta):
    """Gives each kind of message its number."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], kind: int | None = None
    ) -> Any:
        made: Any = super().__new__(mcs, name, bases, body, array_like=True, forbid_unknown_fields=True)
        if kind is not None:
            if not 0 <= kind < 256 or kind in _KINDS:
                used = f"is that of {_KINDS[kind].__name__}" if kind in _KINDS else "does not fit into a byte"
                free = next((each for each in range(256) if each not in _KINDS), None)
                raise TypeError(f"{name}: kind {kind} {used}; the lowest kind not used yet is {free}")
            made.kind = kind
            _KINDS[kind] = made
        return made


class Message(msgspec.Struct, metaclass=_Numbered):
    """A message from one process to another; the entries of its tensors are copied one after another."""

    kind: ClassVar[int]

    def encode(self) -> tuple[bytes, Tensor | None]:
        """Return body and payload."""
        entries: list[Tensor] = []

        def plain(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return _plain(value)
            entries.append(_flat(value))
            return value.dtype is torch.float64, *value.shape

        body = _encode(self, enc_hook=plain)
        return body, torch.cat(entries) if entries else None

    @classmethod
    def decode(cls, body: bytes, payload: Tensor | None) -> Self:
        """Return the message with that body and payload.

        Raises
        ------
        msgspec.DecodeError, ValueError, RecursionError
            If it is none of this kind.
        """
        entries = _Entries(payload)
        message = _decode(body, type=cls, dec_hook=entries.typed)
        if entries.left:
            raise ValueError(f"carries {entries.left} more entries than its tensors have")
        return message


class VectorMessage(Message):
    """A message of every step: its field `payload` is a vector that is sent without a copy."""

    def encode(self) -> tuple[bytes, Tensor | None]:
        """Return body and payload."""
        return _encode(self, enc_hook=_plain), self.payload  # pyrefly: ignore[missing-attribute]

    @classmethod
    def decode(cls, body: bytes, payload: Tensor | None) -> Self:
        """Return the message with that body and payload; see `Message.decode`."""

        def vector(kind: type, value: Any) -> Any:
            if value is not True:
                raise ValueError("a vector field must be True")
            return _EMPTY if payload is None else payload

        message = _decode(body, type=cls, dec_hook=vector)
        if payload is not None and message.payload is not payload:  # pyrefly: ignore[missing-attribute]
            raise ValueError(f"carries {payload.numel()} more entries than its tensors have")
        return message


def _plain(value: Any) -> Any:
    """Return the placeholder for a vector, for JSON, or for a float of another library."""
    if isinstance(value, Tensor):
        return True
    if isinstance(value, Json):
        return json.dumps(value.data)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a message cannot carry {value!r}, of {type(value).__name__}")


def _flat(tensor: Tensor) -> Tensor:
    """Return the entries; numbers of 64 bits, such as counts of a part, travel as two of 32, bit by bit."""
    flat = tensor.detach().reshape(-1)
    return flat.view(torch.float32) if flat.dtype is torch.float64 else flat


class _Entries:
    """Cuts a payload into tensors of the shapes that a body lists, in order."""

    def __init__(self, payload: Tensor | None) -> None:
        self._flat = _EMPTY if payload is None else payload
        self._start = 0

    @property
    def left(self) -> int:
        """Number of entries that no tensor has taken."""
        return self._flat.numel() - self._start

    def typed(self, kind: type, value: Any) -> Any:
        """Return the next tensor, a view of the payload unless it has 64 bits; or plain data."""
        if kind is Json:
            return Json(json.loads(value))
        wide, *sizes = value
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError(f"{sizes} is not a shape")
        end = self._start + math.prod(sizes) * (2 if wide else 1)
        if end > self._flat.numel():
            raise ValueError(f"{self.left} entries do not fill the shape {sizes}")
        found, self._start = self._flat[self._start : end], end
        return (found.clone().view(torch.float64) if wide else found).view(sizes)


def decode_message(kind: int, body: bytes, payload: Tensor | None) -> Message:
    """Return a message of one of the known kinds.

    Raises
    ------
    MessageRefused
        If it is none.
    """
    found = _KINDS.get(kind)
    if found is None:
        raise MessageRefused(f"unknown kind {kind}")
    try:
        return found.decode(body, payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MessageRefused(f"{found.__name__}: {error}") from None
