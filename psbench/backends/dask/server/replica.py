"""The replica: holds the last complete state of a run in memory, for when a server is lost."""

from __future__ import annotations

import time

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message, MessageRefused
from psbench.backends.dask.protocol.roles import CLIENT
from psbench.backends.dask.protocol.transport import ClientSocket, ServerSocket, Stopped
from psbench.core.log import ROW

#: seconds between looks whether the coordinator is still there
_LOOK_S = 0.25


class Replica:
    """Stores the coordinator's state, and returns it to a client that has lost the coordinator.

    That is the second place of a chain: what is acknowledged here has been applied by every server
    (primary-backup replication, as in the survey of the thesis, 3.2.6, with one replica of all slices).

    Parameters
    ----------
    socket : ServerSocket
        Where the client asks.
    coordinator : ClientSocket
    within_s : float, seconds
        How long the client may take to ask for the state, once a server is lost.
    """

    def __init__(self, socket: ServerSocket, coordinator: ClientSocket, within_s: float = 30.0) -> None:
        self._socket, self._coordinator, self._within_s = socket, coordinator, within_s
        self._rows, self._texts = bytearray(), list[str]()
        self._last: msg.KeepState | None = None
        self._is_asked = self._is_done = False

    def run(self) -> None:
        """Keep states until the run is over, or the client has taken the last one.

        Raises
        ------
        Stopped
            If the run is over.
        """
        self._coordinator.send(msg.Ready())
        while not self._is_asked:  # what it gave must stay the last state that it has acknowledged
            message = self._coordinator.receive(_LOOK_S)
            if message is not None:
                self._take(message)
            elif self._coordinator.lost:
                break
            self._serve(0)
        until = time.monotonic() + self._within_s
        while time.monotonic() < until and not self._is_done:
            self._serve(_LOOK_S)

    def _take(self, message: Message) -> None:
        if isinstance(message, msg.StopRun):
            raise Stopped
        if isinstance(message, msg.LogRows):
            self._rows += message.rows
            self._texts += message.texts
        elif isinstance(message, msg.KeepState):
            self._last = message
            self._coordinator.send(msg.StateKept(message.tag))

    def _serve(self, timeout_s: float) -> None:
        """Answer a client that has lost the connection to the coordinator."""
        try:
            received = self._socket.receive(timeout_s)
        except MessageRefused:
            return
        if received is None or received.sender != CLIENT:
            return
        if isinstance(received.message, msg.GiveStateBack):
            self._is_asked = True
            self._give(received.message)
        elif isinstance(received.message, msg.StopRun):
            self._is_asked = self._is_done = True

    def _give(self, request: msg.GiveStateBack) -> None:
        """Send the client the log that it lacks, and then the state; only a stop if it lacks too much."""
        last = self._last
        if last is None or request.rows < last.rows_before or request.texts < last.texts_before:
            self._socket.send(CLIENT, msg.StopRun())
            return
        rows, texts = last.rows_before, last.texts_before
        all_rows, all_texts = last.state["logged"]
        size = ROW.itemsize
        missing = bytes(self._rows[(request.rows - rows) * size : (all_rows - rows) * size])
        new_texts = self._texts[request.texts - texts : all_texts - texts]
        self._socket.send(CLIENT, msg.LogRows(new_texts, missing))
        self._socket.send(CLIENT, msg.StoreCheckpoint("replica", last.state, last.tensors))
