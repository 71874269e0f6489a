"""No server: the coordinator tells workers which models to mix, and they send these to each other."""

from __future__ import annotations

from collections.abc import Iterator

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import ReleaseMessage
from psbench.backends.dask.protocol.roles import worker_name
from psbench.backends.dask.server.store import ParameterStore, Then, state_of
from psbench.core import actions as act
from psbench.training.workload import Workload


class GossipStore(ParameterStore):
    """The store where every worker has a model of its own; see `ParameterStore`.

    Parameters
    ----------
    out : Outbox
    workload : Workload
        Has the model that all workers begin with.
    workers : list of int
        Those that are connected.
    numbers : iterator of int
        Numbers for the exchanges of pairs, unique in this run.
    """

    kind = "gossip"

    def __init__(self, out: Outbox, workload: Workload, workers: list[int], numbers: Iterator[int]) -> None:
        self._out, self._workload, self._numbers = out, workload, numbers
        self._alive = set(workers)

    def mix(self, mix: act.Mix) -> None:
        """Tell the workers whose models change, and who gives one that has not sent it."""
        first = next(iter(mix.rows))
        number = -next(self._numbers) - 1
        for worker, row in mix.rows.items():
            key = mix.versions[worker] - 1 if mix.sent else number
            if mix.push < 0:
                for giver in row:
                    self._send(giver, msg.GiveModel(worker, key))
            self._send(worker, msg.MixModels(first, key, row))

    def release(self, release: act.Release, samples: int) -> None:
        """Let a worker go on from its mixture."""
        self._send(release.worker, ReleaseMessage.of(release, samples))

    def _send(self, worker: int, message: Message) -> None:
        if worker in self._alive:
            self._out.send(worker_name(worker), message)

    def leave(self, worker: int, ticket: int) -> None:
        """Have no worker wait for one that is dead."""
        self._alive.discard(worker)
        self._tell_all(msg.WorkerGone(worker, False))

    def join(self, worker: int) -> None:
        """Reckon with a worker, which is given a model when it is released."""
        self._alive.add(worker)
        self._tell_all(msg.WorkerGone(worker, True))

    def _tell_all(self, message: Message) -> None:
        for worker in sorted(self._alive):
            self._send(worker, message)

    def gather(self, states: bool, then: Then) -> None:
        """Call `then` with the model that all workers begin with; theirs are asked of them."""
        then(state_of(self._workload.server(), states))
