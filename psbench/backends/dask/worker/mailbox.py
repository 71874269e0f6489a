"""A worker's letters from the conductor, and those it keeps because they came at the wrong time."""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor

from psbench.backends.dask.protocol.transport import JSON, ClientSocket, Message

#: seconds between looks whether the conductor is still there, while there is nothing to do
LOOK_S = 0.25


class Stopped(Exception):
    """The conductor has sent us home."""


class Abandoned(Stopped):
    """The conductor is gone."""


class Mailbox:
    """What the conductor writes to a worker.

    Parameters
    ----------
    link : Link
        To the conductor.
    """

    def __init__(self, link: ClientSocket) -> None:
        self.link = link
        self._kept: deque[Message] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether there is surely nothing to read; much quicker to find out than by trying."""
        return not (self._kept or self.link.has_letter)

    def next(self, timeout_s: float) -> Message | None:
        """Return the next letter, those kept first; None if none comes in time.

        Raises
        ------
        Abandoned
            If the conductor is gone.
        """
        return self._kept.popleft() if self._kept else self.fresh(timeout_s)

    def fresh(self, timeout_s: float) -> Message | None:
        """Return the next letter that was not read before."""
        letter = self.link.receive(timeout_s)
        if letter is None and timeout_s:
            self.check()
        return letter

    def check(self) -> None:
        """Raise Abandoned if the conductor is gone."""
        if self.link.lost:
            raise Abandoned("the conductor is gone")

    def look(self) -> None:
        """Keep a letter that came while we wait for somebody else, or stop if it says so."""
        letter = self.link.receive(0)
        if letter is not None:
            self.keep(letter)
        else:
            self.check()

    def keep(self, letter: Message) -> None:
        """Keep a letter for later, or stop if it says so."""
        if letter.kind == JSON and letter.plain["do"] == "stop":
            raise Stopped
        self._kept.append(letter)

    def put_back(self, letter: Message) -> None:
        """Let a letter be the next again."""
        self._kept.appendleft(letter)

    def tell(self, plain: dict[str, Any], payload: Tensor | None = None) -> None:
        """Write plain data to the conductor."""
        self.link.tell(plain, payload)
