"""Virtual time: real gradients and real staleness, with seconds that come from the cluster's profile.

A heap of happenings ordered by (time, priority, worker, sequence) drives the engine. Nothing reads a
clock, so the same experiment gives the same log and the same parameters, bit for bit.

A step's batch is drawn when its worker is released and its gradient is computed when it ends in virtual
time, from a snapshot of the version it was released with; cancelled work is never computed.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

import torch
from torch import Tensor

from psbench.backends.checkpointing import split_at_model
from psbench.backends.control import Control, Observer
from psbench.backends.outcome import Outcome
from psbench.backends.pushes import why_diverged, with_stats
from psbench.backends.simulated.checkpointing import CheckpointWriter, go_on
from psbench.backends.simulated.evaluation import Evaluation
from psbench.backends.simulated.event_queue import MEMBERSHIP, TIMER, WORK, EventQueue
from psbench.backends.simulated.local_workers import HAPPENINGS, LocalWorkers
from psbench.backends.simulated.measurements import Measurements
from psbench.backends.simulated.network import move, network_of, shares_of, sizes_of
from psbench.backends.simulated.plain_workers import PlainWorkers
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.folder import CheckpointFolder
from psbench.clusters import StepTimes
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.events import Push
from psbench.core.log import EventLog
from psbench.core.migration import Ranges
from psbench.core.strategy import Strategy
from psbench.core.view import Status
from psbench.errors import Deadlock, WorkerLost
from psbench.training.server import finite
from psbench.training.workload import Workload

#: events between two looks of an observer: often enough to move a chart, too seldom to be felt
OBSERVE_EVERY = 256


class Simulation:
    """One run in virtual time.

    Parameters
    ----------
    problem : Problem
    log : EventLog
        Filled while the run goes on.
    control : Control
    observer : callable or None
        Called with the log about every `OBSERVE_EVERY` events and after each evaluation.
    checkpoints : CheckpointFolder or None
        Where checkpoints go; none are written without it.
    start : Checkpoint or None
        Where to go on from; the log up to there is in `log` already.
    """

    def __init__(
        self,
        workload: Workload,
        log: EventLog,
        control: Control,
        observer: Observer | None = None,
        checkpoints: CheckpointFolder | None = None,
        start: Checkpoint | None = None,
    ) -> None:
        experiment = workload.experiment
        self.workload, self.log, self.control = workload, log, control
        self.workers: LocalWorkers | None = None  # where they decide more than to push
        self.observer, self._start = observer, start
        self.engine = workload.engine(log)
        self.gradients = not experiment.timing_only
        self.server = workload.server()
        if self.gradients:
            self.trainer, self.evaluator = workload.trainer(), workload.evaluator()
        self.step_times = StepTimes(workload.profile, workload.streams)
        self.lookout, self.recorder = Evaluation(self), CheckpointWriter(self, checkpoints)
        self.server.measures_movement = self.lookout.ending.sees_movement
        self.agenda, self.steps = EventQueue(), PlainWorkers(self)
        self._heap, self._arriving = self.agenda.heap, self.agenda.arriving  # asked for at every step
        self.push_ids = count()
        #: each worker's push, which is completed when it arrives
        self._under_way: dict[int, Push] = {}
        self.payloads: dict[int, tuple[Tensor, Tensor]] = {}
        self._carried: dict[int, tuple[Tensor, Tensor]] = {}  # by pushes that have not arrived
        self.now = 0.0
        self._deadline = float("inf") if experiment.stop.seconds is None else experiment.stop.seconds
        self.ring_ends = 0.0  # a ring leaves its result with the workers; nobody starts before
        self.handed_over = 0.0  # until then a hand-over is under way and nothing is sent
        self.status = self._reason = ""
        self._unanswered = False
        self._compose(experiment.strategy.compositions[0], {})

    # ---------------------------------------------------------------- the loop

    def run(self) -> Outcome:
        """Run to the end and return what it leaves.

        Raises
        ------
        Deadlock
            When no worker can ever go on.
        WorkerLost
            When every worker is gone.
        """
        if self._start is None:
            self._begin()
        else:
            self._go_on(self._start)
        for handled in count(1):  # a `for` loop, because CPython 3.11 does not specialise a long `while`
            if self.status:
                break
            if self.control.pending:
                self._attend()
            else:
                self._next()
            if handled % OBSERVE_EVERY == 0:
                self.show()
        return self._finish()

    def _next(self) -> None:
        """Take the first happening."""
        heap, arriving = self._heap, self._arriving
        if not heap and not arriving:
            self._stalled()
        arrives = not heap or (arriving and arriving[0] < heap[0])
        self.now, _, _, _, happening = arriving.popleft() if arrives else heappop(heap)
        if self.now >= self._deadline:
            self.now = self.engine.view.now = self._deadline
            self.end("finished", self.lookout.ending.at(self._deadline))
        elif type(happening) is not Push:
            if isinstance(happening, HAPPENINGS):
                if self.workers is not None:  # else it was void, or orders of before a hand-over
                    self.workers.happen(happening)
            else:
                self._happen(happening)
        elif self._under_way.get(happening.worker) is happening:  # else cancelled, or its worker has gone
            if arrives:
                self._push(happening)
            else:
                self._send(happening)

    def _begin(self) -> None:
        profile = self.workload.profile
        self.agenda.plan(profile)
        self.lookout.evaluate(0)
        self._perform(self.engine.begin(profile.starters))

    def _go_on(self, start: Checkpoint) -> None:
        """Be where a checkpoint was written, unless the run ends there."""
        actions = go_on(self, start)
        ending = self.lookout.ending
        reason = ending.after_update(self.engine.view, self.server.movement) or ending.at(self.now)
        if reason:
            self.end("finished", reason)
        else:
            self._perform(actions)

    def _handle(self, event: ev.Event) -> None:
        self._perform(self.engine.handle(event, self.now))

    def _attend(self) -> None:
        for asked in self.control.take():
            self._handle(asked)
        if self.control.stopping:
            self.end("stopped", "stopped by hand")

    def _happen(self, event: ev.Event) -> None:
        if isinstance(event, ev.Leave):
            self._forget(event.worker)
            self._leave(event.worker)
        elif isinstance(event, ev.Evaluated):
            self.lookout.unseen = None
        self._handle(event)
        if not self.engine.view.num_active and not self.agenda.expects_somebody:
            raise WorkerLost(f"every worker is gone at {self.now:.3f} s; nobody is left to train")

    def _stalled(self) -> None:
        raise Deadlock(f"at {self.now:.3f} s no worker can ever go on; {self.engine.view.waits()}")

    # ---------------------------------------------------------------- a worker's step

    def _release(self, release: act.Release) -> None:
        worker = release.worker
        seen = self.engine.view.workers[worker]
        if seen.ticket != release.ticket or seen.status is Status.GONE:
            return  # it left while numbers were being measured, and may be back
        if self.meter.holds:
            self.meter.released(release.load)
        sent = self.now if self.now > self.handed_over else self.handed_over
        if release.send and not self._collective:
            first = self.workers is not None and not self.workers.has(worker)
            begins = self.network.down(worker, self._first_bytes_down if first else self._bytes_down, sent)
        else:
            begins = max(self.network.message(worker, sent), self.ring_ends) + self._starts_s(worker)
        if self.workers is not None:
            self.workers.release(release, begins)
            return
        samples = seen.batch_size
        if self.gradients:
            self.steps.begin(worker, release.load, samples)
        compute_s = self.step_times.next(worker, samples, begins)
        ticket = release.ticket
        push = Push(-1, worker, ticket, release.load, samples, 1, self.bytes_up, compute_s)
        self._under_way[worker] = push
        heappush(self._heap, (begins + compute_s, WORK, worker, ticket, push))

    def _starts_s(self, worker: int) -> float:
        """Return the seconds that a collective takes before each step."""
        if not self._stateless:
            return 0.0
        shards, here = self.workload.shards, self.engine.view.active
        partition = len(shards[worker]) if shards else self.workload.dataset_size // len(here)
        self.step_times.scanned(worker, self._placement.scan_s(partition))
        spread = self._placement.broadcast_s(self.network, self._vector_bytes, here)
        return self._placement.start_s(partition) + spread

    def carry(self, push: Push, payload: Tensor, buffers: Tensor) -> None:
        """Keep what a push carries until it arrives."""
        self._carried[push.worker] = payload, buffers

    def send(self, push: Push) -> None:
        """Send a push that is complete."""
        self._under_way[push.worker] = push
        self._send(push)

    def _send(self, push: Push) -> None:
        """Send what a step gave."""
        worker, now = push.worker, self.now
        if self._collective:  # only the word that the gradient is there travels
            arrives = self.network.message(worker, now)
        else:
            arrives = self.network.up(worker, self.bytes_up, now)
        push.send_s = arrives - now
        entry = (arrives, WORK, worker, push.ticket, push)
        arriving = self._arriving
        if not arriving or arriving[-1] < entry:
            arriving.append(entry)
        else:
            insort(arriving, entry)

    def _push(self, push: Push) -> None:
        """Complete a push, which has arrived, and let the engine answer."""
        del self._under_way[push.worker]
        push.id = next(self.push_ids)
        if self.gradients:
            self._receive(push)
        if self._reads:
            push = with_stats(push, self._reads)
        actions = self.engine.handle(push, self.now)
        self._unanswered = bool(self.status)
        if not self.status:
            self._perform(actions)

    def _receive(self, push: Push) -> None:
        payload = self._carried.pop(push.worker, None) or self.steps.result(push)
        self.payloads[push.id] = payload
        if not (math.isfinite(push.loss) and finite(payload[0])):
            self.diverged(why_diverged(push, self.now))

    def diverged(self, why: str) -> None:
        """End a run whose numbers are none."""
        self.end("diverged", why)

    def _forget(self, worker: int) -> None:
        """Void what a worker has under way."""
        push = self._under_way.pop(worker, None)
        if self.workers is not None:
            self._carried.pop(worker, None)
            self.workers.forget(worker)
        elif push is not None and self.gradients:
            self.steps.void(push)

    # ---------------------------------------------------------------- actions

    def _perform(self, actions: Sequence[Action]) -> None:
        view, recorder = self.engine.view, self.recorder
        if view.samples >= recorder.due_samples or view.composition != recorder.composition:
            actions = self._store(actions)
            if self.status:
                return
        # steps that are kept after a vote are progress too
        if self._perform_each(actions) and self.workers is not None:
            self.lookout.look()

    def _perform_each(self, actions: Iterable[Action]) -> bool:
        for action in actions:
            perform = _PERFORM.get(type(action))
            if perform is not None:
                perform(self, action)
                if self.status:
                    self._unanswered = not self._collective or self._stateless  # a ring is its own answer
                    return False  # the run ended with this version; nobody starts another step
        return not self.status

    def _store(self, actions: Sequence[Action]) -> Sequence[Action]:
        """Perform what makes the model of an answer, write a checkpoint of it, and return the rest."""
        label = self.recorder.label()
        if not label:
            return actions
        make, then = split_at_model(actions)
        if self._perform_each(make) or not make or self.status == "finished":
            self.recorder.record(label, then)
        return then

    def _cancel(self, cancel: act.Cancel | act.Drop) -> None:
        self._forget(cancel.worker)

    def _readmit(self, readmit: act.Readmit) -> None:
        self._leave(readmit.worker)

    def _leave(self, worker: int) -> None:
        """Know nothing of what a worker holds, and of what it has not said."""
        self.steps.owed.pop(worker, None)
        if self.workers is not None:
            self.workers.leave(worker)

    def _tell(self, tell: act.Tell) -> None:
        """Tell a worker; one that pushes after every step finds its orders with the next release."""
        if self.workers is not None:
            self.workers.tell(tell, self.network.message(tell.worker, self.now))

    def _discard(self, discard: act.Discard) -> None:
        self.payloads.pop(discard.push.id, None)

    def _wake(self, wake: act.SetTimer) -> None:
        self.agenda.add(wake.at, TIMER, 0, ev.Timer(wake.key, wake.composition_id))

    def _measure(self, measure: act.Measure) -> None:
        facts, seconds = self.meter.measure(measure, self.payloads)
        self.agenda.add(self.now + seconds, MEMBERSHIP, -1, ev.Measured(facts))

    def _apply(self, apply: act.Apply) -> None:
        if self._collective:
            workers = [push.worker for push in apply.pushes]
            self.ring_ends = self.now + self._placement.reduce_s(self.network, self._vector_bytes, workers)
        if self.gradients:
            payloads = [self.payloads.pop(push.id) for push in apply.pushes]
            self.server.apply(
                [gradient for gradient, _ in payloads],
                apply.weights,
                lr_scale=apply.lr_scale,
                epoch=apply.epoch,
                rule=apply.rule,
                keep=apply.keep,
                momentum_scale=apply.momentum_scale,
            )
            self.server.merge_buffers(
                [buffers for _, buffers in payloads],
                [push.samples for push in apply.pushes],
                rule=apply.rule,
                weights=apply.weights,
                keep=apply.keep,
            )
        if self.workers is None:
            self.lookout.look()

    def _hand_over(self, handover: act.Handover) -> None:
        if handover.forgets_momentum:
            self.server.forget_momentum()
        self.handed_over = max(self.ring_ends, self.now) + handover.cost_s
        composition = self.workload.experiment.strategy.compositions[handover.to]
        unsaid = self.steps.owed if self.workers is None else self.workers.unsaid()
        self._compose(composition, {} if composition.forgets_residual(self.composition) else unsaid)

    def _compose(self, composition: Strategy, owed: dict[int, Tensor]) -> None:
        self.composition = composition
        self._placement, self._reads = composition.placement, composition.reads
        placement = self._placement
        self._collective, self._stateless = placement.collective, placement.stateless_workers
        ranges = placement.ranges(self.workload.model.layout)
        self.network = network_of(self.workload.profile, placement, ranges)
        self.step_times.reads = not self._stateless  # a job has read its whole partition before the step
        self._hold_ranges(ranges)
        self.server.keeps_aggregate = composition.aggregation.reply == "aggregate"
        self.workers = None if composition.pushes_raw_gradients else LocalWorkers(self, composition, owed)
        self.steps.owed = owed if self.workers is None else {}
        if self.gradients:
            self.trainer.unassign()
        self.meter = Measurements(self, composition)

    def _hold_ranges(self, ranges: Ranges) -> None:
        """Know what messages take if each server holds these entries."""
        self._ranges = ranges
        sizes = sizes_of(self.workload, self.composition, ranges)
        self._vector_bytes, self.bytes_up, self._bytes_down, self._first_bytes_down = sizes

    def _reassign(self, change: act.Reassign) -> None:
        """No message is under way: move entries, with what the optimizer keeps of them; then go on."""
        seconds = move(self.network, self._ranges, change.ranges, self.workload.entry_bytes)
        self.handed_over = max(self.handed_over, self.now) + seconds
        self._go_on_with(change.ranges)

    def _go_on_with(self, ranges: Ranges) -> None:
        self._hold_ranges(ranges)
        if self.workers is not None:
            self.workers.reassign(ranges)

    # ---------------------------------------------------------------- for checkpoints

    @property
    def next_push(self) -> int:
        """The number of the next push."""
        number = next(self.push_ids)
        self.push_ids = count(number)
        return number

    def compose_anew(self) -> None:
        """Work under the composition, and with the servers' shares, that the engine has come to."""
        view = self.engine.view
        self._compose(self.workload.experiment.strategy.compositions[view.composition], {})
        if view.ranges != self._ranges:
            self.network.share(shares_of(view.ranges))
            self._go_on_with(view.ranges)

    def worker_state(self, number: int, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a worker needs to go on: as it is if it waits, else as it was when it was answered."""
        if self.workers is not None:
            return self.workers.state(number, waits)
        return self.steps.state(number, self._under_way.get(number))

    def load_worker(self, number: int, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Let a worker go on from what `worker_state` returned, its position and step times aside."""
        if self.workers is not None:
            self.workers.load(number, plain, tensors)
        else:
            self.steps.load(number, tensors)

    # ---------------------------------------------------------------- the end

    def show(self) -> None:
        """Let the observer look."""
        if self.observer is not None:
            self.observer(self.log)

    def end(self, status: str, reason: str) -> None:
        """Let the run end, unless it does already."""
        if not self.status:
            self.status, self._reason = status, reason

    def _finish(self) -> Outcome:
        self.lookout.evaluate_last()
        self.show()
        lost = [w.id for w in self.engine.view.workers.values() if w.status == Status.GONE]
        facts: dict[str, Any] = {"time_s": self.now, "checkpoints": self.recorder.paths, "lost_workers": lost}
        facts |= {"usage": self.step_times.usage(), "unanswered": self._unanswered}
        if not self.gradients:
            return Outcome(self.status, self._reason, facts=facts)
        return Outcome(self.status, self._reason, *self.lookout.model(), facts)


_PERFORM: dict[type, Callable[[Simulation, Any], None]] = {
    act.Release: Simulation._release,
    act.Apply: Simulation._apply,
    act.Cancel: Simulation._cancel,
    act.Drop: Simulation._cancel,
    act.Readmit: Simulation._readmit,
    act.Tell: Simulation._tell,
    act.Discard: Simulation._discard,
    act.SetTimer: Simulation._wake,
    act.Measure: Simulation._measure,
    act.Handover: Simulation._hand_over,
    act.Reassign: Simulation._reassign,
}


def run_simulated(
    workload: Workload,
    log: EventLog,
    control: Control,
    observer: Observer | None = None,
    checkpoints: CheckpointFolder | None = None,
    start: Checkpoint | None = None,
) -> Outcome:
    """Run an experiment in virtual time; see `Simulation`."""
    before = torch.get_num_threads()
    torch.set_num_threads(workload.experiment.threads)
    try:
        return Simulation(workload, log, control, observer, checkpoints, start).run()
    finally:
        torch.set_num_threads(before)
