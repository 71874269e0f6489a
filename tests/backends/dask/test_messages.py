"""Messages: what was encoded is what is decoded, and everything else is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from psbench.backends.dask.coordinator.timers import Timers
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import _KINDS, Message, MessageRefused, decode
from psbench.backends.dask.protocol.messages import LogRows, PushMessage, ReleaseMessage, RingPiece, Summand
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
    "dict[str, Any]": {"nested": [1, {"big": 2**127 + 1}], "nothing": None},
    "dict[str, Any] | None": {"position": [1, 2]},
    "dict[int, Address | None]": {0: Address("tls://127.0.0.1:1/00"), 1: None},
    "Address | None": Address("tcp://127.0.0.1:1"),
    "PushKey": (2, 5),
    "list[PushKey]": [(2, 5), (0, 1)],
    "EntryRanges": [[(0, 3), (5, 6)], [(3, 5)]],
    "EntryRanges | None": [[(0, 3)]],
    "Update": UPDATE,
    "Tensors": TENSORS,
    "Literal['train', 'test']": "train",
    "Literal['lost', 'back', 'speed']": "lost",
}
PACKED = [PushMessage, ReleaseMessage, RingPiece, Summand, LogRows]
PLAIN = [kind for kind in _KINDS.values() if kind not in PACKED]


def example(kind: type[Message]) -> Message:
    return kind(**{name: VALUES[annotation] for name, annotation in kind.__annotations__.items()})


def sent(message: Message) -> Message:
    return decode(message.kind, *message.encode())


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_every_message_is_decoded_as_it_was_encoded(kind: type[Message]) -> None:
    message = example(kind)
    found = sent(message)
    assert type(found) is kind
    for name, value in vars(message).items():
        if name == "tensors":
            assert found.tensors.keys() == value.keys()
            assert all(torch.equal(found.tensors[each], value[each]) for each in value)
        else:
            assert repr(getattr(found, name)) == repr(value)  # not ==, which NaN never is


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_fields_that_are_missing_unknown_or_mistyped_are_refused(kind: type[Message]) -> None:
    body, payload = example(kind).encode()
    fields = json.loads(body)
    needed = [each.name for each in dataclasses.fields(kind) if each.default is dataclasses.MISSING]
    others = [{name: value for name, value in fields.items() if name != missing} for missing in needed]
    others.append(fields | {"unknown": 1})
    others += [fields | {name: "?" if not isinstance(value, str) else 5} for name, value in fields.items()]
    for other in others:
        with pytest.raises(MessageRefused, match=kind.__name__):
            decode(kind.kind, json.dumps(other).encode(), payload)
    if payload is None:
        with pytest.raises(MessageRefused, match="payload"):
            decode(kind.kind, body, torch.ones(3))
    for noise in (b"", b"[]", b"{", b"\xff"):
        with pytest.raises(MessageRefused):
            decode(kind.kind, noise, payload)


def test_an_unknown_kind_is_refused_and_a_taken_one_cannot_be_declared() -> None:
    with pytest.raises(MessageRefused, match="no kind 255"):
        decode(255, b"{}", None)
    with pytest.raises(TypeError, match="taken"):
        type("Again", (Message,), {}, kind=msg.StopRun.kind)


@pytest.mark.parametrize(
    "shapes", [[["w", [4]]], [["w", [2]]], [["w", [-3]]], [["w", ["3"]]], [["w", 3]], "w"]
)
def test_tensors_whose_shapes_do_not_fit_the_payload_are_refused(shapes: Any) -> None:
    body = json.dumps({"tensors": shapes}).encode()
    with pytest.raises(MessageRefused, match="TakeEntries"):
        decode(msg.TakeEntries.kind, body, torch.ones(3))


@pytest.mark.parametrize("stats", [None, {"test_loss": 0.1, "grad_norm_sq": math.inf}])
@pytest.mark.parametrize("overlapping", [False, True])
def test_a_push_is_decoded_as_it_was_encoded(overlapping: bool, stats: dict[str, float] | None) -> None:
    push = PushMessage(3, 2, 64, 4, 0.1, 12.3456789012, 1 / 3, not overlapping, overlapping, stats)
    assert sent(push) == push


@pytest.mark.parametrize("orders", [{}, {"push": True, "batch_size": 7}])
@pytest.mark.parametrize("then", ["step", "push"])
def test_a_release_is_decoded_as_it_was_encoded(then: Any, orders: dict[str, object]) -> None:
    release = ReleaseMessage(3, 2, 64, then == "push", then == "step", then, 1.25, 2, orders)
    assert sent(release) == release


def test_pieces_and_rows_are_decoded_as_they_were_encoded() -> None:
    summand = Summand(2**40, 1, 2, 3, 0.25, 0.5, 1, torch.arange(3.0))
    found = vars(sent(summand)) | {"payload": None}
    assert found == vars(summand) | {"payload": None}
    piece = sent(RingPiece(2**40, 7, torch.ones(3)))
    assert isinstance(piece, RingPiece)
    assert (piece.ring, piece.step, piece.payload.tolist()) == (2**40, 7, [1.0] * 3)
    rows = LogRows(["barrier", "\ud800"], np.zeros(3, ROW).tobytes())
    assert sent(rows) == rows


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (PushMessage, b"short"),
        (PushMessage, PushMessage(1, 1, 1, 1, 0.0, 0.0, 0.0).encode()[0] + b'{"loss": "low"}'),
        (ReleaseMessage, ReleaseMessage(1, 1, 1, True).encode()[0] + b"[1]"),
        (RingPiece, b""),
        (Summand, b""),
        (LogRows, LogRows([], b"no whole row").encode()[0]),
        (LogRows, b"\xff\xff\xff\xff"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_packed_body_that_is_none_is_refused(kind: type[Message], body: bytes) -> None:
    with pytest.raises(MessageRefused, match=kind.__name__):
        decode(kind.kind, body, None)


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
