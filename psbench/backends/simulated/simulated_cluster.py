"""The simulated cluster: performs the engine's actions in virtual time, with real gradients."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappush
from typing import Any

from torch import Tensor

from psbench.backends.checkpointing import named, under
from psbench.backends.partition import fragments_of
from psbench.backends.simulated.checkpointing import (
    payload_tensors,
    payloads_in,
    restore_workers,
    worker_states,
)
from psbench.backends.simulated.event_queue import MEMBERSHIP, TIMER, WORK, EventQueue, QueuedEvent
from psbench.backends.simulated.measurements import SimulatedMeasurements
from psbench.backends.simulated.peer_exchange import PeerExchange
from psbench.backends.simulated.resources import Resources
from psbench.backends.simulated.shared_cores import SharedCores, StepBegins
from psbench.backends.simulated.steps import Steps, steps_of
from psbench.backends.simulated.transfers import Transfers
from psbench.backends.simulated.worker import StepEnd
from psbench.backends.simulated.workers import Workers
from psbench.checkpoints.file import Checkpoint
from psbench.clusters import StepTimes
from psbench.clusters.link_times import LinkTimes
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.arithmetic import Pushed
from psbench.core.collective import Collective, Jobs
from psbench.core.driver import PromptDriver, timer_of
from psbench.core.ending import DIVERGED, Ending
from psbench.core.events import COLLECTIVE, Push
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView, Status
from psbench.training.build import Workload
from psbench.training.corruption import Corruptions
from psbench.training.mixing import ModelVectors
from psbench.training.server import all_finite


@dataclass(frozen=True, slots=True, eq=False)
class InService:
    """The servers have finished processing a worker's message."""

    event: ev.Push | ev.Vote | ev.Report
    arrived_s: float


_GONE = Status.GONE  # looking up an enum member costs more than comparing it


class SimulatedCluster(PromptDriver):
    """The workers, the links and the model of a run in virtual time.

    Parameters
    ----------
    workload : Workload
    view : ClusterView
        The engine's.
    queue : EventQueue
        Takes the events that come of actions.
    on_update : callable
        Called after an update, where workers make no progress without one; see `Strategy.keeps_steps`.
    ending : Ending
        Of the run; it diverges where the model cannot be sent (NaN or infinity).
    checkpoints : bool
        Whether there will be checkpoints.

    Attributes
    ----------
    server : Server
        The model.
    workers : Workers
        Of the composition in force.
    under_way : dict of worker to Push
        Pushes that are computed or sent; they are completed when they arrive.
    payloads : dict of push number to model
        What arrived pushes carry, until they are committed or discarded.
    serves : bool
        Whether the servers take time for a message; see `serve`.
    holds_versions : bool
        Whether versions are kept that workers started from; see `begin`.
    """

    def __init__(
        self,
        workload: Workload,
        view: ClusterView,
        queue: EventQueue,
        *,
        on_update: Callable[[], None],
        ending: Ending,
        checkpoints: bool = False,
    ) -> None:
        super().__init__(view, ending)
        self._workload, self._view, self._queue = workload, view, queue
        self._on_update = on_update
        self._heap, self._arriving = queue.heap, queue.arriving  # used at every step
        self.server, gradients = workload.server(), not workload.experiment.timing_only
        self.trainer = workload.trainer() if gradients else None
        self.evaluator = workload.evaluator() if gradients else None
        self.steps: Steps | None = None
        if self.trainer is not None and self.evaluator is not None:
            self.steps = steps_of(workload, self.trainer, self.evaluator)
        times = StepTimes(workload.profile, workload.streams)
        corruptions = Corruptions.of_profile(workload.profile, workload.streams)
        self._cores = SharedCores(workload.profile.cores) if workload.profile.cores else None
        links = None if workload.profile.link_time is None else LinkTimes(workload.profile, workload.streams)
        computing = self.trainer, self.evaluator, self.steps
        self.resources = Resources(
            workload, view, self.server, times, *computing, corruptions, self._cores, links, checkpoints
        )
        self.under_way: dict[int, Push] = {}
        self.payloads: dict[int, ModelVectors] = {}
        self._compose(workload.experiment.strategy.compositions[0], {})

    def model(self) -> ModelVectors:
        """Return the model of the run: the workers' mean if their models diverge."""
        return self.workers.mean_model() or (self.server.parameters, self.server.buffers)

    def measured(self) -> dict[str, float]:
        """Return the consensus distance and similar measures at an evaluation."""
        return self.workers.measured()

    def close(self) -> None:
        """Close the worker processes, if any."""
        if self.steps is not None:
            self.steps.close()

    # ---------------------------------------------------------------- releases and pushes

    def begin(self, actions: Sequence[act.Action]) -> None:
        """Prepare for an answer's actions; call if the cluster `holds_versions`."""
        self._measurements.begin(actions)

    def release(self, release: act.Release, now: float) -> None:
        """Send a release; a worker that pushes every step begins one."""
        worker = release.worker
        if self.holds_versions:
            self._measurements.hold(release.load)
        transfers, workers = self.transfers, self.workers
        sent = now if now > transfers.idle_until else transfers.idle_until
        queues = transfers.queues
        if release.send:
            whole = worker in workers.without_model
            num_bytes = transfers.first_bytes_down if whole else transfers.bytes_down[release.fragment]
            if queues is not None:
                sent = queues.answer(0 if self._collective is not None else num_bytes, sent)
            reaches = self._links.down(worker, num_bytes, sent)
        else:
            reaches = self._links.answer(worker, sent if queues is None else queues.answer(0, sent))
        push = workers.release(release, reaches, now)
        if push is not None:
            self._expect(push, reaches)

    def repeat(self, workers: Iterable[int], now: float) -> None:
        """Let restored workers repeat their interrupted steps."""
        for worker in sorted(workers):
            push = self.workers.repeat(worker, now)
            if push is not None:
                self._expect(push, now)

    def _expect(self, push: Push, begins_s: float) -> None:
        """Schedule the end of a push's step."""
        worker = push.worker
        self.under_way[worker] = push
        if self._cores is None:
            heappush(self._heap, (begins_s + push.compute_s, WORK, worker, push.ticket, push))
        else:
            self._queue.schedule(begins_s, worker, StepBegins(worker, push.compute_s, push))

    def send(self, push: Push, now: float) -> None:
        """Send a push whose step has ended."""
        worker = push.worker
        self.under_way[worker] = push
        arrives = self._links.up(worker, push.bytes, now)
        push.send_s = arrives - now
        if self._collective is not None and (took_s := self._collective.took_s):
            push.stats = (push.stats or {}) | {COLLECTIVE: took_s}
        entry = (arrives, WORK, worker, push.ticket, push)
        arriving = self._arriving
        if not arriving or arriving[-1] < entry:
            arriving.append(entry)
        else:
            insort(arriving, entry)

    def serve(self, event: ev.Push | ev.Vote | ev.Report, now: float) -> None:
        """Start serving an arrived message; call if the cluster `serves`."""
        queues = self.transfers.queues
        assert queues is not None
        size = event.bytes if isinstance(event, ev.Push) and self._collective is None else None
        served = InService(event, now)
        ends = queues.take(served, size, now)
        if ends is not None:
            self._queue.schedule(ends, event.worker, served)

    def serve_next(self) -> None:
        """Serve the next waiting message, after the answers to the previous one."""
        queues = self.transfers.queues
        following = None if queues is None else queues.following()
        if following is not None:
            served, ends = following
            self._queue.schedule(ends, served.event.worker, served)

    def begin_step(self, begins: StepBegins, now: float) -> None:
        """Begin a step on shared cores once the worker's previous step has ended."""
        cores, worker, ending = self._cores, begins.worker, begins.what
        assert cores is not None
        if not self._goes_on(worker, ending):
            return
        if (free_s := cores.free_s(worker)) > now:
            self._queue.schedule(free_s, worker, begins)
            return
        ends = cores.begin(worker, begins.seconds, now)
        ending.compute_s = ends - now
        if type(ending) is Push:
            heappush(self._heap, (ends, WORK, worker, ending.ticket, ending))
        else:
            ending.begins_s = now
            self._queue.schedule(ends, worker, ending)

    def _goes_on(self, worker: int, ending: Push | StepEnd) -> bool:
        """Return whether a step is still valid."""
        if isinstance(ending, Push):
            return self.under_way.get(worker) is ending
        return not ending.is_void

    def reschedule_if_delayed(self, entry: QueuedEvent, *, arrives: bool) -> bool:
        """Reschedule an event if contention for its link or its cores has delayed it; return whether it has.

        Delayed are pushes that arrive, steps that end, and the steps that a release begins.
        """
        time, _, worker, _, event = entry
        network, is_push = self.transfers.network, type(event) is Push
        if is_push and self.under_way.get(worker) is not event:
            return False
        late = 0.0
        if arrives:
            late = network.contention_delay(worker, 0)
            event.send_s += late
        elif (
            is_push
            or (type(event) is StepBegins and type(event.what) is Push)
            or self.workers.follows_release(event, time, network.scheduled_arrival(worker))
        ):
            late = network.contention_delay(worker, 1)
            if type(event) is StepEnd:
                event.begins_s += late
        if self._cores is not None and not arrives and (is_push or type(event) is StepEnd):
            number = worker if is_push else event.worker.number
            if self._goes_on(number, event):
                late = self._cores.contention_delay(number)
                event.compute_s += late
        if late <= 0:
            return False
        moved = (time + late, *entry[1:])
        if arrives:
            insort(self._arriving, moved)
        else:
            heappush(self._heap, moved)
        return True

    def receive(self, push: Push) -> bool:
        """Complete an arrived push; return whether the run continues with it."""
        payload = self.payloads[push.id] = self.workers.payload(push)
        return math.isfinite(push.loss) and (self._withstands_nan or all_finite(payload[0]))

    def void(self, worker: int) -> None:
        """Cancel a worker's step and its messages in transit."""
        self.workers.cancel(worker, self.under_way.pop(worker, None))

    def forget(self, worker: int) -> None:
        """Discard a worker's state: it needs the model again, and under All-Reduce a replica."""
        self.workers.leave(worker)
        self.transfers.need_replica([worker])

    def join(self, worker: int) -> None:
        """Add a worker, without a model."""
        self.transfers.need_replica([worker])

    # ---------------------------------------------------------------- other actions

    def tell(self, tell: act.Tell, now: float) -> None:
        """Send orders to a computing worker."""
        self.workers.order(tell, self.transfers.network.message(tell.worker, now))

    def discard(self, discard: act.Discard, now: float) -> None:
        """Discard a push's payload."""
        self.payloads.pop(discard.push.id, None)

    def set_timer(self, timer: act.SetTimer, now: float) -> None:
        """Schedule a timer."""
        self._queue.add(timer.at, TIMER, 0, timer_of(timer))

    def measure(self, measure: act.Measure, now: float) -> None:
        """Measure now, and schedule the answer for the end of the measurement."""
        facts, seconds = self._measurements.measure(measure, self.payloads)
        self._queue.add(now + seconds, MEMBERSHIP, -1, ev.Measured(facts))

    def apply(self, apply: act.Apply, now: float) -> None:
        """Create the next version, followed by its stop rules and evaluation."""
        if self._collective is not None:
            self._collective.collect([push.worker for push in apply.pushes], now, apply.fragment)
        if self.transfers.peers is not None:  # what becomes of the models is said by `Mix`
            for push in apply.pushes:
                self.payloads.pop(push.id, None)
        elif self.trainer is not None:
            take, base = self.payloads.pop, self._measurements.held.get
            pushes = [
                Pushed(*take(p.id), p.worker, p.samples, p.steps, base(p.base_version), weight)
                for p, weight in zip(apply.pushes, apply.weights, strict=True)
            ]
            if self._exchanges:
                pushes = [self._exchange(pushes, apply)]
            self.server.apply(pushes, apply)
        # as `makes_newest`, which would cost a call an update
        if not self.averages_models and apply.version == self._view.version:
            self._on_update()

    def _exchange(self, pushes: list[Pushed], apply: act.Apply) -> Pushed:
        """Sum as the part declares, and leave each present worker its remainder."""
        total = self.server.exchange(pushes, apply.numbers)[0]
        for push in pushes:
            residual = self.server.left_out(push.vector, total, apply.numbers)
            if residual is not None and self._view.workers[push.worker].status is not _GONE:
                self.workers.exchange.leave_out(push.worker, residual)
        return total

    def mix(self, mix: act.Mix, now: float) -> None:
        """Mix workers' models."""
        assert isinstance(self.workers.exchange, PeerExchange)
        self.workers.exchange.mix(mix, now)

    def hand_over(self, handover: act.Handover, now: float) -> None:
        """Replace the workers and links by those of another composition."""
        if handover.forgets_momentum:
            self.server.forget_momentum()
        compositions = self._workload.experiment.strategy.compositions
        before, composition = compositions[handover.origin], compositions[handover.to]
        ended, averaged = max(self.transfers.collective_ends, now), self.averages_models
        self._compose(
            composition, {} if composition.forgets_residual(before) else self.workers.exchange.residuals()
        )
        self.transfers.idle_until = ended + handover.cost_s
        if not isinstance(before.placement, Collective):
            self.transfers.need_replica(self._view.active)
        if (
            averaged and not self.averages_models
        ):  # the end of the answer, at which a mean is evaluated, is too late
            self._on_update()

    def reassign(self, change: act.Reassign, now: float) -> None:
        """Move entries between servers."""
        self.transfers.reassign(change.ranges, now)
        self._repartition()

    def _repartition(self) -> None:
        self.workers.reassign(self.transfers.ranges)

    def _compose(self, composition: Strategy, residuals: dict[int, Tensor]) -> None:
        """Create the workers and links of a composition."""
        resources, placement = self.resources, composition.placement
        if resources.corruptions is not None:
            resources.corruptions.forget()
        self._exchanges = composition.aggregation.exchanges
        self._withstands_nan = composition.aggregation.withstands_nan
        self.reads = composition.reads
        ranges = placement.ranges(self._workload.model.layout)
        transfers = self.transfers = Transfers(composition, resources, ranges)
        self._links, self._collective = transfers.links, transfers.collective  # used at every step
        # a job has read its whole partition before the step
        resources.step_times.reads = not isinstance(placement, Jobs)
        self.server.use(composition.aggregation, fragments_of(composition, self._workload.model.layout))
        if self.trainer is not None:
            self.trainer.unassign()
            self.trainer.select(composition.selection, self._workload.known_of_data(composition.selection))
        self._measurements = SimulatedMeasurements(composition, resources, transfers.network.server_loads)
        self.holds_versions, self.serves = composition.holds_versions, transfers.queues is not None
        self.workers = Workers(
            composition,
            resources,
            transfers,
            residuals,
            queue=self._queue,
            send=self.send,
            diverge=lambda reason: self.ending.end(DIVERGED, reason),
        )
        self.averages_models = self.workers.averages_models

    # ---------------------------------------------------------------- checkpoints

    def checkpoint(self, facts: Mapping[str, Any], spared: list[int]) -> Checkpoint:
        """Return a checkpoint with these facts; `spared` workers are about to be released."""
        tensors, workers = worker_states(self.workers, self.resources, spared, self.under_way)
        codec_tensors, codecs = self.workers.exchange.codec_state()
        state = {
            "workers": workers,
            "movement": self.server.movement,
            **self.transfers.state_dict(),
        }
        link_times = self.resources.link_times
        state |= {} if link_times is None else {"link_times": link_times.state_dict()}
        state |= {"codecs": codecs} if codecs else {}
        tensors |= named("codecs/", codec_tensors) | payload_tensors(self.payloads)
        tensors |= named("version/", {str(version): t for version, t in self._measurements.held.items()})
        if self.server.aggregate is not None:
            tensors["aggregate"] = self.server.aggregate
        made = Checkpoint.of(self.server, {**facts, **state})
        made.tensors |= {name: tensor.clone() for name, tensor in tensors.items()}
        return made

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state of another cluster; the engine is already restored."""
        state, tensors, view = checkpoint.state, checkpoint.tensors, self._view
        self._compose(self._workload.experiment.strategy.compositions[view.in_force], {})
        transfers = self.transfers
        if view.ranges != transfers.ranges:
            transfers.use_ranges(view.ranges)
            self._repartition()
        self.server.load(tensors)
        self.server.aggregate, self.server.movement = tensors.get("aggregate"), state["movement"]
        self.payloads = payloads_in(tensors, view.pending)
        self._measurements.held = {int(version): t for version, t in under("version/", tensors).items()}
        transfers.load_state_dict(state)
        if self.resources.link_times is not None and "link_times" in state:  # older ones have none
            self.resources.link_times.load_state_dict(state["link_times"])
        restore_workers(self.workers, self.resources, state, tensors)
