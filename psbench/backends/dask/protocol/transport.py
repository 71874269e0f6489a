"""Messages between the processes of a run: a head, a body, and at most one tensor as payload.

The process that is asked binds a `ServerSocket`; a `ClientSocket` is one connection to it. A server socket
listens on one address only and knows its peers by name: the first message on a connection must show that its
sender has the run's key, and whatever comes on a connection that did not begin so is dropped and counted.
On loopback messages are sent in the clear, elsewhere encrypted (`stream`).
Nothing that is received is unpickled, and what cannot be decoded costs its sender the connection.

A message to a peer that is gone is no error here: `ServerSocket.send` returns False, and
`ClientSocket.lost` is true.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from torch import Tensor

from psbench.backends.dask.protocol.decoder import Message, MessageRefused, decode
from psbench.backends.dask.protocol.messages import PushKey, PushMessage
from psbench.backends.dask.protocol.roles import Address, worker_number
from psbench.backends.dask.protocol.stream import StreamClient, StreamServer, is_loopback
from psbench.backends.dask.protocol.wire import LINGER_S, Frame, Listening, PeerPatience

_ANYWHERE, _PATIENCE = Listening(), PeerPatience()


class Stopped(Exception):
    """The coordinator has ended the run."""


class Abandoned(Stopped):
    """The coordinator is gone."""


class Received(NamedTuple):
    """A message, and the name of the peer that sent it."""

    sender: str
    message: Message


class _Socket:
    """What both kinds of sockets share: they are closed."""

    _wire: StreamServer | StreamClient

    @property
    def handle(self) -> int:
        """What a poller waits on."""
        return self._wire.handle

    def close(self, linger_s: float = LINGER_S) -> None:
        """Close the socket, after sending what is left or that time."""
        self._wire.close(linger_s)

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
    listening : Listening
        How it is reached, on which ports it listens, and how large a payload may be.

    Attributes
    ----------
    address : Address
    """

    def __init__(
        self, host: str, key: bytes, encrypted: bool = False, listening: Listening = _ANYWHERE
    ) -> None:
        local = is_loopback(host) and is_loopback(listening.contact or host)
        self._wire: StreamServer = StreamServer(host, key, encrypted or not local, listening)
        self.address = self._wire.address
        #: takes the payloads of pushes, which are in no message that `receive` returns; None drops them
        self.keep_payload: Callable[[PushKey, Tensor], None] | None = None

    @property
    def strangers(self) -> int:
        """What was dropped because its connection did not begin with the key."""
        return self._wire.strangers

    @property
    def peers(self) -> list[str]:
        """Names of the peers that are connected."""
        return self._wire.peers

    @property
    def waiting(self) -> int:
        """How many connections are known to have something to read."""
        return self._wire.waiting

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next message, or None if none came in time (or only a stranger's).

        Raises
        ------
        MessageRefused
            If it cannot be decoded; its sender's connection is dropped, and can be sent nothing any more.
        """
        found = self._next(timeout_s)
        if found is None:
            return None
        sender, frame = found
        try:
            message = decode(*frame)
            if type(message) is PushMessage:
                self._keep_payload(worker_number(sender), message)
        except MessageRefused as error:
            self.forget(sender)
            raise MessageRefused(error.reason, sender) from None
        return Received(sender, message)

    def _next(self, timeout_s: float) -> tuple[str, Frame] | None:
        return self._wire.receive(timeout_s)

    def _keep_payload(self, worker: int | None, push: PushMessage) -> None:
        payload, push.payload = push.payload, None
        if payload is not None and worker is not None and self.keep_payload is not None:
            self.keep_payload((worker, push.ticket), payload)

    def send(self, name: str, message: Message) -> bool:
        """Send a message; False if the peer is gone. A large payload must not change afterwards."""
        return self._send(name, Frame(message.kind, *message.encode()))

    def _send(self, name: str, frame: Frame) -> bool:
        return self._wire.send(name, frame)

    def forget(self, name: str) -> None:
        """Receive nothing more from a peer, and send it nothing."""
        self._wire.forget(name)


class ClientSocket(_Socket):
    """One connection to a server socket; it is not made again once it is lost.

    Parameters
    ----------
    address : Address
    key : bytes
        The run's key, which the server socket asks for.
    name : str
        The role that connects.
    patience : PeerPatience
        How long the other end may be silent.
    """

    def __init__(self, address: Address, key: bytes, name: str, patience: PeerPatience = _PATIENCE) -> None:
        self._wire: StreamClient = StreamClient(address, key, name, patience)

    @property
    def has_message(self) -> bool:
        """Whether a message may be there to read."""
        return self._wire.has_frame

    @property
    def lost(self) -> bool:
        """Whether the connection is gone; messages that came before may still be read."""
        return self._wire.lost

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message, or None if none came in time.

        Raises
        ------
        MessageRefused
            If it cannot be decoded.
        """
        frame = self._wire.receive(timeout_s)
        return None if frame is None else decode(*frame)

    def send(self, message: Message) -> None:
        """Send a message, or drop it if the connection is lost; a large payload must not change later."""
        self._wire.send(Frame(message.kind, *message.encode()))
