"""How the engine's actions are performed in a live run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from psbench.backends.dask.coordinator.evaluation import HOLDERS, Evaluation
from psbench.backends.dask.coordinator.measurements import Measurements
from psbench.backends.dask.coordinator.pushes import PushIntake
from psbench.backends.dask.coordinator.reduction import Reduction
from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait, answered
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import FIRST_SERVER
from psbench.backends.dask.protocol.roles import server_name, servers_of, worker_name
from psbench.backends.dask.server.all_reduce import AllReduceStore
from psbench.backends.dask.server.gossip import GossipStore
from psbench.backends.dask.server.parameter_server import ParameterServerStore, as_lists
from psbench.backends.dask.server.sharded import ShardedStore
from psbench.backends.dask.server.store import key_of, model_of, state_of
from psbench.backends.pushes import bases_of_updates, bytes_of_pushes
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.strategy import Strategy
from psbench.core.view import Status
from psbench.core.wire_size import WireSize


class ActionPerformer:
    """Performs actions one after another, with the parameter store of the current composition."""

    def __init__(
        self,
        run: RunState,
        measurements: Measurements,
        evaluation: Evaluation,
        pushes: PushIntake,
        reduction: Reduction,
    ) -> None:
        self._run, self._out, self._view = run, run.out, run.view
        self._measurements, self._evaluation = measurements, evaluation
        self._pushes, self._reduction = pushes, reduction
        self.keeps_steps = False  #: of the composition
        self._holds_versions = False
        self._bases = set[int]()  # of the updates of an answer
        self._performers: dict[type[Action], Callable[[Any], Script[None] | None]] = {
            act.Release: self._release,
            act.Apply: self._apply,
            act.Discard: lambda discard: run.store.discard(key_of(discard.push)),
            act.Drop: lambda drop: self.halt(drop.worker),
            act.Tell: self._send_orders,
            act.SetTimer: self._set_timer,
            act.Measure: self._measure,
            act.Handover: self._hand_over,
            act.Reassign: self._reassign,
            act.Mix: self._mix,
        }

    def use(self, index: int, state: StateDict | None, codec_counters: dict[str, int] | None = None) -> None:
        """Begin under a composition with a new store; without a state it begins where the workload does.

        With `codec_counters` the state is of a checkpoint.
        """
        run, out = self._run, self._out
        workload = run.workload
        composition = run.composition = workload.experiment.strategy.compositions[index]
        self.keeps_steps = composition.keeps_steps or composition.placement.peer_to_peer
        self._holds_versions = composition.holds_versions
        self._evaluation.compose(composition)
        if composition.placement.collective:
            for number in range(max(1, servers_of(composition))):  # they have none
                out.send(server_name(number), msg.BeginSlice(index, None, None, {}))
            store = ShardedStore if composition.placement.gathers else AllReduceStore
            run.store = store(out, self._members(composition), state, run.numbers)
        elif composition.placement.peer_to_peer:
            out.send(FIRST_SERVER, msg.BeginSlice(index, None, None, {}))
            run.store = GossipStore(out, workload, run.view, run.peers.workers(), run.numbers)
        else:
            state = state or state_of(workload.server(), states=True)
            ranges = None if codec_counters is None else self._view.ranges
            run.store = ParameterServerStore(out, workload, index, state, run.numbers, ranges, codec_counters)
        for worker in run.peers.lost_workers:  # of which servers that had no part in the run have not heard
            run.store.leave(worker, run.view.last_ticket(worker))
        run.has_store = True
        self._compose(workload.wire_size)

    def _members(self, composition: Strategy) -> list[int]:
        """Return who is to hold the model: all that are here; of shares none that is out of the run."""
        here, known = self._run.peers.workers(), self._view.workers
        if not (composition.placement.gathers and known):
            return here
        return [each for each in here if each in known and known[each].status is not Status.GONE]

    def _compose(self, size: WireSize) -> None:
        """Take note of a composition that begins, or whose ranges have changed."""
        run = self._run
        composition = run.composition
        bytes_up = bytes_of_pushes(composition, size, run.workload.profile.num_workers)
        self._pushes.compose(bytes_up, composition.reads)
        if run.rules.sees_movement:
            run.store.ask_movement(lambda _: None)  # it is measured from now on

    def begin(self, actions: Sequence[Action]) -> None:
        """Take note of an answer that is to be performed."""
        if self._holds_versions:
            self._bases = bases_of_updates(actions)

    def perform(self, action: Action) -> Script[None] | None:
        """Perform an action; what is returned is to be done before the next one.

        A `Hold` is silence; after a `Cancel` comes the `Release` that the worker finds between two steps.
        """
        performer = self._performers.get(type(action))
        return None if performer is None else performer(action)

    def halt(self, worker: int) -> None:
        """Have a worker forget what it computes; it restarts with its next release."""
        self._out.send(worker_name(worker), msg.Halt())
        self._run.store.forget(worker)
        self._run.averaging.leave(worker)

    def _release(self, release: act.Release) -> None:
        view = self._view
        if self._is_of_lost(release):
            self._evaluation.do_without_model(release.worker)
            return
        if self._holds_versions:
            in_use = {w.base_version for w in view.workers.values()} | {release.load} | self._bases
            self._run.store.hold(release.load, in_use | {push.base_version for push in view.pending.values()})
        self._run.store.release(release, view.workers[release.worker].batch_size)

    def _is_of_lost(self, release: act.Release) -> bool:
        """Return whether a release is of a worker that was lost meanwhile: another may have its name by now.

        The engine has yet to hear of it, or has heard in this answer, after the release: perhaps
        that the worker is back, too. One that is dropped in this answer has a process still; without a server
        it is to send what it was released with, which others mix.
        """
        run, worker = self._run, release.worker
        now = self._view.workers[worker]
        is_dropped = now.dropped and now.ticket == release.ticket + 1
        has_left = now.status in (Status.GONE, Status.NEW) or now.ticket != release.ticket
        if is_dropped and run.composition.placement.peer_to_peer:
            has_left = False
        if has_left or worker_name(worker) in run.peers.gone:
            return True
        events = run.events
        return bool(events) and any(type(event) is ev.Leave and event.worker == worker for event in events)

    def _apply(self, apply: act.Apply) -> Script[None] | None:
        if isinstance(self._run.store, AllReduceStore):
            return self._reduce_and_apply(apply)
        return self._make_version(apply)

    def _reduce_and_apply(self, apply: act.Apply) -> Script[None]:
        store = self._run.store
        yield from self._reduction.of(apply)
        # a worker that has made the next version cannot stand in for one that was asked for this and is lost
        yield Wait(lambda: not store.awaits_replies, lambda: HOLDERS)
        if (script := self._make_version(apply)) is not None:
            yield from script

    def _make_version(self, apply: act.Apply) -> Script[None] | None:
        self._run.store.apply(apply)
        if apply.version != self._view.version or self.keeps_steps:
            return None  # of several updates in an answer the view is at the last, and so are the rules
        return self._evaluation.after_update() if self._evaluation.may_be_due else None

    def _mix(self, mix: act.Mix) -> None:
        assert isinstance(self._run.store, GossipStore)
        self._run.store.mix(mix)

    def _send_orders(self, tell: act.Tell) -> None:
        self._out.send(worker_name(tell.worker), msg.NewOrders(tell.orders))

    def _set_timer(self, timer: act.SetTimer) -> None:
        self._run.timers.add(timer.at, ev.Timer(timer.key, timer.composition_id))

    def _measure(self, measure: act.Measure) -> None:
        self._measurements.measure(measure, self._run.store, self._view.pending)

    def _reassign(self, change: act.Reassign) -> Script[None]:
        """Move entries while no message is under way, and tell the workers to which servers."""
        done: list[bool] = []
        self._run.store.reassign(change.ranges, lambda: done.append(True))
        self._send_workers(msg.ChangeRanges(as_lists(change.ranges)))
        self._compose(self._run.workload.wire_size._replace(ranges=change.ranges))
        yield Wait(lambda: bool(done), lambda: "the parameter servers (entries are moving)")

    def _hand_over(self, handover: act.Handover) -> Script[None]:
        """Move the model from its old store to a new one, while every worker is idle."""
        run = self._run
        state = yield from answered(partial(run.store.gather, True), HOLDERS)
        yield Wait(lambda: not run.store.awaits_replies, lambda: HOLDERS)  # for an evaluation, say
        averaged = self.keeps_steps
        if handover.forgets_momentum:
            state = model_of(state)
        self._send_workers(msg.ChangeComposition(handover.to))
        self.use(handover.to, state)
        if (
            averaged and not self.keeps_steps
        ):  # the end of the answer, at which a mean is evaluated, is too late
            yield from self._evaluation.after_update()
        end = run.now + handover.cost_s
        yield Wait(lambda: run.now >= end or bool(run.ending), lambda: "the time that a switch takes")

    def _send_workers(self, message: Message) -> None:
        for worker in self._run.peers.workers():
            self._out.send(worker_name(worker), message)
