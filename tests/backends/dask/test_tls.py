"""The wire between machines: who is let in and what is trusted, and that no stranger holds others up."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator

import pytest
import torch
from test_stream import HEAD, NOISE, closed
from test_transport import KEY, await_message, await_true, next_of

from psbench.backends.dask.protocol import connection, stream, tls
from psbench.backends.dask.protocol.decoder import MessageRefused
from psbench.backends.dask.protocol.messages import Hello, Ping, Ready, RingPiece
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.transport import ClientSocket, ServerSocket
from psbench.backends.dask.protocol.wire import Listening, PeerPatience

OTHER = b"x" * 32


@pytest.fixture
def server() -> Iterator[ServerSocket]:
    with ServerSocket("127.0.0.1", KEY, encrypted=True) as server:
        yield server


class Bare:
    """A connection to a server whose bytes are in the test's hand."""

    def __init__(self, server: ServerSocket, context: ssl.SSLContext | None = None) -> None:
        _, host, port, self.number = stream._place(server.address)
        self.server, self.end = server, socket.create_connection((host, port))
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = (context or tls.client_context(KEY)).wrap_bio(self._in, self._out)

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *error: object) -> None:
        self.end.close()

    def hello(self) -> bytes:
        """Return what begins a handshake."""
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._out.read()

    def shake_hands(self) -> Bare:
        self.end.sendall(self.hello())
        self.end.settimeout(0.01)
        while True:
            assert self.server.receive(0.01) is None
            try:
                self._in.write(self.end.recv(1 << 16))
                self._tls.do_handshake()
            except (TimeoutError, ssl.SSLWantReadError):
                continue
            self.end.sendall(self._out.read())
            return self

    def greeting(self, key: bytes = KEY, binding: bytes | None = None, number: bytes = bytes(16)) -> bytes:
        """Return the frame with which a client begins."""
        body, _ = Hello("worker 0").encode()
        own = self._tls.get_channel_binding("tls-unique") or b""
        tag = stream._tag(key, self.number, number, body, own if binding is None else binding)
        return HEAD.pack(0, 0, 48 + len(body), 0) + number + tag + body

    def encrypted(self, *frames: bytes) -> bytes:
        """Return what travels of frames that are written at once."""
        self._tls.write(b"".join(frames))
        return self._out.read()


def packed(piece: RingPiece) -> bytes:
    body, payload = piece.encode()
    assert payload is not None
    return HEAD.pack(RingPiece.kind, 0, len(body), len(payload)) + body + payload.numpy().tobytes()


PING = HEAD.pack(Ping.kind, 0, 1, 0) + b"\x90"


def of_version_1_2() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


# -------------------------------------------------------------------- who is let in


@pytest.mark.parametrize("noise", [*NOISE, "TLS 1.2"])
def test_what_is_no_handshake_is_dropped_and_counted(server: ServerSocket, noise: str) -> None:
    with Bare(server, of_version_1_2()) as bare:
        bare.end.sendall(NOISE[noise] if noise in NOISE else bare.hello())
        with bare.end.makefile("rb") as answers:
            await_true(lambda: server.receive(0.02) is None and server.strangers)
            assert len(answers.read()) <= 7  # an alert, if anything
    assert server.strangers == 1
    with ClientSocket(server.address, KEY, "friend"):
        assert next_of(server).sender == "friend"


def test_a_client_in_the_clear_is_not_heard(server: ServerSocket) -> None:
    address = Address(server.address.url.replace("tls", "stream"))
    with ClientSocket(address, KEY, "in the clear") as clear:
        await_true(lambda: server.receive(0.01) is None and server.strangers)
        await_true(lambda: clear.lost or isinstance(refusal(clear), MessageRefused))
    assert server.peers == []


def refusal(client: ClientSocket) -> Exception | None:
    """Return why a client takes nothing more."""
    try:
        assert client.receive(0.01) is None
    except MessageRefused as error:
        return error
    return None


def test_who_trusts_the_certificate_still_has_to_know_the_key(server: ServerSocket) -> None:
    with Bare(server).shake_hands() as bare:
        bare.end.sendall(bare.encrypted(bare.greeting(OTHER)))
        await_true(lambda: closed(server, bare.end))
    assert server.strangers == 1


def test_a_proof_of_the_key_holds_for_its_connection_only(server: ServerSocket) -> None:
    with Bare(server).shake_hands() as other, Bare(server).shake_hands() as bare:
        bindings = [each._tls.get_channel_binding("tls-unique") for each in (other, bare)]
        assert None not in bindings
        assert bindings[0] != bindings[1]
        bare.end.sendall(bare.encrypted(bare.greeting(binding=bindings[0])))
        await_true(lambda: closed(server, bare.end))
        assert server.strangers == 1
        other.end.sendall(other.encrypted(other.greeting(binding=bindings[0])))
        assert next_of(server).sender == "worker 0"


# -------------------------------------------------------------------- what is trusted


def impostor(key: bytes) -> tuple[socket.socket, Address, ssl.SSLContext]:
    """Return another program that listens, its address, and the certificate of a run with that key."""
    listening = socket.create_server(("127.0.0.1", 0))
    address = Address(f"tls://127.0.0.1:{listening.getsockname()[1]}/{bytes(16).hex()}")
    return listening, address, tls.server_context(key)


def test_a_server_with_another_certificate_hears_nothing() -> None:
    listening, address, context = impostor(OTHER)
    with listening, ClientSocket(address, KEY, "worker 0") as client:
        accepted, _ = listening.accept()
        accepted.settimeout(20)
        with accepted, pytest.raises(ssl.SSLError, match="ALERT_UNKNOWN_CA"):
            context.wrap_socket(accepted, server_side=True).recv(1 << 12)
        assert "does not know the run's key" in str(await_true(lambda: refusal(client)))
        assert client.lost
        assert client.receive(0) is None


def test_nothing_is_taken_from_a_server_with_the_certificate_alone() -> None:
    listening, address, context = impostor(KEY)
    with listening, ClientSocket(address, KEY, "worker 0") as client:
        accepted, _ = listening.accept()
        accepted.settimeout(20)
        with context.wrap_socket(accepted, server_side=True) as end:
            assert KEY not in end.recv(1 << 12)
            end.sendall(HEAD.pack(254, 0, 32, 0) + bytes(32) + PING)
            assert "does not know the run's key" in str(await_true(lambda: refusal(client)))
        assert client.lost
        refusal(client)  # what came behind is no message either


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_client_of_a_server_that_does_not_encrypt_is_lost(answer: bytes) -> None:
    listening, address, _ = impostor(KEY)
    with listening, ClientSocket(address, KEY, "worker 0") as client:
        end, _ = listening.accept()
        with end:
            assert KEY not in end.recv(1 << 12)
            end.sendall(answer)
        if answer:
            assert "handshake failed" in str(await_true(lambda: refusal(client)))
        await_true(lambda: client.lost)
        client.send(Ping())  # dropped


def test_off_loopback_everything_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psbench.backends.dask.protocol.stream.is_loopback", lambda host: False)
    with ServerSocket("127.0.0.1", KEY) as server:
        assert server.address.url.startswith("tls://")
    monkeypatch.undo()
    with ServerSocket("127.0.0.1", KEY, listening=Listening(contact="machine")) as server:
        assert server.address.url.startswith("tls://machine:")
    assert stream._place(Address("stream://10.0.0.1:5/00"))[0]  # whatever an address says


def test_a_run_has_one_certificate_and_its_secret_key_lies_in_no_file() -> None:
    (mine, secret), (again, _), (other, _) = (tls._certified(key, b"word") for key in (KEY, KEY, OTHER))
    assert mine == again != other
    assert KEY not in mine + secret
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in secret


# -------------------------------------------------------------------- strangers, cuts and silence


def test_a_stranger_in_mid_handshake_holds_no_other_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a connection, and that for as long as silence may last; each is counted."""
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.0)
    listening = Listening(patience=PeerPatience(silence_s=4.0))
    with ServerSocket("127.0.0.1", KEY, encrypted=True, listening=listening) as server:
        with Bare(server) as silent, Bare(server) as half, Bare(server) as unfinished:
            begun = half.hello()
            half.end.sendall(begun[: len(begun) // 2])
            unfinished.end.sendall(unfinished.hello())
            with ClientSocket(server.address, KEY, "friend") as friend:
                assert next_of(server).sender == "friend"
                friend.send(RingPiece(1, 2, torch.ones(100_000)))
                assert isinstance(next_of(server).message, RingPiece)
                assert unfinished.end.recv(1 << 12)  # was answered
                for end in (silent.end, half.end, unfinished.end):
                    server._look_s = 0.0
                    await_true(lambda e=end: closed(server, e))
                assert server.peers == ["friend"]
        assert server.strangers == 3


def test_what_is_cut_in_mid_record_is_no_message(server: ServerSocket) -> None:
    with Bare(server).shake_hands() as bare:
        bare.end.sendall(bare.encrypted(bare.greeting()))
        assert next_of(server).sender == "worker 0"
        whole = bare.encrypted(PING) + bare.encrypted(packed(RingPiece(1, 2, torch.ones(100))))
        bare.end.sendall(whole[:-9])
        assert isinstance(next_of(server).message, Ping)
    await_true(lambda: server.receive(0.01) is None and not server.peers)
    assert server.strangers == 0


def test_what_was_changed_on_its_way_is_no_message(server: ServerSocket) -> None:
    with Bare(server).shake_hands() as bare:
        bare.end.sendall(bare.encrypted(bare.greeting()))
        next_of(server)
        record = bytearray(bare.encrypted(PING))
        record[-1] ^= 1
        bare.end.sendall(record)
        await_true(lambda: server.receive(0.01) is None and not server.peers)


@pytest.mark.parametrize("entries", [3, 20_000, 100_000])
def test_what_no_poller_sees_is_read(server: ServerSocket, entries: int) -> None:
    """One record has the end of a payload and what comes after: it is decrypted already."""
    with Bare(server).shake_hands() as bare:
        bare.end.sendall(bare.encrypted(bare.greeting()))
        next_of(server)
        vector = torch.arange(float(entries))
        frames = packed(RingPiece(1, 2, vector)) + 3 * PING
        travelling = bare.encrypted(frames)
        assert len(travelling) < len(frames) + 30 * (1 + len(frames) // (1 << 14))  # as few records as can be
        bare.end.sendall(travelling)
        piece = next_of(server).message
        assert isinstance(piece, RingPiece)
        assert torch.equal(piece.payload, vector)
        for _ in range(3):
            assert isinstance(next_of(server).message, Ping)
        assert server.receive(0) is None


def test_a_client_reads_what_no_poller_sees(server: ServerSocket) -> None:
    """Frames that waited to be sent are in records together."""
    with ClientSocket(server.address, KEY, "worker 0") as client:
        next_of(server)
        vector = torch.arange(3_000_000.0)
        for number in range(3):
            assert server.send("worker 0", RingPiece(number, 0, vector))
            for _ in range(number):
                assert server.send("worker 0", Ready())
        for number in range(3):
            piece = await_message(client)
            assert isinstance(piece, RingPiece)
            assert torch.equal(piece.payload, vector)
            assert [type(await_message(client)) for _ in range(number)] == [Ready] * number


def test_an_encrypted_peer_without_a_sign_of_life_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.0)
    listening = Listening(patience=PeerPatience(silence_s=4.0))
    with (
        ServerSocket("127.0.0.1", KEY, encrypted=True, listening=listening) as server,
        Bare(server).shake_hands() as stopped,
        ClientSocket(server.address, KEY, "idle") as idle,
    ):
        stopped.end.sendall(stopped.encrypted(stopped.greeting()))
        assert {next_of(server).sender for _ in range(2)} == {"worker 0", "idle"}
        began = time.monotonic()
        while "worker 0" in server.peers:
            server._look_s = 0.0
            assert server.receive(0.1) is None
        assert time.monotonic() - began > 3
        assert server.peers == ["idle"]
        assert server.send("idle", Ping())
        assert isinstance(await_message(idle), Ping)
        assert not idle.lost


def test_an_address_may_be_of_ip_version_6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this system has no IPv6")
    try:
        server = ServerSocket("::1", KEY, encrypted=True)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server, ClientSocket(server.address, KEY, "friend"):
        assert server.address.url.startswith("tls://[::1]:")
        assert next_of(server).sender == "friend"
