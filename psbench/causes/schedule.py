"""The schedule of a recorded run: its decisions in their order, without times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from psbench.backends.replay import Decision
from psbench.core.actions import Apply, Discard, Handover, Mix, Release
from psbench.core.events import Push
from psbench.core.log import Kind
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.strategy import Strategy
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.replaying import decisions
from psbench.training.build import Workload


class CannotAsk(ParameterError):
    """A question that the record of a run cannot answer."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A worker is released to compute, `samples` a step."""

    release: Release
    samples: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A push arrives; its first step is the worker's step of that `number`, counted from 0."""

    push: Push
    number: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A push that has arrived is discarded."""

    push: Push


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The model is evaluated, as row `row` of the log has it."""

    row: int


@dataclass(frozen=True, slots=True)
class Update:
    """The next version is made.

    Attributes
    ----------
    apply : Apply
        Its pushes, their weights, and the rate.
    row : int
        The row of the log after the update's last.
    begins : int
        Samples that had been applied before it.
    """

    apply: Apply
    row: int
    begins: int

    @property
    def samples(self) -> int:
        """Samples that it applies."""
        return sum(push.samples for push in self.apply.pushes)

    @property
    def ends(self) -> int:
        """Samples that have been applied after it."""
        return self.begins + self.samples

    @property
    def starts(self) -> Iterator[int]:
        """Numbers of samples applied before each of its pushes, in order."""
        at = self.begins
        for push in self.apply.pushes:
            yield at
            at += push.samples


Item: TypeAlias = Begin | Arrival | Dropped | Evaluation | Update


@dataclass
class Schedule:
    """The order of a run: the version from which each step began, and the pushes of each update.

    Two runs have no common clock and no common versions, but both apply samples. A place of one run is
    therefore compared with the place of the other at which as many samples had been applied.

    Attributes
    ----------
    run : Run
    items : list of Item
    stops_at : int or None
        Samples after which the run stopped, if the schedule goes on beyond them; see `Amount`.
    """

    run: Run
    items: list[Item] = field(default_factory=list)
    stops_at: int | None = None

    @classmethod
    def of(cls, run: Run) -> Schedule:
        """Take the decisions of a run again.

        Raises
        ------
        CannotAsk
            If the run has no gradients, or does what is not recomputed here: peers without a server,
            switches, votes, chunks of data, exchanges, work that goes on beside a push, or a resume.
        ReplayMismatch
            If the installed code decides otherwise than the recorded run did.
        """
        check_recomputable(run.experiment)
        if run.parameters is None:
            raise CannotAsk(
                f"{run.experiment.title}: its model is missing, so nothing can be compared with it"
            )
        schedule = cls(run)
        reader = _Reader(schedule)
        for decision in decisions(run):
            reader.read(decision)
        return schedule

    @property
    def composition(self) -> Strategy:
        """The only composition of the run."""
        only: Strategy = self.run.experiment.strategy.compositions[0]
        return only

    @cached_property
    def updates(self) -> list[Update]:
        """The updates, in order."""
        return [item for item in self.items if isinstance(item, Update)]

    @cached_property
    def workload(self) -> Workload:
        """The run's data, shards and model, built again."""
        return Workload.build(self.run.experiment)

    @property
    def samples(self) -> int:
        """Samples that the run applied."""
        if self.stops_at is not None:
            return self.stops_at
        return self.updates[-1].ends if self.updates else 0

    def version_at(self, samples: float) -> int:
        """Return the newest version after a number of applied samples."""
        return max(0, bisect_right(self.updates, samples, key=lambda update: update.begins) - 1)

    def age_at(self, samples: float) -> int:
        """Return the age of the gradient applied there: the samples applied since its base version."""
        update = self.updates[self.version_at(samples)]
        pairs = zip(update.apply.pushes, update.starts, strict=True)
        push = [push for push, at in pairs if at <= samples][-1]
        return update.begins - self.begin_of(push.base_version)

    def begin_of(self, version: int) -> int:
        """Return the number of samples applied up to a version."""
        return self.updates[version].begins if version < len(self.updates) else self.updates[-1].ends

    def rate_at(self, samples: float) -> float:
        """Return the effective rate there: how far a constant gradient moves the model, per sample.

        Of SGD with momentum: lr x scale x sum of weights / (1 - momentum) / samples of the update.
        """
        update, optimizer = self.updates[self.version_at(samples)], self.run.experiment.optimizer
        how = update.apply
        moved = optimizer.rate(how.epoch) * how.lr_scale * sum(how.weights)
        return moved / (1 - optimizer.coefficient * how.momentum_scale) / update.samples


class _Reader:
    """Turns decisions into the items of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._items = schedule, schedule.items
        self._kinds = schedule.run.log.rows()["kind"]
        self._gradients = schedule.composition.pushes_raw_gradients
        self._steps: dict[int, int] = {}
        self._samples = 0

    def read(self, decision: Decision) -> None:
        first, end = decision.rows
        kind = self._kinds[first]
        if kind == Kind.RESUME:
            raise CannotAsk(f"row {first}: a resumed run cannot be recomputed")
        if kind == Kind.EVALUATED:
            self._items.append(Evaluation(first))
        if isinstance(event := decision.event, Push) and kind == Kind.PUSH:
            self._arrive(event)
        for action in decision.actions:
            if isinstance(action, Release) and action.then == "step":
                self._begin(action, decision.view.workers[action.worker].batch_size)
            elif isinstance(action, Apply):
                update = Update(action, end, self._samples)
                self._items.append(update)
                self._samples = update.ends
            elif isinstance(action, Discard):
                self._items.append(Dropped(action.push))
            elif isinstance(action, Handover | Mix):
                raise CannotAsk(f"row {first}: {type(action).__name__} cannot be recomputed")

    def _begin(self, release: Release, samples: int) -> None:
        self._items.append(Begin(release, samples))
        if self._gradients:  # a step is drawn when it begins, also one that is cancelled
            self._steps[release.worker] = self._steps.get(release.worker, 0) + 1

    def _arrive(self, push: Push) -> None:
        made = self._steps.get(push.worker, 0)
        if self._gradients:
            self._items.append(Arrival(push, made - 1))
            return
        self._items.append(Arrival(push, made))
        self._steps[push.worker] = made + push.steps


def check_recomputable(experiment: Experiment) -> None:
    """Raise if the schedules of an experiment's runs cannot be recomputed.

    Raises
    ------
    CannotAsk
        With the reason.
    """
    if experiment.timing_only:
        raise CannotAsk(f"{experiment.title}: a timing-only run has no gradients to recompute")
    compositions = experiment.strategy.compositions
    if len(compositions) > 1:
        raise CannotAsk(f"{experiment.title}: a run that switches strategies cannot be recomputed")
    only = compositions[0]
    if reason := _why_not(only):
        raise CannotAsk(f"{only.name}: {reason}")


def _why_not(composition: Strategy) -> str:
    communication = composition.communication
    if isinstance(composition.placement, PeerToPeer):
        return "workers mix their models without a server, so no update has an age or a rate of its own"
    reasons = {
        "its workers vote on what to push": communication.pushes != "always",
        "its workers compute while a push is in transit": communication.overlaps,
        "its workers train on chunks of data": communication.chunks or communication.reports_progress,
        "its workers train on samples of others": communication.shares_samples,
        "its pushes are summed by an exchange that keeps state": bool(composition.aggregation.exchanges),
        "its selection chooses samples by what a model has learnt": composition.selection.chooses,
    }
    found = next((reason for reason, holds in reasons.items() if holds), "")
    return f"{found}, which cannot be recomputed" if found else ""
