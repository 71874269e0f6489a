"""Types and times that the files of the wire share; the head of a frame is in `connection`."""

from __future__ import annotations

from typing import NamedTuple, Self

from torch import Tensor

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


class Closing:
    """Closes itself at the end of a `with` block."""

    def close(self, linger_s: float = LINGER_S) -> None:
        """Close after the remaining messages are sent, or after `linger_s`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class PeerPatience(NamedTuple):
    """Seconds after which a peer counts as gone, even if its connection was never closed.

    `silence_s` is that without a sign of life, and `first_word_s` that before its first word: a server that
    still loads its data does not answer yet. See `ConnectionSettings`, from whose fields they come.
    """

    silence_s: float = 15.0
    first_word_s: float = 180.0


def patience_of(limits: ConnectionSettings) -> PeerPatience:
    """Return the timeouts between the processes of a run."""
    return PeerPatience(limits.silence_s, limits.start_within_s)


class Listening(NamedTuple):
    """The addresses of a server, and the limits of the messages that it takes.

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
        first, last = self.ports or (0, 0)
        return BackendError(f"connection.ports: none of {first} to {last} is free on {host}")
