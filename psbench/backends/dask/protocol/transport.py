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
from typing import NamedTuple

from torch import Tensor

from psbench.backends.dask.protocol.decoder import Message, MessageRefused, decode_message
from psbench.backends.dask.protocol.messages import PushKey, PushMessage
from psbench.backends.dask.protocol.roles import worker_number
from psbench.backends.dask.protocol.stream import StreamClient, StreamServer
from psbench.backends.dask.protocol.wire import Frame


class Stopped(Exception):
    """The coordinator has ended the run."""


class Abandoned(Stopped):
    """The coordinator is gone."""


class Received(NamedTuple):
    """A message, and the name of the peer that sent it."""

    sender: str
    message: Message


class ServerSocket(StreamServer):
    """Listens on one address, and receives messages of peers that hold the run's key.

    Attributes
    ----------
    keep_payload : callable or None
        Takes the payloads of pushes, which are in no message that `receive` returns; None drops them.
    """

    keep_payload: Callable[[PushKey, Tensor], None] | None = None

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next message, or None on a timeout or after a stranger's message.

        Raises
        ------
        MessageRefused
            If it cannot be decoded; its sender's connection is dropped, and can be sent nothing any more.
        """
        found = self.next_frame(timeout_s)
        if found is None:
            return None
        sender, frame = found
        try:
            message = decode_message(*frame)
            if type(message) is PushMessage:
                self._keep_payload(worker_number(sender), message)
        except MessageRefused as error:
            self.forget(sender)
            raise MessageRefused(error.reason, sender) from None
        return Received(sender, message)

    def _keep_payload(self, worker: int | None, push: PushMessage) -> None:
        payload, push.payload = push.payload, None
        if payload is not None and worker is not None and self.keep_payload is not None:
            self.keep_payload((worker, push.ticket), payload)

    def send(self, name: str, message: Message) -> bool:
        """Send a message; False if the peer is gone. A large payload must not change afterwards."""
        return self.send_frame(name, Frame(message.kind, *message.encode()))


class ClientSocket(StreamClient):
    """One connection to a server socket; it is not restored after a loss."""

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message, or None on a timeout.

        Raises
        ------
        MessageRefused
            If it cannot be decoded.
        """
        frame = self.next_frame(timeout_s)
        return None if frame is None else decode_message(*frame)

    def send(self, message: Message) -> None:
        """Send a message, or drop it if the connection is lost; a large payload must not change later."""
        self.send_frame(Frame(message.kind, *message.encode()))
