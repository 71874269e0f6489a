"""Counterfactuals: a recorded schedule is trained again, with some causes taken from another run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from psbench.backends.compression import Compression
from psbench.backends.local_steps import renew
from psbench.backends.partition import fragments_of, partitions
from psbench.causes.cause import Cause
from psbench.causes.schedule import Arrival, Begin, Dropped, Evaluation, Schedule, Update
from psbench.core.actions import Apply, Release
from psbench.core.arithmetic import Pushed
from psbench.core.events import Push
from psbench.core.log import EventLog, Kind, plain_json
from psbench.core.strategy import Strategy
from psbench.results.run import Run
from psbench.runs.meta import params_digest
from psbench.training.build import Workload
from psbench.training.corruption import Corruptions
from psbench.training.local_model import LocalModel
from psbench.training.mixing import ModelVectors
from psbench.training.server import Server
from psbench.training.trainer import StepTask, Trainer


def recompute(schedule: Schedule, causes: Sequence[Cause] = ()) -> Run:
    """Train again on the schedule of a run, with these causes taken from the other run.

    Parameters
    ----------
    schedule : Schedule
        Who computes when, on which version, and which pushes make which update is kept, although the model
        would have led other decisions to be taken: of a rule that reads losses, for example.
    causes : sequence of Cause
        Without any the run itself is trained again: its parameters are those recorded, bit for bit.

    Returns
    -------
    Run
        With the recorded times and the recomputed losses, evaluations and model.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(schedule.run.experiment.threads)  # as the run was computed, to the bit
    try:
        return _Counterfactual(schedule, causes).run()
    finally:
        torch.set_num_threads(before)


class _Counterfactual:
    def __init__(self, schedule: Schedule, causes: Sequence[Cause]) -> None:
        self._schedule, self._causes = schedule, causes
        workload = schedule.workload
        data, composition = workload, schedule.composition
        self._server = server = workload.server()
        self._end = schedule.samples
        for cause in causes:
            data, composition = cause.data(data), cause.composition(composition)
            server.spec = cause.optimizer(server.spec)
            self._end = cause.end(self._end)
        server.forget_momentum()  # the optimizer may be another one now
        server.use(composition.aggregation, fragments_of(composition, workload.model.layout))
        trainer = data.trainer()
        corruptions = Corruptions.of_profile(workload.profile, workload.streams)
        self._pushes: _Pushes
        if composition.pushes_raw_gradients:
            self._pushes = _Gradients(schedule, causes, trainer, corruptions, server)
        else:
            self._pushes = _Rounds(schedule, composition, trainer, corruptions, server)
        self._evaluator = workload.evaluator()
        self._evaluated: dict[int, dict[str, float]] = {}  # by row
        self._losses: dict[int, float] = {}  # by push
        self._last_row = 0
        #: whether the log goes on beyond the end
        self._cut = schedule.stops_at is not None

    def run(self) -> Run:
        for item in self._schedule.items:
            if isinstance(item, Update):
                if item.ends > self._end:
                    self._cut = True
                    break
                self._update(item)
            elif isinstance(item, Evaluation):
                self._evaluated[item.row] = self._evaluate()
            elif isinstance(item, Begin):
                self._pushes.begin(item)
            elif isinstance(item, Arrival):
                self._pushes.arrive(item)
            else:
                self._pushes.drop(item)
        return self._run()

    def _update(self, update: Update) -> None:
        how, server = update.apply, self._server
        bases = self._bases(how)
        pushes = []
        for push, at, weight, base in zip(how.pushes, update.starts, how.weights, bases, strict=True):
            vector, buffers, loss = self._pushes.take(push, at)
            self._losses[push.id] = loss
            pushes.append(Pushed(vector, buffers, push.worker, push.samples, push.steps, base, weight))
        scale = how.lr_scale
        for cause in self._causes:
            scale *= cause.factor(update)
        server.apply(pushes, how if scale == how.lr_scale else replace(how, lr_scale=scale))
        self._pushes.updated(update)
        self._last_row = update.row

    def _bases(self, how: Apply) -> list[Tensor | None]:
        if not self._server.aggregation.needs_base:
            return [None] * len(how.pushes)
        return [self._pushes.base_of(push) for push in how.pushes]

    def _evaluate(self) -> dict[str, float]:
        return self._evaluator.evaluate(self._server.parameters, self._server.buffers)

    def _run(self) -> Run:
        """Return the recorded run with the recomputed values."""
        recorded = self._schedule.run
        rows, log = recorded.log.rows().copy(), EventLog()
        if self._cut:
            rows = rows[: self._last_row]
        texts = [recorded.log.text(number) for number in rows["text"]]
        for at in np.flatnonzero(rows["kind"] == Kind.EVALUATED):
            texts[at] = plain_json(json.loads(texts[at]) | self._evaluated[int(at)])
        rows["text"] = [log.number(text) for text in texts]  # by first use, as in every log
        for at in np.flatnonzero(rows["kind"] == Kind.PUSH):
            rows["loss"][at] = self._losses.get(int(rows["id"][at]), rows["loss"][at])
        log.append(rows.tobytes())
        if self._cut:
            self._end_with_evaluation(log, rows)
        parameters, buffers = self._server.parameters.clone(), self._server.buffers.clone()
        names = [cause.name for cause in self._causes]
        what = f"{', '.join(names)} of the other run" if names else "nothing replaced"
        meta = {key: value for key, value in recorded.meta.items() if key != "run_id"} | {
            "params_digest": params_digest(parameters, buffers),
            "reason": f"recomputed on the schedule of {recorded.experiment.title}: {what}",
        }
        return Run(recorded.experiment, log, meta, parameters, buffers)

    def _end_with_evaluation(self, log: EventLog, rows: np.ndarray) -> None:
        time_s = float(rows["time_s"][-1]) if len(rows) else 0.0
        version = sum(update.ends <= self._end for update in self._schedule.updates)
        log.add(Kind.EVALUATED, time_s, id=-1, version=version, text=plain_json(self._evaluate()))


class _Pushes(Protocol):
    """The payloads of pushes, which workers compute from their releases."""

    def begin(self, item: Begin) -> None:
        """Let a worker begin its next steps."""

    def arrive(self, item: Arrival) -> None:
        """Let a push arrive."""

    def drop(self, item: Dropped) -> None:
        """Forget a push that is discarded."""

    def take(self, push: Push, at: int) -> tuple[Tensor, Tensor, float]:
        """Return vector, buffers and loss of a push that is applied after `at` samples."""
        ...

    def base_of(self, push: Push) -> Tensor:
        """Return the parameters from which a push started; called before it is taken."""
        ...

    def updated(self, update: Update) -> None:
        """Take note of the version that was just made."""


class _Gradients:
    """Workers that push the gradient of each step, computed when it is applied, from a version of any age."""

    def __init__(
        self,
        schedule: Schedule,
        causes: Sequence[Cause],
        trainer: Trainer,
        corruptions: Corruptions | None,
        server: Server,
    ) -> None:
        self._trainer, self._corruptions, self._server = trainer, corruptions, server
        self._jobs: dict[tuple[int, int], StepTask] = {}
        self._numbers: dict[int, tuple[int, int]] = {}  # worker and step of each push
        self._version = 0
        self._bases, self._leaves = _bases_of(schedule, causes)
        self._held: dict[int, ModelVectors] = {}
        self._hold()

    def begin(self, item: Begin) -> None:
        job = self._trainer.start(item.release.worker, item.samples)
        self._jobs[job.worker, job.number] = job

    def arrive(self, item: Arrival) -> None:
        self._numbers[item.push.id] = item.push.worker, item.number

    def drop(self, item: Dropped) -> None:
        self._jobs.pop(self._numbers.pop(item.push.id), None)

    def take(self, push: Push, at: int) -> tuple[Tensor, Tensor, float]:
        job = self._jobs.pop(self._numbers.pop(push.id))
        result = self._trainer.result(job, *self._held[self._bases[push.id]])
        gradient = result.gradient
        if self._corruptions is not None:
            gradient = self._corruptions.of(push.worker, push.ticket, gradient)
        return gradient, result.buffers, result.loss

    def base_of(self, push: Push) -> Tensor:
        return self._held[self._bases[push.id]][0]

    def updated(self, update: Update) -> None:
        for version in self._leaves.get(self._version, ()):
            self._held.pop(version, None)
        self._version += 1
        self._hold()

    def _hold(self) -> None:
        """Keep the newest version as long as a step may start from it."""
        self._held[self._version] = self._server.parameters.clone(), self._server.buffers.clone()


def _bases_of(schedule: Schedule, causes: Sequence[Cause]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the version of each push's gradient, and the versions that become unused with each update."""
    bases: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, update in enumerate(schedule.updates):
        for push, at in zip(update.apply.pushes, update.starts, strict=True):
            recorded = update.begins - schedule.begin_of(push.base_version)
            age = recorded
            for cause in causes:
                age = cause.age(at, age)
            base = push.base_version if age == recorded else schedule.version_at(update.begins - age)
            bases[push.id], last[base] = base, number
    leaves: dict[int, list[int]] = {}
    for version in range(len(schedule.updates)):  # one that no step starts from leaves at once
        leaves.setdefault(last.get(version, version), []).append(version)
    return bases, leaves


class _Rounds:
    """Workers with a model of their own, or with codecs: their steps are computed when their push arrives."""

    def __init__(
        self,
        schedule: Schedule,
        composition: Strategy,
        trainer: Trainer,
        corruptions: Corruptions | None,
        server: Server,
    ) -> None:
        workload: Workload = schedule.workload
        layout = workload.model.layout
        self._composition, self._trainer, self._server = composition, trainer, server
        self._corruptions, self._optimizer = corruptions, workload.optimizers[1]
        self._fragments = fragments_of(composition, layout)
        own = partitions(composition.placement, layout)
        self._compression = Compression(composition, own, workload.streams, {}, self._fragments)
        self._draws_at_begin = schedule.composition.pushes_raw_gradients
        self._models: dict[int, LocalModel] = {}
        self._releases: dict[int, Release] = {}
        self._samples: dict[int, int] = {}
        self._jobs: dict[tuple[int, int], StepTask] = {}
        self._arrived: dict[int, tuple[Tensor, Tensor, float]] = {}
        self._started: dict[int, Tensor] = {}  # the model that each worker was sent

    def begin(self, item: Begin) -> None:
        release, worker = item.release, item.release.worker
        if worker not in self._models:
            self._models[worker] = LocalModel(self._composition, self._optimizer, self._fragments)
        model = self._models[worker]
        vectors = self._brought(release)
        self._compression.mark_release(worker)
        model.obey(release.orders)
        renew(model, vectors, release.fragment)
        self._releases[worker], self._samples[worker] = release, item.samples
        if self._draws_at_begin:
            job = self._trainer.start(worker, item.samples)
            self._jobs[worker, job.number] = job
        if self._composition.aggregation.needs_base and len(vectors) > 1:
            self._started[worker] = vectors[0].clone()

    def _brought(self, release: Release) -> tuple[Tensor, ...]:
        server, worker = self._server, release.worker
        if not (release.send or self._draws_at_begin):
            return ()
        if release.aggregate:
            assert server.aggregate is not None
            return (self._compression.aggregate(worker, release.load, server.aggregate),)
        if release.fragment >= 0:
            return self._compression.part(release.fragment, server.parameters), server.buffers.clone()
        sent = self._compression.model(worker, release.ticket, release.load, server.sent_model())
        return sent, server.buffers.clone()

    def arrive(self, item: Arrival) -> None:
        push, worker = item.push, item.push.worker
        model, release = self._models[worker], self._releases[worker]
        each, loss = push.samples // push.steps, 0.0
        for step in range(push.steps):
            if step:
                model.keep()
            job = self._jobs.pop((worker, item.number), None) or self._trainer.start(worker, each)
            result = self._trainer.result(job, model.parameters, model.buffers)
            epoch = round(release.epoch + step * release.epochs_per_step, 9) if step else release.epoch
            model.stepped(result, each, epoch)
            loss += result.loss / push.steps
        payload = model.payload(push.fragment)
        if self._corruptions is not None:
            payload = self._corruptions.of(worker, push.ticket, payload, push.fragment)
        vector = self._compression.push(push, payload)
        if model.notes_pushes:
            model.sent(vector)
        self._arrived[push.id] = vector, model.buffers.clone(), loss

    def drop(self, item: Dropped) -> None:
        self._arrived.pop(item.push.id)

    def take(self, push: Push, at: int) -> tuple[Tensor, Tensor, float]:
        return self._arrived.pop(push.id)

    def base_of(self, push: Push) -> Tensor:
        return self._started[push.worker]

    def updated(self, update: Update) -> None:
        """Do nothing: each worker has its own model, so no versions are kept."""
