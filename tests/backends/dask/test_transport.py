"""Sockets: what arrives is what was sent, strangers are dropped, and peers that are gone are noticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import zmq

from psbench.backends.dask.protocol.decoder import Message, MessageRefused
from psbench.backends.dask.protocol.framing import pack, unpack
from psbench.backends.dask.protocol.messages import Hello, Ping, Ready, RequestStop, RingPiece
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.transport import ClientSocket, Received, ServerSocket, is_loopback

KEY = b"s" * 32
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[ServerSocket]:
    with ServerSocket("127.0.0.1", KEY) as server:
        yield server


def await_true(condition: Callable[[], Any]) -> Any:
    """Return what a condition gives as soon as it holds; the test's own time-out ends the wait."""
    while not (found := condition()):
        time.sleep(0.001)
    return found


def next_of(server: ServerSocket) -> Received:
    received: Received = await_true(lambda: server.receive(0.05))
    return received


def await_message(client: ClientSocket) -> Message:
    message: Message = await_true(lambda: client.receive(0.05))
    return message


@pytest.mark.parametrize("length", [0, 1, 5, 300_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_messages_arrive_as_they_were_sent(server: ServerSocket, length: int, dtype: torch.dtype) -> None:
    vector = (torch.arange(float(length)) % 200).to(dtype)
    with ClientSocket(server.address, KEY, "worker 0") as client:
        assert next_of(server) == Received("worker 0", Hello("worker 0"))
        client.send(RingPiece(3, 4, vector))
        sender, there = next_of(server)
        assert server.send("worker 0", RingPiece(5, 6, vector))
        back = await_message(client)
    assert sender == "worker 0"
    for message, numbers in ((there, (3, 4)), (back, (5, 6))):
        assert isinstance(message, RingPiece)
        assert (message.ring, message.step) == numbers
        assert torch.equal(message.payload, vector) or not length
        assert message.payload.dtype is dtype or not length


def test_what_was_sent_is_a_copy(server: ServerSocket) -> None:
    with ClientSocket(server.address, KEY, "worker 0") as client:
        next_of(server)
        vector = torch.ones(10)
        client.send(RingPiece(0, 0, vector))
        vector.zero_()
        message = next_of(server).message
        assert isinstance(message, RingPiece)
        assert message.payload.sum() == 10


def test_strangers_are_dropped_and_counted(server: ServerSocket) -> None:
    with ClientSocket(server.address, b"x" * 32, "worker 0") as stranger:
        stranger.send(RequestStop())
        with ClientSocket(server.address, KEY, "worker 0") as friend:
            friend.send(Ready())
            received = []
            while server.strangers < 2 or len(received) < 2:
                received.append(server.receive(0.05))
                received = [each for each in received if each is not None]
    assert received == [Received("worker 0", Hello("worker 0")), Received("worker 0", Ready())]
    assert server.strangers == 2


def test_noise_does_not_disturb(server: ServerSocket) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 1000
        socket.connect(server.address.url)
        for noise in (
            [b""],
            [b"\0"],
            [b"\0" * 8, b"more", b"frames"],
            [b"\xff" * 4000],
            [HEAD + KEY + b"{}"],
        ):
            socket.send_multipart(noise)
        while server.strangers < 5:
            assert server.receive(0.05) is None
    with ClientSocket(server.address, KEY, "friend"):
        assert next_of(server).sender == "friend"
    assert server.strangers == 5


HEAD = b"\0" * 8  # of a hello, without a payload
#: frames of a message that a known peer sends, and what is wrong with it
MALFORMED = {
    "no kind 200": [b"\xc8" + b"\0" * 7 + b"{}"],
    "head of 3 bytes": [b"\x05\0\0"],
    "no type 9 of payloads": [b"\x03\x09\0\0\x01\0\0\0" + b"\0" * 12, b"\0" * 4],
    "not as long as its head says": [b"\x03\0\0\0\x02\0\0\0" + b"\0" * 12, b"\0" * 4],
    "more parts": [b"\x05" + b"\0" * 7 + b"{}", b"one", b"two"],
    "Ready": [b"\x0a" + b"\0" * 7 + b'{"ring": 5}'],
}


@pytest.mark.parametrize("problem", MALFORMED)
def test_a_message_that_cannot_be_decoded_costs_its_sender_the_connection(
    server: ServerSocket, problem: str
) -> None:
    with ClientSocket(server.address, KEY, "worker 0") as bad, ClientSocket(server.address, KEY, "good"):
        assert {next_of(server).sender for _ in range(2)} == {"worker 0", "good"}
        bad.handle.send_multipart(MALFORMED[problem])
        bad.send(Ready())
        with pytest.raises(MessageRefused, match=problem) as refused:
            next_of(server)
        assert refused.value.sender == "worker 0"
        await_true(lambda: server.receive(0.05) is None and server.strangers)  # what follows is a stranger's
        assert server.peers == ["good"]
        assert server.send("good", Ping())
        assert not server.send("worker 0", Ping())


def test_a_message_cannot_be_sent_to_a_peer_that_is_gone(server: ServerSocket) -> None:
    client = ClientSocket(server.address, KEY, "worker 0")
    next_of(server)
    assert server.send("worker 0", Ping())
    client.close()
    await_true(lambda: not server.send("worker 0", Ping()))


def test_a_client_notices_that_its_server_is_gone() -> None:
    server = ServerSocket("127.0.0.1", KEY)
    with ClientSocket(server.address, KEY, "worker 0") as client:
        next_of(server)
        assert not client.lost
        server.close()
        await_true(lambda: client.lost)
        for _ in range(100):
            client.send(Ping())  # dropped, without waiting


def test_a_connection_that_is_refused_before_the_first_message_is_lost_and_no_error() -> None:
    class Late(ClientSocket):
        def _introduce(self, key: bytes, name: str) -> None:
            await_true(lambda: self.lost)
            self._is_lost = False
            super()._introduce(key, name)

    with ServerSocket("127.0.0.1", KEY, encrypted=True) as server:
        with Late(Address(server.address.url), KEY, "in the clear") as client:
            assert client.lost
        assert server.receive(0) is None


def test_where_it_encrypts_only_encrypted_connections_are_heard() -> None:
    with ServerSocket("127.0.0.1", KEY, encrypted=True) as server:
        assert len(server.address.public_key) == 40
        with ClientSocket(Address(server.address.url), KEY, "in the clear") as clear:
            await_true(lambda: clear.lost)
            assert server.receive(0) is None
        with ClientSocket(server.address, KEY, "worker 0") as client:
            assert next_of(server).sender == "worker 0"
            client.send(RingPiece(0, 0, torch.ones(3)))
            assert isinstance(next_of(server).message, RingPiece)
    assert server.strangers == 0


def test_off_loopback_everything_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psbench.backends.dask.protocol.transport.is_loopback", lambda host: False)
    with ServerSocket("127.0.0.1", KEY) as server:
        assert len(server.address.public_key) == 40


def test_only_loopback_is_loopback() -> None:
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "host")] == [
        *(True, True, True),
        *(False, False, False),
    ]


def test_tensors_are_packed_and_unpacked() -> None:
    tensors = {"a": torch.rand(3), "step": torch.tensor(2.0), "none": torch.empty(0), "b": torch.rand(2, 2)}
    shapes, flat = pack(tensors)
    found = unpack(shapes, flat)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
