"""The log on its way to the client, which receives it as it grows, and to the replica if there is one."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import LogRows
from psbench.backends.dask.protocol.roles import CLIENT
from psbench.core.log import EventLog


class LogStream:
    """Sends a peer the rows and texts that it does not have.

    Parameters
    ----------
    out : Outbox
    log : EventLog
    to : str
        The peer.

    Attributes
    ----------
    held : bool
        Whether nothing is sent, as the last rows are of an update that the replica does not have yet.
    """

    def __init__(self, out: Outbox, log: EventLog, to: str = CLIENT) -> None:
        self._out, self._log, self._to = out, log, to
        self._rows_before = self._sent_rows = self._sent_texts = 0
        self.held = False

    def resume(self, rows: int, texts: Sequence[str]) -> None:
        """Continue a log that the client has, which is not sent again."""
        for text in texts:
            self._log.number(text)
        self._rows_before, self._sent_texts = rows, len(texts)

    @property
    def logged(self) -> tuple[int, int]:
        """Rows and texts of the log so far."""
        return self._rows_before + len(self._log), len(self._log.texts)

    @property
    def sent(self) -> tuple[int, int]:
        """Rows and texts that were sent, or that the peer had."""
        return self._rows_before + self._sent_rows, self._sent_texts

    def begin_where(self, other: LogStream) -> None:
        """Send from now on what another stream has not sent."""
        self._rows_before = other._rows_before
        self._sent_rows, self._sent_texts = other._sent_rows, other._sent_texts

    def send(self) -> None:
        """Send what the log has grown by."""
        if self.held:
            return
        rows, texts = self._log.rows(self._sent_rows), self._log.texts[self._sent_texts :]
        if not len(rows):
            return
        self._sent_rows += len(rows)
        self._sent_texts += len(texts)
        self._out.send(self._to, LogRows(list(texts), rows.tobytes()))
