"""Messages between the processes of a run over ZeroMQ: a head, a body, and at most one tensor as payload.

A `ServerSocket` (ROUTER) is bound by whoever is asked; a `ClientSocket` (DEALER) is one connection to it.
A server socket listens on one address only and knows its peers by name: the first message on a connection
must carry the run's key, and whatever comes on a connection that did not begin so is dropped and counted.
Off loopback everything is encrypted (CURVE). Nothing that is received is unpickled, and what cannot be
decoded costs its sender the connection.

A message to a peer that is gone is no error here: `ServerSocket.send` returns False, and
`ClientSocket.lost` is true.
"""

from __future__ import annotations

import hmac
import ipaddress
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
import zmq
from torch import Tensor
from zmq.utils.monitor import recv_monitor_message

from psbench.backends.dask.protocol.decoder import Message, MessageRefused, decode
from psbench.backends.dask.protocol.messages import Hello, PushKey, PushMessage
from psbench.backends.dask.protocol.roles import Address, worker_number

#: kind of the message, the type of its payload, and how many entries the payload frame holds (none if 0)
_HEAD = struct.Struct("<BBxxI")
#: types that a payload may have, by their number in the head
_TYPES = (torch.float32, torch.float16, torch.uint8)
#: from this size on ZeroMQ sends a payload from where it lies; below, copying it is cheaper
ZERO_COPY_BYTES = 1 << 16
#: a peer that is silent for so long is gone, even if its connection was never closed (milliseconds)
_HEARTBEAT_MS, _SILENCE_MS = 2_000, 15_000
#: how long a closing socket may take to send what it still has (milliseconds)
_LINGER_MS = 2_000
_GONE = zmq.Event.DISCONNECTED | zmq.Event.CLOSED | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL


class Stopped(Exception):
    """The coordinator has ended the run."""


class Abandoned(Stopped):
    """The coordinator is gone."""


class Received(NamedTuple):
    """A message, and the name of the peer that sent it."""

    sender: str
    message: Message


class _Socket:
    """What both kinds of sockets share: one ZeroMQ context, one socket, one time-out."""

    def __init__(self, kind: int, host: str) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(kind)
        self._timeout_ms = -2
        for option, value in (
            (zmq.LINGER, _LINGER_MS),
            (zmq.SNDHWM, 0),  # requests wait for answers, so no queue can grow without end
            (zmq.RCVHWM, 0),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS),
            (zmq.IPV6, int(":" in host)),
        ):
            self._socket.setsockopt(option, value)

    def _set_timeout(self, seconds: float) -> None:
        timeout_ms = max(0, round(seconds * 1000))
        if timeout_ms != self._timeout_ms:
            self._timeout_ms = timeout_ms
            self._socket.setsockopt(zmq.RCVTIMEO, timeout_ms)

    def _decode(self, head: bytes) -> Message:
        """Return the message that begins with this frame, and read its payload."""
        if len(head) < _HEAD.size:
            raise MessageRefused(f"a head of {len(head)} bytes")
        kind, type_number, entries = _HEAD.unpack_from(head)
        message = decode(kind, head[_HEAD.size :], self._payload(type_number, entries))
        if self._socket.getsockopt(zmq.RCVMORE):
            raise MessageRefused("it has more parts than body and payload")
        return message

    def _payload(self, type_number: int, entries: int) -> Tensor | None:
        if not entries:
            return None
        if type_number >= len(_TYPES):
            raise MessageRefused(f"there is no type {type_number} of payloads")
        tensor = torch.empty(entries, dtype=_TYPES[type_number])
        into: Any = tensor.numpy()
        if not self._socket.getsockopt(zmq.RCVMORE) or self._socket.recv_into(into) != tensor.nbytes:
            raise MessageRefused("its payload is not as long as its head says")
        return tensor

    def _drop_rest(self) -> None:
        while self._socket.getsockopt(zmq.RCVMORE):
            self._socket.recv()

    def _send_frames(self, kind: int, body: bytes, payload: Tensor | None) -> None:
        if payload is None or not len(payload):
            self._socket.send(_HEAD.pack(kind, 0, 0) + body)
            return
        head = _HEAD.pack(kind, _TYPES.index(payload.dtype), len(payload))
        self._socket.send(head + body, zmq.SNDMORE)
        self._send_payload(payload)

    def _send_payload(self, payload: Tensor) -> None:
        large = payload.nbytes >= ZERO_COPY_BYTES
        array: Any = payload.numpy()
        self._socket.send(array, 0, not large)

    @property
    def has_message(self) -> bool:
        """Whether a message can be read at once."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    @property
    def handle(self) -> zmq.Socket[bytes]:
        """The ZeroMQ socket, for a poller that waits on several."""
        return self._socket

    def close(self, linger: int | None = None) -> None:
        """Close the socket and its thread, after sending what is left or `_LINGER_MS`."""
        self._socket.close(linger)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ServerSocket(_Socket):
    """Listens on one address, and receives messages of peers that know the run's key.

    Parameters
    ----------
    host : str
        The interface to listen on: the Dask worker's own address.
    key : bytes
        The run's key.
    encrypted : bool
        Whether to encrypt even on loopback; off loopback everything is encrypted.

    Attributes
    ----------
    address : Address
    strangers : int
        Messages dropped because their connection did not begin with the key.
    """

    def __init__(self, host: str, key: bytes, encrypted: bool = False) -> None:
        super().__init__(zmq.ROUTER, host)
        self._key = key
        self._names: dict[bytes, str] = {}
        self._routes: dict[str, bytes] = {}
        self.strangers = 0
        #: takes the payloads of pushes, which are in no message that `receive` returns; None drops them
        self.keep_payload: Callable[[PushKey, Tensor], None] | None = None
        socket = self._socket
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a peer that is gone is an error, not silence
        public = ""
        if encrypted or not is_loopback(host):
            public_key, secret_key = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret_key)
            public = public_key.decode()
        bracketed = f"[{host}]" if ":" in host else host
        socket.bind(f"tcp://{bracketed}:*")
        self.address = Address(socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"), public)

    @property
    def peers(self) -> list[str]:
        """Names of the peers that are connected."""
        return list(self._routes)

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next message, or None if none came in time (or only a stranger's).

        Raises
        ------
        MessageRefused
            If it cannot be decoded; its sender's connection is dropped, and can be sent nothing any more.
        """
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
            message = self._decode(head)
            if type(message) is PushMessage:
                self._keep_payload(worker_number(sender), message)
            return Received(sender, message)
        except MessageRefused as error:
            self._drop_rest()
            self.forget(sender)
            raise MessageRefused(error.reason, sender) from None

    def _keep_payload(self, worker: int | None, push: PushMessage) -> None:
        payload, push.payload = push.payload, None
        if payload is not None and worker is not None and self.keep_payload is not None:
            self.keep_payload((worker, push.ticket), payload)

    def _admit(self, route: bytes, head: bytes) -> Received | None:
        """Take the first message of a connection: it must be a `Hello` after the run's key."""
        self._drop_rest()
        start = _HEAD.size + len(self._key)
        if not hmac.compare_digest(head[_HEAD.size : start], self._key) or head[0] != Hello.kind:
            self.strangers += 1
            return None
        try:
            hello = decode(Hello.kind, head[start:], None)
        except MessageRefused:
            self.strangers += 1
            return None
        assert isinstance(hello, Hello)
        self._names[route] = hello.name
        self._routes[hello.name] = route
        return Received(hello.name, hello)

    def send(self, name: str, message: Message) -> bool:
        """Send a message; False if the peer is gone. A large payload must not change afterwards."""
        route = self._routes.get(name)
        if route is None:
            return False
        body, payload = message.encode()
        try:
            self._socket.send(route, zmq.SNDMORE)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        self._send_frames(message.kind, body, payload)
        return True

    def forget(self, name: str) -> None:
        """Treat a peer's further messages as a stranger's."""
        route = self._routes.pop(name, None)
        if route is not None:
            del self._names[route]


class ClientSocket(_Socket):
    """One connection to a server socket; it is not made again once it is lost.

    Parameters
    ----------
    address : Address
    key : bytes
        The run's key, which the server socket asks for.
    name : str
        The role that connects.
    """

    def __init__(self, address: Address, key: bytes, name: str) -> None:
        super().__init__(zmq.DEALER, address.url.split("//")[-1].rsplit(":", 1)[0])
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
        """Whether the connection is gone; messages that came before may still be read."""
        while not self._is_lost and self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._is_lost = True
        return self._is_lost

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message, or None if none came in time.

        Raises
        ------
        MessageRefused
            If it cannot be decoded.
        """
        self._set_timeout(timeout_s)
        try:
            head = self._socket.recv()
        except zmq.Again:
            return None
        try:
            return self._decode(head)
        except MessageRefused:
            self._drop_rest()
            raise

    def send(self, message: Message) -> None:
        """Send a message, or drop it if the connection is lost; a large payload must not change later."""
        try:
            self._send_frames(message.kind, *message.encode())
        except zmq.Again:
            self._is_lost = True

    def close(self, linger: int | None = None) -> None:
        """Close the connection and what watches it."""
        nobody_listens = self.lost
        self._socket.disable_monitor()
        self._monitor.close()
        super().close(0 if nobody_listens else linger)


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("192.168.1.2")
    (True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
