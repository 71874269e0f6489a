"""The wire: what arrives is what was sent, strangers are dropped, and who is gone is known to be."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
import zmq

from psbench.backends.dask.protocol.transport import (
    HELLO,
    JSON,
    Address,
    ClientSocket,
    Message,
    ServerSocket,
    is_loopback,
    pack,
    unpack,
)

KEY = b"s" * 32
KIND = 7
pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def hub() -> Iterator[ServerSocket]:
    with ServerSocket("127.0.0.1", KEY) as hub:
        yield hub


def await_letter(receiver: ServerSocket | ClientSocket, seconds: float = 5.0) -> Message:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        letter = receiver.receive(0.05)
        if letter is not None:
            return letter
    raise AssertionError("no letter came")


@pytest.mark.parametrize("length", [0, 1, 5, 300_000])
def test_letters_arrive_as_they_were_sent(hub: ServerSocket, length: int) -> None:
    sent = torch.arange(float(length))
    with ClientSocket(hub.address, KEY, "worker 0", ring=3) as link:
        assert await_letter(hub).plain == {"name": "worker 0", "ring": 3}
        link.send(KIND, b"body", sent)
        letter = await_letter(hub)
        assert letter[:3] == ("worker 0", KIND, b"body")
        assert torch.equal(torch.empty(0) if letter.payload is None else letter.payload, sent)
        assert hub.send("worker 0", KIND, b"back", sent)
        answer = await_letter(link)
        assert answer[:3] == ("", KIND, b"back")
        assert torch.equal(torch.empty(0) if answer.payload is None else answer.payload, sent)


@pytest.mark.parametrize("length", [1, 300_000])
def test_16_bit_floats_travel_as_such(hub: ServerSocket, length: int) -> None:
    sent = torch.linspace(-1000, 1000, length).half()
    with ClientSocket(hub.address, KEY, "worker 0") as link:
        await_letter(hub)
        link.send(KIND, b"", sent)
        received = await_letter(hub).payload
        assert received is not None
        assert received.dtype is torch.float16
        assert torch.equal(received, sent)


def test_what_was_sent_is_a_copy(hub: ServerSocket) -> None:
    with ClientSocket(hub.address, KEY, "worker 0") as link:
        await_letter(hub)
        vector = torch.ones(10)
        link.send(KIND, b"", vector)
        vector.zero_()
        received = await_letter(hub).payload
        assert received is not None
        assert received.sum() == 10


def test_strangers_are_dropped_and_counted(hub: ServerSocket) -> None:
    with ClientSocket(hub.address, b"x" * 32, "worker 0") as stranger:
        stranger.tell({"do": "stop"})
        with ClientSocket(hub.address, KEY, "worker 0") as friend:
            friend.tell({"do": "ready"})
            letters = [await_letter_or_none(hub) for _ in range(8)]
    kinds = [letter.kind for letter in letters if letter is not None]
    assert kinds == [HELLO, JSON]
    assert hub.strangers == 2


def await_letter_or_none(hub: ServerSocket) -> Message | None:
    return hub.receive(0.1)


def test_noise_does_not_disturb(hub: ServerSocket) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 1000
        socket.connect(hub.address.url)
        for noise in ([b""], [b"\0"], [b"\0" * 8, b"more", b"frames"], [b"\xff" * 4000]):
            socket.send_multipart(noise)
        with ClientSocket(hub.address, KEY, "friend"):
            seen = [letter for letter in (hub.receive(0.1) for _ in range(10)) if letter is not None]
    assert [letter.sender for letter in seen] == ["friend"]
    assert hub.strangers == 4


def test_who_is_gone_cannot_be_told(hub: ServerSocket) -> None:
    link = ClientSocket(hub.address, KEY, "worker 0")
    await_letter(hub)
    assert hub.tell("worker 0", {"do": "ping"})
    link.close()
    end = time.monotonic() + 5
    while hub.tell("worker 0", {"do": "ping"}):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_link_knows_that_its_hub_is_gone() -> None:
    hub = ServerSocket("127.0.0.1", KEY)
    with ClientSocket(hub.address, KEY, "worker 0") as link:
        await_letter(hub)
        assert not link.lost
        hub.close()
        end = time.monotonic() + 5
        while not link.lost:
            assert time.monotonic() < end
            time.sleep(0.01)
        for _ in range(100):
            link.tell({"do": "nothing"})  # into the void, and without waiting


def test_a_hub_off_loopback_encrypts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psbench.backends.dask.protocol.transport.is_loopback", lambda host: False)
    with ServerSocket("127.0.0.1", KEY) as hub:
        assert len(hub.address.public_key) == 40
        with ClientSocket(Address(hub.address.url), KEY, "in the clear"):
            assert hub.receive(0.5) is None
        with ClientSocket(hub.address, KEY, "worker 0") as link:
            assert await_letter(hub).sender == "worker 0"
            link.send(KIND, b"", torch.ones(3))
            assert await_letter(hub).payload is not None


def test_only_loopback_is_loopback() -> None:
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "host")] == [
        *(True, True, True),
        *(False, False, False),
    ]


def test_tensors_are_put_together_and_taken_apart() -> None:
    tensors = {"a": torch.rand(3), "step": torch.tensor(2.0), "none": torch.empty(0), "b": torch.rand(2, 2)}
    shapes, flat = pack(tensors)
    found = unpack(shapes, flat)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
