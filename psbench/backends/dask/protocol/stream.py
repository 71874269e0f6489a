"""Messages between processes: sockets, one loop, one write a message, and encryption between machines.

To hand every message to a thread of its own would take longer than a step of a small model: here the thread
that waits is the one that reads. On Linux a server of which only this machine knows also listens on a Unix
socket without a file, which takes half the time of a TCP socket; who cannot reach it comes by TCP. Beyond
loopback everything is encrypted (`tls`): a client never begins in the clear there, whatever an address says.

The run's key never travels. A server's address has a number drawn for it, and a client begins with a number
of its own, its name, and the HMAC of all three under the key; a number of a client that came before is
refused, so what was overheard opens nothing. The server answers with the HMAC of the client's number, without
which the client takes nothing from it. On an encrypted connection both HMACs are of its `binding` too.

An unknown connection may send a greeting and nothing else, within `silence_s` from when it was accepted. The
number of unknown connections is bounded, so that known peers keep their descriptors.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
import math
import resource
import secrets
import selectors
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from psbench.backends.dask.protocol.connection import Connection
from psbench.backends.dask.protocol.decoder import MessageRefused
from psbench.backends.dask.protocol.messages import Hello
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.sender import SENDER
from psbench.backends.dask.protocol.tls import SecureConnection, client_context, server_context
from psbench.backends.dask.protocol.wire import LINGER_S, Closing, Frame, Listening, PeerPatience

logger = logging.getLogger(__name__)

#: bytes of a number that is drawn, and of an HMAC
_NUMBER, _HMAC = 16, 32
#: the kind of a server's answer to a greeting, which no message has
_WELCOME = 254
#: connections that may wait to be accepted
_BACKLOG = 1024
#: most connections that have not greeted yet, and their most as a share of the process's descriptors
_MOST_UNKNOWN, _SHARE_UNKNOWN = 256, 0.25
#: seconds that an unknown connection has, even if others want its place
_GRACE_S = 1.0
#: seconds without accepting if there is no descriptor for another connection (asyncio waits as long)
_NO_DESCRIPTOR_S = 1.0
#: the errors that say so
_EXHAUSTED = errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM
#: reads of known connections between two looks at all of them
_READS = 64
#: seconds between two looks that count at most as time in which a greeting could have been read
_READING_S = 0.5
_ANYWHERE, _PATIENCE = Listening(), PeerPatience()
#: schemes of addresses: of servers that encrypt, and of those that do not
_ENCRYPTED, _PLAIN = "tls", "stream"


def _tag(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _local_name(number: bytes) -> str:
    """Return the name of a server's Unix socket, in the abstract namespace, which leaves no file."""
    return f"\0psbench-{number.hex()}"


def _listen_locally(number: bytes) -> list[socket.socket]:
    """Return a listening Unix socket in the abstract namespace, if the system supports it."""
    if sys.platform != "linux":
        return []
    end = socket.socket(socket.AF_UNIX)
    try:
        end.bind(_local_name(number))
        end.listen(_BACKLOG)
    except OSError:  # a sandbox may forbid it; peers come by TCP then
        end.close()
        return []
    return [end]


def _connect(host: str, port: int, number: bytes, within_s: float, local: bool) -> socket.socket:
    """Return a connection to a server: by its Unix socket if it has one, or by TCP.

    Raises
    ------
    OSError
        If no process listens there.
    """
    if local and sys.platform == "linux":
        with suppress(OSError):  # it is of another network namespace, or has too many waiting
            return _connected(_local_name(number), within_s)
    return socket.create_connection((host, port), within_s)


def _connected(name: str, within_s: float) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    try:
        end.settimeout(within_s)
        end.connect(name)
    except OSError:
        end.close()
        raise
    return end


def _listen(host: str, listening: Listening) -> socket.socket:
    for port in listening.candidates():
        try:
            return socket.create_server((host, port), family=_family(host), backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise listening.none_free(host)


def _most_unknown() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return _MOST_UNKNOWN
    return min(_MOST_UNKNOWN, max(1, int(descriptors * _SHARE_UNKNOWN)))


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("192.168.1.2")
    (True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class StreamServer(Closing):
    """The connections of the clients of one address.

    Parameters
    ----------
    host : str
        The interface to listen on: the Dask worker's own address.
    key : bytes
        The run's key.
    encrypted : bool
        Whether to encrypt even on loopback; off loopback everything is encrypted.
    listening : Listening
        How it is reached, on which ports it listens, and how large a payload may be.

    Attributes
    ----------
    address : Address
    strangers : int
        Connections that did not begin with a proof of the run's key, in time; they are dropped.
    on_stranger : callable or None
        Called with that number whenever it has grown.
    """

    on_stranger: Callable[[int], None] | None = None

    def __init__(
        self, host: str, key: bytes, encrypted: bool = False, listening: Listening = _ANYWHERE
    ) -> None:
        encrypted |= not (is_loopback(host) and is_loopback(listening.contact or host))
        self._key, self._number = key, secrets.token_bytes(_NUMBER)
        self._context = server_context(key) if encrypted else None
        self._largest = listening.largest
        over_tcp = _listen(host, listening)
        self._listening = [over_tcp, *([] if encrypted else _listen_locally(self._number))]
        self._selector: Any = selectors.DefaultSelector()
        for end in self._listening:
            end.setblocking(False)
        self._accepts_at_s = 0.0  # not before; inf: it accepts now
        self._accept_again()
        self._routes: dict[str, Connection] = {}
        self._connections: set[Connection] = set()
        self._unknown: dict[Connection, float] = {}  # not greeted yet: when accepted, in seconds of reading
        self._most_unknown = _most_unknown()
        self._reading_s, self._read_s = 0.0, time.monotonic()
        self._used: set[bytes] = set()  # numbers of clients
        self._ready: OrderedDict[Connection, None] = OrderedDict()  # those that may have a frame
        self._reads = 0  # until the next look at all connections
        self._silence_s = listening.patience.silence_s
        self._look_s = time.monotonic() + self._silence_s
        self.strangers = 0
        contact, port = listening.contact or host, over_tcp.getsockname()[1]
        place = f"[{contact}]:{port}" if ":" in contact else f"{contact}:{port}"
        self.address = Address(f"{_ENCRYPTED if encrypted else _PLAIN}://{place}/{self._number.hex()}")

    @property
    def peers(self) -> list[str]:
        """Names of the peers that are connected."""
        return list(self._routes)

    @property
    def handle(self) -> int:
        """The handle that a poller waits on."""
        number: int = self._selector.fileno()
        return number

    @property
    def waiting(self) -> int:
        """Number of connections that are known to have something to read."""
        return len(self._ready)

    def next_frame(self, timeout_s: float) -> tuple[str, Frame] | None:
        """Return a peer's name and its next frame; None on a timeout, or after a stranger's frame.

        Raises
        ------
        MessageRefused
            If it is none; its sender is forgotten.
        """
        now = time.monotonic()
        deadline = now + timeout_s
        has_looked = False
        while True:
            while self._ready and self._reads:
                self._reads -= 1
                found = self._read(self._ready.popitem(last=False)[0])
                if found is not None:
                    return found
            if has_looked and now >= deadline:
                return None
            self._look(0.0 if self._ready else max(0.0, min(deadline, self._accepts_at_s) - now))
            has_looked, now = True, self._read_s

    def _look(self, timeout_s: float) -> None:
        """Wait for data at most `timeout_s`; accept connections, and drop late ones."""
        for each, _ in self._selector.select(timeout_s):
            if each.data is None:
                self._accept(each.fileobj)
            else:
                self._ready[each.data] = None
        self._reads = _READS
        now = time.monotonic()
        # a process may compute for longer than its peers have for a greeting
        self._reading_s += min(now - self._read_s, _READING_S)
        self._read_s = now
        while self._unknown and self._oldest_unknown_s > self._silence_s:
            self._refuse(next(iter(self._unknown)))
        if now > self._look_s:
            self._drop_silent(now)
        if now >= self._accepts_at_s:
            self._accept_again()

    @property
    def _oldest_unknown_s(self) -> float:
        """Seconds in which the oldest unknown connection could have greeted; below 0 without one."""
        return self._reading_s - next(iter(self._unknown.values()), math.inf)

    def _accept(self, listening: socket.socket) -> None:
        if self._accepts_at_s < math.inf:  # another of its sockets has found out that there is no place
            return
        if len(self._unknown) >= self._most_unknown:
            if self._oldest_unknown_s < _GRACE_S:
                self._accept_later(_GRACE_S - self._oldest_unknown_s)
                return
            self._refuse(next(iter(self._unknown)))
        try:
            end, _ = listening.accept()
        except OSError as error:  # else it is gone already
            if error.errno in _EXHAUSTED:
                self._make_do(error)
            return
        try:
            connection = self._connection(end)
        except OSError:
            end.close()
            return
        self._connections.add(connection)
        self._unknown[connection] = self._reading_s
        self._selector.register(connection, selectors.EVENT_READ, connection)
        self._ready[connection] = None  # its greeting is here, more often than not

    def _make_do(self, error: OSError) -> None:
        """Close an unknown connection, or pause accepting: no file descriptor is left."""
        if self._unknown:
            self._refuse(next(iter(self._unknown)))
        else:
            logger.warning("no connection can be accepted: %s", error)
            self._accept_later(_NO_DESCRIPTOR_S)

    def _accept_later(self, in_s: float) -> None:
        self._accepts_at_s = time.monotonic() + in_s
        for end in self._listening:
            self._selector.unregister(end)

    def _accept_again(self) -> None:
        self._accepts_at_s = math.inf
        for end in self._listening:
            self._selector.register(end, selectors.EVENT_READ, None)

    def _connection(self, end: socket.socket) -> Connection:
        return Connection(end) if self._context is None else SecureConnection(end, self._context)

    def _read(self, connection: Connection) -> tuple[str, Frame] | None:
        if connection not in self._connections:
            return None
        try:
            frame = connection.next_frame()
        except MessageRefused as error:
            if connection.name is None:
                self._refuse(connection)
                return None
            self._drop(connection)
            raise MessageRefused(error.reason, connection.name) from None
        if frame is None:
            if connection.has_unseen_bytes:
                self._ready[connection] = None
            elif connection.gone and connection.name is None:
                self._refuse(connection)
            elif connection.gone:
                self._drop(connection)
            return None
        if connection.has_bytes:
            self._ready[connection] = None
        if connection.name is not None:
            return connection.name, frame
        return self._admit(connection, frame)

    def _admit(self, connection: Connection, frame: Frame) -> tuple[str, Frame] | None:
        """Check the first frame of a connection: a `Hello` with the proof that its sender has the key."""
        number, tag, body = _parted(frame.body)
        proof = _tag(self._key, self._number, number, body, connection.binding)
        name = self._name_in(frame.kind, number, body) if hmac.compare_digest(tag, proof) else None
        if name is None:
            self._refuse(connection)
            return None
        self._used.add(number)
        self.forget(name)  # of a process that is dead: another has taken its place
        connection.name = name
        connection.meet(self._silence_s, self._largest)
        del self._unknown[connection]
        self._routes[name] = connection
        # before all else, heartbeats too
        connection.send(Frame(_WELCOME, _tag(self._key, number, connection.binding), None))
        SENDER.add(connection)
        if connection.has_queue:
            SENDER.wake()
        return name, Frame(Hello.kind, body, None)

    def _name_in(self, kind: int, number: bytes, body: bytes) -> str | None:
        """Return the name in a greeting; None if it is invalid or repeated."""
        if kind != Hello.kind or number in self._used:
            return None
        try:
            return Hello.decode(body, None).name
        except ValueError:
            return None

    def send_frame(self, name: str, frame: Frame) -> bool:
        """Send a frame; False if the peer is gone. A large payload must not change afterwards."""
        connection = self._routes.get(name)
        return connection is not None and _send(connection, frame)

    def forget(self, name: str) -> None:
        """Stop communicating with a peer."""
        connection = self._routes.get(name)
        if connection is not None:
            self._drop(connection)

    def _refuse(self, stranger: Connection) -> None:
        self._drop(stranger)
        self.strangers += 1
        if self.on_stranger is not None:
            self.on_stranger(self.strangers)

    def _drop(self, connection: Connection, linger_s: float = 0.0) -> None:
        self._connections.discard(connection)
        self._unknown.pop(connection, None)
        self._selector.unregister(connection)
        SENDER.remove(connection)
        connection.close(linger_s)
        if connection.name is not None and self._routes.get(connection.name) is connection:
            del self._routes[connection.name]

    def _drop_silent(self, now_s: float) -> None:
        """Drop known peers that gave no sign of life for long."""
        self._look_s = now_s + self._silence_s / 4
        for connection in [*self._routes.values()]:
            connection.look()
            if connection.has_bytes:
                self._ready[connection] = None
            elif connection.gone:
                self._drop(connection)

    def close(self, linger_s: float = LINGER_S) -> None:
        """Close all connections after their queues are sent, or after `linger_s`."""
        for connection in [*self._connections]:
            self._drop(connection, 0.0 if connection.name is None else linger_s)
        self._selector.close()
        for end in self._listening:
            end.close()


class StreamClient(Closing):
    """One connection to a server; it is not restored after a loss.

    Parameters
    ----------
    address : Address
    key : bytes
        The run's key, which the server asks for.
    name : str
        The role that connects.
    patience : PeerPatience
        How long the other end may be silent.
    """

    def __init__(self, address: Address, key: bytes, name: str, patience: PeerPatience = _PATIENCE) -> None:
        encrypted, host, port, self._server = _place(address)
        self._key, self._name, self._number = key, name, secrets.token_bytes(_NUMBER)
        self._silence_s = patience.silence_s
        self._welcome = _tag(key, self._number)
        try:
            end = _connect(host, port, self._server, patience.silence_s, not encrypted)
        except OSError:  # no process listens any more: this connection is lost from the beginning
            self._connection = Connection(socket.socket(_family(host)))
            self._connection.close(0)
            return
        if encrypted:
            context = client_context(key)
            self._connection = SecureConnection(end, context, self._greeting, patience.first_word_s)
            self._connection.flush()
        else:
            self._connection = Connection(end, patience.first_word_s)
            self._connection.send(self._greeting(b""))
        SENDER.add(self._connection)
        if self._connection.has_queue:
            SENDER.wake()

    def _greeting(self, binding: bytes) -> Frame:
        """Return a client's first frame; `binding` identifies the connection."""
        body, _ = Hello(self._name).encode()
        tag = _tag(self._key, self._server, self._number, body, binding)
        self._welcome = _tag(self._key, self._number, binding)
        return Frame(Hello.kind, self._number + tag + body, None)

    @property
    def lost(self) -> bool:
        """Return True if the connection is closed; earlier frames can still be read."""
        self._connection.look()
        return self._connection.gone

    @property
    def has_message(self) -> bool:
        connection = self._connection
        return connection.has_bytes or (not connection.gone and connection.wait(0))

    @property
    def handle(self) -> int:
        """The handle that a poller waits on."""
        return self._connection.fileno()

    def next_frame(self, timeout_s: float) -> Frame | None:
        """Return the next frame, or None on a timeout.

        Raises
        ------
        MessageRefused
            If it is none, or its sender does not have the run's key.
        """
        connection, deadline = self._connection, time.monotonic() + timeout_s
        ready = connection.has_bytes
        while ready or (not connection.gone and connection.wait(timeout_s)):
            frame = connection.next_frame()
            if frame is not None and connection.is_met:
                return frame
            if frame is not None:
                self._check_welcome(frame)
            timeout_s = deadline - time.monotonic()
            if frame is None and timeout_s <= 0:
                break
            ready = connection.has_bytes if frame is not None else connection.has_unseen_bytes
        return None

    def _check_welcome(self, frame: Frame) -> None:
        """Close the connection unless the server proves that it has the key."""
        if frame.kind != _WELCOME or not hmac.compare_digest(frame.body, self._welcome):
            self.close(0)
            raise MessageRefused("the server does not know the run's key")
        self._connection.meet(self._silence_s)

    def send_frame(self, frame: Frame) -> None:
        """Send a frame, or drop it if the connection is lost; a large payload must not change later."""
        _send(self._connection, frame)

    def close(self, linger_s: float = LINGER_S) -> None:
        """Close the connection after its queue is sent, or after `linger_s`."""
        SENDER.remove(self._connection)
        self._connection.close(linger_s)


def _send(connection: Connection, frame: Frame) -> bool:
    sent = connection.send(frame)
    if connection.has_queue:
        SENDER.wake()
    return sent


def _parted(greeting: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the number, the HMAC and the message of a greeting."""
    return greeting[:_NUMBER], greeting[_NUMBER : _NUMBER + _HMAC], greeting[_NUMBER + _HMAC :]


def _place(address: Address) -> tuple[bool, str, int, bytes]:
    """Return whether a server encrypts, and the host, port and number of its address."""
    scheme, _, rest = address.url.partition("://")
    place, _, number = rest.partition("/")
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    return scheme != _PLAIN or not is_loopback(host), host, int(port), bytes.fromhex(number)
