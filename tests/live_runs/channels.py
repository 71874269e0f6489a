"""Messages under way between processes: those of one pair keep their order, as TCP keeps it."""

from __future__ import annotations

from collections import deque

from psbench.backends.dask.protocol.decoder import Message


class Channels:
    """What was sent and has not arrived yet, by sender and receiver."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, str], deque[Message]] = {}

    def send(self, sender: str, receiver: str, message: Message) -> None:
        """Send a message."""
        self._under_way.setdefault((sender, receiver), deque()).append(message)

    def waiting(self) -> list[tuple[str, str]]:
        """Return the pairs between which messages are under way, in the order in which they first spoke."""
        return [pair for pair, messages in self._under_way.items() if messages]

    def arrive(self, pair: tuple[str, str]) -> Message:
        """Remove and return the oldest message between two."""
        return self._under_way[pair].popleft()

    def first(self, pair: tuple[str, str]) -> Message:
        """Return the oldest message between two."""
        return self._under_way[pair][0]

    def last(self, pair: tuple[str, str]) -> Message:
        """Return the newest message between two."""
        return self._under_way[pair][-1]

    def has(self, sender: str, receiver: str) -> bool:
        """Whether a message is under way between two."""
        return bool(self._under_way.get((sender, receiver)))

    def cut(self, sender: str, receiver: str, keep: int = 0) -> None:
        """Lose all but the oldest so many messages between two."""
        messages = self._under_way.get((sender, receiver))
        while messages and len(messages) > keep:
            messages.pop()

    def sent_by(self, name: str) -> list[tuple[str, int]]:
        """Return to whom a process has messages under way, and how many."""
        return [(to, len(sent)) for (sender, to), sent in self._under_way.items() if sender == name and sent]

    def sent_to(self, name: str) -> list[str]:
        """Return who has messages under way to a process."""
        return [sender for (sender, to), sent in self._under_way.items() if to == name and sent]
