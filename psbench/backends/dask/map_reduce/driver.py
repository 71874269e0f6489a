"""The driver of a MapReduce run: submits one graph of tasks for every mini-batch, and makes the update."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable
from itertools import count
from typing import Any

import torch
from distributed import Client, Future
from distributed.scheduler import KilledWorker

from psbench.backends.control import Control, Observer
from psbench.backends.dask.asking import ask, ask_scheduler
from psbench.backends.dask.connecting import connected
from psbench.backends.dask.coordinator.ending import Ending
from psbench.backends.dask.demand import demand
from psbench.backends.dask.map_reduce import tasks
from psbench.backends.dask.objects import check_objects, sent
from psbench.backends.dask.placement import find_room, place_with_resources
from psbench.backends.dask.protocol.roles import EVALUATOR, worker_name
from psbench.backends.dask.shipping import Shipping, bare
from psbench.backends.outcome import Outcome
from psbench.backends.pushes import why_diverged, with_stats
from psbench.backends.schedule import CheckpointSchedule, StopRules, UpdateSchedule
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.folder import CheckpointFolder
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.arithmetic import Pushed
from psbench.core.log import EventLog, Kind, plain_json
from psbench.errors import BackendError, ParameterError, ProtocolError, WorkerLost
from psbench.experiment import Experiment
from psbench.system.start_progress import start_progress
from psbench.training.workload import Workload

logger = logging.getLogger(__name__)


def run_map_reduce(
    workload: Workload,
    log: EventLog,
    control: Control,
    observer: Observer | None = None,
    checkpoints: CheckpointFolder | None = None,
    start: Checkpoint | None = None,
    client: Client | None = None,
) -> Outcome:
    """Run an experiment as one Dask graph a mini-batch; see `run_dask`, which calls this.

    Raises
    ------
    ParameterError
        If the strategy switches, or the cluster lets workers come and go.
    BackendError, WorkerLost
        If the scheduler does not answer, a task fails, or its process is killed.
    """
    experiment = workload.experiment
    check(experiment)
    check_objects(bare(experiment))
    if start is not None:
        raise ParameterError(
            "strategy 'map_reduce': on dask it cannot go on from a checkpoint; use the simulated backend"
        )
    roles = [*map(worker_name, range(workload.profile.num_workers)), EVALUATOR]
    start_progress().expect(roles)
    with connected(experiment, len(roles), client, control.check) as client:
        wait_s, limits = experiment.recovery.wait_for_workers, experiment.connection
        with demand(client, limits) as wanted:
            least, ask_for = len(roles), wanted.ask
            room = find_room(client, roles, least, wait_s, control.check, limits=limits, ask=ask_for)
        placed = place_with_resources(roles, room, limits.hosts)
        start_progress().place(placed)
        return _Driver(workload, log, control, observer, checkpoints, client, placed).run()


def check(experiment: Experiment) -> None:
    """Refuse what a driver cannot do."""
    if len(experiment.strategy.compositions) > 1:
        raise ParameterError(
            f"strategy {experiment.strategy.name!r}: the dask backend cannot switch to or from 'map_reduce', "
            "whose workers are no tasks of their own; use the simulated backend"
        )
    aggregation = experiment.strategy.compositions[0].aggregation
    if aggregation.measures:
        raise ParameterError(
            f"strategy {experiment.strategy.name!r}: {aggregation.name} weighs gradients by what it measures "
            "of them, and a job of the dask backend adds them up by itself; use 'mean'"
        )
    profile = experiment.cluster.profile()
    if profile.joins or profile.failures:
        raise ParameterError(
            f"cluster {profile.name!r}: under 'map_reduce' no worker can join or fail on the dask backend"
        )


class _Driver:
    """The driver of one run."""

    def __init__(
        self,
        workload: Workload,
        log: EventLog,
        control: Control,
        observer: Observer | None,
        checkpoints: CheckpointFolder | None,
        client: Client,
        placed: dict[str, str],
    ) -> None:
        experiment = workload.experiment
        self.workload, self.log, self.control, self.observer = workload, log, control, observer
        self.client, self.placed, self._limits = client, placed, experiment.connection
        self._shipping = Shipping(client, workload, placed)
        self.engine, self.server = workload.engine(log), workload.server()
        self.ending = Ending()
        self.rules = StopRules(experiment.stop, experiment.evaluate_every, experiment.patience_is_for_less)
        self.server.measures_movement = self.rules.sees_movement
        view = self.engine.view
        self._updates = UpdateSchedule(
            self.rules,
            view,
            evaluate=self._evaluate,
            movement=lambda: self.server.movement,
            end=self.ending.finish,
        )
        self._checkpoint_schedule = CheckpointSchedule(view, experiment.checkpoint_every)
        self._partitions: dict[int, Future] = {}
        self._released: dict[int, act.Release] = {}
        self._evaluations: list[tuple[int, int, float, Future]] = []
        self._evaluated = -1
        self._ids, self._jobs = count(), count()
        self._sum: tasks.PartialSum | None = None
        self._weights: list[float] = []
        self._folder, self._checkpoints = checkpoints, [] if checkpoints is None else checkpoints.paths
        self._unanswered = False
        self._began_s = 0.0

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began_s

    def run(self) -> Outcome:
        """Run to the end; whatever happens, no partition is left behind."""
        try:
            self._load()
            self._evaluate(0)
            self._take_evaluations(wait=True)
            self._began_s = time.monotonic()
            self._perform(self.engine.begin(range(self.workload.profile.num_workers)))
            while not self.ending:
                self._job()
                self._attend()
            return self._finish()
        except KilledWorker as error:
            raise WorkerLost(f"a task's process was killed, and its partition with it: {error}") from error
        finally:
            self._let_go()

    def _load(self) -> None:
        shipping, last = self._shipping, self.workload.profile.num_workers
        experiment = sent(self.client, shipping.experiment, self.placed.values())
        for worker in range(last + 1):  # the last is the evaluator's
            role = worker_name(worker) if worker < last else EVALUATOR
            self._partitions[worker] = self._submit(
                tasks.load, experiment, shipping.to(role), min(worker, last - 1), on=role
            )
        for worker, partition in self._partitions.items():
            self._result(partition, f"partition {worker}", self._limits.start_within_s)
            start_progress().reach(worker_name(worker) if worker < last else EVALUATOR, "data read")

    def _submit(self, task: Any, *arguments: Any, on: str | None = None) -> Future:
        where = {"workers": [self.placed[on]], "allow_other_workers": False} if on else {}
        return self.client.submit(task, *arguments, pure=False, **where)

    def _result(self, future: Future, what: str, within_s: float = math.inf) -> Any:
        """Wait for a task's result, however long it takes while the Dask workers answer."""
        began = time.monotonic()
        while True:
            left = began + within_s - time.monotonic()
            try:
                return future.result(timeout=max(0.0, min(self._limits.say_after_s, left)))
            except TimeoutError:
                waited = time.monotonic() - began
            if waited >= within_s:
                raise BackendError(
                    f"{what} was not loaded within {within_s:g} s (connection.start_within_s): are the Dask "
                    "workers busy?"
                )
            logger.warning("waiting for %s for %.0f s", what, waited)
            ask(self.client, os.getpid, of={*self.placed.values()}, limits=self._limits)

    def _let_go(self) -> None:
        """Have the cluster forget the partitions, unless it is gone."""
        partitions = list(self._partitions.values())
        try:
            self._ask("cancel", partitions, force=True, is_needed=False)
        except Exception as error:
            logger.info("the partitions could not be cancelled: %s", error)
        self._shipping.end()

    def _ask(self, question: str, *arguments: Any, **options: Any) -> Any:
        return ask_scheduler(self.client, question, *arguments, limits=self._limits, **options)

    # ---------------------------------------------------------------- a job

    def _job(self) -> None:
        """Have one mini-batch computed, and tell the engine that its shares have arrived."""
        released, self._released = self._released, {}
        if not released:
            raise ProtocolError(f"no worker is released at {self._now:.3f} s; {self.engine.view.waits()}")
        workers, job = sorted(released), next(self._jobs)
        pushes = [self._push(released[worker]) for worker in workers]
        self._weights = self._planned_weights(pushes)
        model = self.server.parameters.numpy(), self.server.buffers.numpy()
        with self.client.as_current():
            spread = self._ask("scatter", [model], broadcast=True, hash=False)[0]
            maps = [
                self._submit(
                    tasks.map_step, self._partitions[w], spread, job, push.samples, weight, on=worker_name(w)
                )
                for w, push, weight in zip(workers, pushes, self._weights, strict=True)
            ]
            self._sum = self._result(self._tree(maps), f"job {job}")
        self._arrive(pushes)

    def _tree(self, futures: list[Future]) -> Future:
        while len(futures) > 1:
            pairs = [self._submit(tasks.add, *futures[i : i + 2]) for i in range(0, len(futures) - 1, 2)]
            futures = [*pairs, *futures[2 * len(pairs) :]]
        return futures[0]

    def _push(self, release: act.Release) -> ev.Push:
        view, composition = self.engine.view, self.engine.composition
        size = composition.placement.bytes_up(self.workload.model_bytes, view.num_workers)
        samples = view.workers[release.worker].batch_size
        return ev.Push(next(self._ids), release.worker, release.ticket, release.load, samples, bytes=size)

    def _planned_weights(self, pushes: list[ev.Push]) -> list[float]:
        """Ask beforehand how the job's shares will be weighted, as the job itself adds them up."""
        actions = self.engine.composition.aggregation.fresh().on_commit(pushes, self.engine.view)
        if len(actions) != 1 or not isinstance(actions[0], act.Apply):
            raise ParameterError(
                f"{self.engine.composition.aggregation.name}: its weights are not known before the job is "
                "done, which adds the gradients up; use 'mean'"
            )
        return [float(weight) for weight in actions[0].weights]

    def _arrive(self, pushes: Iterable[ev.Push]) -> None:
        assert self._sum is not None
        reads, now = self.engine.composition.reads, self._now
        for push in pushes:
            push.compute_s, push.loss, is_finite = self._sum.steps[push.worker]
            actions = self.engine.handle(with_stats(push, reads) if reads else push, now)
            if not is_finite:
                self.ending.end("diverged", why_diverged(push, now))
            if self.ending:
                self._unanswered = True
                return
            self._perform(actions)

    # ---------------------------------------------------------------- actions

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, act.Release):
                self._released[action.worker] = action
            elif isinstance(action, act.Apply):
                self._apply(action)
            elif not isinstance(action, (act.Hold, act.Note)):
                raise ProtocolError(f"the driver of a MapReduce run cannot perform {action}")
            if self.ending:
                self._unanswered = True
                return

    def _apply(self, apply: act.Apply) -> None:
        assert self._sum is not None
        if list(apply.weights) != self._weights:
            raise ProtocolError(f"the job used the weights {self._weights}, and now they are {apply.weights}")
        samples = sum(push.samples for push in apply.pushes)
        share = samples / self.workload.experiment.batch_size
        gradient, buffers = map(torch.from_numpy, (self._sum.gradient, self._sum.buffers / share))
        pushed = Pushed(gradient, buffers=buffers, samples=samples)
        self.server.apply([pushed], apply)
        self._after_update()

    def _after_update(self) -> None:
        self._updates.after_update()
        if label := self._checkpoint_schedule.label():
            self._checkpoint_schedule.advance()
            self._checkpoint(label)
        if reason := self.rules.at(self._now):
            self.ending.finish(reason)

    # ---------------------------------------------------------------- evaluations, checkpoints, the end

    def _attend(self) -> None:
        for request in self.control.take():
            self._perform(self.engine.handle(request, self._now))
        if self.control.stopping:
            self.ending.end("stopped", "stopped by hand")
        # the next version has the rate that follows from them, as simulated
        self._take_evaluations(wait=self.workload.experiment.plateau is not None)
        if self.observer is not None:
            self.observer(self.log)

    def _evaluate(self, number: int) -> None:
        view = self.engine.view
        self._evaluated = view.version
        model = self.server.parameters.numpy().copy(), self.server.buffers.numpy().copy()
        partition = self._partitions[self.workload.profile.num_workers]
        future = self._submit(tasks.evaluate, partition, model, on=EVALUATOR)
        self._evaluations.append((number, view.version, view.epoch, future))

    def _take_evaluations(self, wait: bool) -> None:
        """Take the evaluations that are done, in order."""
        while self._evaluations and (wait or self._evaluations[0][3].done()):
            number, version, epoch, future = self._evaluations.pop(0)
            values = {"epoch": epoch} | self._result(future, "evaluation")
            if number > 0 and not self.ending:
                self._perform(self.engine.handle(ev.Evaluated(number, version, values), self._now))
                if reason := self.rules.after_evaluation(values):
                    self.ending.finish(reason)
            else:
                now = self._now if number else 0.0
                text = plain_json(values)
                self.log.add(Kind.EVALUATED, now, id=-1 if number else 0, version=version, text=text)

    def _checkpoint(self, label: str) -> None:
        if self._folder is None:
            return
        spec = self.workload.experiment.spec()
        state = {"time_s": self._now, "engine": self.engine.state_dict(), "spec": spec}
        self._folder.write(label, Checkpoint.of(self.server, state))

    def _finish(self) -> Outcome:
        time_s = min(self._now, self.rules.deadline_s)
        usage = [
            self._submit(tasks.used, self._partitions[worker], on=worker_name(worker))
            for worker in range(self.workload.profile.num_workers)
        ]
        if self._evaluated != self.engine.view.version and self.ending.status != "diverged":
            self._evaluate(-1)
        self._take_evaluations(wait=True)
        if self.observer is not None:
            self.observer(self.log)
        facts = {"time_s": time_s, "checkpoints": self._checkpoints, "lost_workers": []}
        facts |= {"usage": [self._result(future, "usage") for future in usage]}
        facts["unanswered"] = self._unanswered
        return Outcome(
            self.ending.status, self.ending.reason, self.server.parameters, self.server.buffers, facts
        )
