"""Encrypted connections: frames inside TLS 1.3, with a certificate derived from the run's key.

Certificate and secret key are computed from the run's key, the same in every process that has it. So nothing
more has to be handed to tasks, and an address says nothing but where. A client trusts this one certificate
and no authority, and both sides' proofs that they have the key hold for this connection only (`binding`).
"""

from __future__ import annotations

import datetime
import hmac
import math
import secrets
import select
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence

from psbench.backends.dask.protocol.connection import HEAD, Connection
from psbench.backends.dask.protocol.decoder import MessageRefused
from psbench.backends.dask.protocol.wire import Frame

#: bytes of the largest record, which is written and read at once
_RECORD = 1 << 14
#: bytes that are written before others get a turn
_BURST = 1 << 20
_WANTS = ssl.SSLWantReadError, ssl.SSLWantWriteError


def _certified(key: bytes, password: bytes) -> tuple[bytes, bytes]:
    """Return a run's certificate (DER), and the certificate with its encrypted secret key (PEM)."""
    # on one machine nothing is encrypted, and loading this would be a third of a process's start
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    secret = Ed25519PrivateKey.from_private_bytes(hmac.digest(key, b"certificate of a run", "sha256"))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "psbench")])
    certificate = (
        x509.CertificateBuilder(name, name, secret.public_key(), 1)  # clocks of machines may differ
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(9999, 12, 31))
        .sign(secret, None)
    )
    hidden = form.BestAvailableEncryption(password)
    pem = secret.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, hidden)
    return certificate.public_bytes(form.Encoding.DER), certificate.public_bytes(form.Encoding.PEM) + pem


def server_context(key: bytes) -> ssl.SSLContext:
    """Return the TLS context of a server.

    Parameters
    ----------
    key : bytes
        The run's key.
    """
    context = _of_this_version(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no connection is taken up again
    password = secrets.token_hex(16).encode()
    with tempfile.NamedTemporaryFile() as file:  # `ssl` takes a secret key from files only
        file.write(_certified(key, password)[1])
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return context


def client_context(key: bytes) -> ssl.SSLContext:
    """Return the TLS context of a client, which trusts only the run's certificate.

    Parameters
    ----------
    key : bytes
        The run's key.
    """
    context = _of_this_version(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # it is a run that is certified, on whichever machines
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=_certified(key, b"unused")[0])
    return context


def _of_this_version(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


class SecureConnection(Connection):
    """One end of an encrypted connection. The handshake is non-blocking, during reads and sends.

    Parameters
    ----------
    end : socket
    context : ssl.SSLContext
    greet : callable or None
        A client's: returns its first frame from the connection's `binding`. None for a server.
    greeting_s
        See `Connection`.
    """

    def __init__(
        self,
        end: socket.socket,
        context: ssl.SSLContext,
        greet: Callable[[bytes], Frame] | None = None,
        greeting_s: float = math.inf,
    ) -> None:
        super().__init__(end, greeting_s)
        self._end = self._tls = context.wrap_socket(
            end, server_side=greet is None, do_handshake_on_connect=False
        )
        self._receive, self._transmit = self._read, self._write_records
        self._turn = threading.Lock()  # one connection's reads and writes exclude each other in OpenSSL
        self._greet = greet
        self._established = False
        self._first = b""  # what goes before all frames
        self._refused: str | None = None
        self._queue.append(b"")  # the handshake waits to be sent

    @property
    def has_bytes(self) -> bool:
        return self._stop > self._start or self.has_unseen_bytes

    @property
    def has_unseen_bytes(self) -> bool:
        """Return whether decrypted bytes wait, which a poller cannot detect."""
        return bool(self._refused or self._tls.pending())

    @property
    def waits_for(self) -> int:
        return select.POLLOUT if self._established else select.POLLIN

    def next_frame(self) -> Frame | None:
        """See `Connection`."""
        frame = super().next_frame()
        if frame is None and self._refused:
            reason, self._refused = self._refused, None
            raise MessageRefused(reason)
        return frame

    def _shake_hands(self) -> None:
        """Continue the handshake.

        Raises
        ------
        BlockingIOError
            If more has to come first.
        OSError
            If it has failed.
        """
        try:
            self._tls.do_handshake()
            # the hash of all that was said so far, under a secret of both ends: whoever relays has another
            self.binding = self._tls.get_channel_binding("tls-unique") or b""
            if not self.binding:
                raise ssl.SSLError(0, "the connection has no binding")
        except _WANTS:
            raise BlockingIOError from None
        except OSError as error:
            self.gone = True
            if isinstance(error, ssl.SSLCertVerificationError):
                self._refused = "the server does not know the run's key"
            elif isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                self._refused = f"the TLS 1.3 handshake failed: {error.reason}"
            raise
        # the hash of all that was said so far under a secret of both ends, which no other process can have
        self.binding = self._tls.get_channel_binding("tls-unique") or b""
        if self._greet is not None:
            kind, body, _ = self._greet(self.binding)
            self._first = HEAD.pack(kind, 0, len(body), 0) + body
        self._established = True

    def _read(self, into: memoryview) -> int:
        if not self._established:
            self.flush()
        if not self._established:
            raise BlockingIOError
        try:
            with self._turn:
                return self._tls.recv_into(into, min(len(into), _RECORD))
        except _WANTS:
            raise BlockingIOError from None

    def _write_records(self, parts: Sequence[memoryview | bytes]) -> int:
        """Write as much as the socket accepts, and return the number of bytes of `parts` that were written.

        A record that was not taken whole has to be tried again with the same bytes. It is, as what is written
        comes from the same queue, in records of the same size.
        """
        if not self._established:
            with self._turn:
                if not self._established:
                    self._shake_hands()
        sent = 0
        try:
            if self._first:
                with self._turn:
                    self._tls.send(self._first)
                self._first = b""
            for record in _records(parts):
                with self._turn:
                    sent += self._tls.send(record)
                if sent >= _BURST:
                    break
        except _WANTS:
            pass
        return sent


def _records(parts: Sequence[memoryview | bytes]) -> Iterator[memoryview | bytes]:
    """Yield the bytes of the parts in pieces of `_RECORD`, copying only across parts."""
    short: list[memoryview | bytes] = []  # of less than a record, together
    missing = _RECORD
    for part in parts:
        rest = memoryview(part)
        while len(rest):
            piece, rest = rest[:missing], rest[missing:]
            short.append(piece)
            missing -= len(piece)
            if not missing:
                yield short[0] if len(short) == 1 else b"".join(short)
                short, missing = [], _RECORD
    if short:
        yield short[0] if len(short) == 1 else b"".join(short)
