"""The log on its way to the client, which has it as it grows."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from psbench.backends.dask.protocol.roles import CLIENT
from psbench.backends.dask.protocol.transport import FIRST_FREE_KIND, ServerSocket
from psbench.core.log import EventLog, plain_json

#: new rows of the log, for the client: length of the texts, texts as JSON, packed rows
ROWS = FIRST_FREE_KIND + 3
TEXTS = struct.Struct("<I")


class LogStream:
    """Sends the client what it does not have.

    Parameters
    ----------
    hub : Hub
    log : EventLog
    """

    def __init__(self, hub: ServerSocket, log: EventLog) -> None:
        self._hub, self._log = hub, log
        self._rows_before = self._sent_rows = self._sent_texts = 0

    def go_on(self, rows: int, texts: Sequence[str]) -> None:
        """Go on from a log that the client has, which is not sent again."""
        for text in texts:
            self._log.number(text)
        self._rows_before, self._sent_texts = rows, len(texts)

    @property
    def logged(self) -> tuple[int, int]:
        """Rows and texts of the log so far."""
        return self._rows_before + len(self._log), len(self._log.texts)

    def send(self) -> None:
        """Send what the log has grown by."""
        rows, texts = self._log.rows(self._sent_rows), self._log.texts[self._sent_texts :]
        if not len(rows):
            return
        written = plain_json(list(texts)).encode()
        self._sent_rows += len(rows)
        self._sent_texts += len(texts)
        self._hub.send(CLIENT, ROWS, TEXTS.pack(len(written)) + written + rows.tobytes())
