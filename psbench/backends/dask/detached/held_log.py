"""The log that a director holds for its readers."""

from __future__ import annotations

import threading
from typing import NamedTuple

from psbench.core.log import EventLog

#: rows in one answer, of 47 bytes each
_MOST_ROWS = 20_000


class LogPart(NamedTuple):
    """The part of a log that a reader lacks.

    Attributes
    ----------
    cuts : list of (rows, texts)
        The lengths to which the log was cut since the reader's last part, in order.
    rows : bytes
        Packed rows after that; the next part has the others, if there are more than 20,000.
    texts : list of str
    """

    cuts: list[tuple[int, int]]
    rows: bytes
    texts: list[str]

    def __bool__(self) -> bool:
        return bool(self.cuts or self.rows)


class HeldLog(EventLog):
    """A log that any number of readers follow, each from its own place.

    The log counts its cuts, as its length does not show that it was cut and has grown again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cutting, self._cuts = threading.Lock(), list[tuple[int, int]]()

    def truncate(self, rows: int, texts: int) -> None:
        """Keep only the first rows and texts, and record the cut."""
        with self._cutting:
            super().truncate(rows, texts)
            self._cuts.append((rows, texts))

    def part_after(self, cuts: int, rows: int, texts: int) -> LogPart:
        """Return the next part for a reader that has seen so many cuts and has so many rows and texts."""
        with self._cutting:
            new = self._cuts[cuts:]
            for left_rows, left_texts in new:
                rows, texts = min(rows, left_rows), min(texts, left_texts)
            # rows first: the text of a row is there before the row
            return LogPart(new, self.rows(rows, rows + _MOST_ROWS).tobytes(), [*self.texts[texts:]])
