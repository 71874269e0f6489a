"""The driver of a MapReduce run: submits one graph of tasks for every mini-batch, and makes the update."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Collection, Iterable
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import torch
from distributed import Client, Future

from psbench.backends.control import Control, Observer
from psbench.backends.dask.connecting import connected
from psbench.backends.dask.lifetime import TASKS, leave_signals
from psbench.backends.dask.map_reduce import tasks
from psbench.backends.dask.map_reduce.places import Awaited, Places, RolesLost
from psbench.backends.dask.objects import check_objects, sent
from psbench.backends.dask.place_search import demand
from psbench.backends.dask.placement import find_room, place_with_resources
from psbench.backends.dask.protocol.roles import EVALUATOR, worker_name, worker_number
from psbench.backends.dask.rpc import ask, ask_scheduler, begin
from psbench.backends.dask.shipping import Shipping, bare
from psbench.backends.outcome import Outcome
from psbench.backends.pushes import why_diverged, with_stats
from psbench.backends.schedule import CheckpointSchedule, StopRules, UpdateSchedule
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.folder import CheckpointFolder
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.arithmetic import Pushed
from psbench.core.driver import PromptDriver, makes_newest
from psbench.core.ending import Ending
from psbench.core.log import EventLog, Kind, plain_json
from psbench.errors import BackendError, Cancelled, ParameterError, ProtocolError, WorkerLost
from psbench.experiment import Experiment
from psbench.system.start_progress import start_progress
from psbench.training.build import Workload

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
        If the scheduler does not answer, a task fails, or every worker is lost.
    """
    experiment = workload.experiment
    check(experiment)
    check_objects(bare(experiment))
    if start is not None:
        raise ParameterError(
            "strategy 'map_reduce': the dask backend cannot resume it from a checkpoint; use the simulated "
            "backend"
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
        ask(client, leave_signals, of={*placed.values()}, limits=limits, go_on=control.check)
        return MapReduceDriver(workload, log, control, observer, checkpoints, client, placed).run()


def check(experiment: Experiment) -> None:
    """Refuse experiments that a driver cannot run."""
    if len(experiment.strategy.compositions) > 1:
        raise ParameterError(
            f"strategy {experiment.strategy.name!r}: the dask backend cannot switch to or from "
            "'map_reduce', whose workers are not tasks; use the simulated backend"
        )
    if experiment.recovery.min_workers is not None:
        raise ParameterError(
            "recovery.min_workers: under 'map_reduce' on the dask backend no worker can join later; remove "
            "it, and set recovery.replace_workers to replace lost workers"
        )
    aggregation = experiment.strategy.compositions[0].aggregation
    if aggregation.measures:
        raise ParameterError(
            f"strategy {experiment.strategy.name!r}: {aggregation.name} weighs gradients by "
            "measurements, but a job of the dask backend sums gradients itself; use 'mean'"
        )
    profile = experiment.cluster.profile()
    if profile.joins or profile.failures:
        raise ParameterError(
            f"cluster {profile.name!r}: under 'map_reduce' no worker can join or fail on the dask backend"
        )


#: parameters and buffers
_Model: TypeAlias = tuple[np.ndarray, np.ndarray]


class _StoppedInJob(Exception):
    """Raised when the run is stopped during a job."""


class MapReduceDriver(PromptDriver):
    """The driver of one run: a worker is a partition, and a release its share of the next job."""

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
        self._places = Places(client, placed, self._limits, self._heed)
        self._experiment: Any = None  # what tasks take for it
        self._title = f"{experiment.title}-{secrets.token_hex(8)}"
        self._incidents, self._lost = list[str](), set[int]()
        self.engine, self.server = workload.engine(log), workload.server()
        super().__init__(self.engine.view, Ending())
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
        self._partitions: dict[str, Future] = {}
        self._released: dict[int, act.Release] = {}
        self._evaluations: list[tuple[int, int, float, _Model, Future]] = []
        self._evaluated = -1
        self._ids, self._jobs, self._tasks = count(), count(), count()
        self._sum: tasks.PartialSum | None = None
        self._weights: list[float] = []
        self._folder, self._checkpoints = checkpoints, [] if checkpoints is None else checkpoints.paths
        self._began_s, self._training = time.monotonic(), False

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began_s

    def run(self) -> Outcome:
        """Run to the end; leave no partition behind, even after an error."""
        try:
            self._load()
            self._evaluate(0)
            self._take_evaluations(wait=True)
            self._began_s, self._training = time.monotonic(), True
            workers = range(self.workload.profile.num_workers)
            here = [worker for worker in workers if worker not in self._lost]
            self.perform(self.engine.begin(here), self._now)
            while not self.ending:
                try:
                    self._job()
                    self._attend()
                except _StoppedInJob:
                    self.ending.stop()
            return self._finish()
        except RolesLost as error:
            raise WorkerLost(
                f"{', '.join(error.roles)} is gone: its process was killed or is frozen"
            ) from None
        finally:
            self._let_go()

    def _load(self) -> None:
        self._experiment = sent(self.client, self._shipping.experiment, self.placed.values())
        for role in self.placed:
            self._load_partition(role)
        for role in self.placed:
            self._result(self._partitions[role], f"the partition of {role}", self._limits.start_within_s)
            start_progress().reach(role, "data read")

    def _load_partition(self, role: str) -> None:
        """Load a role's partition on its Dask worker; the evaluator uses the last worker's."""
        worker = worker_number(role)
        of = self.workload.profile.num_workers - 1 if worker is None else worker
        self._partitions[role] = self._submit(
            tasks.load, self._experiment, self._shipping.to(role), of, on=[self.placed[role]]
        )

    def _submit(self, task: Any, *arguments: Any, on: Collection[str]) -> Future:
        """Submit a task to one of these Dask workers only: others may be frozen or lost."""
        key = f"{TASKS}{self._title}-{task.__name__}-{next(self._tasks)}"
        where = {"workers": [*on], "allow_other_workers": False}
        return self.client.submit(task, *arguments, key=key, pure=False, **where)

    def _result(self, future: Awaited[Any], what: str, within_s: float = math.inf) -> Any:
        return self._places.result(future, what, within_s)

    def _heed(self) -> None:
        """Stop waiting for tasks if the run is being stopped, except for the tasks that end it."""
        if not self._training:
            self.control.check()
        elif self.control.stopping and not self.ending:
            raise _StoppedInJob

    def _let_go(self) -> None:
        """Release the partitions on the cluster, unless it is lost."""
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
        """Compute one mini-batch, and report the arrival of its shares to the engine."""
        released, self._released = self._released, {}
        if not released:
            raise ProtocolError(f"no worker is released at {self._now:.3f} s; {self.engine.view.waits()}")
        job, pushes = next(self._jobs), [self._push(released[worker]) for worker in sorted(released)]
        model = self.server.parameters.numpy(), self.server.buffers.numpy()
        while not self.ending:
            try:
                self._sum = self._compute(job, pushes, model)
                break
            except RolesLost as lost:
                self._do_without(lost.roles)
                pushes = [push for push in pushes if push.worker not in self._lost]
        if not self.ending:
            self._arrive(pushes)

    def _compute(self, job: int, pushes: list[ev.Push], model: _Model) -> tasks.PartialSum:
        """Compute the shares of a mini-batch and their sum."""
        self._weights = self._planned_weights(pushes)
        roles = [worker_name(push.worker) for push in pushes]
        places = sorted({self.placed[role] for role in roles})

        async def spread() -> list[list[Future]]:
            # a broadcast of Dask's would have the next one wait for a Dask worker that is gone
            sending = [self.client.scatter([model], workers=[place], hash=False) for place in places]
            return await asyncio.gather(*sending)

        with self.client.as_current():
            models = self._result(begin(self.client, spread), f"the model of job {job}")
            model_at = {place: sent for place, (sent,) in zip(places, models, strict=True)}
            futures = [
                self._submit(
                    tasks.map_step,
                    self._partitions[role],
                    model_at[self.placed[role]],
                    job,
                    push.samples,
                    weight,
                    on=[self.placed[role]],
                )
                for role, push, weight in zip(roles, pushes, self._weights, strict=True)
            ]
            while len(futures) > 1:
                pairs = range(0, len(futures) - 1, 2)
                sums = [self._submit(tasks.add, *futures[i : i + 2], on=places) for i in pairs]
                futures = [*sums, *futures[2 * len(sums) :]]
            found: tasks.PartialSum = self._result(futures[0], f"job {job}")
        return found

    def _do_without(self, roles: Iterable[str]) -> None:
        """Load lost partitions on other Dask workers, or continue without their workers.

        A worker that is replaced does its share of the job again, which is the same: between two jobs it
        keeps nothing but its partition.

        Raises
        ------
        WorkerLost
            If no worker is left.
        BackendError
            If there is no other Dask worker for the evaluator.
        """
        recovery = self.workload.experiment.recovery
        for role in roles:
            worker = worker_number(role)
            self._note(f"{role} was lost at {self._now:.1f} s")
            if worker is None or recovery.replace_workers:
                try:
                    self._replace(role)
                    continue
                except BackendError as error:
                    if worker is None or isinstance(error, Cancelled):
                        raise
                    logger.info("%s is not replaced: %s", role, error)
            del self.placed[role], self._partitions[role]
            self._lost.add(worker)
            self._released.pop(worker, None)
            if self._training:
                self.perform(self.engine.handle(ev.Leave(worker, "lost"), self._now), self._now)
        if not any(worker_number(role) is not None for role in self.placed):
            raise WorkerLost(f"every worker is gone at {self._now:.3f} s; none is left to train")

    def _replace(self, role: str) -> None:
        """Load a partition on another Dask worker."""
        limits, wait_s = self._limits, self.workload.experiment.recovery.wait_for_workers
        away = {*self.placed.values()} | self._places.bad
        with demand(self.client, limits) as wanted:
            room = find_room(self.client, [role], 1, wait_s, self._heed, away, limits=limits, ask=wanted.ask)
        self.placed[role] = self._places.answering(room, role)
        ask(self.client, leave_signals, of=[self.placed[role]], limits=limits, go_on=self._heed)
        self._load_partition(role)
        if role == EVALUATOR:
            self._evaluations = [
                (number, version, epoch, model, self._submit_evaluation(model))
                for number, version, epoch, model, _ in self._evaluations
            ]
        self._note(f"{role} has joined on another Dask worker at {self._now:.1f} s")

    def _note(self, incident: str) -> None:
        self._incidents.append(incident)
        self.control.said = incident
        logger.warning("%s", incident)

    def _push(self, release: act.Release) -> ev.Push:
        view, composition = self.engine.view, self.engine.composition
        size = composition.placement.bytes_up(self.workload.model_bytes, view.num_workers)
        samples = view.workers[release.worker].batch_size
        return ev.Push(next(self._ids), release.worker, release.ticket, release.load, samples, bytes=size)

    def _planned_weights(self, pushes: list[ev.Push]) -> list[float]:
        """Return the weights of the job's shares in advance: the job computes the weighted sum itself."""
        actions = self.engine.composition.aggregation.fresh().on_commit(pushes, self.engine.view)
        if len(actions) != 1 or not isinstance(actions[0], act.Apply):
            raise ParameterError(
                f"{self.engine.composition.aggregation.name}: its weights are unknown until the job that "
                "sums the gradients is done; use 'mean'"
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
                self.ending.unanswered = True
                return
            self.perform(actions, now)

    # ---------------------------------------------------------------- actions

    def release(self, release: act.Release, now: float) -> None:
        """Give a worker a share of the next job."""
        self._released[release.worker] = release

    def apply(self, apply: act.Apply, now: float) -> None:
        """Make the next version from the sum that the job has computed."""
        assert self._sum is not None
        if list(apply.weights) != self._weights:
            raise ProtocolError(f"the job used the weights {self._weights}, but now they are {apply.weights}")
        samples = sum(push.samples for push in apply.pushes)
        share = samples / self.workload.experiment.batch_size
        gradient, buffers = map(torch.from_numpy, (self._sum.gradient, self._sum.buffers / share))
        pushed = Pushed(gradient, buffers=buffers, samples=samples)
        self.server.apply([pushed], apply)
        if makes_newest(apply, self.view):
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
            self.perform(self.engine.handle(request, self._now), self._now)
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
        future = self._submit_evaluation(model)
        self._evaluations.append((number, view.version, view.epoch, model, future))

    def _submit_evaluation(self, model: _Model) -> Future:
        return self._submit(tasks.evaluate, self._partitions[EVALUATOR], model, on=[self.placed[EVALUATOR]])

    def _take_evaluations(self, wait: bool) -> None:
        """Handle the finished evaluations, in order."""
        while self._evaluations and (wait or self._evaluations[0][-1].done()):
            try:
                found = self._result(self._evaluations[0][-1], "evaluation")
            except RolesLost as lost:
                self._do_without(lost.roles)
                continue
            number, version, epoch, *_ = self._evaluations.pop(0)
            values = {"epoch": epoch} | found
            if number > 0 and not self.ending:
                now = self._now
                self.perform(self.engine.handle(ev.Evaluated(number, version, values), now), now)
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
            self._submit(tasks.used, self._partitions[role], on=[self.placed[role]])
            for role in self.placed
            if role != EVALUATOR
        ]
        if self._evaluated != self.engine.view.version and self.ending.status != "diverged":
            self._evaluate(-1)
        try:
            self._take_evaluations(wait=True)
            used = [self._result(future, "usage") for future in usage]
        except (RolesLost, BackendError) as error:  # the model is here: it is kept
            self._note(f"the final evaluation is incomplete: {error}")
            used = []
        if self.observer is not None:
            self.observer(self.log)
        facts = {"time_s": time_s, "checkpoints": self._checkpoints, "lost_workers": sorted(self._lost)}
        facts |= {"usage": used, "incidents": self._incidents, "unanswered": self.ending.unanswered}
        return Outcome(
            self.ending.status, self.ending.reason, self.server.parameters, self.server.buffers, facts
        )
