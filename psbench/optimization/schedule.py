"""Schedules: the factor on the learning rate, by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from pydantic import model_validator

from psbench.core import Part, make_part, parameter
from psbench.core.code_identity import code_digest, qualified_name
from psbench.core.plateau import PlateauRule
from psbench.core.user_object import Own
from psbench.errors import ParameterError, in_short

#: what the rate begins with in a warm-up: a rate of zero would waste the first steps
_START = 0.01


class RateSchedule(Part):
    """A factor of the learning rate by epoch; epochs count samples, so it is equal for all strategies."""

    domain = "schedule"

    def factor(self, epoch: float) -> float:
        """Return the factor on the learning rate at that epoch, 0 or more."""
        raise NotImplementedError(f"{type(self).__name__} must define factor")


class _Decay(RateSchedule):
    """A linear warm-up to 1, then a decay to `floor` that ends at `epochs`; the floor holds from there."""

    epochs: float = parameter(30.0, "epochs until the floor is reached", unit="epochs", gt=0)
    warmup: float = parameter(0.0, "epochs of linear warm-up", unit="epochs", ge=0)
    floor: float = parameter(0.0, "final share of the rate", ge=0, le=1)

    @model_validator(mode="after")
    def _warms_up_in_time(self) -> Self:
        if self.warmup >= self.epochs:
            raise ParameterError(
                f"schedule {self.name!r}: warmup = {self.warmup:g} leaves no epochs after it, as epochs = "
                f"{self.epochs:g}; lower warmup"
            )
        return self

    def factor(self, epoch: float) -> float:
        """Return the factor: rising, falling, then `floor`."""
        if epoch < self.warmup:
            return _START + (1 - _START) * epoch / self.warmup
        done = min(1.0, (epoch - self.warmup) / (self.epochs - self.warmup))
        return self.floor + (1 - self.floor) * self.left(done)

    def left(self, done: float) -> float:
        """Return the remaining factor, from 1 to 0, after that share of the decay."""
        raise NotImplementedError(f"{type(self).__name__} must define left")


class Cosine(_Decay):
    """Half a cosine from the rate to `floor`, after a linear warm-up.

    Examples
    --------
    >>> [round(Cosine(epochs=10, warmup=2).factor(epoch), 3) for epoch in (0, 1, 2, 6, 10, 12)]
    [0.01, 0.505, 1.0, 0.5, 0.0, 0.0]
    """

    name = "cosine"
    source = "torch.optim.lr_scheduler.CosineAnnealingLR"

    def left(self, done: float) -> float:
        """Return (1 + cos(pi done)) / 2."""
        return (1 + math.cos(math.pi * done)) / 2


class LinearDecay(_Decay):
    """A straight line from the rate to `floor`, after a linear warm-up."""

    name = "linear"
    source = "torch.optim.lr_scheduler.LinearLR"

    def left(self, done: float) -> float:
        return 1 - done


class OneCycle(RateSchedule):
    """One cycle: up from 1/25 of the rate in the first 30 %, down to 1/10,000 of that, both along cosines."""

    name = "one_cycle"
    source = "torch.optim.lr_scheduler.OneCycleLR"

    epochs: float = parameter(30.0, "epochs of the cycle", unit="epochs", gt=0)
    rise: float = parameter(0.3, "share of the cycle in which the rate rises", gt=0, lt=1)
    start_divisor: float = parameter(25.0, "divisor of the rate at the start", ge=1)
    end_divisor: float = parameter(1e4, "divisor of the starting rate at the end", ge=1)

    def factor(self, epoch: float) -> float:
        """Return the factor, at most 1."""
        start, done = 1 / self.start_divisor, min(1.0, epoch / self.epochs)
        if done < self.rise:
            return _between(start, 1.0, done / self.rise)
        return _between(1.0, start / self.end_divisor, (done - self.rise) / (1 - self.rise))


class Plateau(RateSchedule):
    """The rate falls when evaluations stop improving, from the next version on.

    The engine receives evaluations and multiplies the rate of the servers' updates; `PlateauRule` has the
    rule and its state. Live runs wait for each evaluation. Not for workers that take steps of their own.
    """

    name = "plateau"
    source = "torch.optim.lr_scheduler.ReduceLROnPlateau"

    metric: str = parameter("val_loss", "the evaluated value that must improve", min_length=1)
    gamma: float = parameter(0.1, "factor of the rate at each plateau", gt=0, lt=1)
    patience: int = parameter(3, "evaluations in a row without improvement", unit="evaluations", ge=0)
    threshold: float = parameter(1e-4, "share of the best value that counts as improvement", ge=0, lt=1)
    cooldown: int = parameter(0, "evaluations that are ignored after a reduction", unit="evaluations", ge=0)
    floor: float = parameter(0.0, "final share of the rate", ge=0, le=1)

    def factor(self, epoch: float) -> float:
        """Return 1: of the epoch the rate does not depend."""
        return 1.0

    @property
    def column(self) -> str:
        """The evaluated value, as `val_loss`."""
        return self.metric if self.metric.startswith(("val_", "train_")) else f"val_{self.metric}"

    def rule(self, lower: bool) -> PlateauRule:
        """Return a new rule; `lower`: whether lower values are better."""
        bounds = self.patience, self.threshold, self.cooldown, self.floor
        return PlateauRule(self.column, lower, self.gamma, *bounds)


class OwnSchedule(Own, RateSchedule):
    """A function that was passed: epoch -> factor."""

    def factor(self, epoch: float) -> float:
        """Return the function's value, checked.

        Raises
        ------
        ParameterError
            If it is no number of 0 or more.
        """
        value = self.object(epoch)
        if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ParameterError(
                f"schedule {self.type!r}: returned {in_short(value)} for epoch {epoch:g}; expected a "
                "factor of the rate, 0 or more"
            )
        return float(value)

    @property
    def argument(self) -> str:
        """The name of the argument that takes such an object."""
        return "optimizer"


def as_schedule(value: Any) -> RateSchedule | None:
    """Return a schedule from one, its name, a mapping with its parameters, or a function of the epoch.

    Raises
    ------
    UnknownName, ParameterError

    Examples
    --------
    >>> as_schedule({"name": "cosine", "epochs": 5}).factor(5)
    0.0
    >>> as_schedule(lambda epoch: 0.5**epoch).factor(1)
    0.5
    """
    if value is None or isinstance(value, RateSchedule):
        return value
    if isinstance(value, Mapping) and value.get("name") == Own.name:
        return OwnSchedule.described(value)
    if callable(value) and not isinstance(value, type):
        return OwnSchedule.around(value, qualified_name(value), code_digest(value))
    schedule = make_part(RateSchedule.domain, value)
    assert isinstance(schedule, RateSchedule)
    return schedule


def _between(first: float, last: float, done: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * done)) / 2
