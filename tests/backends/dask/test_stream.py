"""Frames and greetings on one machine: who is let in, what is refused, and when a peer counts as gone."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
from test_transport import KEY, await_message, await_true, next_of

from psbench.backends.dask.protocol import connection, stream
from psbench.backends.dask.protocol.decoder import MessageRefused
from psbench.backends.dask.protocol.messages import Hello, Ping, Ready, RingPiece
from psbench.backends.dask.protocol.payloads import new_payload
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.transport import ClientSocket, ServerSocket
from psbench.backends.dask.protocol.wire import Listening, PeerPatience

HEAD = struct.Struct("<BBxxIQ")


@pytest.fixture
def server() -> Iterator[ServerSocket]:
    with ServerSocket("127.0.0.1", KEY) as server:
        yield server


@pytest.fixture(params=["in the clear", "encrypted"])
def either(request: pytest.FixtureRequest) -> Iterator[ServerSocket]:
    with ServerSocket("127.0.0.1", KEY, encrypted=request.param == "encrypted") as server:
        yield server


WAYS = [socket.AF_INET, *([socket.AF_UNIX] if sys.platform == "linux" else [])]


def dialled(server: ServerSocket, way: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    """Return a bare connection to a server."""
    _, host, port, number = stream._place(server.address)
    return stream._connect(host, port, number, 5.0, local=way is not socket.AF_INET)


def closed(server: ServerSocket, end: socket.socket) -> bool:
    """Return whether the server has closed a connection without a word."""
    end.settimeout(0.02)
    assert server.receive(0.02) is None
    try:
        return not end.recv(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def greeting(server: ServerSocket, key: bytes = KEY, name: str = "worker 0") -> bytes:
    """Return the frame with which a client begins, the same for the same name."""
    number, (body, _) = name.encode().rjust(16, b"\0"), Hello(name).encode()
    tag = stream._tag(key, stream._place(server.address)[3], number, body)
    return HEAD.pack(0, 0, 48 + len(body), 0) + number + tag + body


NOISE = {
    "the key itself": HEAD.pack(0, 0, 64, 0) + KEY * 2,
    "another kind": HEAD.pack(5, 0, 2, 0) + b"{}",
    "a large body": HEAD.pack(0, 0, 5000, 0),
    "a payload": HEAD.pack(0, 0, 2, 1000) + b"{}",
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("noise", NOISE)
def test_a_stranger_is_dropped_and_counted(server: ServerSocket, noise: str) -> None:
    with dialled(server) as end:
        end.sendall(NOISE[noise])
        await_true(lambda: closed(server, end))
    assert server.strangers == 1
    with ClientSocket(server.address, KEY, "friend"):
        assert next_of(server).sender == "friend"


def test_a_greeting_that_was_recorded_is_refused(server: ServerSocket) -> None:
    """A greeting is good once, and for one server; the key is in none of what travels."""
    overheard = greeting(server)
    assert KEY not in overheard
    with dialled(server) as first, dialled(server) as again, ServerSocket("127.0.0.1", KEY) as other:
        first.sendall(overheard)
        assert next_of(server).sender == "worker 0"
        again.sendall(overheard)
        await_true(lambda: closed(server, again))
        assert server.strangers == 1
        with dialled(other) as elsewhere:
            elsewhere.sendall(overheard)
            await_true(lambda: closed(other, elsewhere))


@pytest.mark.parametrize("way", WAYS)
def test_another_key_is_a_strangers(server: ServerSocket, way: socket.AddressFamily) -> None:
    with dialled(server, way) as end:
        end.sendall(greeting(server, key=b"x" * 32))
        await_true(lambda: closed(server, end))
    assert server.strangers == 1


@pytest.mark.parametrize("way", WAYS)
def test_where_there_is_no_unix_socket_a_peer_comes_by_tcp(
    way: socket.AddressFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way is socket.AF_INET:
        monkeypatch.setattr(stream, "_listen_locally", lambda number: [])
    with ServerSocket("127.0.0.1", KEY) as server, ClientSocket(server.address, KEY, "friend") as client:
        assert next_of(server).sender == "friend"
        assert client._connection._end.family == way


def test_nothing_is_taken_from_a_server_that_does_not_know_the_key() -> None:
    """As from another user's program that listens where a server was."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        address = Address(f"stream://127.0.0.1:{impostor.getsockname()[1]}/{bytes(16).hex()}")
        with ClientSocket(address, KEY, "worker 0") as client:
            end, _ = impostor.accept()
            with end:
                assert KEY not in end.recv(4096)
                end.sendall(HEAD.pack(5, 0, 1, 0) + b"\x90")
                with pytest.raises(MessageRefused, match="does not know the run's key"):
                    await_message(client)
            assert client.lost


MALFORMED = {
    "unknown payload type 9": HEAD.pack(3, 9, 12, 1) + b"\0" * 16,
    "body would have 4,000,000,000 bytes": HEAD.pack(3, 0, 4_000_000_000, 0),
    "header announces 1000000000000000 entries": HEAD.pack(3, 0, 12, 10**15) + b"\0" * 12,
}


@pytest.mark.parametrize("problem", MALFORMED)
def test_what_is_no_frame_costs_its_sender_the_connection(server: ServerSocket, problem: str) -> None:
    """Before any memory is taken for it."""
    with dialled(server) as end, ClientSocket(server.address, KEY, "good"):
        end.sendall(greeting(server))
        assert {next_of(server).sender for _ in range(2)} == {"worker 0", "good"}
        end.sendall(MALFORMED[problem])
        with pytest.raises(MessageRefused, match=problem) as refused:
            next_of(server)
        assert refused.value.sender == "worker 0"
        assert server.peers == ["good"]


def test_a_frame_may_come_byte_by_byte_and_several_at_once(server: ServerSocket) -> None:
    with dialled(server) as end:
        end.sendall(greeting(server))
        next_of(server)
        body, payload = RingPiece(3, 4, torch.arange(5.0)).encode()
        assert payload is not None
        frame = HEAD.pack(RingPiece.kind, 0, len(body), 5) + body + payload.numpy().tobytes()
        for byte in frame:
            end.sendall(bytes([byte]))
            found = server.receive(0)
        end.sendall(2 * frame)
        messages = [(found or next_of(server)).message, next_of(server).message, next_of(server).message]
    for message in messages:
        assert isinstance(message, RingPiece)
        assert (message.ring, message.step, message.payload.tolist()) == (3, 4, [0, 1, 2, 3, 4])


def test_memory_of_a_large_payload_is_used_again_when_nobody_holds_it() -> None:
    """And not before: neither while the payload is held, nor while a view of it is."""
    first = torch.from_numpy(new_payload(0, 300_000)).fill_(1)
    second = torch.from_numpy(new_payload(0, 300_000)).fill_(2)
    view, place = first[7:], first.data_ptr()
    del first
    third = torch.from_numpy(new_payload(0, 300_000)).fill_(3)
    assert view.eq(1).all()
    assert second.eq(2).all()
    del view
    assert torch.from_numpy(new_payload(0, 300_000)).data_ptr() == place
    assert third.eq(3).all()


def test_what_was_sent_before_the_end_is_read(either: ServerSocket) -> None:
    """However much it is."""
    client, vector = ClientSocket(either.address, KEY, "worker 0"), torch.ones(2_000_000)
    closing = threading.Thread(target=lambda: (client.send(RingPiece(1, 2, vector)), client.close(20)))
    closing.start()
    assert isinstance(next_of(either).message, Hello)
    message = next_of(either).message
    closing.join()
    assert isinstance(message, RingPiece)
    assert torch.equal(message.payload, vector)
    await_true(lambda: either.receive(0.01) is None and not either.peers)


def test_a_peer_without_a_sign_of_life_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that was stopped is; one that has nothing to say gives signs."""
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.0)
    with (
        ServerSocket("127.0.0.1", KEY, listening=Listening(patience=PeerPatience(silence_s=4.0))) as server,
        dialled(server) as stopped,
        ClientSocket(server.address, KEY, "idle") as idle,
    ):
        stopped.sendall(greeting(server))
        assert {next_of(server).sender for _ in range(2)} == {"worker 0", "idle"}
        server._look_s = 0.0
        began = time.monotonic()
        while "worker 0" in server.peers:
            server._look_s = 0.0
            assert server.receive(0.1) is None
        assert time.monotonic() - began > 3
        assert server.peers == ["idle"]
        assert server.send("idle", Ping())
        assert isinstance(await_message(idle), Ping)
        assert not idle.lost


PATIENT = Listening(patience=PeerPatience(silence_s=600.0))


class Clock:
    """The clock of deadlines, which a test moves on."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    perf_counter = staticmethod(time.perf_counter)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (connection, stream):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_slow_ring_is_no_lost_client(clock: Clock) -> None:
    """A coordinator of 128 workers that gets to nothing for an hour reads what is there before it judges."""
    names = ["client", *(f"worker {number}" for number in range(128))]
    with ServerSocket("127.0.0.1", KEY, listening=PATIENT) as server, ExitStack() as open_ends:
        ends = {name: open_ends.enter_context(dialled(server, WAYS[-1])) for name in names}
        for name in names:
            ends[name].sendall(greeting(server, name=name))
            assert next_of(server).sender == name
        for name in names[:-1]:
            ends[name].sendall(HEAD.pack(connection._HEARTBEAT, 0, 0, 0))
        clock.ahead_s += 36_000
        assert server.receive(0) is None
        assert server.peers == names[:-1]
        clock.ahead_s += 400
        ends["client"].sendall(HEAD.pack(connection._HEARTBEAT, 0, 0, 0))
        assert server.receive(0) is None
        clock.ahead_s += 400
        assert server.receive(0) is None
        assert server.peers == ["client"]  # the others have said nothing for over ten minutes


def test_the_rest_of_a_payload_that_waits_to_be_read_is_a_sign_of_life(clock: Clock) -> None:
    payload = torch.arange(1000.0)
    body, _ = RingPiece(1, 0, payload).encode()
    whole = HEAD.pack(RingPiece.kind, 0, len(body), 1000) + body + payload.numpy().tobytes()
    with ServerSocket("127.0.0.1", KEY, listening=PATIENT) as server, dialled(server, WAYS[-1]) as end:
        end.sendall(greeting(server))
        next_of(server)
        end.sendall(whole[:1000])
        assert server.receive(0.1) is None
        end.sendall(whole[1000:3000])
        clock.ahead_s += 36_000
        assert server.receive(0) is None
        assert server.peers == ["worker 0"]
        end.sendall(whole[3000:])
        message = next_of(server).message
        assert isinstance(message, RingPiece)
        assert torch.equal(message.payload, payload)
        end.sendall(whole[:1000])
        assert server.receive(0.1) is None
        clock.ahead_s += 36_000
        await_true(lambda: server.receive(0) is None and not server.peers)


def test_a_server_that_still_loads_is_not_taken_for_gone(either: ServerSocket) -> None:
    """It listens, and answers nobody before it is ready."""
    with ClientSocket(either.address, KEY, "early", PeerPatience(silence_s=1e-3)) as client:
        assert not client.lost
        assert client.receive(0.01) is None
        assert not client.lost
        next_of(either)
        await_true(lambda: client.receive(0.01) is None and client.lost)  # silence counts from the first word


def test_a_server_that_never_says_a_word_is_gone_after_a_while(either: ServerSocket) -> None:
    with ClientSocket(either.address, KEY, "early", PeerPatience(first_word_s=1.0)) as client:
        assert not client.lost
        await_true(lambda: client.lost)


def test_the_sending_thread_ends_with_the_last_connection(either: ServerSocket) -> None:
    def runs() -> bool:
        return any(thread.name == "psbench-sender" for thread in threading.enumerate())

    with ClientSocket(either.address, KEY, "worker 0") as client:
        next_of(either)
        client.send(Ready())
        next_of(either)
        assert runs()
    await_true(lambda: either.receive(0.01) is None and not either.peers)
    await_true(lambda: not runs())
