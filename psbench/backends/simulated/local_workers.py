"""Workers in virtual time that decide after each step whether to go on, report, vote or push.

Workers that push after every step need none of this and have a shorter path, in `simulated` and
`virtual_steps`. Here a worker has a worker loop and a model of its own, and computes each step when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from psbench.backends.simulated.compression import Compression
from psbench.backends.simulated.measurements import forward_s
from psbench.core import actions as act
from psbench.core.migration import Ranges
from psbench.core.strategy import Strategy
from psbench.core.worker_loop import WorkerLoop
from psbench.core.worker_policy import Directive
from psbench.errors import CodecError
from psbench.training.local_model import LocalModel, StepStatistics, local_model
from psbench.training.trainer import Job

if TYPE_CHECKING:
    from psbench.backends.simulated.simulation import Simulation


#: without gradients nothing is known of a step
_UNKNOWN: Mapping[str, float] = {}


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker under one composition."""

    number: int
    loop: WorkerLoop
    model: LocalModel
    lr: float = 0.0
    step: Step | OwnEvaluation | None = None  # what it computes
    answer: ActionProcessor | None = None  # that came while it computed
    #: raised when what it has under way becomes void
    life: int = 0
    goes_on: bool = False  # has pushed, and will begin its next step when this instant is over
    began: dict[str, Any] = field(default_factory=dict)  # where it was in its data when it was answered
    next_chunk_s: float | None = None  # when the data that it has asked for beforehand will be there

    @property
    def is_idle(self) -> bool:
        """Whether it neither computes nor exchanges."""
        return self.step is None and self.answer is None and not (self.goes_on or self.loop.exchanging)


@dataclass(slots=True, eq=False)
class Step:
    """A step under way; happens when it ends."""

    worker: _Worker
    job: Job | None
    samples: int
    compute_s: float
    life: int


@dataclass(slots=True, eq=False)
class OwnEvaluation:
    """A worker takes the loss of its own model after a step; happens when that is done."""

    worker: _Worker
    directive: Directive
    life: int


@dataclass(slots=True, eq=False)
class ActionProcessor:
    """A release with what it carries; happens when it reaches the worker."""

    worker: _Worker
    release: act.Release
    vectors: tuple[Tensor, ...]
    life: int


@dataclass(slots=True, eq=False)
class GoOn:
    """A worker that has just pushed begins its next step, after everything else of that instant."""

    worker: _Worker
    life: int


@dataclass(slots=True, eq=False)
class Told:
    """Orders for a worker that is not waiting; happen when they reach it."""

    worker: _Worker
    orders: act.Orders
    life: int


class LocalWorkers:
    """The workers of one composition.

    Parameters
    ----------
    simulation : Simulation
        Whose clock, network, trainer and server they use.
    composition : Strategy
    owed : dict of worker to tensor
        What each has not said under the composition before; taken over.
    """

    def __init__(self, simulation: Simulation, composition: Strategy, owed: dict[int, Tensor]) -> None:
        self._sim, self._composition = simulation, composition
        self.wire = Compression(composition, simulation.workload, owed)
        self._workers: dict[int, _Worker] = {}
        self._anew: set[int] = set()  # workers that are sent the model whole next
        workload = simulation.workload
        self._optimizer = workload.experiment.optimizer
        self._sample_bytes = workload.sample_bytes
        self._prefetch = bool(getattr(composition.communication, "prefetch", False))

    # ---------------------------------------------------------------- from the engine

    def release(self, release: act.Release, reaches_s: float) -> None:
        """Let a worker go on when the release reaches it."""
        worker = self._workers.get(release.worker) or self._enter(release.worker)
        if release.send:
            self._anew.discard(release.worker)
        try:
            answer = ActionProcessor(worker, release, self._vectors(release), worker.life)
        except CodecError as error:
            self._sim.diverged(str(error))
            return
        if worker.loop.exchanging or release.then == "push":
            self._sim.agenda.schedule(reaches_s, worker.number, answer)
        else:  # it waits for this and nothing else can reach it first
            self._take(answer)
            self._begin(worker, reaches_s)

    def tell(self, tell: act.Tell, reaches_s: float) -> None:
        """Have orders reach a worker between two steps."""
        worker = self._workers.get(tell.worker)
        if worker is not None:  # else it left while numbers were being measured
            self._sim.agenda.schedule(reaches_s, worker.number, Told(worker, tell.orders, worker.life))

    def forget(self, number: int) -> None:
        """Void what a worker has under way."""
        worker = self._workers.get(number)
        if worker is not None:
            worker.life += 1
            worker.step = worker.answer = None
            worker.goes_on = worker.loop.exchanging = False

    def leave(self, number: int) -> None:
        """Forget a worker; should it come back, it begins anew."""
        self.forget(number)
        self._workers.pop(number, None)
        self.wire.forget(number)

    def has(self, number: int) -> bool:
        """Whether a worker knows a model that another may be told as a difference from."""
        return number in self._workers and number not in self._anew

    def reassign(self, ranges: Ranges) -> None:
        """Know that servers hold other entries from now on."""
        self.wire.reassign(ranges)
        if self._composition.aggregation.reply == "model":
            self._anew.update(self._workers)

    def unsaid(self) -> dict[int, Tensor]:
        """Return what each worker's pushes have not said."""
        return self.wire.unsaid()

    def state(self, number: int, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a worker needs to go on: as it is if it waits, else as it was when it was answered."""
        sim, worker = self._sim, self._workers.get(number)
        tensors, plain = self.wire.worker_state(number, waits)
        if worker is None or (waits and worker.is_idle):
            plain |= self._position(number)
        else:
            plain |= worker.began
        if worker is not None and waits and worker.is_idle:
            plain |= {"loop": worker.loop.state_dict(), "lr": worker.lr, "next_chunk_s": worker.next_chunk_s}
            if self._composition.own_steps and sim.gradients:
                tensors |= {f"model/{name}": value for name, value in worker.model.state_dict().items()}
        return tensors, plain

    def load(self, number: int, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Let a worker go on from what `state` returned, its position and step times aside."""
        self.wire.load_worker(number, plain, tensors)
        if "loop" in plain:
            worker = self._enter(number)
            worker.loop.load_state_dict(plain["loop"])
            worker.lr, worker.next_chunk_s = plain["lr"], plain["next_chunk_s"]
            model = {n.removeprefix("model/"): t for n, t in tensors.items() if n.startswith("model/")}
            if model:
                worker.model.load_state_dict(model)

    def _position(self, number: int) -> dict[str, Any]:
        sim = self._sim
        position = sim.trainer.position(number) if sim.gradients else None
        return {"used": sim.step_times.used(number), "position": position}

    def mean(self) -> tuple[Tensor, Tensor] | None:
        """Return the mean of the workers' own models, in worker order; None before they have any."""
        models = [self._workers[number].model for number in sorted(self._workers)]
        models = [model for model in models if len(model.parameters)]
        if not models:
            return None
        parameters = sum((m.parameters for m in models[1:]), models[0].parameters.clone()) / len(models)
        buffers = sum((m.buffers for m in models[1:]), models[0].buffers.clone()) / len(models)
        return parameters, buffers

    # ---------------------------------------------------------------- what happens

    def happen(self, happening: Step | OwnEvaluation | ActionProcessor | GoOn | Told) -> None:
        """Let it happen, unless it has become void."""
        worker = happening.worker
        if happening.life != worker.life:
            return
        if type(happening) is Step:
            self._stepped(happening)
        elif type(happening) is OwnEvaluation:
            worker.step = None
            self._take_stashed(worker)
            self._obey(worker, happening.directive)
        elif type(happening) is ActionProcessor:
            self._answered(happening)
        elif type(happening) is Told:
            worker.loop.on_orders(happening.orders)
        else:
            worker.goes_on = False
            self._take_stashed(worker)
            self._begin(worker, self._sim.now)

    def _answered(self, answer: ActionProcessor) -> None:
        worker = answer.worker
        if worker.step is not None or worker.goes_on:
            worker.answer = answer  # found when the step is done
        else:
            self._obey(worker, self._take(answer))

    def _stepped(self, step: Step) -> None:
        worker, sim = step.worker, self._sim
        worker.step = None
        loss, stats = float("nan"), None
        if step.job is not None:
            result = sim.trainer.result(step.job, worker.model.parameters, worker.model.buffers)
            worker.model.stepped(result, step.samples, worker.lr)
            loss = result.loss
            stats = StepStatistics(result, worker.model, sim.evaluator)
        self._take_stashed(worker)
        directive = worker.loop.stepped(step.samples, step.compute_s, loss, stats or _UNKNOWN)
        evaluated = stats.evaluated_samples if stats is not None else 0
        if evaluated:
            worker.step = OwnEvaluation(worker, directive, worker.life)
            seconds = forward_s(sim.workload.profile, evaluated, worker.number)
            sim.agenda.schedule(sim.now + seconds, worker.number, worker.step)
        else:
            self._obey(worker, directive)

    def _take_stashed(self, worker: _Worker) -> None:
        answer, worker.answer = worker.answer, None
        if answer is not None:
            self._take(answer)

    # ---------------------------------------------------------------- a worker

    def _enter(self, number: int) -> _Worker:
        batch = self._sim.engine.view.workers[number].batch_size
        loop = WorkerLoop(self._composition, number, batch)
        worker = self._workers[number] = _Worker(
            number, loop, local_model(self._composition, self._optimizer)
        )
        return worker

    def _vectors(self, release: act.Release) -> tuple[Tensor, ...]:
        """Return what is sent with a release, as it arrives."""
        server = self._sim.server
        if not (release.send and self._sim.gradients):
            return ()
        if release.aggregate:
            assert server.aggregate is not None
            return (self.wire.aggregate(release.worker, release.load, server.aggregate),)
        model = self.wire.model(release.worker, release.ticket, release.load, server.parameters)
        return model, server.buffers.clone()

    def _take(self, answer: ActionProcessor) -> Directive:
        """Give a release to the worker that it has reached."""
        worker, release = answer.worker, answer.release
        if release.then == "step":
            worker.began = self._position(worker.number)
            self.wire.answered(worker.number)
        verdict = worker.loop.release(release.then, release.ticket, release.load, release.orders)
        if self._sim.gradients and release.then == "step":
            self._renew(worker, release, answer.vectors)
        return verdict

    def _renew(self, worker: _Worker, release: act.Release, vectors: tuple[Tensor, ...]) -> None:
        before, worker.lr = worker.lr, self._optimizer.rate(release.epoch)
        if release.aggregate:
            worker.model.receive(vectors[0], worker.lr)
        elif vectors:
            worker.model.load(vectors[0], vectors[1], worker.lr)
        else:
            worker.model.keep(before)  # after a vote

    def _fetch(self, worker: _Worker, begins_s: float) -> float:
        """Return when a worker can begin its next chunk of data, which has to reach it first.

        With prefetching it was asked for when the chunk before was begun, and is of the size known then.
        """
        sim, number = self._sim, worker.number
        if sim.gradients:
            sim.trainer.assign(number, worker.loop.chunk)
        size = worker.loop.chunk * self._sample_bytes
        if not self._prefetch:
            return max(begins_s, sim.network.down(number, size, sim.now))
        asked_before = worker.next_chunk_s is not None
        arrives_s = worker.next_chunk_s if asked_before else sim.network.down(number, size, sim.now)
        worker.next_chunk_s = sim.network.down(number, size, sim.now)
        return max(begins_s, arrives_s or 0.0)

    def _begin(self, worker: _Worker, begins_s: float) -> None:
        sim = self._sim
        if worker.loop.chunk:
            begins_s = self._fetch(worker, begins_s)
        samples = worker.loop.batch_size
        job = sim.trainer.start(worker.number, samples) if sim.gradients else None
        compute_s = sim.step_times.next(worker.number, samples, begins_s)
        step = worker.step = Step(worker, job, samples, compute_s, worker.life)
        sim.agenda.schedule(begins_s + compute_s, worker.number, step)

    def _obey(self, worker: _Worker, verdict: Directive) -> None:
        sim, loop = self._sim, worker.loop
        if verdict in ("continue", "report"):
            if sim.gradients:
                worker.model.keep(worker.lr)
            if verdict == "report":
                self._say(worker, loop.report())
            self._begin(worker, sim.now)
        elif verdict == "vote":
            self._say(worker, loop.vote())
        elif verdict != "wait":
            self._push(worker, overlapping=verdict == "push_and_continue")

    def _say(self, worker: _Worker, event: Any) -> None:
        sim = self._sim
        sim.agenda.schedule(sim.network.message(worker.number, sim.now), worker.number, event)

    def _push(self, worker: _Worker, overlapping: bool) -> None:
        sim = self._sim
        push = worker.loop.push(-1, bytes=sim.bytes_up, overlapping=overlapping)
        if sim.gradients:
            payload = self.wire.push(worker.number, push.ticket, worker.model.payload())
            sim.carry(push, payload, worker.model.buffers.clone())
        sim.send(push)
        worker.goes_on = overlapping
        if overlapping:
            sim.agenda.schedule(sim.now, worker.number, GoOn(worker, worker.life), late=True)


#: what `VirtualWorkers.happen` takes
HAPPENINGS = (Step, OwnEvaluation, ActionProcessor, GoOn, Told)
