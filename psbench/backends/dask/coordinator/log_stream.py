"""The log on its way to the client, which receives it as it grows."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.backends.dask.protocol.messages import LogRows
from psbench.backends.dask.protocol.roles import CLIENT
from psbench.backends.dask.protocol.transport import ServerSocket
from psbench.core.log import EventLog


class LogStream:
    """Sends the client the rows and texts that it does not have.

    Parameters
    ----------
    socket : ServerSocket
    log : EventLog
    """

    def __init__(self, socket: ServerSocket, log: EventLog) -> None:
        self._socket, self._log = socket, log
        self._rows_before = self._sent_rows = self._sent_texts = 0

    def resume(self, rows: int, texts: Sequence[str]) -> None:
        """Continue a log that the client has, which is not sent again."""
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
        self._sent_rows += len(rows)
        self._sent_texts += len(texts)
        self._socket.send(CLIENT, LogRows(list(texts), rows.tobytes()))
