"""The first parameter server, in the coordinator's process: executes its orders at once."""

from __future__ import annotations

from torch import Tensor

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.messages import ReleaseMessage
from psbench.backends.dask.protocol.roles import worker_number
from psbench.backends.dask.protocol.transport import ServerSocket
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.backends.dask.server.slice_server import SliceServer
from psbench.training.build import Workload


class FirstServer(SliceServer):
    """Server 0: the same orders as in `ServerProcess`, without waiting for payloads.

    The coordinator's socket gives it the payload of a push before the coordinator receives the push.

    Parameters
    ----------
    workload : Workload
    socket : ServerSocket
        The coordinator's.
    """

    def __init__(self, workload: Workload, socket: ServerSocket) -> None:
        super().__init__(workload, socket, 0)
        self._snapshot: tuple[int, Tensor] | None = None  # of a version that every worker is sent alike

    def answer(self, name: str, release: ReleaseMessage) -> None:
        """Send a worker its release, with the model or the last aggregate."""
        worker, own = worker_number(name), self.own
        assert worker is not None
        with own.busy:
            release.payload = self._answer(own, worker, release)
            self._socket.send(name, release)

    def _answer(self, own: ParameterSlice, worker: int, release: ReleaseMessage) -> Tensor:
        version, aggregate = release.version, release.aggregate
        if aggregate or not own.is_shared or release.fragment >= 0:
            return own.answer(worker, release.ticket, version, aggregate, release.fragment)
        if self._snapshot is None or self._snapshot[0] != version:
            self._snapshot = version, own.answer(worker, release.ticket, version, False, -1)
        return self._snapshot[1]

    def _begin(self, order: msg.BeginSlice) -> None:
        self._snapshot = None
        super()._begin(order)

    def _give(self, order: msg.GiveEntries) -> Message:
        self._snapshot = None
        return super()._give(order)
