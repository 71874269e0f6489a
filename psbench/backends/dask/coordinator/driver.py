"""The driver of a live run: performs the engine's answers with the parameter store of the composition.

An answer is performed in this order: the model, then a checkpoint and the replica, then releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from psbench.backends.checkpointing import split_at_model
from psbench.backends.dask.coordinator import checkpointing, evaluation, pushes
from psbench.backends.dask.coordinator.evaluation import HOLDERS
from psbench.backends.dask.coordinator.held_versions import HeldVersions, versions_in
from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait, answered
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import FIRST_SERVER
from psbench.backends.dask.protocol.roles import CLIENT, server_name, servers_of, worker_name
from psbench.backends.dask.server.all_reduce import AllReduceStore
from psbench.backends.dask.server.gossip import GossipStore
from psbench.backends.dask.server.parameter_server import ParameterServerStore, as_lists
from psbench.backends.dask.server.ring_order import RingOrder
from psbench.backends.dask.server.sharded import ShardedStore
from psbench.backends.dask.server.store import key_of, model_of, state_of
from psbench.backends.pushes import bases_of_updates, bytes_of_pushes
from psbench.clusters import Network
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.collective import Collective, Shares
from psbench.core.driver import Driver, makes_newest, timer_of
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.strategy import Strategy
from psbench.core.view import Status
from psbench.core.wire_size import WireSize


class LiveDriver(Driver[Script[None]]):
    """Performs the engine's answers one after another.

    The method of an action returns a script if something is to be waited for before the next action.
    """

    def __init__(self, run: RunState) -> None:
        super().__init__(run.view, run.ending)
        self._run, self._out = run, run.out

    # ---------------------------------------------------------------- answers

    def perform(self, actions: Sequence[Action]) -> Script[None]:
        """Perform an answer: model updates, then a checkpoint, then releases."""
        run, ending = self._run, self.ending
        if run.averages:
            evaluation.before_answer(run, actions)
        if run.held is not None:
            run.bases = bases_of_updates(actions)
        label, is_kept = checkpointing.due(run, actions), checkpointing.must_keep(run, actions)
        if label or is_kept:
            make, actions = split_at_model(actions)
            if (yield from self._perform_each(make, completely=bool(label))) or ending.status == "finished":
                if is_kept:
                    yield from checkpointing.keep(run, actions)
                if label:
                    checkpointing.write(run, label, actions)
        if not (yield from self._perform_each(actions)):
            evaluation.after_answer(run)  # releases with which models were asked for are not sent
            return
        if run.averages:  # steps that are kept after a vote count too
            yield from evaluation.after_update(run)
            ending.unanswered = bool(ending)
        if not ending.status:
            evaluation.after_answer(run)

    def _perform_each(self, actions: Sequence[Action], completely: bool = False) -> Script[bool]:
        """Perform actions, and return whether the run continues.

        Those of the version with which it finishes are performed `completely` if a checkpoint is written.
        """
        run, ending, performers = self._run, self.ending, self.performers
        if ending.status:
            ending.unanswered = ending.unanswered or any(type(action) is act.Release for action in actions)
            return False
        for action in actions:
            script = performers[type(action)](action, run.now)
            if script is not None:
                yield from script
            if self.ending.status and ending.cuts_answer(completely):
                return False
        return not ending.status

    # ---------------------------------------------------------------- compositions

    def use(self, index: int, state: StateDict | None, codec_counters: dict[str, int] | None = None) -> None:
        """Start using a composition with a new store, from a state or from the initial model.

        With `codec_counters` the state is of a checkpoint.
        """
        run, out = self._run, self._out
        workload = run.workload
        composition = run.composition = workload.experiment.strategy.compositions[index]
        run.averages = composition.keeps_steps or isinstance(composition.placement, PeerToPeer)
        run.held = HeldVersions(self.view, versions_in(state)) if composition.holds_versions else None
        if isinstance(composition.placement, Collective):
            for number in range(max(1, servers_of(composition))):  # they have none
                out.send(server_name(number), msg.BeginSlice(index, None, None, {}))
            store = ShardedStore if isinstance(composition.placement, Shares) else AllReduceStore
            facts = run.introductions, composition.aggregation, self._ring_order(composition)
            run.store = store(out, self._members(composition), state, run.numbers, *facts)
        elif isinstance(composition.placement, PeerToPeer):
            out.send(FIRST_SERVER, msg.BeginSlice(index, None, None, {}))
            workers, numbers = run.peers.workers(), run.numbers
            run.store = GossipStore(out, workload, run.view, workers, numbers, run.introductions)
        else:
            state = state or state_of(workload.server(), states=True)
            ranges = None if codec_counters is None else self.view.ranges
            run.store = ParameterServerStore(out, workload, index, state, run.numbers, ranges, codec_counters)
        for worker in run.peers.lost_workers:  # of which servers that had no part in the run have not heard
            run.store.leave(worker, run.view.last_ticket(worker))
        run.has_store = True
        self._measure_pushes(workload.wire_size)

    def _ring_order(self, composition: Strategy) -> RingOrder:
        run, placement = self._run, composition.placement
        assert isinstance(placement, Collective)
        codec, size = composition.communication.codec, run.workload.wire_size
        num_bytes = size.of(codec, placement, None, composition.vectors_of_a_push)

        def say(text: str) -> None:
            self._out.send(CLIENT, msg.Incident(text))

        network = Network(run.workload.profile)
        return RingOrder(placement, network, num_bytes, run.peers.address_of, say)

    def _members(self, composition: Strategy) -> list[int]:
        """Return the members of the model's store: the present workers; with shares, those in the run."""
        here, known = self._run.peers.workers(), self.view.workers
        if not (isinstance(composition.placement, Shares) and known):
            return here
        return [each for each in here if each in known and known[each].status is not Status.GONE]

    def _measure_pushes(self, size: WireSize) -> None:
        """Set the measurements of pushes and updates for a new composition or new entry ranges."""
        run = self._run
        run.pushes.bytes_up = bytes_of_pushes(run.composition, size, run.workload.profile.num_workers)
        run.pushes.reads = run.composition.reads
        if run.rules.sees_movement:
            run.store.ask_movement(lambda _: None)  # it is measured from now on

    def hand_over(self, handover: act.Handover, now: float) -> Script[None]:
        """Move the model from its old store to a new one, while all workers are idle."""
        run = self._run
        state = yield from answered(partial(run.store.gather, True), HOLDERS)
        yield Wait(lambda: not run.store.awaits_replies, lambda: HOLDERS)  # for an evaluation, say
        averaged = run.averages
        if handover.forgets_momentum:
            state = model_of(state)
        self._send_workers(msg.ChangeComposition(handover.to))
        self.use(handover.to, state)
        if averaged and not run.averages:
            # the end of the answer, at which a mean is evaluated, is too late
            yield from evaluation.after_update(run)
        end = run.now + handover.cost_s
        yield Wait(lambda: run.now >= end or bool(run.ending), lambda: "the time that a switch takes")

    def reassign(self, change: act.Reassign, now: float) -> Script[None]:
        """Move entries while no message is in transit, and send the workers the new ranges."""
        done: list[bool] = []
        self._run.store.reassign(change.ranges, lambda: done.append(True))
        self._send_workers(msg.ChangeRanges(as_lists(change.ranges)))
        self._measure_pushes(self._run.workload.wire_size._replace(ranges=change.ranges))
        yield Wait(lambda: bool(done), lambda: "the parameter servers (entries are moving)")

    def _send_workers(self, message: Message) -> None:
        for worker in self._run.peers.workers():
            self._out.send(worker_name(worker), message)

    # ---------------------------------------------------------------- workers

    def release(self, release: act.Release, now: float) -> None:
        """Send a release, unless its worker was lost: a new process may carry its name.

        The engine has not received that loss yet.
        """
        run = self._run
        if self._is_lost(release.worker):
            evaluation.do_without_model(run, release.worker)
            return
        if run.held is not None:
            order = run.held.release(release.worker, release.load, run.bases)
            if order is not None:
                run.store.hold(order)
        run.store.release(release, self.view.workers[release.worker].batch_size)

    def _is_lost(self, worker: int) -> bool:
        run = self._run
        if worker_name(worker) in run.peers.gone:
            return True
        events = run.events
        return bool(events) and any(type(event) is ev.Leave and event.worker == worker for event in events)

    def leave_void(self, release: act.Release) -> None:
        """Stop waiting for the model that a worker was to send with its cancelled release.

        A worker that this answer drops has a process still: without a server it is released all the same, as
        it is to send what it was released with, which others mix.
        """
        worker = self.view.workers[release.worker]
        is_dropped = worker.dropped and worker.ticket == release.ticket + 1
        if is_dropped and isinstance(self._run.composition.placement, PeerToPeer):
            self.release(release, self._run.now)
        else:
            evaluation.do_without_model(self._run, release.worker)

    def cancel(self, cancel: act.Cancel, now: float) -> None:
        """Do nothing: the following release reaches the worker between two steps."""

    def readmit(self, readmit: act.Readmit, now: float) -> None:
        """Do nothing: a dropped worker has no state."""

    def void(self, worker: int) -> None:
        """Halt a worker and discard its step and model; it restarts with its next release."""
        self._out.send(worker_name(worker), msg.Halt())
        self._run.store.forget(worker)
        self._run.models.leave(worker)

    def tell(self, tell: act.Tell, now: float) -> None:
        """Send orders to a computing worker."""
        self._out.send(worker_name(tell.worker), msg.NewOrders(tell.orders))

    # ---------------------------------------------------------------- the model

    def apply(self, apply: act.Apply, now: float) -> Script[None] | None:
        """Create the next version; in a ring, once all members have its sum."""
        if isinstance(self._run.store, AllReduceStore):
            return self._reduce_and_apply(apply)
        return self._make_version(apply)

    def _reduce_and_apply(self, apply: act.Apply) -> Script[None]:
        store = self._run.store
        yield from pushes.sum_of(self._run, apply)
        # a worker that has made the next version cannot stand in for one that was asked for this and is lost
        yield Wait(lambda: not store.awaits_replies, lambda: HOLDERS)
        if (script := self._make_version(apply)) is not None:
            yield from script

    def _make_version(self, apply: act.Apply) -> Script[None] | None:
        run = self._run
        run.store.apply(apply)
        if run.averages or not makes_newest(apply, self.view):
            return None
        return evaluation.after_update(run) if run.update_schedule.may_be_due else None

    def mix(self, mix: act.Mix, now: float) -> None:
        """Send workers the order to mix their models."""
        assert isinstance(self._run.store, GossipStore)
        self._run.store.mix(mix)

    def discard(self, discard: act.Discard, now: float) -> None:
        """Send the servers the order to drop a payload."""
        self._run.store.discard(key_of(discard.push))

    # ---------------------------------------------------------------- numbers and times

    def measure(self, measure: act.Measure, now: float) -> None:
        """Request measurements from servers and the evaluator."""
        evaluation.measure(self._run, measure)

    def set_timer(self, timer: act.SetTimer, now: float) -> None:
        """Schedule a timer."""
        self._run.timers.add(timer.at, timer_of(timer))
