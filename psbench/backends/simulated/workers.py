"""The simulated workers of a composition: they receive releases, run steps and send the results.

What a release brings and what becomes of a push is the business of an exchange: with servers, or with peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from psbench.backends.checkpointing import Since, kept_tensors, named, repeats_steps, under
from psbench.backends.local_steps import brought, mean_model, obey, push_round, renew
from psbench.backends.partition import fragments_of
from psbench.backends.simulated.event_queue import EventQueue
from psbench.backends.simulated.exchange import GradientExchange, ServerExchange, WorkersExchange
from psbench.backends.simulated.peer_exchange import PeerExchange
from psbench.backends.simulated.resources import Resources
from psbench.backends.simulated.shared_cores import StepBegins
from psbench.backends.simulated.transfers import Transfers
from psbench.backends.simulated.worker import (
    ComputeOn,
    EvaluationEnd,
    Held,
    OrdersArrival,
    ReleaseArrival,
    StepEnd,
    Worker,
    WorkerEvent,
)
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


class Workers:
    """The workers of one composition.

    After a step a worker's loop decides whether to compute on, report, vote or push, and the worker has a
    model of its own, which a step is computed from when it ends. Where a worker can do nothing but push the
    gradient of every step (`Strategy.pushes_raw_gradients`), it needs neither: its push is there from the
    beginning of its step, and the gradient is computed, from the version it began with, when the push
    arrives. That is the same run at a third of the price, and all there is to it is in the methods on a step
    that is a push.

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

    Attributes
    ----------
    exchange : WorkersExchange
    without_model : set of int
        Workers that must be sent the model whole, as they have none to take a difference from.
    averages_models : bool
        Whether the workers' models drift apart, and their mean is the run's.
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
        self._composition, self._resources = composition, resources
        self._transfers, self._network, self._queue = transfers, transfers.network, queue
        self._send, self._diverge = send, diverge
        self._view, self._trainer = resources.view, resources.trainer
        self._step_times, self._steps = resources.step_times, resources.steps
        self._optimizer = workload.optimizers[1]
        self._fragments = fragments_of(composition, workload.model.layout)
        self._sample_bytes = workload.sample_bytes
        self._prefetch = bool(getattr(composition.communication, "prefetch", False))
        self._repeats_steps = repeats_steps(composition)
        self.averages_models = composition.keeps_steps or transfers.peers is not None
        self._workers: dict[int, Worker] = {}
        #: gradients of steps that are pushes from their beginning; None where loops decide
        self._gradients: GradientExchange | None = None
        self._jobs: dict[int, StepTask] = {}  # of such steps under way
        self._repeated: dict[int, tuple[int, int]] = {}  # tickets and versions of those to begin again
        self.without_model: set[int] = set()
        self.exchange: WorkersExchange
        if composition.pushes_raw_gradients:
            self.exchange = self._gradients = GradientExchange(resources.server, residuals)
            return
        self.without_model.update(range(workload.profile.num_workers))
        if transfers.peers is not None:
            self.exchange = PeerExchange(composition, resources, transfers)
        else:
            self.exchange = ServerExchange(composition, resources, residuals)

    # ---------------------------------------------------------------- from the engine

    def release(self, release: act.Release, reaches_s: float, now: float) -> Push | None:
        """Let a worker continue when the release reaches it; return the push of its step, if any."""
        if self._gradients is not None:
            if self._trainer is not None:
                self._gradients.model(release)
            return self._begin_push(release.worker, release.ticket, release.load, reaches_s)
        number = release.worker
        worker = self._workers.get(number) or self._enter(number)
        if release.send:
            self.without_model.discard(number)
        vectors: tuple[Tensor, ...] = ()
        try:
            if self._trainer is not None:
                vectors = brought(self.exchange, release, release.send)
        except CodecError as error:
            self._diverge(str(error))
            return None
        reaches_s = self.exchange.ready_s(number, reaches_s)
        arrival = ReleaseArrival(worker, worker.generation, release, vectors)
        if worker.loop.exchanging or release.then == "push":
            self._queue.schedule(reaches_s, number, arrival)
        else:  # it waits for this and nothing else can reach it first
            self._take(arrival, reaches_s)
            self._begin(worker, self.exchange.free_s(number, reaches_s), now)
        return None

    def follows_release(self, event: Any, time: float, reaches_s: float) -> bool:
        """Return whether an event is a worker's last release, or the end of a step that it began."""
        if isinstance(event, StepBegins):
            event = event.what
        elif isinstance(event, StepEnd):
            time = event.begins_s
        elif not isinstance(event, ReleaseArrival):
            return False
        return not event.is_void and time >= reaches_s

    def order(self, tell: act.Tell, reaches_s: float) -> None:
        """Deliver orders to a worker between two steps; they are lost if it has left."""
        worker = self._workers.get(tell.worker)
        if worker is not None:
            arrival = OrdersArrival(worker, worker.generation, tell.orders)
            self._queue.schedule(reaches_s, worker.number, arrival)

    def payload(self, push: Push) -> ModelVectors:
        """Return an arrived push's vector and buffers; complete the push's loss."""
        job = self._jobs.pop(push.worker, None)
        if job is not None:
            self._complete_push(push, job)
        return self.exchange.arrived(push)

    def cancel(self, worker: int, push: Push | None) -> None:
        """Cancel a worker's step and its push in transit."""
        if self._trainer is not None:
            self.exchange.void(worker, push)
        job = self._jobs.pop(worker, None)
        own = self._workers.get(worker)
        if own is not None:
            own.generation += 1
            own.stashed = None
            job, own.job = own.job, None
            own.computes = own.computes_on = own.loop.exchanging = False
        if job is not None:
            self._resources.computing[0].cancel(job)

    def leave(self, worker: int) -> None:
        """Remove a worker and its residual; if it returns, it starts from the model it receives."""
        self.cancel(worker, None)
        if self._workers.pop(worker, None) is not None:
            self.without_model.add(worker)
            if self._trainer is not None:
                self._trainer.forget(worker)
        self.exchange.leave(worker)

    def reassign(self, ranges: Ranges) -> None:
        """Change the entry ranges of the servers."""
        self.exchange.reassign(ranges)
        if self._composition.aggregation.reply == "model":
            self.without_model.update(self._workers)

    # ---------------------------------------------------------------- models of workers

    def models(self) -> list[ModelVectors]:
        """Return the models of present workers that were released under this composition, in order.

        One that is dropped is not.
        """
        present = [self._workers[number] for number in self._view.active if number in self._workers]
        models = [self.exchange.model_of(worker.number, worker.model) for worker in present]
        return [model for model in models if len(model[0])]

    def mean_model(self) -> ModelVectors | None:
        """Return the mean of the workers' models, where these diverge."""
        return mean_model(self.models()) if self.averages_models else None

    def measured(self) -> dict[str, float]:
        """Return the consensus distance and similar measures at an evaluation."""
        return self.exchange.measured(self.models())

    # ---------------------------------------------------------------- checkpoints

    def checkpoint(
        self, worker: int, waits: bool, push: Push | None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a worker's state: current if it waits, else that of its last release or arrived push.

        One that is dropped has nothing under way that a resumed run would begin again, and is where it is.
        """
        own = self._workers.get(worker)
        held: Held
        if own is None and push is not None:
            held = self._before_step(push)
        elif own is None or worker not in self._view.active:
            held = self._resources.remembered(worker), self._resources.position(worker)
        elif waits and own.is_idle:
            held = self._held(own)
        elif own.loop.exchanging and push is None:
            held, waits = own.at_push, True  # codecs have changed nothing since
        else:
            held, waits = own.at_release, False
        tensors, plain = self.exchange.checkpoint(worker, waits)
        return tensors | held[0], plain | held[1]

    def _held(self, worker: Worker, since: Since | None = None) -> Held:
        """Return a worker's current state, as stored if it computes from now on."""
        plain, tensors = self._resources.position(worker.number), self._resources.remembered(worker.number)
        if since is None or self._repeats_steps:
            plain |= {"loop": worker.loop.state_dict(), "next_chunk_s": worker.next_chunk_s}
            plain |= {} if since is None else {"since": since, "orders": {**worker.model.orders}}
            if self._trainer is not None and (since is not None or self._composition.computes_on_workers):
                tensors |= named("model/", worker.model.state_dict())
        return tensors, plain

    def restore(self, worker: int, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore the state from `checkpoint`, except the positions in data and step times."""
        self.exchange.restore(worker, tensors, plain)
        if self._gradients is not None:
            if "since" in plain:
                self._repeated[worker] = plain["loop"]["ticket"], plain["loop"]["version"]
            return
        model = under("model/", tensors)
        if not (model or "loop" in plain):
            return
        own = self._enter(worker)
        if model:
            own.model.load_state_dict(model)
        if "loop" in plain:
            own.loop.load_state_dict(plain["loop"])
            own.next_chunk_s = plain["next_chunk_s"]
            own.model.obey(plain.get("orders", {}))
            own.at_release = own.at_push = kept_tensors(tensors), {**plain}
            for orders in plain.get("later_orders", ()):
                own.loop.on_orders(orders)

    def repeat(self, worker: int, now: float) -> Push | None:
        """Repeat a restored worker's steps; return the push of its step, if any."""
        if self._gradients is not None:
            return self._begin_push(worker, *self._repeated.pop(worker), now)
        self._begin(self._workers[worker], now, now)
        return None

    # ---------------------------------------------------------------- a step that is a push

    def _begin_push(self, worker: int, ticket: int, version: int, begins_s: float) -> Push:
        samples = self._view.workers[worker].batch_size
        compute_s = self._step_times.next(worker, samples, begins_s)
        if self._trainer is not None:
            self._compute_push(worker, version, samples, begins_s + compute_s)
        num_bytes = self._transfers.bytes_of_push(-1, version, -1)
        return Push(-1, worker, ticket, version, samples, 1, num_bytes, compute_s)

    def _compute_push(self, worker: int, version: int, samples: int, ends_s: float) -> None:
        assert self._gradients is not None
        assert self._trainer is not None
        assert self._steps is not None
        job = self._jobs[worker] = self._trainer.start(worker, samples)
        self._steps.begin(job, *self._gradients.snapshots.get(version), ends_s)

    def _complete_push(self, push: Push, job: StepTask) -> None:
        """Attach the gradient to an arrived push."""
        assert self._gradients is not None
        assert self._steps is not None
        step = self._steps.result(job, *self._gradients.snapshots.get(push.base_version))
        push.loss, gradient = step.loss, step.gradient
        if (corruptions := self._resources.corruptions) is not None:
            gradient = corruptions.of(push.worker, push.ticket, gradient)
        self._gradients.push(push, gradient, step.buffers)

    def _before_step(self, push: Push) -> Held:
        """Return a worker's state before the step of its push, with the model of that step."""
        plain = self._resources.position(push.worker)
        plain["used"] -= 1
        if (after := plain["position"]) is not None:
            plain["position"] = after._replace(taken=after.taken - push.samples, steps=after.steps - 1)
        loop = WorkerLoop(self._composition, push.worker, push.samples)
        loop.release("step", push.ticket, push.base_version, {})
        plain |= {"since": "release", "loop": loop.state_dict(), "next_chunk_s": None, "orders": {}}
        if self._gradients is None or self._trainer is None:
            return {}, plain
        parameters, buffers = self._gradients.snapshots.get(push.base_version)
        return {"model/parameters": parameters, "model/buffers": buffers}, plain

    # ---------------------------------------------------------------- events

    def handle(self, event: WorkerEvent, now: float) -> None:
        """Handle an event of a worker, unless it has been cancelled."""
        worker = event.worker
        if event.is_void:
            return
        if isinstance(event, StepEnd):
            self._stepped(event, now)
        elif isinstance(event, EvaluationEnd):
            worker.computes = False
            self._take_stashed(worker, now, stepped=False)
            self._obey(worker, event.directive, now)
        elif isinstance(event, ReleaseArrival):
            self._released(event, now)
        elif isinstance(event, OrdersArrival):
            worker.loop.on_orders(event.orders)
            worker.at_release[1].setdefault("later_orders", []).append(event.orders)
        else:
            worker.computes_on = False
            self._take_stashed(worker, now, stepped=False)
            self._begin(worker, now, now)

    def _released(self, arrival: ReleaseArrival, now: float) -> None:
        worker = arrival.worker
        if worker.computes or worker.computes_on:
            worker.stashed = arrival  # taken when the step is done
        else:
            self._obey(worker, self._take(arrival, now), now)

    def _stepped(self, step: StepEnd, now: float) -> None:
        worker = step.worker
        worker.computes = False
        loss, stats = float("nan"), None
        if step.job is not None:
            steps, evaluator = self._resources.computing
            worker.job = None
            parameters = self.exchange.computes_from(worker.number, worker.model)
            result = steps.result(step.job, parameters, worker.model.buffers)
            assert self._trainer is not None
            self._trainer.learn(step.job, result)
            worker.model.stepped(result, step.samples, worker.loop.epoch)
            loss = result.loss
            stats = StepStatistics(result, worker.model, evaluator)
        self._take_stashed(worker, now, stepped=True)
        directive = worker.loop.stepped(step.samples, step.compute_s, loss, stats or _UNKNOWN)
        if evaluated := stats.evaluated_samples if stats is not None else 0:
            worker.computes = True
            seconds = self._resources.workload.profile.forward_s(evaluated, worker.number)
            end = EvaluationEnd(worker, worker.generation, directive)
            self._queue.schedule(now + seconds, worker.number, end)
        else:
            self._obey(worker, directive, now)

    def _take_stashed(self, worker: Worker, now: float, *, stepped: bool) -> None:
        stashed = worker.stashed
        if stashed is not None and worker.loop.takes_answer(stepped):
            worker.stashed = None
            self._take(stashed, now)

    # ---------------------------------------------------------------- a worker

    def _enter(self, number: int) -> Worker:
        loop = WorkerLoop(self._composition, number, self._view.workers[number].batch_size)
        model = LocalModel(self._composition, self._optimizer, self._fragments)
        worker = self._workers[number] = Worker(number, loop, model)
        self.exchange.enter(number, model)
        self.without_model.discard(number)
        return worker

    def _take(self, arrival: ReleaseArrival, at_s: float) -> Directive:
        """Deliver a release to a worker."""
        worker, release = arrival.worker, arrival.release
        steps = release.then == "step"
        if steps:
            self.exchange.mark_release(worker.number)
        rate = release.epoch, release.epochs_per_step
        directive = worker.loop.release(
            release.then, release.ticket, release.load, release.orders, release.allowance, *rate
        )
        if steps and self._trainer is not None:
            worker.model.obey(release.orders)
            renew(worker.model, arrival.vectors, release.fragment)
        if steps and self._resources.checkpoints:
            worker.at_release = self._held(worker, "release")
        self.exchange.began(worker.number, release.load, at_s)
        return directive

    def _obey(self, worker: Worker, directive: Directive, now: float) -> None:
        computes = obey(
            directive,
            worker.loop,
            keep=worker.keep_step,
            send=lambda event: self._send_message(worker, event, now),
            push=lambda overlapping: self._push(worker, overlapping, now),
        )
        if computes and not worker.computes_on:
            self._begin(worker, now, now)

    def _send_message(self, worker: Worker, event: Report | Vote, now: float) -> None:
        self._queue.schedule(self._network.message(worker.number, now), worker.number, event)

    def _push(self, worker: Worker, overlapping: bool, now: float) -> None:
        loop = worker.loop
        num_bytes = self._transfers.bytes_of_push(loop.fragment, loop.version, loop.setting)
        if self._trainer is None:
            none = numbers_of(None, loop.reads)
            push = loop.push(-1, bytes=num_bytes, overlapping=overlapping, measured=none)
        else:
            push = push_round(
                worker.model,
                loop,
                self.exchange,
                self._resources.corruptions,
                num_bytes=num_bytes,
                overlapping=overlapping,
                reported=self._trainer.report(worker.number),
            )
        self.exchange.sends(push, now)
        self._send(push, now)
        worker.computes_on = overlapping
        if overlapping:
            if self._resources.checkpoints:
                worker.at_push = self._held(worker, "push")
            event = ComputeOn(worker, worker.generation)
            self._queue.schedule(now, worker.number, event, late=True)

    def _begin(self, worker: Worker, begins_s: float, now: float) -> None:
        number, samples = worker.number, worker.loop.batch_size
        if worker.loop.chunk:
            begins_s = self._fetch(worker, begins_s, now)
        injection = worker.loop.injection
        self._network.advance(now)
        begins_s += self._network.injection(number, injection, self._sample_bytes)
        job, compute_s = None, self._resources.step_times.next(number, samples, begins_s)
        if self._trainer is not None:
            model = worker.model
            own = self.exchange.computes_from(number, model), model.buffers
            job = worker.job = self._trainer.start(number, samples, injection, model.orders, own)
            if job.looked:
                compute_s += self._resources.workload.profile.forward_s(job.looked, number)
            self._resources.computing[0].begin(job, *own, begins_s + compute_s)
        worker.computes = True
        self.exchange.computes(number, begins_s + compute_s)
        end = StepEnd(worker, worker.generation, job, samples, begins_s, compute_s)
        if self._resources.cores is None:
            self._queue.schedule(begins_s + compute_s, number, end)
        else:
            self._queue.schedule(begins_s, number, StepBegins(number, compute_s, end))

    def _fetch(self, worker: Worker, begins_s: float, now: float) -> float:
        """Return when a worker can begin its next chunk of data, after the chunk has arrived.

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
