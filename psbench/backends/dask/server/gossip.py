"""Gossip store: the coordinator tells workers which models to mix; they exchange models directly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import ReleaseMessage
from psbench.backends.dask.protocol.roles import worker_name
from psbench.backends.dask.server.introductions import Introductions
from psbench.backends.dask.server.store import ParameterStore, Then, state_of
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.core.peer_to_peer import NeighbourMixing, PeerToPeer
from psbench.core.view import ClusterView, Status
from psbench.errors import WorkerLost
from psbench.training.build import Workload

#: how many versions back the oldest model is that a worker sends again when it resumes
_LATEST = 2


class GossipStore(ParameterStore):
    """The store for workers with models of their own; see `ParameterStore`.

    Parameters
    ----------
    out : Outbox
    workload : Workload
        Has the model that all workers begin with.
    view : ClusterView
    workers : list of int
        Those that are connected.
    numbers : iterator of int
        Numbers for the exchanges of pairs, unique in this run.
    introductions : Introductions
    """

    kind = "gossip"

    def __init__(
        self,
        out: Outbox,
        workload: Workload,
        view: ClusterView,
        workers: list[int],
        numbers: Iterator[int],
        introductions: Introductions,
    ) -> None:
        self._out, self._workload, self._view, self._numbers = out, workload, view, numbers
        self._introductions = introductions
        self._alive = set(workers)
        # lost, or missing as a run goes on, and not in it again: no worker waits for their models
        self._away = set(view.workers) - self._alive
        self._givers: dict[int, int] = {}  # whose model a worker begins with, until that has pushed
        self._with_model = {worker for worker in workers if self._is_under_way(worker)}

    def mix(self, mix: act.Mix) -> None:
        """Tell the workers which models to mix, and request models that were not sent."""
        if mix.push < 0:
            for worker, row in mix.rows.items():
                self._give(worker, next(iter(row)))
                again = msg.SendAgain(worker, self._view.workers[worker].ticket)
                for other in sorted(self._alive - {worker}):
                    self._introduce(other, [worker])
                    self._send(other, again)
            return
        first, number = next(iter(mix.rows)), next(self._numbers)
        for worker, row in mix.rows.items():
            if worker in self._away:  # its process may be a new one, which has no model yet
                continue
            key = mix.versions[worker] - 1 if mix.sent else -number - 1
            lost = sorted(self._away.intersection(row))  # the engine has yet to hear of them
            released = worker if mix.meet else first
            if not mix.sent:
                self._introduce(worker, row.keys() - {worker})
            self._send(worker, msg.MixModels(released, key, row, number, lost, mix.meet))

    def release(self, release: act.Release, samples: int) -> None:
        """Release a worker to continue from its mixture, or from the initial model if there is no update.

        Raises
        ------
        WorkerLost
            If it comes back, and no other has a model.
        """
        self._away.discard(release.worker)
        message = ReleaseMessage.of(release, samples)
        message.halts = self._is_dropped(release)
        has_model = message.halts or release.worker in self._with_model | self._givers.keys()
        if self._view.committed and not has_model:
            raise WorkerLost(f"worker {release.worker} returns, but no other worker has a model")
        self._with_model.add(release.worker)
        self._introduce(release.worker, self._neighbours(release.worker, release.load))
        self._send(release.worker, message)

    def repeat_messages(self, worker: int) -> None:
        """Introduce a resuming worker to the receivers of the models that it sends again."""
        version = self._view.workers[worker].version if worker in self._view.workers else 0
        for earlier in range(max(0, version - _LATEST), version + 1):
            self._introduce(worker, self._neighbours(worker, earlier))

    def _neighbours(self, worker: int, version: int) -> list[int]:
        """Return the workers that a worker sends its model of a version to without an order."""
        composition = self._workload.experiment.strategy.compositions[self._view.in_force]
        placement = composition.placement
        if not isinstance(composition.aggregation, NeighbourMixing):
            return []
        assert isinstance(placement, PeerToPeer)
        return placement.receivers(worker, version, self._view.num_workers)

    def _introduce(self, worker: int, others: Iterable[int]) -> None:
        if worker in self._alive:
            self._introductions.introduce(worker, others)

    def _is_dropped(self, release: act.Release) -> bool:
        """Return whether the releasing answer also drops the worker."""
        known = self._view.workers[release.worker]
        return known.dropped and known.ticket != release.ticket

    def _send(self, worker: int, message: Message) -> None:
        if worker in self._alive:
            self._out.send(worker_name(worker), message)

    # ---------------------------------------------------------------- workers that come and go

    def arrived(self, push: Push) -> None:
        """Record that a worker has a model, unless its push precedes a restart."""
        if push.ticket == self._view.workers[push.worker].ticket:
            self._givers.pop(push.worker, None)

    def forget(self, worker: int) -> None:
        """Record that a worker discards its model, or waits for none."""
        self._givers.pop(worker, None)
        self._with_model.discard(worker)

    def leave(self, worker: int, ticket: int) -> None:
        """Release workers from waiting for a dead one; another worker sends its models.

        Raises
        ------
        WorkerLost
            If no other has a model.
        """
        self._alive.discard(worker)
        self._away.add(worker)
        self.forget(worker)
        gone = msg.NeighbourLost(worker, next(self._numbers))
        for other in sorted(self._alive):
            self._send(other, gone)
        for joining in [each for each, giver in self._givers.items() if giver == worker]:
            self._give(joining, worker)

    def join(self, worker: int) -> None:
        """Include a worker: others wait for its models once it is in the run again."""
        self._alive.add(worker)

    def _give(self, worker: int, giver: int) -> None:
        """Give a worker another worker's model, or the next one's if that worker is lost."""
        is_lost = giver not in self._alive - self._away
        if is_lost:
            giver = self._another_giver()
        self._givers[worker] = giver
        self._away.discard(worker)
        number = next(self._numbers)
        self._introduce(giver, [worker])
        self._send(giver, msg.GiveModel(worker, -number - 1, at_once=is_lost))
        self._send(worker, msg.MixModels(worker, -number - 1, {giver: 1.0}, number))

    def _another_giver(self) -> int:
        for worker in sorted(self._alive - self._away - self._givers.keys()):
            if self._is_under_way(worker):
                return worker
        raise WorkerLost("every worker that has a model is lost")

    def _is_under_way(self, worker: int) -> bool:
        """Return whether a worker is in the run and was released."""
        known = self._view.workers.get(worker)
        return known is not None and known.status not in (Status.NEW, Status.GONE)

    def gather(self, states: bool, then: Then) -> None:
        """Call `then` with the initial model; the workers' models are requested from them."""
        then(state_of(self._workload.server(), states))
