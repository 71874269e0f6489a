"""Attacks of processes without the run's key: known peers are served meanwhile, and strangers counted."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from test_stream import HEAD, Clock, dialled, greeting
from test_threaded_runs import experiment
from test_tls import Bare
from test_transport import KEY, await_message, await_true, next_of

from psbench.backends.dask.coordinator.peers import Strangers
from psbench.backends.dask.protocol import stream
from psbench.backends.dask.protocol.connection import Connection
from psbench.backends.dask.protocol.decoder import MessageRefused
from psbench.backends.dask.protocol.instructions import Outbox, Send
from psbench.backends.dask.protocol.messages import Ping, Ready, RequestStop
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.transport import ClientSocket, ServerSocket
from psbench.backends.dask.protocol.wire import Frame, Listening, PeerPatience
from psbench.core.log import Kind
from tests.threaded_run import ThreadedRun

BEATS = struct.pack("<BBxxIQ", 255, 0, 0, 0) * 4096


@pytest.fixture(params=["in the clear", "encrypted"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerSocket]:
    """It gives a greeting half a second, and known peers, which a busy machine may keep waiting, an hour."""

    def meet(peer: Connection, _: float, *rest: int, of: Any = Connection.meet) -> None:
        of(peer, 3600.0, *rest)

    monkeypatch.setattr(Connection, "meet", meet)
    listening = Listening(patience=PeerPatience(silence_s=0.5))
    with ServerSocket("127.0.0.1", KEY, request.param == "encrypted", listening) as server:
        yield server


def connect(address: Address) -> socket.socket:
    """Return a stranger's connection, through TLS if the server encrypts."""
    encrypted, host, port, _ = stream._place(address)
    end = socket.create_connection((host, port), 20)
    if not encrypted:
        return end
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(end)


def flood(address: Address, ends: threading.Event) -> None:
    """Send heartbeats without a greeting, and connect again when that is cut off."""
    while not ends.is_set():
        with suppress(OSError), connect(address) as end:
            while not ends.is_set():
                end.sendall(BEATS)


def drip(address: Address, ends: threading.Event) -> None:
    """Send a greeting's head, and then its body byte by byte."""
    while not ends.is_set():
        with suppress(OSError), connect(address) as end:
            end.sendall(HEAD.pack(0, 0, 4000, 0))
            while not ends.wait(0.05):
                end.sendall(b"x")


def hold(address: Address, ends: threading.Event) -> None:
    """Keep a connection open without a word, half-open as far as TLS is concerned."""
    _, host, port, _ = stream._place(address)
    while not ends.is_set():
        with suppress(OSError), socket.create_connection((host, port)) as end:
            while end.recv(1):
                pass


ATTACKS = {each.__name__: each for each in (flood, drip, hold)}


@contextmanager
def attacked(address: Address, *attacks: Callable[[Address, threading.Event], None]) -> Iterator[None]:
    ends = threading.Event()
    threads = [threading.Thread(target=each, args=(address, ends), daemon=True) for each in attacks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()


@pytest.mark.parametrize("attack", ATTACKS)
def test_known_peers_are_served_under_attack(server: ServerSocket, attack: str) -> None:
    """`receive` returns in time, messages go both ways, others are let in, and the stranger is cut off."""
    with ClientSocket(server.address, KEY, "friend") as friend:
        assert next_of(server).sender == "friend"
        with attacked(server.address, ATTACKS[attack]):
            while server.strangers < 2:
                friend.send(Ready())
                assert next_of(server) == ("friend", Ready())
                assert server.send("friend", Ping())
                assert isinstance(await_message(friend), Ping)
            with ClientSocket(server.address, KEY, "late"):
                assert next_of(server).sender == "late"
            assert set(server.peers) == {"friend", "late"}


@pytest.mark.parametrize("encrypted", [False, True])
def test_nothing_but_a_greeting_comes_before_the_greeting(encrypted: bool) -> None:
    """Such a stranger is cut off at once, and not for being late."""

    def beat() -> None:
        with connect(server.address) as end, suppress(OSError):
            end.sendall(BEATS[:16])
            end.recv(1)

    listening = Listening(patience=PeerPatience(silence_s=3600.0))
    with ServerSocket("127.0.0.1", KEY, encrypted, listening) as server:
        sending = threading.Thread(target=beat)
        sending.start()
        await_true(lambda: server.receive(0.01) is None and server.strangers)
        sending.join()


def test_the_whole_greeting_has_one_deadline() -> None:
    """Each byte of a slow one is no reason to wait for the next as long again."""
    listening = Listening(patience=PeerPatience(silence_s=0.5))
    began = time.monotonic()
    with ServerSocket("127.0.0.1", KEY, listening=listening) as server, dialled(server) as end:
        for byte in greeting(server)[:-1]:
            with suppress(OSError):
                end.sendall(bytes([byte]))
            assert server.receive(0.02) is None
            if server.strangers:
                break
        assert server.strangers == 1
        assert time.monotonic() - began > 0.5


def test_a_process_that_was_busy_reads_a_greeting_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline counts the time in which the server reads: a handshake takes two turns.

    All seconds are a thousand times as long as they are, so that none of a busy machine's count.
    """
    clock = Clock()
    monkeypatch.setattr(stream, "time", clock)
    monkeypatch.setattr(stream, "_READING_S", 1000 * stream._READING_S)
    listening = Listening(patience=PeerPatience(silence_s=600.0))
    with ServerSocket("127.0.0.1", KEY, encrypted=True, listening=listening) as server, Bare(server) as bare:
        bare.end.sendall(bare.hello())
        assert server.receive(0) is None
        bare.end.settimeout(20)
        bare._in.write(bare.end.recv(1 << 16))
        bare._tls.do_handshake()
        bare.end.sendall(bare._out.read() + bare.encrypted(bare.greeting()))
        clock.ahead_s += 700.0
        assert next_of(server).sender == "worker 0"


@pytest.mark.parametrize("floods", ["server", "client"])
def test_a_known_peer_s_heartbeats_keep_nobody_from_reading(server: ServerSocket, floods: str) -> None:
    with (
        ClientSocket(server.address, KEY, "loud") as loud,
        ClientSocket(server.address, KEY, "other") as other,
    ):
        assert {next_of(server).sender for _ in range(2)} == {"loud", "other"}
        other.send(Ready())
        assert isinstance(next_of(server).message, Ready)
        source = loud._connection if floods == "client" else server._routes["loud"]
        stop = threading.Event()

        def beat() -> None:
            while not stop.is_set():
                if not source.has_queue:
                    source.send(Frame(255, b"", None))
                    source._queue.extend([BEATS] * 8)
                source.flush()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            for _ in range(4):
                if floods == "client":
                    other.send(Ping())
                    assert next_of(server) == ("other", Ping())
                    assert server.receive(0.01) is None
                else:
                    assert loud.receive(0.01) is None
        finally:
            stop.set()
            thread.join()


#: connects so many times to a port, says so, and ends with its standard input
_CROWD = """
import socket, sys
ends = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("there", flush=True)
sys.stdin.read()
"""


@contextmanager
def crowd(address: Address, connections: int) -> Iterator[None]:
    """Give idle connections, held by other processes: this one has too few descriptors for both ends."""
    port = str(stream._place(address)[2])
    with ExitStack() as stack:
        for _ in range(3):
            command = [sys.executable, "-S", "-c", _CROWD, port, str(connections // 3)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.enter_context(process)
            stack.callback(process.kill)
        yield


@contextmanager
def descriptors(most: int) -> Iterator[None]:
    """Bound how many descriptors this process may have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def in_use() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
@pytest.mark.parametrize("encrypted", [False, True])
def test_1_200_idle_connections_leave_descriptors(encrypted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,024: the oldest make room for the next, so that peers get their turn, and known ones are kept."""
    monkeypatch.setattr(stream, "_GRACE_S", 0.05)
    with ExitStack() as stack:
        stack.enter_context(descriptors(1024))
        server = stack.enter_context(ServerSocket("127.0.0.1", KEY, encrypted))
        friend = stack.enter_context(ClientSocket(server.address, KEY, "friend"))
        assert next_of(server).sender == "friend"
        before = in_use()
        stack.enter_context(crowd(server.address, 1200))
        most = 0
        while server.strangers < 1200 - 256:
            friend.send(Ready())
            assert next_of(server) == ("friend", Ready())
            most = max(most, in_use())
        assert most <= before + 256 + 10  # pipes to those who attack
        late = stack.enter_context(ClientSocket(server.address, KEY, "late"))
        assert next_of(server).sender == "late"
        late.send(Ready())
        assert next_of(server) == ("late", Ready())
        assert set(server.peers) == {"friend", "late"}


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_a_process_without_descriptors_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves its peers, and tries to accept again after a while."""
    monkeypatch.setattr(stream, "_NO_DESCRIPTOR_S", 0.3)
    with ServerSocket("127.0.0.1", KEY) as server, ClientSocket(server.address, KEY, "friend") as friend:
        assert next_of(server).sender == "friend"
        looks, look = [], server._look
        monkeypatch.setattr(server, "_look", lambda timeout_s: (looks.append(timeout_s), look(timeout_s)))
        with dialled(server) as end:
            end.sendall(greeting(server, name="late"))
            free = os.dup(0)
            os.close(free)  # the lowest number that is free: with this limit there is none
            with descriptors(free):
                assert server.receive(0.25) is None
                assert len(looks) < 5
                friend.send(Ready())
                assert next_of(server) == ("friend", Ready())
            assert next_of(server).sender == "late"


def test_an_unknown_connection_gives_its_descriptor_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerSocket("127.0.0.1", KEY) as server, ClientSocket(server.address, KEY, "friend"):
        assert next_of(server).sender == "friend"
        with dialled(server), dialled(server) as end:
            await_true(lambda: server.receive(0) is None and server._unknown)
            end.sendall(greeting(server))
            free = os.dup(0)
            os.close(free)
            with descriptors(free):
                assert next_of(server).sender == "worker 0"
        assert server.strangers == 1


def test_a_server_without_the_key_cannot_hold_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor have it take memory: neither heartbeats, large frames nor dripping bytes are a server's welcome."""
    for noise in (BEATS, HEAD.pack(254, 0, 1 << 27, 0), HEAD.pack(254, 0, 32, 1 << 50) + bytes(32)):
        with socket.create_server(("127.0.0.1", 0)) as impostor:
            address = Address(f"stream://127.0.0.1:{impostor.getsockname()[1]}/{bytes(16).hex()}")
            with ClientSocket(address, KEY, "worker 0") as client:
                end, _ = impostor.accept()
                with end:
                    end.sendall(noise)
                    with pytest.raises(MessageRefused):
                        await_message(client)
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        address = Address(f"stream://127.0.0.1:{impostor.getsockname()[1]}/{bytes(16).hex()}")
        with ClientSocket(address, KEY, "worker 0", PeerPatience(first_word_s=0.4)) as client:
            end, _ = impostor.accept()
            with end:
                end.sendall(HEAD.pack(254, 0, 4000, 0))
                while not client.lost:
                    with suppress(OSError):
                        end.sendall(b"x")
                    assert client.receive(0.02) is None


def test_the_first_stranger_is_reported_at_once_and_the_rest_at_the_end() -> None:
    out = Outbox()
    strangers = Strangers(out)

    def said() -> list[Any]:
        return [each.message.text for each in out.take() if isinstance(each, Send)]

    strangers.count("coordinator", 0)
    assert said() == []
    strangers.count("coordinator", 1)
    assert said() == ["1 unknown connection was closed for lack of the run's key (coordinator: 1)"]
    strangers.count("worker 1", 4)
    strangers.count("coordinator", 1)
    assert said() == []
    strangers.report()
    strangers.report()
    assert said() == [
        "5 unknown connections were closed for lack of the run's key (coordinator: 1, worker 1: 4)"
    ]
    assert strangers.total == 5
    strangers.count("worker 1", 48)
    assert said() == []
    strangers.count("worker 1", 49)  # ten times as many as were reported
    assert said()[0].startswith("50 unknown connections")


@pytest.mark.parametrize(
    ("strategy", "listening"),
    [("ssp", "coordinator"), ({"name": "bsp", "servers": 2}, "server 1"), ("all_reduce", "worker 1")],
)
def test_a_run_goes_on_under_attack_and_says_so(strategy: Any, listening: str) -> None:
    """It still makes versions, and hears that it is to stop."""
    run = ThreadedRun(experiment(strategy, stop={"updates": 10**9}))
    with ExitStack() as stack:
        versions: list[int] = []

        def follow(done: ThreadedRun, client: ClientSocket) -> None:
            if listening in done.addresses and not versions:
                stack.enter_context(attacked(done.addresses[listening], *ATTACKS.values()))
                versions.append(0)
            if any(listening in incident for incident in done.incidents):
                versions.append(len(done.log.of_kind(Kind.APPLY)["row"]))
            if versions and versions[-1] > versions[0] + 5:
                client.send(RequestStop(checkpoint=False))

        run.run(follow)
    assert run.error is None
    assert run.outcome.status == "stopped"
    assert run.outcome.facts.data["strangers"] >= 1
    assert "for lack of the run's key" in run.incidents[0]
