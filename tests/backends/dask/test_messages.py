"""Messages: what was encoded is what is decoded, and everything else is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import msgpack

from psbench.backends.dask.coordinator.run_state import Timers
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import (
    _KINDS,
    Json,
    Message,
    MessageRefused,
    VectorMessage,
    decode_message,
)
from psbench.backends.dask.protocol.messages import LogRows, RingPiece
from psbench.backends.dask.protocol.roles import Address
from psbench.clusters import make_cluster
from psbench.core import events as ev
from psbench.core.log import ROW

UPDATE = msg.Update(0.5, 1.25, 0.9, {"keep": 0.25})
TENSORS = {
    "count": torch.tensor(2.0**53 - 1, dtype=torch.float64),
    "parameters": torch.arange(6.0).view(2, 3),
    "step": torch.tensor(2.0),
    "buffers": torch.empty(0),
}
#: a value of each type that a field may have
VALUES: dict[str, Any] = {
    "int": 7,
    "int | None": None,
    "float": math.inf,
    "str": "text \u20ac",
    "bool": True,
    "list[int]": [3, 1],
    "list[tuple[str, str, int, int]]": [("payload/0/1", "parameters", 0, 7)],
    "list[float]": [1 / 3, math.nan],
    "list[tuple[float, ...]]": [(1.0, 2.5), ()],
    "list[tuple[float, float]]": [(0.5, 1e-5)],
    "dict[str, float]": {"loss": 1e-300},
    "dict[int, float]": {0: 0.25, 3: 0.75},
    "dict[str, int]": {"draws": -1},
    "dict[str, int] | None": {"draws": -1},
    "dict[str, Any]": {"push": True, "batch_size": 7, "nested": [1, None]},
    "Json": Json({"nested": [1, {"big": 2**127 + 1}], "nothing": None}),
    "Json | None": Json({"position": [1, 2]}),
    "dict[int, Address]": {0: Address("tls://127.0.0.1:1/00")},
    "RingPlace": msg.RingPlace(0, 2, 2, 1),
    "list[RingPlace]": [msg.RingPlace(1, 3, 2, 4), msg.RingPlace(0, 2, 2, 7)],
    "Address | None": Address("tcp://127.0.0.1:1"),
    "PushKey": (2, 5),
    "list[PushKey]": [(2, 5), (0, 1)],
    "EntryRanges": [[(0, 3), (5, 6)], [(3, 5)]],
    "EntryRanges | None": [[(0, 3)]],
    "Update": UPDATE,
    "StateDict": TENSORS,
    "Tensor": torch.arange(3.0),
    "Tensor | None": torch.arange(3.0),
    "bytes": np.zeros(3, ROW).tobytes(),
    "list[str]": ["barrier", "\u20ac"],
    "dict[str, float] | None": {"test_loss": 0.1, "grad_norm_sq": math.inf},
    "Literal['step', 'push']": "push",
    "Literal['train', 'test']": "train",
    "Literal['lost', 'back', 'speed']": "lost",
}


def example(kind: type[Message]) -> Message:
    return kind(**{name: VALUES[annotation] for name, annotation in kind.__annotations__.items()})


def sent(message: Message) -> Message:
    return decode_message(message.kind, *message.encode())


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype is other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return repr(one) == repr(other)  # not ==, which NaN never is


@pytest.mark.parametrize("kind", _KINDS.values(), ids=lambda kind: kind.__name__)
def test_every_message_is_decoded_as_it_was_encoded(kind: type[Message]) -> None:
    message = example(kind)
    found = sent(message)
    assert type(found) is kind
    for name in kind.__struct_fields__:
        assert same(getattr(message, name), getattr(found, name)), name


@pytest.mark.parametrize(
    ("kind", "problem"), [(0, "is that of Hello"), (256, "does not fit into a byte"), (-1, "does not fit")]
)
def test_a_kind_that_cannot_be_given_is_refused_with_one_that_is_free(kind: int, problem: str) -> None:
    free = min({*range(256)} - {*_KINDS})
    with pytest.raises(TypeError, match=rf"^Clash: kind {kind} {problem}.*; .* not used yet is {free}$"):
        type(Message)("Clash", (Message,), {}, kind=kind)
    assert free not in _KINDS


@pytest.mark.parametrize("kind", _KINDS.values(), ids=lambda kind: kind.__name__)
def test_fields_that_are_missing_unknown_or_mistyped_are_refused(kind: type[Message]) -> None:
    body, payload = example(kind).encode()
    fields = msgpack.decode(body)
    needed = len(fields) - len(kind.__struct_defaults__)
    others = [fields[: needed - 1]] if needed else []
    others.append([*fields, 1])
    for place, value in enumerate(fields):
        others.append([*fields[:place], "?" if not isinstance(value, str) else 5, *fields[place + 1 :]])
    for other in others:
        with pytest.raises(MessageRefused, match=kind.__name__):
            decode_message(kind.kind, msgpack.encode(other), payload)
    if not issubclass(kind, VectorMessage):  # those take a vector of any length
        with pytest.raises(MessageRefused, match="more entries"):
            decode_message(kind.kind, body, torch.ones(3 if payload is None else len(payload) + 3))
    for noise in (b"", b"{", b"\xff", b"\x91" * 10_000, body + body):
        with pytest.raises(MessageRefused):
            decode_message(kind.kind, noise, payload)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(MessageRefused, match="unknown kind 255"):
        decode_message(255, msgpack.encode([]), None)


@pytest.mark.parametrize("shape", [[False, 4], [False, 2], [True, 3], [False, -3], [False, "3"], [], 3, "w"])
def test_tensors_whose_shapes_do_not_fit_the_payload_are_refused(shape: Any) -> None:
    body = msgpack.encode([1, {"w": shape}])
    with pytest.raises(MessageRefused, match="TakeEntries"):
        decode_message(msg.TakeEntries.kind, body, torch.ones(3))
    assert sent(msg.TakeEntries(1, {})) == msg.TakeEntries(1, {})


def test_a_vector_that_no_field_takes_is_refused() -> None:
    body, _ = msg.PushMessage(1, 1, 1, 1, 0.0, 0.0, 0.0).encode()
    with pytest.raises(MessageRefused, match="more entries"):
        decode_message(msg.PushMessage.kind, body, torch.ones(3))


def test_a_vector_is_sent_from_where_it_lies_and_tensors_are_copied() -> None:
    for kind in (torch.float32, torch.float16, torch.uint8):
        vector = torch.arange(3).to(kind)
        _, payload = RingPiece(1, 2, vector).encode()
        assert payload is vector
        assert same(sent(RingPiece(1, 2, vector)), RingPiece(1, 2, vector))
    vector = torch.ones(3)
    _, copied = msg.TakeEntries(1, {"w": vector}).encode()
    vector.zero_()
    assert copied is not None
    assert copied.tolist() == [1, 1, 1]


def test_floats_of_numpy_are_sent_and_what_cannot_be_is_named() -> None:
    reply = msg.NumberReply(1, np.float64(0.1))
    assert sent(reply) == msg.NumberReply(1, 0.1)
    with pytest.raises(TypeError, match="int64"):
        msg.NumberReply(1, np.int64(3)).encode()


def test_bytes_that_are_no_whole_rows_are_refused() -> None:
    rows = np.zeros(3, ROW).tobytes()
    with pytest.raises(ValueError, match="multiple of the row size"):
        LogRows([], rows[:-1])
    with pytest.raises(MessageRefused, match="multiple of the row size"):
        decode_message(LogRows.kind, msgpack.encode([[], rows[:-1]]), None)


def test_timers_hold_joins_failures_and_calls_in_order() -> None:
    failures = [{"worker": 0, "at_s": 1, "rejoin_s": 3}]
    cluster = make_cluster({"workers": 3, "joins": [{"worker": 2, "at_s": 2}], "failures": failures})
    timers = Timers(cluster.profile())
    timers.add(2, ev.Timer("key"))
    assert timers.due(0.5) == []
    assert timers.due(2.5) == [ev.Leave(0, "failed"), ev.Join(2), ev.Timer("key")]
    assert timers.expects_join(gone=set())
    assert not timers.expects_join(gone={0})
    assert timers.due(9) == [ev.Join(0)]
    assert not len(timers)
