"""Messages between the processes of a run over ZeroMQ: a head of bytes and at most one vector of floats.

A `ServerSocket` (ROUTER) is bound by whoever is asked; a `ClientSocket` (DEALER) is one connection to it.
A server socket listens on one address only and knows its peers by name: the first message on a connection
must carry the run's key, and whatever comes on a connection that did not begin so is dropped and counted.
Off loopback everything is encrypted (CURVE). Nothing on the wire is unpickled.

A message that the peer cannot get any more is no error here: `ServerSocket.send` says so, and so does
`ClientSocket.lost`.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
import zmq
from torch import Tensor
from zmq.utils.monitor import recv_monitor_message

from psbench.errors import BackendError

#: kind of the letter, the type of its payload, and how many floats the payload frame holds (none if 0)
_PREFIX = struct.Struct("<BBxxI")
PREFIX_BYTES = _PREFIX.size
HELLO, JSON = 0, 1
#: kinds from here on belong to who uses the wire
FIRST_FREE_KIND = 2
#: types that a payload may have, by their number on the wire
_TYPES = (torch.float32, torch.float16, torch.uint8)
#: from this size on ZeroMQ sends a payload from where it lies; below, copying it is cheaper
ZERO_COPY_BYTES = 1 << 16
#: a peer that is silent for so long is gone, even if its connection was never closed (milliseconds)
_HEARTBEAT_MS, _SILENCE_MS = 2_000, 15_000
#: how long a closing socket may take to send what it still has (milliseconds)
_LINGER_MS = 2_000
_GONE = zmq.Event.DISCONNECTED | zmq.Event.CLOSED | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL


class Message(NamedTuple):
    """What came: from whom (the empty name on a link), its kind, its body, and its payload if it has one."""

    sender: str
    kind: int
    body: bytes
    payload: Tensor | None

    @property
    def plain(self) -> dict[str, Any]:
        """The body as plain data (letters of kind `JSON`, and `HELLO`)."""
        value: dict[str, Any] = json.loads(self.body)
        return value


class Address(NamedTuple):
    """Where a hub listens, and its public key if it encrypts (Z85 text, else empty)."""

    url: str
    public_key: str = ""


class _Socket:
    """What hubs and links share: one ZeroMQ context, one socket, one time-out."""

    def __init__(self, kind: int, host: str) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(kind)
        self._wait_ms = -2
        for option, value in (
            (zmq.LINGER, _LINGER_MS),
            (zmq.SNDHWM, 0),  # requests wait for answers, so no queue can grow without end
            (zmq.RCVHWM, 0),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS),
            (zmq.IPV6, int(":" in host)),
        ):
            self._socket.setsockopt(option, value)

    def _await(self, seconds: float) -> None:
        wait_ms = max(0, round(seconds * 1000))
        if wait_ms != self._wait_ms:
            self._wait_ms = wait_ms
            self._socket.setsockopt(zmq.RCVTIMEO, wait_ms)

    def _payload(self, type_number: int, floats: int) -> Tensor | None:
        if not floats:
            return None
        tensor = torch.empty(floats, dtype=_TYPES[type_number])
        into: Any = tensor.numpy()
        if not self._socket.getsockopt(zmq.RCVMORE) or self._socket.recv_into(into) != tensor.nbytes:
            raise BackendError("a letter is cut short: its payload is not as long as its head says")
        return tensor

    def _rest(self) -> None:
        while self._socket.getsockopt(zmq.RCVMORE):
            self._socket.recv()

    def _send_payload(self, payload: Tensor) -> None:
        large = payload.nbytes >= ZERO_COPY_BYTES
        array: Any = payload.numpy()
        self._socket.send(array, 0, not large)

    @property
    def has_letter(self) -> bool:
        """Whether a letter can be read at once."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    @property
    def handle(self) -> zmq.Socket[bytes]:
        """The socket, for a poller that waits on several."""
        return self._socket

    def close(self, linger: int | None = None) -> None:
        """Close the socket, after sending what is left or `_LINGER_MS`, and its thread."""
        self._socket.close(linger)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ServerSocket(_Socket):
    """Listens on one address, and takes letters from those who know the run's key.

    Parameters
    ----------
    host : str
        The interface to listen on: the Dask worker's own address.
    key : bytes
        The run's key.

    Attributes
    ----------
    address : Address
    strangers : int
        Letters dropped because their connection did not begin with the key.
    """

    def __init__(self, host: str, key: bytes) -> None:
        super().__init__(zmq.ROUTER, host)
        self._key = key
        self._names: dict[bytes, str] = {}
        self._routes: dict[str, bytes] = {}
        self.strangers = 0
        socket = self._socket
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # who is gone is an error, not silence
        public = ""
        if not is_loopback(host):
            public_key, secret_key = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret_key)
            public = public_key.decode()
        bracketed = f"[{host}]" if ":" in host else host
        socket.bind(f"tcp://{bracketed}:*")
        self.address = Address(socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"), public)

    @property
    def peers(self) -> list[str]:
        """Names of those who have said hello."""
        return list(self._routes)

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next letter, or None if none came in time (or only a stranger's)."""
        self._await(timeout_s)
        socket = self._socket
        try:
            route = socket.recv()
        except zmq.Again:
            return None
        head = socket.recv() if socket.getsockopt(zmq.RCVMORE) else b""
        sender = self._names.get(route)
        if sender is None:
            return self._meet(route, head)
        kind, type_number, floats = _PREFIX.unpack_from(head)
        return Message(sender, kind, head[PREFIX_BYTES:], self._payload(type_number, floats))

    def _meet(self, route: bytes, head: bytes) -> Message | None:
        """Take the first letter of a connection: it must be a hello with the run's key."""
        self._rest()
        start = PREFIX_BYTES + len(self._key)
        right = hmac.compare_digest(head[PREFIX_BYTES:start], self._key)
        if not right or head[0] != HELLO:
            self.strangers += 1
            return None
        letter = Message("", HELLO, head[start:], None)
        name = str(letter.plain["name"])
        self._names[route] = name
        self._routes[name] = route
        return letter._replace(sender=name)

    def send(self, name: str, kind: int, body: bytes, payload: Tensor | None = None) -> bool:
        """Send a letter; False if the peer is gone. A large payload must not change afterwards."""
        route = self._routes.get(name)
        if route is None:
            return False
        socket = self._socket
        try:
            socket.send(route, zmq.SNDMORE)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        if payload is None or not len(payload):
            socket.send(_PREFIX.pack(kind, 0, 0) + body)
        else:
            socket.send(_prefix(kind, payload) + body, zmq.SNDMORE)
            self._send_payload(payload)
        return True

    def tell(self, name: str, plain: dict[str, Any], payload: Tensor | None = None) -> bool:
        """Send plain data; see `send`."""
        return self.send(name, JSON, json.dumps(plain).encode(), payload)

    def forget(self, name: str) -> None:
        """Take no more letters of that peer's for its own."""
        route = self._routes.pop(name, None)
        if route is not None:
            del self._names[route]


class ClientSocket(_Socket):
    """One connection to a hub; it is not made again once it is lost.

    Parameters
    ----------
    address : Address
    key : bytes
        The run's key, which the hub asks for.
    name : str
        Who we are.
    facts : dict
        More plain data for the hub's owner to know.
    """

    def __init__(self, address: Address, key: bytes, name: str, **facts: Any) -> None:
        super().__init__(zmq.DEALER, address.url.split("//")[-1].rsplit(":", 1)[0])
        socket = self._socket
        socket.setsockopt(zmq.RECONNECT_IVL, -1)  # a new connection would be a stranger's
        socket.setsockopt(zmq.SNDTIMEO, 0)  # nothing but a lost connection makes a letter wait
        if address.public_key:
            public, secret = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_SERVERKEY, address.public_key.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self._monitor = socket.get_monitor_socket(_GONE)
        self._is_lost = False
        socket.connect(address.url)
        body = json.dumps({"name": name} | facts).encode()
        socket.send(_PREFIX.pack(HELLO, 0, 0) + key + body)

    @property
    def lost(self) -> bool:
        """Whether the connection is gone; letters that came before may still be read."""
        while not self._is_lost and self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._is_lost = True
        return self._is_lost

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next letter, or None if none came in time."""
        self._await(timeout_s)
        try:
            head = self._socket.recv()
        except zmq.Again:
            return None
        kind, type_number, floats = _PREFIX.unpack_from(head)
        return Message("", kind, head[PREFIX_BYTES:], self._payload(type_number, floats))

    def send(self, kind: int, body: bytes, payload: Tensor | None = None) -> None:
        """Send a letter, into the void if the connection is lost; a large payload must not change later."""
        try:
            if payload is None or not len(payload):
                self._socket.send(_PREFIX.pack(kind, 0, 0) + body)
            else:
                self._socket.send(_prefix(kind, payload) + body, zmq.SNDMORE)
                self._send_payload(payload)
        except zmq.Again:
            self._is_lost = True

    def tell(self, plain: dict[str, Any], payload: Tensor | None = None) -> None:
        """Send plain data; see `send`."""
        self.send(JSON, json.dumps(plain).encode(), payload)

    def close(self, linger: int | None = None) -> None:
        """Close the connection and what watches it."""
        nobody_listens = self.lost
        self._socket.disable_monitor()
        self._monitor.close()
        super().close(0 if nobody_listens else linger)


def _prefix(kind: int, payload: Tensor) -> bytes:
    return _PREFIX.pack(kind, _TYPES.index(payload.dtype), len(payload))


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("192.168.1.2")
    (True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def pack(tensors: dict[str, Tensor]) -> tuple[list[list[Any]], Tensor]:
    """Return the names and shapes of tensors, and their entries one after another (a copy)."""
    shapes = [[name, list(tensor.shape)] for name, tensor in tensors.items()]
    parts = [tensor.detach().reshape(-1) for tensor in tensors.values()]
    return shapes, torch.cat(parts) if parts else torch.empty(0)


def unpack(shapes: Sequence[Sequence[Any]], flat: Tensor | None) -> dict[str, Tensor]:
    """Return the tensors that `pack` put together, as views."""
    flat = torch.empty(0) if flat is None else flat
    tensors, start = {}, 0
    for name, shape in shapes:
        size = int(torch.Size(shape).numel())
        tensors[name] = flat[start : start + size].view(shape)
        start += size
    return tensors
