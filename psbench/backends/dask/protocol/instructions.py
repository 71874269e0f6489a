"""The inputs of a live run, and its outputs: instructions for its process.

Both are plain data, so a test can write the ones and compare the others, with `==`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from msgspec import Struct

from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.messages import ReleaseMessage
from psbench.backends.dask.protocol.roles import server_name
from psbench.backends.dask.protocol.transport import Received

#: the parameter server in the coordinator's process: it is sent messages and answers them as the others do
FIRST_SERVER = server_name(0)


# -------------------------------------------------------------------- inputs
class Refused(NamedTuple):
    """A peer has sent a message that cannot be decoded; its connection is closed."""

    sender: str


class Looked(NamedTuple):
    """The answer to `Look`: the lost peers, and the number of rejected strangers."""

    dead: tuple[str, ...]
    strangers: int = 0


class Tick(NamedTuple):
    """Time has passed."""


Input: TypeAlias = Received | Refused | Looked | Tick


# -------------------------------------------------------------------- instructions
class Send(Struct):
    """Send a message to a peer; ignored if the peer is lost."""

    to: str
    message: Message


class Answer(Struct):
    """Send a worker its release, with the first server's slice of the answer."""

    to: str
    message: ReleaseMessage


class Forget(Struct):
    """Close the connection of a peer."""

    name: str


class Look(Struct):
    """Check which of these peers are lost, and answer with `Looked`."""

    names: tuple[str, ...]


class End(Struct):
    """The run is over; the coordinator's task raises `error`, if there is one."""

    error: BaseException | None = None


Instruction: TypeAlias = Send | Answer | Forget | Look | End


class Outbox:
    """The instructions of one call, in order."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []

    def send(self, name: str, message: Message) -> None:
        self._instructions.append(Send(name, message))

    def answer(self, name: str, message: ReleaseMessage) -> None:
        """Send a worker its release with the first server's slice."""
        self._instructions.append(Answer(name, message))

    def add(self, instruction: Instruction) -> None:
        """Give another instruction."""
        self._instructions.append(instruction)

    def take(self) -> list[Instruction]:
        """Return the instructions since the last call."""
        taken, self._instructions = self._instructions, []
        return taken
