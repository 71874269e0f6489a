"""Counts the connections that did not begin with the run's key, and reports them to the client."""

from __future__ import annotations

from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import Incident
from psbench.backends.dask.protocol.roles import CLIENT

#: how many times as many as were reported are reported again
_FACTOR = 10


class Strangers:
    """Unknown connections to the processes of a run.

    Parameters
    ----------
    out : Outbox
    """

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._closed: dict[str, int] = {}
        self._reported = 0

    @property
    def total(self) -> int:
        """Number of connections that all processes of the run have closed."""
        return sum(self._closed.values())

    def count(self, name: str, closed: int) -> None:
        """Take the number of connections that a process has closed so far; report the first, and many."""
        if closed:
            self._closed[name] = closed
        if self.total > self._reported and self.total >= self._reported * _FACTOR:
            self.report()

    def report(self) -> None:
        """Send the client the numbers that it does not have yet."""
        if self.total == self._reported:
            return
        self._reported = self.total
        what = "1 unknown connection was" if self.total == 1 else f"{self.total} unknown connections were"
        where = ", ".join(f"{name}: {closed}" for name, closed in sorted(self._closed.items()))
        self._out.send(CLIENT, Incident(f"{what} closed, without the run's key in time ({where})"))
