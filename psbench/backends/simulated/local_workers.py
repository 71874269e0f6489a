"""Workers that decide after each step whether to compute on, report, vote or push.

Workers that push the gradient of every step need none of this and are in `plain_workers`. Here a worker has
a worker loop and a model of its own, and a step is computed when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

from psbench.backends.checkpointing import Since, kept_tensors, named, repeats_steps, under
from psbench.backends.compression import Compression
from psbench.backends.local_steps import mean_model, obey, renew
from psbench.backends.partition import fragments_of, partitions
from psbench.backends.simulated.event_queue import EventQueue
from psbench.backends.simulated.shared_cores import StepBegins
from psbench.backends.simulated.transfers import Transfers
from psbench.backends.simulated.workers import Resources, WorkerEvent, Workers
from psbench.core import actions as act
from psbench.core.events import Push, Report, Vote
from psbench.core.migration import Ranges
from psbench.core.strategy import Strategy
from psbench.core.worker_loop import WorkerLoop
from psbench.core.worker_policy import Directive
from psbench.errors import CodecError
from psbench.training.local_model import LocalModel, StepStatistics, numbers_of
from psbench.training.mixing import ModelVectors
from psbench.training.trainer import StepTask

_UNKNOWN: Mapping[str, float] = {}  # without gradients nothing is known of a step
#: tensors and plain data of a worker in a checkpoint
_Held: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker under one composition."""

    number: int
    loop: WorkerLoop
    model: LocalModel
    computes: bool = False  # a step, or the evaluation after it, is under way
    job: StepTask | None = None  # the step under way
    stashed: ReleaseArrival | None = None  # arrived during a step
    #: raised when what it has under way becomes void
    generation: int = 0
    computes_on: bool = False  # has pushed, and begins its next step at the end of this instant
    at_release: _Held = field(default_factory=lambda: ({}, {}))  # what it had then, for checkpoints
    at_push: _Held = field(default_factory=lambda: ({}, {}))  # and when it computed on beside a push
    next_chunk_s: float | None = None  # when the chunk of data that it has prefetched arrives

    @property
    def is_idle(self) -> bool:
        """Whether it neither computes nor exchanges."""
        return not (self.computes or self.stashed or self.computes_on or self.loop.exchanging)

    def keep_step(self) -> None:
        """Keep the last step in the model; without gradients there is no model."""
        if len(self.model.parameters):
            self.model.keep()


@dataclass(slots=True, eq=False)
class _Event(WorkerEvent):
    """An event of a worker; void if its generation is no longer the worker's."""

    worker: _Worker
    generation: int


@dataclass(slots=True, eq=False)
class StepEnd(_Event):
    """A step ends, and is computed."""

    job: StepTask | None
    samples: int
    compute_s: float


@dataclass(slots=True, eq=False)
class EvaluationEnd(_Event):
    """A worker has taken the loss of its own model after a step, and does what its loop said."""

    directive: Directive


@dataclass(slots=True, eq=False)
class ReleaseArrival(_Event):
    """A release reaches its worker, with the vectors that it carries."""

    release: act.Release
    vectors: tuple[Tensor, ...]


@dataclass(slots=True, eq=False)
class OrdersArrival(_Event):
    """Orders reach a worker that is not waiting."""

    orders: act.Orders


@dataclass(slots=True, eq=False)
class ComputeOn(_Event):
    """A worker that has just pushed begins its next step, after all other events of that instant."""


class LocalWorkers(Workers):
    """The workers of one composition, each with a loop and a model; see `Workers`.

    Parameters
    ----------
    composition : Strategy
    resources : Resources
    transfers : Transfers
        Knows the bytes of pushes; its network carries reports, votes and chunks of data.
    residuals : dict of worker to tensor
        Residuals of the composition before; taken over.
    queue : EventQueue
    send : callable
        Sends a push that is complete, at a time.
    diverge : callable
        Ends the run as diverged (NaN or infinity); called with the reason.
    """

    def __init__(
        self,
        composition: Strategy,
        resources: Resources,
        transfers: Transfers,
        residuals: dict[int, Tensor],
        *,
        queue: EventQueue,
        send: Callable[[Push, float], None],
        diverge: Callable[[str], None],
    ) -> None:
        workload = resources.workload
        self._transfers = transfers
        self.without_model = set(range(workload.profile.num_workers))
        self._composition, self._resources = composition, resources
        self._network, self._queue = transfers.network, queue
        self._send, self._diverge = send, diverge
        self._trainer, self._server = resources.trainer, resources.server
        layout = workload.model.layout
        own, self._fragments = partitions(composition.placement, layout), fragments_of(composition, layout)
        self.compression = Compression(composition, own, workload.streams, residuals, self._fragments)
        self._workers: dict[int, _Worker] = {}
        self._carried: dict[int, ModelVectors] = {}  # by pushes that have not arrived
        self._optimizer = workload.optimizers[1]
        self._sample_bytes = workload.sample_bytes
        self._prefetch = bool(getattr(composition.communication, "prefetch", False))
        self._repeats_steps = repeats_steps(composition)

    # ---------------------------------------------------------------- from the engine

    def release(self, release: act.Release, reaches_s: float, now: float) -> None:
        """Let a worker continue when the release reaches it."""
        number = release.worker
        worker = self._workers.get(number) or self._enter(number)
        if release.send:
            self.without_model.discard(number)
        try:
            vectors = self._vectors(release)
        except CodecError as error:
            self._diverge(str(error))
            return
        arrival = ReleaseArrival(worker, worker.generation, release, vectors)
        if worker.loop.exchanging or release.then == "push":
            self._queue.schedule(reaches_s, number, arrival)
        else:  # it waits for this and nothing else can reach it first
            self._take(arrival)
            self._begin(worker, reaches_s, now)

    def follows_release(self, event: Any, time: float, reaches_s: float) -> bool:
        """Return whether an event is the arrival of a worker's last release, or ends a step that it began."""
        if isinstance(event, StepBegins):
            event = event.what
        elif isinstance(event, StepEnd):
            time -= event.compute_s
        elif not isinstance(event, ReleaseArrival):
            return False
        return event.generation == event.worker.generation and time >= reaches_s - 1e-9

    def order(self, tell: act.Tell, reaches_s: float) -> None:
        """Have orders reach a worker between two steps."""
        worker = self._workers.get(tell.worker)
        if worker is not None:  # else it left while numbers were being measured
            arrival = OrdersArrival(worker, worker.generation, tell.orders)
            self._queue.schedule(reaches_s, worker.number, arrival)

    def payload(self, push: Push) -> ModelVectors:
        """Return what an arrived push carries."""
        return self._carried.pop(push.worker)

    def cancel(self, worker: int, push: Push | None) -> None:
        """Void what a worker has under way."""
        self._carried.pop(worker, None)
        own = self._workers.get(worker)
        if own is not None:
            own.generation += 1
            own.stashed = None
            if own.job is not None:
                self._resources.computing[0].cancel(own.job)
                own.job = None
            own.computes = own.computes_on = own.loop.exchanging = False

    def leave(self, worker: int) -> None:
        """Forget a worker; should it come back, it starts from the model it is sent."""
        self.cancel(worker, None)
        self._workers.pop(worker, None)
        if self._trainer is not None:
            self._trainer.forget(worker)
        self.without_model.add(worker)
        self.compression.leave(worker)

    def repartition(self, ranges: Ranges) -> None:
        """Encode for servers that hold other entries from now on."""
        self.compression.repartition(ranges)
        if self._composition.aggregation.reply == "model":
            self.without_model.update(self._workers)

    def leave_out(self, worker: int, residual: Tensor) -> None:
        """Have a worker add this to its next push."""
        self.compression.leave_out(worker, residual)

    def residuals(self) -> dict[int, Tensor]:
        """Return the residual of each worker's pushes, where there is one."""
        return self.compression.residuals()

    @property
    def _present(self) -> list[int]:
        """Workers released under this composition that are in the run, which one that is dropped is not."""
        return [number for number in self._resources.view.active if number in self._workers]

    def mean_model(self) -> ModelVectors | None:
        """Return the mean of the workers' models, where they diverge from each other and the server's."""
        if self._composition.communication.pushes != "together":
            return None
        models = [self._workers[number].model for number in self._present]
        return mean_model([(model.parameters, model.buffers) for model in models])

    # ---------------------------------------------------------------- checkpoints

    def checkpoint(
        self, worker: int, waits: bool, push: Push | None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a worker's state: current if it waits, else of its last release, or push if that arrived.

        One that is dropped has nothing under way that a resumed run would begin again, and is where it is.
        """
        own = self._workers.get(worker)
        if own is None or worker not in self._resources.view.active:
            held: _Held = self._resources.remembered(worker), self._resources.position(worker)
        elif waits and own.is_idle:
            held = self._held(own)
        elif own.loop.exchanging and push is None:
            held, waits = own.at_push, True  # codecs have changed nothing since
        else:
            held, waits = own.at_release, False
        tensors, plain = self.compression.checkpoint_worker(worker, waits)
        return tensors | held[0], plain | held[1]

    def _held(self, worker: _Worker, since: Since | None = None) -> _Held:
        """Return what a worker holds now, as it is to be stored if it computes from now on."""
        plain, tensors = self._resources.position(worker.number), self._resources.remembered(worker.number)
        if since is None or self._repeats_steps:
            plain |= {"loop": worker.loop.state_dict(), "next_chunk_s": worker.next_chunk_s}
            plain |= {} if since is None else {"since": since, "orders": {**worker.model.orders}}
            if self._trainer is not None and (since is not None or self._composition.computes_on_workers):
                tensors |= named("model/", worker.model.state_dict())
        return tensors, plain

    def restore(self, worker: int, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore what `checkpoint` returned, except its position in the data and in its step times."""
        self.compression.restore_worker(worker, tensors, plain)
        if "loop" in plain:
            own = self._enter(worker)
            own.loop.load_state_dict(plain["loop"])
            own.next_chunk_s = plain["next_chunk_s"]
            model = under("model/", tensors)
            if model:
                own.model.load_state_dict(model)
            own.model.obey(plain.get("orders", {}))
            own.at_release = own.at_push = kept_tensors(tensors), {**plain}
            for orders in plain.get("told", ()):
                own.loop.on_orders(orders)

    def repeat(self, worker: int, now: float) -> None:
        """Begin the steps of a restored worker again."""
        self._begin(self._workers[worker], now, now)

    def codec_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain data of the servers' codecs."""
        return self.compression.checkpoint_servers()

    def restore_codecs(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore what `codec_state` returned, after all workers are restored."""
        self.compression.restore_servers(tensors, plain)

    # ---------------------------------------------------------------- events

    def handle(self, event: WorkerEvent, now: float) -> None:
        """Handle an event of a worker, unless it has become void."""
        assert isinstance(event, _Event)
        worker = event.worker
        if event.generation != worker.generation:
            return
        if isinstance(event, StepEnd):
            self._stepped(event, now)
        elif isinstance(event, EvaluationEnd):
            worker.computes = False
            self._take_stashed(worker, stepped=False)
            self._obey(worker, event.directive, now)
        elif isinstance(event, ReleaseArrival):
            self._released(event, now)
        elif isinstance(event, OrdersArrival):
            worker.loop.on_orders(event.orders)
            worker.at_release[1].setdefault("told", []).append(event.orders)
        else:
            worker.computes_on = False
            self._take_stashed(worker, stepped=False)
            self._begin(worker, now, now)

    def _released(self, arrival: ReleaseArrival, now: float) -> None:
        worker = arrival.worker
        if worker.computes or worker.computes_on:
            worker.stashed = arrival  # taken when the step is done
        else:
            self._obey(worker, self._take(arrival), now)

    def _stepped(self, step: StepEnd, now: float) -> None:
        worker = step.worker
        worker.computes = False
        loss, stats = float("nan"), None
        if step.job is not None:
            steps, evaluator = self._resources.computing
            worker.job = None
            result = steps.result(step.job, self._step_model(worker), worker.model.buffers)
            assert self._trainer is not None
            self._trainer.learn(step.job, result)
            worker.model.stepped(result, step.samples, worker.loop.epoch)
            loss = result.loss
            stats = StepStatistics(result, worker.model, evaluator)
        self._take_stashed(worker, stepped=True)
        directive = worker.loop.stepped(step.samples, step.compute_s, loss, stats or _UNKNOWN)
        if evaluated := stats.evaluated_samples if stats is not None else 0:
            worker.computes = True
            seconds = self._resources.workload.profile.forward_s(evaluated, worker.number)
            end = EvaluationEnd(worker, worker.generation, directive)
            self._queue.schedule(now + seconds, worker.number, end)
        else:
            self._obey(worker, directive, now)

    def _take_stashed(self, worker: _Worker, stepped: bool) -> None:
        stashed = worker.stashed
        if stashed is not None and worker.loop.takes_answer(stepped):
            worker.stashed = None
            self._take(stashed)

    # ---------------------------------------------------------------- a worker

    def _enter(self, number: int) -> _Worker:
        loop = WorkerLoop(self._composition, number, self._resources.view.workers[number].batch_size)
        worker = _Worker(number, loop, LocalModel(self._composition, self._optimizer, self._fragments))
        self._workers[number] = worker
        self.without_model.discard(number)
        return worker

    def _vectors(self, release: act.Release) -> tuple[Tensor, ...]:
        """Return what is sent with a release, as it arrives."""
        server = self._server
        if not release.send or self._trainer is None:
            return ()
        if release.aggregate:
            assert server.aggregate is not None
            return (self.compression.aggregate(release.worker, release.load, server.aggregate),)
        if release.fragment >= 0:
            return self.compression.part(release.fragment, server.parameters), server.buffers.clone()
        model = self.compression.model(release.worker, release.ticket, release.load, server.sent_model())
        return model, server.buffers.clone()

    def _take(self, arrival: ReleaseArrival) -> Directive:
        """Give a worker the release that has reached it."""
        worker, release = arrival.worker, arrival.release
        steps = release.then == "step"
        if steps:
            self.compression.mark_release(worker.number)
        rate = release.epoch, release.epochs_per_step
        directive = worker.loop.release(
            release.then, release.ticket, release.load, release.orders, release.allowance, *rate
        )
        if steps and self._trainer is not None:
            worker.model.obey(release.orders)
            renew(worker.model, arrival.vectors, release.fragment)
        if steps and self._resources.checkpoints:
            worker.at_release = self._held(worker, "release")
        return directive

    def _obey(self, worker: _Worker, directive: Directive, now: float) -> None:
        computes = obey(
            directive,
            worker.loop,
            keep=worker.keep_step,
            send=lambda event: self._send_message(worker, event, now),
            push=lambda overlapping: self._push(worker, overlapping, now),
        )
        if computes and not worker.computes_on:
            self._begin(worker, now, now)

    def _send_message(self, worker: _Worker, event: Report | Vote, now: float) -> None:
        self._queue.schedule(self._network.message(worker.number, now), worker.number, event)

    def _push(self, worker: _Worker, overlapping: bool, now: float) -> None:
        num_bytes = self._transfers.bytes_of_push(worker.loop.fragment, worker.loop.version)
        sent = None if self._trainer is None else worker.model.payload(worker.loop.fragment)
        measured = numbers_of(sent, worker.loop.reads)
        reported = {} if self._trainer is None else self._trainer.report(worker.number)
        push = worker.loop.push(
            -1, bytes=num_bytes, overlapping=overlapping, measured=measured, reported=reported
        )
        if sent is not None:
            if (corruptions := self._resources.corruptions) is not None:
                sent = corruptions.of(worker.number, push.ticket, sent, push.fragment)
            payload = self.compression.push(worker.number, push.ticket, sent, push.fragment)
            if worker.model.notes_pushes:
                worker.model.sent(payload)
            self._carried[worker.number] = payload, worker.model.buffers.clone()
        self._send(push, now)
        worker.computes_on = overlapping
        if overlapping:
            if self._resources.checkpoints:
                worker.at_push = self._held(worker, "push")
            event = ComputeOn(worker, worker.generation)
            self._queue.schedule(now, worker.number, event, late=True)

    def _begin(self, worker: _Worker, begins_s: float, now: float) -> None:
        number, samples = worker.number, worker.loop.batch_size
        if worker.loop.chunk:
            begins_s = self._fetch(worker, begins_s, now)
        injection = worker.loop.injection
        self._network.advance(now)
        begins_s += self._network.injection(number, injection, self._sample_bytes)
        job, compute_s = None, self._resources.step_times.next(number, samples, begins_s)
        if self._trainer is not None:
            own, model = (self._step_model(worker), worker.model.buffers), worker.model
            job = worker.job = self._trainer.start(number, samples, injection, model.orders, own)
            if job.looked:
                compute_s += self._resources.workload.profile.forward_s(job.looked, number)
            self._resources.computing[0].begin(job, *own, begins_s + compute_s)
        worker.computes = True
        end = StepEnd(worker, worker.generation, job, samples, compute_s)
        if self._resources.cores is None:
            self._queue.schedule(begins_s + compute_s, number, end)
        else:
            self._queue.schedule(begins_s, number, StepBegins(number, compute_s, end))

    def _step_model(self, worker: _Worker) -> Tensor:
        """Return the parameters that a worker's step is computed from, the same until its end."""
        return worker.model.parameters

    def _fetch(self, worker: _Worker, begins_s: float, now: float) -> float:
        """Return when a worker can begin its next chunk of data, which has to reach it first.

        With prefetching it was asked for when the chunk before was begun, and is of the size known then.
        """
        if self._trainer is not None:
            self._trainer.assign(worker.number, worker.loop.chunk)
        size = worker.loop.chunk * self._sample_bytes
        if not self._prefetch:
            return max(begins_s, self._network.down(worker.number, size, now))
        arrives_s = worker.next_chunk_s
        if arrives_s is None:
            arrives_s = self._network.down(worker.number, size, now)
        worker.next_chunk_s = self._network.down(worker.number, size, now)
        return max(begins_s, arrives_s)
