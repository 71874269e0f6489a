"""A worker's messages from the coordinator, and messages deferred because they arrived too early."""

from __future__ import annotations

from collections import deque

from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.messages import StopRun
from psbench.backends.dask.protocol.transport import Abandoned, ClientSocket, Stopped

#: seconds between looks whether the coordinator is still there, while there is nothing to do
LOOK_S = 0.25


class Mailbox:
    """Messages of the coordinator to a worker."""

    def __init__(self, coordinator: ClientSocket) -> None:
        self._socket = coordinator
        self._deferred: deque[Message] = deque()

    @property
    def is_empty(self) -> bool:
        return not (self._deferred or self._socket.has_message)

    def next(self, timeout_s: float) -> Message | None:
        """Return the next message, deferred ones first; None on a timeout.

        Raises
        ------
        Abandoned
            If the coordinator is gone.
        """
        return self._deferred.popleft() if self._deferred else self.next_new(timeout_s)

    def next_new(self, timeout_s: float) -> Message | None:
        """Return the next message that was not read before."""
        message = self._socket.receive(timeout_s)
        if message is None and timeout_s:
            self.check()
        return message

    def check(self) -> None:
        """Raise Abandoned if the coordinator is gone."""
        if self._socket.lost:
            raise Abandoned("the coordinator is gone")

    def look(self) -> None:
        """Defer a message that arrives while the worker waits for another process; obey a stop."""
        message = self._socket.receive(0)
        if message is not None:
            self.defer(message)
        else:
            self.check()

    def defer(self, message: Message) -> None:
        """Put a message aside for later; obey a stop."""
        if isinstance(message, StopRun):
            raise Stopped
        self._deferred.append(message)

    def has_deferred(self, kind: type[Message]) -> bool:
        return any(isinstance(message, kind) for message in self._deferred)

    def put_back(self, message: Message) -> None:
        self._deferred.appendleft(message)

    def send(self, message: Message) -> None:
        self._socket.send(message)
