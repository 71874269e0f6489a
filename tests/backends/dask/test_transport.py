"""Whole messages: what arrives is what was sent, strangers are dropped, peers that are gone are noticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from msgspec import msgpack

from psbench.backends.dask.protocol.decoder import Message, MessageRefused
from psbench.backends.dask.protocol.messages import (
    Hello,
    Ping,
    PushMessage,
    Ready,
    RequestStop,
    RingPiece,
    StateReply,
)
from psbench.backends.dask.protocol.roles import RunKey
from psbench.backends.dask.protocol.stream import is_loopback
from psbench.backends.dask.protocol.transport import ClientSocket, Received, ServerSocket
from psbench.backends.dask.protocol.wire import Frame, Listening
from psbench.errors import BackendError

KEY = b"s" * 32


@pytest.fixture(params=["stream", "tls"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerSocket]:
    """What is asked of a socket is the same whether it encrypts."""
    with ServerSocket("127.0.0.1", KEY, encrypted=request.param == "tls") as server:
        assert server.address.url.startswith(f"{request.param}://127.0.0.1:")
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
        stranger.send(RequestStop(checkpoint=False))
        with ClientSocket(server.address, KEY, "worker 0") as friend:
            friend.send(Ready())
            received = []
            while not server.strangers or len(received) < 2:
                received.append(server.receive(0.05))
                received = [each for each in received if each is not None]
    assert received == [Received("worker 0", Hello("worker 0")), Received("worker 0", Ready())]


#: messages that a known peer sends, and what is wrong with them
MALFORMED = {
    "unknown kind 200": Frame(200, b"{}", None),
    "Ready": Frame(10, msgpack.encode([5]), None),
    "carries 1 more": Frame(5, msgpack.encode([]), torch.ones(1)),
    "StateReply": Frame(StateReply.kind, b"no MessagePack", None),
}


@pytest.mark.parametrize("problem", MALFORMED)
def test_a_message_that_cannot_be_decoded_costs_its_sender_the_connection(
    server: ServerSocket, problem: str
) -> None:
    with ClientSocket(server.address, KEY, "worker 0") as bad, ClientSocket(server.address, KEY, "good"):
        assert {next_of(server).sender for _ in range(2)} == {"worker 0", "good"}
        bad.send_frame(MALFORMED[problem])
        bad.send(Ready())
        with pytest.raises(MessageRefused, match=problem) as refused:
            next_of(server)
        assert refused.value.sender == "worker 0"
        assert server.receive(0.05) is None  # what follows is not heard
        assert server.peers == ["good"]
        assert server.send("good", Ping())
        assert not server.send("worker 0", Ping())


def test_a_message_cannot_be_sent_to_a_peer_that_is_gone(server: ServerSocket) -> None:
    client = ClientSocket(server.address, KEY, "worker 0")
    next_of(server)
    assert server.send("worker 0", Ping())
    client.close()
    await_true(lambda: not server.send("worker 0", Ping()))


def test_a_client_notices_that_its_server_is_gone(server: ServerSocket) -> None:
    with ClientSocket(server.address, KEY, "worker 0") as client:
        next_of(server)
        assert not client.lost
        server.close()
        await_true(lambda: client.lost)
        for _ in range(100):
            client.send(Ping())  # dropped, without waiting


def test_nobody_listens_any_more(server: ServerSocket) -> None:
    """A connection that cannot be made is lost from the beginning, and no error."""
    server.close()
    with ClientSocket(server.address, KEY, "worker 0") as client:
        await_true(lambda: client.lost)
        client.send(Ping())
        assert client.receive(0) is None


@pytest.mark.parametrize("entries", [1_000, 3_000_000])
def test_two_senders_beyond_the_system_s_buffers_do_not_block(server: ServerSocket, entries: int) -> None:
    """Nor does who sends wait for the other to read."""
    vector = torch.arange(float(entries))
    with ClientSocket(server.address, KEY, "worker 0") as client:
        next_of(server)
        for number in range(8):
            client.send(RingPiece(number, 0, vector))
            assert server.send("worker 0", RingPiece(number, 0, vector))
        for number in range(8):
            for message in (next_of(server).message, await_message(client)):
                assert isinstance(message, RingPiece)
                assert message.ring == number
                assert torch.equal(message.payload, vector)


def test_only_loopback_is_loopback() -> None:
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "host")] == [
        *(True, True, True),
        *(False, False, False),
    ]


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_ports_that_may_be_used_can_be_told(encrypted: bool) -> None:
    with ServerSocket("127.0.0.1", KEY, encrypted) as free:
        port = int(free.address.url.split("127.0.0.1:")[1].split("/")[0])
    only = Listening(ports=(port, port))
    with ServerSocket("127.0.0.1", KEY, encrypted, only) as server:
        assert f"127.0.0.1:{port}" in server.address.url
        with pytest.raises(BackendError, match=f"none of {port} to {port} is free"):
            ServerSocket("127.0.0.1", KEY, encrypted, only)


def test_the_payload_of_a_push_is_in_no_message() -> None:
    kept: dict[Any, torch.Tensor] = {}
    with (
        ServerSocket("127.0.0.1", KEY) as server,
        ClientSocket(server.address, KEY, "worker 3") as worker,
        ClientSocket(server.address, KEY, "worker x") as nobody,
    ):
        assert {next_of(server).sender for _ in range(2)} == {"worker 3", "worker x"}
        server.keep_payload = kept.__setitem__
        for client in (worker, nobody):
            client.send(PushMessage(7, 0, 1, 1, 0.0, 0.0, 0.5, payload=torch.ones(4)))
            message = next_of(server).message
            assert isinstance(message, PushMessage)
            assert message.payload is None
    assert {key: payload.tolist() for key, payload in kept.items()} == {(3, 7): [1.0] * 4}


def test_a_key_is_not_printed() -> None:
    assert KEY.decode() not in f"{RunKey(KEY)} {RunKey(KEY)!r} {(RunKey(KEY),)}"
