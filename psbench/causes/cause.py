"""Causes: properties that a counterfactual takes from another run, one each.

A counterfactual keeps the schedule of run A, and takes the causes' value from run B. A cause is thus never
switched off, but transplanted: what both runs have in common explains nothing of their difference.
"""

from __future__ import annotations

import math
from typing import ClassVar

from psbench.causes.schedule import CannotAsk, Schedule, Update
from psbench.core.strategy import Strategy
from psbench.optimization.optimizer import SGD, Optimizer
from psbench.training.build import Workload


class Cause:
    """A property that a counterfactual of run A takes from run B; by default none.

    A subclass overrides one or two of the methods from `age` to `end`, and may refuse runs that it cannot be
    asked of, by raising `CannotAsk` in `check`. `check_cause` tests it.

    Parameters
    ----------
    a : Schedule
        Of the run that is explained; its schedule is kept.
    b : Schedule
        Of the run that it is compared with.

    Examples
    --------
    A cause that takes the other run's weight decay:

    >>> class WeightDecay(Cause):
    ...     name = "weight_decay"
    ...     def optimizer(self, recorded):
    ...         other = self.b.run.experiment.optimizer
    ...         return recorded.model_copy(update={"weight_decay": other.weight_decay})
    """

    name: ClassVar[str] = ""

    def __init__(self, a: Schedule, b: Schedule) -> None:
        self.a, self.b = a, b
        self.check()

    def check(self) -> None:
        """Raise `CannotAsk` if this cause cannot be tested on these runs."""

    def age(self, samples: int, recorded: int) -> int:
        """Return the age, in samples, of the gradient that is applied after so many samples."""
        return recorded

    def factor(self, update: Update) -> float:
        """Return the factor of an update's rate; the factors of several causes multiply."""
        return 1.0

    def optimizer(self, recorded: Optimizer) -> Optimizer:
        """Return the servers' optimizer."""
        return recorded

    def data(self, recorded: Workload) -> Workload:
        """Return the workload whose shards and random streams the mini-batches are drawn from."""
        return recorded

    def composition(self, recorded: Strategy) -> Strategy:
        """Return the composition whose codecs encode the pushes and the answers."""
        return recorded

    def end(self, recorded: int) -> int:
        """Return the samples after which the run stops."""
        return recorded

    def differs(self) -> bool:
        """Return whether the cause replaces anything; if not, its share is 0, and it needs no run."""
        a = self.a
        workload, stops = a.workload, a.samples
        given = workload.optimizers[0]
        if self.optimizer(given) != given or self.composition(a.composition) != a.composition:
            return True
        if _last_update(a, self.end(stops)) != _last_update(a, stops):
            return True
        if _draws(self.data(workload)) != _draws(workload):
            return True
        return any(
            self.factor(update) != 1.0
            or any(self.age(at, a.age_at(at)) != a.age_at(at) for at in update.starts)
            for update in a.updates
        )


def _last_update(schedule: Schedule, end: int) -> int:
    return sum(update.ends <= end for update in schedule.updates)


def _draws(workload: Workload) -> tuple[int, list[list[int]]]:
    return workload.streams.seed, [shard.tolist() for shard in workload.shards]


def _needs_gradients(schedule: Schedule, cause: str) -> None:
    """Refuse pushes of model differences, to which the server's rate does not apply."""
    if (kind := schedule.composition.aggregation.payload) != "gradient":
        raise CannotAsk(
            f"{cause}: {schedule.composition.name} pushes {kind}s of local steps, whose {cause} differs "
            "from that of an update"
        )


def _needs_sgd(schedule: Schedule, cause: str) -> None:
    name = schedule.run.experiment.optimizer.name
    if name != SGD.name:
        raise CannotAsk(
            f"{cause}: only sgd has the effective rate lr / (1 - momentum), and this run uses {name}"
        )


class Staleness(Cause):
    """Each gradient is as old, in samples, as the other run's gradient there: under BSP it is fresh.

    Beyond the end of the other run it keeps its age.
    """

    name = "staleness"

    def check(self) -> None:
        for schedule in (self.a, self.b):
            if not schedule.composition.pushes_raw_gradients:
                raise CannotAsk(
                    f"staleness: {schedule.composition.name} pushes local steps or encoded vectors, which "
                    "cannot be moved to another version"
                )

    def age(self, samples: int, recorded: int) -> int:
        return self.b.age_at(samples) if samples < self.b.samples else recorded


class Rate(Cause):
    """Each update moves the model as far per sample as the other run's update at that place.

    Beyond the end of the other run it keeps its rate.
    """

    name = "rate"

    def check(self) -> None:
        for schedule in (self.a, self.b):
            _needs_gradients(schedule, self.name)
            _needs_sgd(schedule, self.name)

    def factor(self, update: Update) -> float:
        if update.begins >= self.b.samples:
            return 1.0
        mine, other = self.a.rate_at(update.begins), self.b.rate_at(update.begins)
        # .05 / (1 - .9) and .5 / (1 - 0) are one rate, but not one float
        return 1.0 if math.isclose(mine, other, rel_tol=1e-9) else other / mine


class Momentum(Cause):
    """Momentum and weight decay of the other run, at the effective rate of this one."""

    name = "momentum"

    def check(self) -> None:
        for schedule in (self.a, self.b):
            _needs_gradients(schedule, self.name)
            _needs_sgd(schedule, self.name)

    def optimizer(self, recorded: Optimizer) -> Optimizer:
        other = self.b.run.experiment.optimizer
        names = "momentum", "nesterov", "weight_decay"
        return recorded.model_copy(update={name: getattr(other, name) for name in names})

    def factor(self, update: Update) -> float:
        mine, other = (each.run.experiment.optimizer.coefficient for each in (self.a, self.b))
        return (1 - other) / (1 - mine)


class Samples(Cause):
    """Each worker draws from its shard in the other run, in the order of that run."""

    name = "samples"

    def check(self) -> None:
        mine, other = (len(each.workload.shards) for each in (self.a, self.b))
        if mine != other:
            raise CannotAsk(f"samples: the runs divide the data among {mine} and {other} workers")

    def data(self, recorded: Workload) -> Workload:
        return self.b.workload


class Codec(Cause):
    """Pushes and answers are encoded as in the other run."""

    name = "codec"

    def composition(self, recorded: Strategy) -> Strategy:
        other = self.b.composition.communication
        codecs = {"codec": other.codec, "codec_down": other.codec_down}
        communication = recorded.communication.model_copy(update=codecs)
        return recorded.model_copy(update={"communication": communication})


class Amount(Cause):
    """The run stops after as many samples as the other run."""

    name = "amount"

    def end(self, recorded: int) -> int:
        return self.b.samples


CAUSES: dict[str, type[Cause]] = {
    cause.name: cause for cause in (Staleness, Rate, Momentum, Samples, Codec, Amount)
}
