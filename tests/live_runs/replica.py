"""A replica after its coordinator is gone: the real one, on what it was sent and what the client asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.roles import CLIENT
from psbench.backends.dask.protocol.transport import Received, Stopped
from psbench.backends.dask.server.replica import Replica


class _FromCoordinator:
    """The connection to a coordinator that has sent some messages, and is gone."""

    def __init__(self, sent: Sequence[Message]) -> None:
        self._sent = deque(sent)

    def receive(self, timeout_s: float) -> Message | None:
        return self._sent.popleft() if self._sent else None

    @property
    def lost(self) -> bool:
        return not self._sent

    def send(self, message: Message) -> None:
        """Nobody reads it."""


class _ForClient:
    """The socket at which a client asks, once the coordinator is gone, and takes what it is given."""

    def __init__(self, coordinator: _FromCoordinator, asked: Sequence[Message]) -> None:
        self._coordinator, self._asked = coordinator, deque(asked)
        self.given: list[Message] = []

    def receive(self, timeout_s: float) -> Received | None:
        return Received(CLIENT, self._asked.popleft()) if self._coordinator.lost else None

    def send(self, name: str, message: Message) -> None:
        self.given.append(message)


def state_given_back(sent: Sequence[Message], rows: int, texts: int) -> list[Message]:
    """Return what a replica that was sent some messages gives a client with so much of the log."""
    coordinator: Any = _FromCoordinator(sent)
    client: Any = _ForClient(coordinator, [msg.GiveStateBack(rows, texts), msg.StopRun()])
    try:
        Replica(client, coordinator).run()
    except Stopped:
        return []
    return client.given
