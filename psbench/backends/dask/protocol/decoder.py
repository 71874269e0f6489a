"""The one decoder: numbered kinds of typed messages, and the refusal of everything else.

A message is a dataclass with a number (`class Vote(Message, kind=40)`). Its body is JSON with a value for
each field; tensors travel as the payload, with their names and shapes in the body. A kind that is sent in
every step packs its body itself by overriding `encode` and `decode`.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Self, dataclass_transform

from pydantic import ConfigDict, PlainValidator, Strict, TypeAdapter, ValidationInfo
from torch import Tensor

from psbench.backends.dask.protocol.framing import State, pack, unpack
from psbench.errors import BackendError


class MessageRefused(BackendError):
    """A message cannot be decoded: unknown kind, or a field missing, unknown or of the wrong type."""

    def __init__(self, reason: str, sender: str = "") -> None:
        self.reason, self.sender = reason, sender
        super().__init__(f"a message{f' of {sender}' if sender else ''} is refused: {reason}")

    def __reduce__(self) -> tuple[type[MessageRefused], tuple[str, str]]:
        return MessageRefused, (self.reason, self.sender)


_KINDS: dict[int, type[Message]] = {}
_ADAPTERS: dict[type[Message], TypeAdapter[Any]] = {}  # built when first needed: each takes a millisecond
#: fields are neither converted nor ignored
STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass_transform()
class Message:
    """What one process sends to another; subclasses are dataclasses of their annotated fields."""

    kind: ClassVar[int]
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __init_subclass__(cls, kind: int, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if not 0 <= kind < 256 or kind in _KINDS:
            raise TypeError(f"{cls.__name__}: kind {kind} is taken or does not fit into a byte")
        cls.kind = kind
        _KINDS[kind] = dataclass(cls)

    def encode(self) -> tuple[bytes, Tensor | None]:
        """Return body and payload."""
        values, payload = vars(self), None
        tensors = values.get("tensors")
        if tensors is not None:
            shapes, payload = pack(tensors)
            values = values | {"tensors": shapes}
        return json.dumps(values, default=asdict).encode(), payload

    @classmethod
    def decode(cls, body: bytes, payload: Tensor | None) -> Self:
        """Return the message with that body and payload.

        Raises
        ------
        ValueError, struct.error
            If it is none of this kind.
        """
        if payload is not None and "tensors" not in cls.__annotations__:
            raise ValueError("carries a payload, and its kind has none")
        adapter = _ADAPTERS.get(cls)
        if adapter is None:
            adapter = _ADAPTERS[cls] = TypeAdapter(cls)
        message: Self = adapter.validate_json(body, context=payload)
        return message


def _unpacked(shapes: Any, info: ValidationInfo) -> State:
    return unpack(_SHAPES.validate_python(shapes), info.context)


_SHAPES = TypeAdapter(list[tuple[str, list[Annotated[int, Strict()]]]])
#: tensors that are a message's payload
Tensors = Annotated[State, PlainValidator(_unpacked)]


def decode(kind: int, body: bytes, payload: Tensor | None) -> Message:
    """Return a message of one of the known kinds.

    Raises
    ------
    MessageRefused
        If it is none.
    """
    found = _KINDS.get(kind)
    if found is None:
        raise MessageRefused(f"there is no kind {kind}")
    try:
        return found.decode(body, payload)
    except (ValueError, struct.error, RuntimeError) as error:  # the last: a negative size of a tensor
        raise MessageRefused(f"{found.__name__}: {error}") from None
