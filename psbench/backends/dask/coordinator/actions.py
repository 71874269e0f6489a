"""How the engine's actions are performed in a live run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from psbench.backends.dask.coordinator.evaluation import Evaluation
from psbench.backends.dask.coordinator.measurements import Measurements
from psbench.backends.dask.coordinator.peers import Peers
from psbench.backends.dask.coordinator.replica_averaging import ReplicaAveraging
from psbench.backends.dask.coordinator.timers import Timers
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import State
from psbench.backends.dask.protocol.roles import worker_name
from psbench.backends.dask.protocol.transport import ServerSocket
from psbench.backends.dask.server.all_reduce import AllReduceStore
from psbench.backends.dask.server.parameter_server import ParameterServerStore, as_lists
from psbench.backends.dask.server.store import ParameterStore, key_of, model_of, state_of
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView
from psbench.training.workload import Workload


class ActionPerformer:
    """Performs actions one after another, with the parameter store of the current composition.

    Parameters
    ----------
    workload : Workload
    socket : ServerSocket
    view : ClusterView
        The engine's.
    peers : Peers
    timers : Timers
    measurements : Measurements
    averaging : ReplicaAveraging
    evaluation : Evaluation
    numbers : iterator of int
        Numbers for requests that nobody had before in this run.
    composed : callable
        Called with a composition that begins, or whose ranges change, and the bytes of its pushes.
    pause : callable
        Handles messages for so many seconds.
    until : callable
        Handles messages until a condition holds.
    """

    def __init__(
        self,
        workload: Workload,
        socket: ServerSocket,
        view: ClusterView,
        peers: Peers,
        timers: Timers,
        measurements: Measurements,
        averaging: ReplicaAveraging,
        evaluation: Evaluation,
        numbers: Iterator[int],
        *,
        composed: Callable[[Strategy, int], None],
        pause: Callable[[float], None],
        until: Callable[[Callable[[], bool]], None],
    ) -> None:
        self._workload, self._socket, self._view, self._peers = workload, socket, view, peers
        self._timers, self._measurements, self._averaging = timers, measurements, averaging
        self._evaluation, self._numbers = evaluation, numbers
        self._composed, self._pause, self._until = composed, pause, until
        self.store: ParameterStore
        self.composition: Strategy
        self.pushes_raw_gradients = False  #: of the composition; finding out takes as long as a small update
        self._holds_versions = False
        self._performers: dict[type[Action], Callable[[Any], None]] = {
            act.Release: self._release,
            act.Apply: self._apply,
            act.Discard: lambda discard: self.store.discard(key_of(discard.push)),
            act.Drop: lambda drop: self.halt(drop.worker),
            act.Tell: self._send_orders,
            act.SetTimer: self._set_timer,
            act.Measure: self._measure,
            act.Handover: self._hand_over,
            act.Reassign: self._reassign,
        }

    def use(self, index: int, state: State | None, codec_counters: dict[str, int] | None = None) -> None:
        """Begin under a composition with a new store; without a state it begins where the workload does.

        With `codec_counters` the state is of a checkpoint.
        """
        workload = self._workload
        composition = self.composition = workload.experiment.strategy.compositions[index]
        self.pushes_raw_gradients = composition.pushes_raw_gradients
        self._holds_versions = composition.holds_versions
        self._evaluation.compose(composition)
        if composition.placement.collective:
            workers = self._peers.workers()
            self.store = AllReduceStore(self._socket, workers, state, self._numbers)
        else:
            state = state or state_of(workload.server(), states=True)
            ranges = None if codec_counters is None else self._view.ranges
            self.store = ParameterServerStore(
                self._socket, workload, index, state, self._numbers, ranges, codec_counters
            )
        size = workload.wire_size
        self._composed(composition, composition.bytes_up(size, workload.profile.num_workers))

    def perform(self, action: Action) -> None:
        """Perform an action.

        A `Hold` is silence; after a `Cancel` comes the `Release` that the worker finds between two steps.
        """
        performer = self._performers.get(type(action))
        if performer is not None:
            performer(action)

    def halt(self, worker: int) -> None:
        """Have a worker forget what it computes; it restarts with its next release."""
        self._socket.send(worker_name(worker), msg.Halt())
        self.store.forget(worker)
        self._averaging.leave(worker)

    def _release(self, release: act.Release) -> None:
        view = self._view
        if self._holds_versions:
            in_use = {w.base_version for w in view.workers.values()} | {release.load}
            self.store.hold(release.load, in_use | {push.base_version for push in view.pending.values()})
        self.store.release(release, view.workers[release.worker].batch_size)

    def _apply(self, apply: act.Apply) -> None:
        self.store.apply(apply)
        if self.pushes_raw_gradients:
            self._evaluation.after_update()

    def _send_orders(self, tell: act.Tell) -> None:
        self._socket.send(worker_name(tell.worker), msg.NewOrders(tell.orders))

    def _set_timer(self, timer: act.SetTimer) -> None:
        self._timers.add(timer.at, ev.Timer(timer.key, timer.composition_id))

    def _measure(self, measure: act.Measure) -> None:
        self._measurements.measure(measure, self.store, self._view.pending)

    def _reassign(self, change: act.Reassign) -> None:
        """Move entries while no message is under way, and tell the workers to which servers."""
        done: list[bool] = []
        self.store.reassign(change.ranges, lambda: done.append(True))
        self._send_workers(msg.ChangeRanges(as_lists(change.ranges)))
        size = self._workload.wire_size._replace(ranges=change.ranges)
        num_workers = self._workload.profile.num_workers
        self._composed(self.composition, self.composition.bytes_up(size, num_workers))
        self._until(lambda: bool(done))

    def _hand_over(self, handover: act.Handover) -> None:
        """Move the model from its old store to a new one, while everybody is idle."""
        state = self._evaluation.await_state(lambda then: self.store.gather(True, then))
        if handover.forgets_momentum:
            state = model_of(state)
        self._send_workers(msg.ChangeComposition(handover.to))
        self.use(handover.to, state)
        self._pause(handover.cost_s)

    def _send_workers(self, message: Message) -> None:
        for worker in self._peers.workers():
            self._socket.send(worker_name(worker), message)
