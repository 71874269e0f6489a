"""The thread that sends queued frames, for all stream connections of a process.

A sender never waits: a worker goes on computing while its push is under way, and two processes that send
each other more than the system buffers do not block each other. The thread gives signs of life too. It ends
with the last connection.
"""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import suppress

from psbench.backends.dask.protocol.connection import Connection
from psbench.backends.dask.protocol.wire import HEARTBEAT_S


class Sender:
    """Sends queues and signs of life of the connections that were added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._waking: tuple[int, int] | None = None  # the ends of a pipe, while the thread runs

    def add(self, connection: Connection) -> None:
        """Send for a connection until it is removed."""
        with self._lock:
            self._connections.add(connection)
            if self._waking is None:
                self._waking = os.pipe()
                os.set_blocking(self._waking[1], False)
                threading.Thread(target=self._run, name="psbench-sender", daemon=True).start()

    def remove(self, connection: Connection) -> None:
        """Remove a connection."""
        with self._lock:
            self._connections.discard(connection)
            last = not self._connections
        if last:
            self.wake()

    def wake(self) -> None:
        """Wake the thread to send the queues now."""
        with self._lock:
            if self._waking is not None:
                with suppress(BlockingIOError):  # it has been woken already
                    os.write(self._waking[1], b"w")

    def _run(self) -> None:
        while (connections := self._under_way()) is not None:
            self._send(connections)
            now = time.monotonic()
            for connection in connections:
                connection.beat(now)

    def _under_way(self) -> list[Connection] | None:
        """Return the connections; None if there are none, which ends the thread."""
        with self._lock:
            if self._connections:
                return list(self._connections)
            assert self._waking is not None
            for end in self._waking:
                os.close(end)
            self._waking = None
            return None

    def _send(self, connections: list[Connection]) -> None:
        """Wait until something can be sent, until it is woken, or until a sign of life is due."""
        assert self._waking is not None
        poller, waking = select.poll(), self._waking[0]
        poller.register(waking, select.POLLIN)
        queued = {each.fileno(): each for each in connections if each.has_queue}
        for number, connection in queued.items():
            poller.register(number, connection.waits_for)
        for number, _ in poller.poll(HEARTBEAT_S * 500):
            if number == waking:
                os.read(waking, 1 << 12)
            else:
                queued[number].flush()


#: of this process
SENDER = Sender()
