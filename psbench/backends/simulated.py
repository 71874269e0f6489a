"""Virtual time: real gradients and real staleness, with seconds that come from the cluster's profile.

A heap of happenings ordered by (time, priority, worker, sequence) drives the engine. Nothing reads a
clock, so the same experiment gives the same log and the same parameters, bit for bit.

A step's batch is drawn when its worker is released and its gradient is computed when it ends in virtual
time, from a snapshot of the version it was released with; cancelled work is never computed.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from psbench.backends.base import Control, Ending, Observer, Outcome, why_diverged, with_stats
from psbench.backends.meter import Meter
from psbench.backends.resume import LogKeeper, following, split
from psbench.backends.virtual_state import checkpoint_of, go_on
from psbench.backends.virtual_workers import HAPPENINGS, VirtualWorkers
from psbench.checkpoint import Checkpoint
from psbench.clusters import Network, Profile, StepTimes
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.events import Push
from psbench.core.log import EventLog, Kind, plain_json
from psbench.core.move import Ranges, lost_entries
from psbench.core.part import Placement
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView, Status
from psbench.errors import Deadlock, WorkerLost
from psbench.problem import Problem
from psbench.server_math import finite
from psbench.worker_math import Job

#: order of happenings at one instant: who leaves or joins, then work, then timers, then who goes on
_MEMBERSHIP, _WORK, _TIMER, _LATE = 0, 1, 2, 3
#: orders happenings of workers with equal time after pushes, whose place is their ticket
_AFTER_TICKETS = 1 << 40
#: events between two looks of an observer: often enough to move a chart, too seldom to be felt
OBSERVE_EVERY = 256


#: time, priority, worker, ticket of a push or else a sequence, what happens
_Entry: TypeAlias = tuple[float, int, int, int, Any]


class _Snapshots:
    """The versions that workers under way started from, each stored once."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, Tensor]] = {}
        self._users: dict[int, int] = {}

    def take(self, version: int, parameters: Tensor, buffers: Tensor) -> None:
        if version not in self._held:
            self._held[version] = parameters.clone(), buffers.clone()
            self._users[version] = 0
        self._users[version] += 1

    def get(self, version: int) -> tuple[Tensor, Tensor]:
        return self._held[version]

    def drop(self, version: int) -> None:
        self._users[version] -= 1
        if not self._users[version]:
            del self._held[version], self._users[version]


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
    folder : Path or None
        Where checkpoints go; none are written without it.
    start : Checkpoint or None
        Where to go on from; the log up to there is in `log` already.
    """

    def __init__(
        self,
        problem: Problem,
        log: EventLog,
        control: Control,
        observer: Observer | None = None,
        folder: Path | None = None,
        start: Checkpoint | None = None,
    ) -> None:
        experiment = problem.experiment
        self.problem, self.log, self.control = problem, log, control
        self.workers: VirtualWorkers | None = None  # where they decide more than to push
        self.observer, self.folder, self._start = observer, folder, start
        self._keeps_log = LogKeeper(log)
        self.engine = problem.engine(log)
        self.ending = Ending(experiment.stop, experiment.evaluate_every)
        self.gradients = not experiment.timing_only
        self.server = problem.server()
        self.server.measures_movement = self.ending.sees_movement
        if self.gradients:
            self.trainer, self.evaluator = problem.trainer(), problem.evaluator()
        self.step_times = StepTimes(problem.profile, problem.streams)
        self._heap: list[_Entry] = []
        #: results on their way, the first to arrive first: a shared link makes that the order of sending
        self._arriving: deque[_Entry] = deque()
        self._sequence = count()
        self.push_ids = count()
        #: each worker's step: its push, which is completed when it arrives, and how to compute it
        self._under_way: dict[int, Push] = {}
        self._jobs: dict[int, Job] = {}
        self.payloads: dict[int, tuple[Tensor, Tensor]] = {}
        self._carried: dict[int, tuple[Tensor, Tensor]] = {}  # by pushes that have not arrived
        self._snapshots = _Snapshots()
        self.now = 0.0
        self._deadline = float("inf") if experiment.stop.seconds is None else experiment.stop.seconds
        self.ring_ends = 0.0  # a ring leaves its result with the workers; nobody starts before
        self.handed_over = 0.0  # until then a hand-over is under way and nothing is sent
        self.evaluated = -1, -1  # version and samples of the last evaluation
        self._unseen: ev.Evaluated | None = None  # the evaluation that the engine has not handled yet
        self._status = self._reason = ""
        self._unanswered = False
        self._checkpoints: list[str] = []
        self.plan_checkpoints(following(0.0, experiment.checkpoint_every))
        #: nothing can be due before that many samples and that version
        self._look_at, self._last_version = 0.0, self.ending.next_version
        self._composed = 0  # the composition that we work under
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
            if self._status:
                break
            if self.control.pending:
                self._attend()
            else:
                self._next()
            if handled % OBSERVE_EVERY == 0:
                self._show()
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
            self._end("finished", self.ending.at(self._deadline))
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
        profile = self.problem.profile
        for join in profile.joins:
            self._schedule(join.at_s, _MEMBERSHIP, join.worker, ev.Join(join.worker))
        for failure in profile.failures:
            self._schedule(failure.at_s, _MEMBERSHIP, failure.worker, ev.Leave(failure.worker, "failed"))
            if failure.rejoin_s is not None:
                self._schedule(failure.rejoin_s, _MEMBERSHIP, failure.worker, ev.Join(failure.worker))
        self._evaluate(0)
        self._perform(self.engine.begin(profile.starters))

    def _go_on(self, start: Checkpoint) -> None:
        """Be where a checkpoint was written, unless the run ends there."""
        actions = go_on(self, start)
        reason = self.ending.after_update(self.engine.view, self.server.movement) or self.ending.at(self.now)
        if reason:
            self._end("finished", reason)
        else:
            self._perform(actions)

    def schedule(self, time: float, worker: int, happening: Any, late: bool = False) -> None:
        """Let something happen to a worker, or to all (-1); `late` is after all else of that instant."""
        place = next(self._sequence) + _AFTER_TICKETS
        heappush(self._heap, (time, _LATE if late else _WORK, worker, place, happening))

    def _schedule(self, time: float, priority: int, worker: int, happening: Any) -> None:
        heappush(self._heap, (time, priority, worker, next(self._sequence), happening))

    def _handle(self, event: ev.Event) -> None:
        self._perform(self.engine.handle(event, self.now))

    def _attend(self) -> None:
        for asked in self.control.take():
            self._handle(asked)
        if self.control.stopping:
            self._end("stopped", "stopped by hand")

    def _happen(self, event: ev.Event) -> None:
        if isinstance(event, ev.Leave):
            self._forget(event.worker)
            self._leave(event.worker)
        elif isinstance(event, ev.Evaluated):
            self._unseen = None
        self._handle(event)
        if not self.engine.view.num_active and not any(isinstance(h[4], ev.Join) for h in self._heap):
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
            self._snapshots.take(release.load, self.server.parameters, self.server.buffers)
            self._jobs[worker] = self.trainer.start(worker, samples)
        compute_s = self.step_times.next(worker, samples, begins)
        ticket = release.ticket
        push = Push(-1, worker, ticket, release.load, samples, 1, self.bytes_up, compute_s)
        self._under_way[worker] = push
        heappush(self._heap, (begins + compute_s, _WORK, worker, ticket, push))

    def _starts_s(self, worker: int) -> float:
        """Return the seconds that a collective takes before each step."""
        if not self._stateless:
            return 0.0
        shards, here = self.problem.shards, self.engine.view.active
        partition = len(shards[worker]) if shards else self.problem.dataset_size // len(here)
        self.step_times.scanned(worker, self._placement.scan_s(partition))
        spread = self._placement.spread_s(self.network, self._vector_bytes, here)
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
        entry = (arrives, _WORK, worker, push.ticket, push)
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
        self._unanswered = bool(self._status)
        if not self._status:
            self._perform(actions)

    def _receive(self, push: Push) -> None:
        payload = self._carried.pop(push.worker, None) or self._compute(push)
        self.payloads[push.id] = payload
        if not (math.isfinite(push.loss) and finite(payload[0])):
            self.diverged(why_diverged(push, self.now))

    def _compute(self, push: Push) -> tuple[Tensor, Tensor]:
        job = self._jobs.pop(push.worker)
        step = self.trainer.result(job, *self._snapshots.get(push.base_version))
        self._snapshots.drop(push.base_version)
        push.loss = step.loss
        owed = self._owed.pop(push.worker, None)
        return step.gradient if owed is None else step.gradient + owed, step.buffers

    def diverged(self, why: str) -> None:
        """End a run whose numbers are none."""
        self._end("diverged", why)

    def _forget(self, worker: int) -> None:
        """Void what a worker has under way."""
        push = self._under_way.pop(worker, None)
        if self.workers is not None:
            self._carried.pop(worker, None)
            self.workers.forget(worker)
        elif push is not None and self.gradients:
            del self._jobs[worker]
            self._snapshots.drop(push.base_version)

    # ---------------------------------------------------------------- actions

    def _perform(self, actions: Sequence[Action]) -> None:
        view = self.engine.view
        if view.samples >= self._store_at or view.composition != self._composed:
            actions = self._store(actions)
        if (
            self._perform_each(actions) and self.workers is not None
        ):  # steps that are kept after a vote are progress too
            self._look()

    def _perform_each(self, actions: Iterable[Action]) -> bool:
        for action in actions:
            perform = _PERFORM.get(type(action))
            if perform is not None:
                perform(self, action)
                if self._status:
                    self._unanswered = not self._collective or self._stateless  # a ring is its own answer
                    return False  # the run ended with this version; nobody starts another step
        return not self._status

    def _store(self, actions: Sequence[Action]) -> Sequence[Action]:
        """Perform what makes the model of an answer, write a checkpoint of it, and return the rest."""
        view = self.engine.view
        switched = view.composition != self._composed
        if self.engine.measuring and not switched:
            return actions  # half an answer; the next will do
        self._composed = view.composition
        make, then = split(actions)
        made = self._perform_each(make)
        label = f"switch-version-{view.version}" if switched else f"epoch-{view.epoch:g}"
        if view.epoch >= self.next_checkpoint:
            self.plan_checkpoints(following(view.epoch, self.problem.experiment.checkpoint_every))
        if (made or not make or self._status == "finished") and self.folder is not None:
            self._checkpoint(self.folder / "checkpoints" / f"{label}.npz", then)
        return then

    def _cancel(self, cancel: act.Cancel | act.Drop) -> None:
        self._forget(cancel.worker)

    def _readmit(self, readmit: act.Readmit) -> None:
        self._leave(readmit.worker)

    def _leave(self, worker: int) -> None:
        """Know nothing of what a worker holds, and of what it has not said."""
        self._owed.pop(worker, None)
        if self.workers is not None:
            self.workers.leave(worker)

    def _tell(self, tell: act.Tell) -> None:
        """Tell a worker; one that pushes after every step finds its orders with the next release."""
        if self.workers is not None:
            self.workers.tell(tell, self.network.message(tell.worker, self.now))

    def _discard(self, discard: act.Discard) -> None:
        self.payloads.pop(discard.push.id, None)

    def _wake(self, wake: act.Wake) -> None:
        self._schedule(wake.at, _TIMER, 0, ev.Timer(wake.key, wake.composition_id))

    def _measure(self, measure: act.Measure) -> None:
        facts, seconds = self.meter.measure(measure, self.payloads)
        self._schedule(self.now + seconds, _MEMBERSHIP, -1, ev.Measured(facts))

    def _apply(self, apply: act.Apply) -> None:
        if self._collective:
            workers = [push.worker for push in apply.pushes]
            self.ring_ends = self.now + self._placement.collect_s(self.network, self._vector_bytes, workers)
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
            self._look()

    def _look(self) -> None:
        view = self.engine.view
        if view.samples >= self._look_at or view.version >= self._last_version:
            self._after_update(view)

    def _after_update(self, view: ClusterView) -> None:
        """Evaluate or end, if that is due."""
        number = self.ending.due(view)
        if number is not None:
            self._evaluate(number)
        reason = self.ending.after_update(view, self.server.movement)
        if reason:
            self._end("finished", reason)
        self._look_at = view.dataset_size * self.ending.next_epoch

    def _hand_over(self, handover: act.Handover) -> None:
        if handover.forgets_momentum:
            self.server.forget_momentum()
        self.handed_over = max(self.ring_ends, self.now) + handover.cost_s
        composition = self.problem.experiment.strategy.compositions[handover.to]
        unsaid = self._owed if self.workers is None else self.workers.unsaid()
        self._compose(composition, {} if composition.forgets_unsaid(self.composition) else unsaid)

    def _compose(self, composition: Strategy, owed: dict[int, Tensor]) -> None:
        self.composition = composition
        self._placement, self._reads = composition.placement, composition.reads
        placement = self._placement
        self._collective, self._stateless = placement.collective, placement.stateless_workers
        ranges = placement.ranges(self.problem.model.layout)
        self.network = _network(self.problem.profile, placement, ranges)
        self.step_times.reads = not self._stateless  # a job has read its whole partition before the step
        self._hold_ranges(ranges)
        self.server.keeps_aggregate = composition.aggregation.reply == "aggregate"
        self.workers = None if composition.plain else VirtualWorkers(self, composition, owed)
        self._owed = owed if self.workers is None else {}  # goes with the first push
        if self.gradients:
            self.trainer.unassign()
        self._drifts = composition.communication.pushes == "together"
        self.meter = Meter(self, composition)

    def _hold_ranges(self, ranges: Ranges) -> None:
        """Know what messages take if each server holds these entries."""
        self._ranges = ranges
        composition, n = self.composition, self.problem.profile.num_workers
        size = self.problem.wire_size._replace(ranges=ranges)
        self._vector_bytes = size.of(composition.communication.codec, self._placement)  # of collectives
        self.bytes_up, self._bytes_down = composition.bytes_up(size, n), composition.bytes_down(size, n)
        self._first_bytes_down = composition.bytes_down(size, n, whole=True)

    def _reassign(self, change: act.Reassign) -> None:
        """No message is under way: move entries, with what the optimizer keeps of them; then go on."""
        before, after, each = self._ranges, change.ranges, self.problem.entry_bytes
        given, taken = lost_entries(before, after), lost_entries(after, before)
        seconds = self.network.move([each * n for n in given], [each * n for n in taken])
        self.handed_over = max(self.handed_over, self.now) + seconds
        self.network.server_loads()  # what was carried before says nothing of what will be
        self.network.share(_shares(after))
        self._hold_ranges(after)
        if self.workers is not None:
            self.workers.reassign(after)

    # ---------------------------------------------------------------- looking, storing, ending

    def _evaluate(self, number: int) -> None:
        """Evaluate the current version; costs no virtual time, as a node of its own does it."""
        if not self.gradients:
            return
        view = self.engine.view
        self.evaluated = view.version, view.samples
        values = self.evaluator.evaluate(*self._model())
        values = {"epoch": view.epoch} | values
        if number > 0:
            self._unseen = ev.Evaluated(number, view.version, values)
            self._schedule(self.now, _MEMBERSHIP, -1, self._unseen)
        else:
            self._record(number, values)
        self._show()
        reason = self.ending.after_evaluation(values) if number > 0 else ""
        if reason:
            self._end("finished", reason)

    def _model(self) -> tuple[Tensor, Tensor]:
        """Return the model that a person would take away: where workers' models drift apart, their mean."""
        mean = self.workers.mean() if self._drifts and self.workers is not None else None
        return mean or (self.server.parameters, self.server.buffers)

    def _record(self, number: int, values: dict[str, float]) -> None:
        """Log an evaluation that no rule sees: before the first step (0) or after the last (-1)."""
        version = self.engine.view.version
        self.log.add(Kind.EVALUATED, self.now, id=number, version=version, text=plain_json(values))

    def _checkpoint(self, path: Path, rest: Sequence[Action]) -> None:
        checkpoint = checkpoint_of(self, rest)
        self._keeps_log.add_to(checkpoint, path)
        self._checkpoints.append(str(checkpoint.save(path)))

    def plan_checkpoints(self, epoch: float) -> None:
        """Write a checkpoint at the first version from that epoch on."""
        self.next_checkpoint = epoch
        self._store_at = epoch * self.problem.dataset_size

    # ---------------------------------------------------------------- for checkpoints

    def entries(self) -> list[_Entry]:
        """Return what is to happen, in no order."""
        return self._heap

    def expect(self, time: float, priority: int, worker: int, event: Any) -> None:
        """Let an event happen; called in the order in which events of one instant are to come."""
        self._schedule(time, priority, worker, event)
        if isinstance(event, ev.Evaluated):
            self._unseen = event

    @property
    def next_push(self) -> int:
        """The number of the next push."""
        number = next(self.push_ids)
        self.push_ids = count(number)
        return number

    def compose_anew(self) -> None:
        """Work under the composition, and with the servers' shares, that the engine has come to."""
        view = self.engine.view
        self._composed = view.composition
        self._compose(self.problem.experiment.strategy.compositions[view.composition], {})
        if view.ranges != self._ranges:
            self.network.share(_shares(view.ranges))
            self._hold_ranges(view.ranges)
            if self.workers is not None:
                self.workers.reassign(view.ranges)

    def worker_state(self, number: int, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a worker needs to go on: as it is if it waits, else as it was when it was answered."""
        if self.workers is not None:
            return self.workers.state(number, waits)
        used, push = self.step_times.used(number), self._under_way.get(number)
        position = self.trainer.position(number) if self.gradients else None
        if push is not None:
            used -= 1
            if position is not None:
                position = position._replace(taken=position.taken - push.samples, steps=position.steps - 1)
        owed = {"unsaid": self._owed[number]} if number in self._owed else {}
        return owed, {"used": used, "position": position}

    def load_worker(self, number: int, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Let a worker go on from what `worker_state` returned, its position and step times aside."""
        if self.workers is not None:
            self.workers.load(number, plain, tensors)
        elif "unsaid" in tensors:
            self._owed[number] = tensors["unsaid"]

    def _progress(self) -> tuple[int, int]:
        return self.engine.view.version, self.engine.view.samples

    def _show(self) -> None:
        if self.observer is not None:
            self.observer(self.log)

    def _end(self, status: str, reason: str) -> None:
        if not self._status:
            self._status, self._reason = status, reason

    def _finish(self) -> Outcome:
        if self._unseen is not None:
            self._record(-1, self._unseen.values)
        elif self.evaluated != self._progress() and self._status != "diverged":
            self._evaluate(-1)
        self._show()
        lost = [w.id for w in self.engine.view.workers.values() if w.status == Status.GONE]
        facts: dict[str, Any] = {"time_s": self.now, "checkpoints": self._checkpoints, "lost_workers": lost}
        facts |= {"usage": self.step_times.usage(), "unanswered": self._unanswered}
        if not self.gradients:
            return Outcome(self._status, self._reason, facts=facts)
        return Outcome(self._status, self._reason, *self._model(), facts)


_PERFORM: dict[type, Callable[[Simulation, Any], None]] = {
    act.Release: Simulation._release,
    act.Apply: Simulation._apply,
    act.Cancel: Simulation._cancel,
    act.Drop: Simulation._cancel,
    act.Readmit: Simulation._readmit,
    act.Tell: Simulation._tell,
    act.Discard: Simulation._discard,
    act.Wake: Simulation._wake,
    act.Measure: Simulation._measure,
    act.Handover: Simulation._hand_over,
    act.Reassign: Simulation._reassign,
}


def _network(profile: Profile, placement: Placement, ranges: Ranges) -> Network:
    links = profile.server_bandwidth_mbit_s
    if placement.collective and isinstance(links, tuple):  # one that has no servers
        return Network(replace(profile, server_bandwidth_mbit_s=max(links)))
    return Network(profile, placement.num_servers, _shares(ranges))


def _shares(ranges: Ranges) -> list[float]:
    """Return what part of the entries each server holds."""
    entries = [sum(stop - start for start, stop in own) for own in ranges]
    return [count / sum(entries) for count in entries]


def run_simulated(
    problem: Problem,
    log: EventLog,
    control: Control,
    observer: Observer | None = None,
    folder: Path | None = None,
    start: Checkpoint | None = None,
) -> Outcome:
    """Run an experiment in virtual time; see `Simulation`."""
    before = torch.get_num_threads()
    torch.set_num_threads(problem.experiment.threads)
    try:
        return Simulation(problem, log, control, observer, folder, start).run()
    finally:
        torch.set_num_threads(before)
