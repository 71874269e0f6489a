"""Messages between machines over ZeroMQ: a ROUTER that is bound, and a DEALER for each who connects.

Off loopback everything is encrypted (CURVE). The first message on a connection must carry the run's key;
whatever comes on a connection that did not begin so is dropped and counted.
"""

from __future__ import annotations

import hmac
import struct

import zmq
from torch import Tensor
from zmq.utils.monitor import recv_monitor_message

from psbench.backends.dask.protocol.decoder import MessageRefused
from psbench.backends.dask.protocol.messages import Hello
from psbench.backends.dask.protocol.payloads import TYPES, ZERO_COPY_BYTES, bytes_of, new_payload
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.wire import HEARTBEAT_S, LINGER_S, Frame, Listening, PeerPatience
from psbench.errors import BackendError

#: kind of the message, the type of its payload, and how many entries the payload frame holds (none if 0)
_HEAD = struct.Struct("<BBxxI")
_GONE = zmq.Event.DISCONNECTED | zmq.Event.CLOSED | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL


class _Socket:
    """What both kinds of sockets share: one ZeroMQ context, one socket, one time-out."""

    def __init__(self, kind: int, host: str, patience: PeerPatience) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(kind)
        self._timeout_ms = -2
        self._largest = 1 << 40
        for option, value in (
            (zmq.LINGER, round(LINGER_S * 1000)),
            (zmq.SNDHWM, 0),  # requests wait for answers, so no queue can grow without end
            (zmq.RCVHWM, 0),
            (zmq.HEARTBEAT_IVL, round(HEARTBEAT_S * 1000)),
            (zmq.HEARTBEAT_TIMEOUT, round(patience.silence_s * 1000)),
            (zmq.IPV6, int(":" in host)),
        ):
            self._socket.setsockopt(option, value)

    @property
    def handle(self) -> zmq.Socket[bytes]:
        """What a poller waits on."""
        return self._socket

    @property
    def has_frame(self) -> bool:
        """Whether a frame can be read at once."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _set_timeout(self, seconds: float) -> None:
        timeout_ms = max(0, round(seconds * 1000))
        if timeout_ms != self._timeout_ms:
            self._timeout_ms = timeout_ms
            self._socket.setsockopt(zmq.RCVTIMEO, timeout_ms)

    def _frame(self, head: bytes) -> Frame:
        """Return the frame that begins with this part of a message, and read the rest."""
        if len(head) < _HEAD.size:
            raise MessageRefused(f"a head of {len(head)} bytes")
        kind, type_number, entries = _HEAD.unpack_from(head)
        frame = Frame(kind, head[_HEAD.size :], self._payload(type_number, entries))
        if self._socket.getsockopt(zmq.RCVMORE):
            raise MessageRefused("it has more parts than body and payload")
        return frame

    def _payload(self, type_number: int, entries: int) -> Tensor | None:
        if not entries:
            return None
        if entries > self._largest:
            raise MessageRefused(f"its head says {entries} entries, more than any message has")
        tensor = new_payload(type_number, entries)
        into = bytes_of(tensor)
        if not self._socket.getsockopt(zmq.RCVMORE) or self._socket.recv_into(into) != tensor.nbytes:
            raise MessageRefused("its payload is not as long as its head says")
        return tensor

    def _drop_rest(self) -> None:
        while self._socket.getsockopt(zmq.RCVMORE):
            self._socket.recv()

    def _send(self, frame: Frame) -> None:
        kind, body, payload = frame
        if payload is None or not len(payload):
            self._socket.send(_HEAD.pack(kind, 0, 0) + body)
            return
        self._socket.send(_HEAD.pack(kind, TYPES.index(payload.dtype), len(payload)) + body, zmq.SNDMORE)
        self._socket.send(bytes_of(payload), 0, payload.nbytes < ZERO_COPY_BYTES)

    def close(self, linger_s: float) -> None:
        """Close the socket and its thread, after sending what is left or that time."""
        self._socket.close(round(linger_s * 1000))
        self._context.term()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bind(socket: zmq.Socket[bytes], host: str, listening: Listening) -> int:
    """Listen on one of the ports, and return it."""
    for port in listening.candidates():
        try:
            socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
        else:
            bound = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
            return int(bound.rpartition(":")[2])
    raise listening.none_free(host)


class ZeroMQServer(_Socket):
    """See `ServerWire`.

    Parameters
    ----------
    host : str
        The interface to listen on.
    key : bytes
        The run's key.
    encrypted : bool
    listening : Listening
    """

    def __init__(self, host: str, key: bytes, encrypted: bool, listening: Listening) -> None:
        super().__init__(zmq.ROUTER, host, listening.patience)
        self._socket.setsockopt(zmq.MAXMSGSIZE, listening.largest)
        self._largest = listening.largest
        self._key = key
        self._names: dict[bytes, str] = {}
        self._routes: dict[str, bytes] = {}
        self.strangers = 0
        self.waiting = -1  # it does not say
        socket = self._socket
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a peer that is gone is an error, not silence
        public = ""
        if encrypted:
            public_key, secret_key = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret_key)
            public = public_key.decode()
        try:
            port = _bind(socket, _bracketed(host), listening)
        except (zmq.ZMQError, BackendError):
            self.close(0)
            raise
        self.address = Address(f"tcp://{_bracketed(listening.contact or host)}:{port}", public)

    @property
    def peers(self) -> list[str]:
        """See `ServerWire`."""
        return list(self._routes)

    def receive(self, timeout_s: float) -> tuple[str, Frame] | None:
        """See `ServerWire`."""
        self._set_timeout(timeout_s)
        socket = self._socket
        try:
            route = socket.recv()
        except zmq.Again:
            return None
        head = socket.recv() if socket.getsockopt(zmq.RCVMORE) else b""
        sender = self._names.get(route)
        if sender is None:
            return self._admit(route, head)
        try:
            return sender, self._frame(head)
        except MessageRefused as error:
            self._drop_rest()
            self.forget(sender)
            raise MessageRefused(error.reason, sender) from None

    def _admit(self, route: bytes, head: bytes) -> tuple[str, Frame] | None:
        """Take the first message of a connection: it must be a `Hello` after the run's key."""
        self._drop_rest()
        start = _HEAD.size + len(self._key)
        if not hmac.compare_digest(head[_HEAD.size : start], self._key) or head[0] != Hello.kind:
            self.strangers += 1
            return None
        try:
            name = Hello.decode(head[start:], None).name
        except ValueError:
            self.strangers += 1
            return None
        self.forget(name)  # of a process that is dead: another has taken its place
        self._names[route] = name
        self._routes[name] = route
        return name, Frame(Hello.kind, head[start:], None)

    def send(self, name: str, frame: Frame) -> bool:
        """See `ServerWire`."""
        route = self._routes.get(name)
        if route is None:
            return False
        try:
            self._socket.send(route, zmq.SNDMORE)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        self._send(frame)
        return True

    def forget(self, name: str) -> None:
        """Treat a peer's further messages as a stranger's."""
        route = self._routes.pop(name, None)
        if route is not None:
            del self._names[route]


class ZeroMQClient(_Socket):
    """See `ClientWire`.

    Parameters
    ----------
    address : Address
    key : bytes
    name : str
        The role that connects.
    patience : PeerPatience
        ZeroMQ itself answers signs of life, also before the first word.
    """

    def __init__(self, address: Address, key: bytes, name: str, patience: PeerPatience) -> None:
        super().__init__(zmq.DEALER, address.url.split("//")[-1].rsplit(":", 1)[0], patience)
        socket = self._socket
        socket.setsockopt(zmq.RECONNECT_IVL, -1)  # a new connection would be a stranger's
        socket.setsockopt(zmq.SNDTIMEO, 0)  # nothing but a lost connection makes a message wait
        if address.public_key:
            public, secret = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_SERVERKEY, address.public_key.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self._monitor = socket.get_monitor_socket(_GONE)
        self._is_lost = False
        socket.connect(address.url)
        self._introduce(key, name)

    def _introduce(self, key: bytes, name: str) -> None:
        body, _ = Hello(name).encode()
        try:
            self._socket.send(_HEAD.pack(Hello.kind, 0, 0) + key + body)
        except zmq.Again:  # the connection was refused before the first message
            self._is_lost = True

    @property
    def lost(self) -> bool:
        """See `ClientWire`."""
        while not self._is_lost and self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._is_lost = True
        return self._is_lost

    def receive(self, timeout_s: float) -> Frame | None:
        """See `ClientWire`."""
        self._set_timeout(timeout_s)
        try:
            head = self._socket.recv()
        except zmq.Again:
            return None
        try:
            return self._frame(head)
        except MessageRefused:
            self._drop_rest()
            raise

    def send(self, frame: Frame) -> None:
        """See `ClientWire`."""
        try:
            self._send(frame)
        except zmq.Again:
            self._is_lost = True

    def close(self, linger_s: float) -> None:
        """Close the connection and what watches it."""
        nobody_listens = self.lost
        self._socket.disable_monitor()
        self._monitor.close()
        super().close(0 if nobody_listens else linger_s)
