"""What carries messages between processes: frames of a kind, a body and at most one tensor.

Two implementations stand behind it: `stream` between processes of one machine, and `zeromq`, which encrypts,
everywhere else. Both know a peer by name once it has shown that it has the run's key.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import zmq
from torch import Tensor

from psbench.backends.dask.protocol.roles import Address
from psbench.clusters.connection import ConnectionSettings
from psbench.errors import BackendError

#: seconds between two signs of life of a peer that has nothing to say
HEARTBEAT_S = 2.0
#: how long a closing connection may take to send what it still has (seconds)
LINGER_S = 2.0


class Frame(NamedTuple):
    """A message before it is decoded."""

    kind: int
    body: bytes
    payload: Tensor | None


class PeerPatience(NamedTuple):
    """Seconds after which a peer counts as gone, even if its connection was never closed.

    `silence_s` is that without a sign of life, and `first_word_s` that before its first word: a server that
    still loads its data does not answer yet. See `ConnectionSettings`, from whose fields they come.
    """

    silence_s: float = 15.0
    first_word_s: float = 180.0


def patience_of(limits: ConnectionSettings) -> PeerPatience:
    """Return how long the processes of a run wait for each other."""
    return PeerPatience(limits.silence_s, limits.start_within_s)


class Listening(NamedTuple):
    """Where a server is reached and listens, and what it takes.

    `contact` is the host by which others reach it, if that is another; `ports` the first and the last port
    to listen on, None for any; `largest` the bytes of the largest payload, beyond which senders are dropped;
    `patience` how long peers may be silent.
    """

    contact: str | None = None
    ports: tuple[int, int] | None = None
    largest: int = 1 << 40
    patience: PeerPatience = PeerPatience()

    def candidates(self) -> range:
        """Return the ports to try; 0 is any."""
        return range(1) if self.ports is None else range(self.ports[0], self.ports[1] + 1)

    def none_free(self, host: str) -> BackendError:
        """Return the error if no port is free."""
        first, last = self.ports or (0, 0)
        return BackendError(f"connection.ports: none of {first} to {last} is free on {host}")


class ServerWire(Protocol):
    """The connections of those who connect to one address.

    Attributes
    ----------
    address : Address
    strangers : int
        Connections, or messages of such, that did not begin with the run's key; they are dropped.
    """

    address: Address
    strangers: int

    @property
    def peers(self) -> list[str]:
        """Names of the peers that are connected."""

    @property
    def handle(self) -> zmq.Socket[bytes] | int:
        """What a poller waits on."""

    @property
    def waiting(self) -> int:
        """How many connections are known to have something to read; -1 if that is not known."""

    def receive(self, timeout_s: float) -> tuple[str, Frame] | None:
        """Return a peer's name and its next frame; None if none came in time (or only a stranger's).

        Raises
        ------
        MessageRefused
            If it is none; its sender is forgotten.
        """

    def send(self, name: str, frame: Frame) -> bool:
        """Send a frame; False if the peer is gone. A large payload must not change afterwards."""

    def forget(self, name: str) -> None:
        """Receive nothing more from a peer, and send it nothing."""

    def close(self, linger_s: float) -> None:
        """Close all connections, after sending what is left or that time."""


class ClientWire(Protocol):
    """One connection to a server wire; it is not made again once it is lost."""

    @property
    def lost(self) -> bool:
        """Whether the connection is gone; frames that came before may still be read."""

    @property
    def has_frame(self) -> bool:
        """Whether there is something to read."""

    @property
    def handle(self) -> zmq.Socket[bytes] | int:
        """What a poller waits on."""

    def receive(self, timeout_s: float) -> Frame | None:
        """Return the next frame, or None if none came in time.

        Raises
        ------
        MessageRefused
            If it is none.
        """

    def send(self, frame: Frame) -> None:
        """Send a frame, or drop it if the connection is lost; a large payload must not change later."""

    def close(self, linger_s: float) -> None:
        """Close the connection, after sending what is left or that time."""
