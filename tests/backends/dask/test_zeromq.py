"""The wire between machines: encryption, and whatever else can come over ZeroMQ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import zmq
from test_transport import KEY, await_true, next_of

from psbench.backends.dask.protocol import stream
from psbench.backends.dask.protocol.decoder import MessageRefused
from psbench.backends.dask.protocol.messages import Ping, Ready, RingPiece
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.transport import ClientSocket, ServerSocket
from psbench.backends.dask.protocol.wire import PeerPatience
from psbench.backends.dask.protocol.zeromq import ZeroMQClient


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerSocket]:
    monkeypatch.setattr(stream, "is_available", lambda: False)
    with ServerSocket("127.0.0.1", KEY) as server:
        yield server


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
        bad._wire.handle.send_multipart(MALFORMED[problem])
        bad.send(Ready())
        with pytest.raises(MessageRefused, match=problem) as refused:
            next_of(server)
        assert refused.value.sender == "worker 0"
        await_true(lambda: server.receive(0.05) is None and server.strangers)  # what follows is a stranger's
        assert server.peers == ["good"]
        assert server.send("good", Ping())
        assert not server.send("worker 0", Ping())


def test_a_connection_refused_before_its_first_message_is_lost() -> None:
    class Late(ZeroMQClient):
        def _introduce(self, key: bytes, name: str) -> None:
            await_true(lambda: not self._socket.getsockopt(zmq.EVENTS) & zmq.POLLOUT)
            super()._introduce(key, name)

    with ServerSocket("127.0.0.1", KEY, encrypted=True) as server:
        client = Late(Address(server.address.url), KEY, "in the clear", PeerPatience())
        try:
            assert client.lost
        finally:
            client.close(0)
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
