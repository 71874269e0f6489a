"""The mean gradient; a push counts less, the further the model has moved since its base version."""

from __future__ import annotations

from typing import Any, Self

from pydantic import PrivateAttr, model_validator

from psbench.core import Action, Aggregation, Apply, ClusterView, Measure, Push, parameter
from psbench.errors import ParameterError
from psbench.strategies.aggregation.mean import sample_shares

SOURCE = "Dutta et al. 2018; thesis 3.2.2"


class _ByDistance(Aggregation):
    """Multiply the rate of push j by clip(C / |w_now - w_read|^2, least, most)."""

    measures = ("distance_sq",)

    least: float = parameter(0.1, "smallest factor of the rate", source=SOURCE, ge=0)
    most: float = parameter(1.0, "largest factor of the rate", source=SOURCE, gt=0)

    _pushes: list[int] = PrivateAttr(default_factory=list)  # of the commit that is being measured
    _measured: int = PrivateAttr(0)
    _total: float = PrivateAttr(0.0)  # of the distances measured

    @model_validator(mode="after")
    def _is_range(self) -> Self:
        if self.least > self.most:
            raise ParameterError(f"{self.name}: least = {self.least} must not exceed most = {self.most}")
        return self

    @property
    def constant(self) -> float:
        """C over the optimizer's rate: the squared distance at which the factor is 1."""
        raise NotImplementedError

    @property
    def mean_distance_sq(self) -> float:
        """The mean of the squared distances measured so far."""
        return self._total / max(1, self._measured)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Request how far the model has moved since the base of each stale push."""
        self._pushes = [push.id for push in pushes]
        stale = [push.id for push in pushes if push.base_version < view.version]
        if not stale:
            return self.on_measured({}, view)
        return [Measure("aggregation", {f"distance_sq:{number}": number for number in stale})]

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Weigh each push by its share of the samples times its factor."""
        self._measured += len(facts)
        self._total += sum(facts.values())
        pushes = [view.pending[number] for number in self._pushes]
        factors = [self.factor(facts.get(f"distance_sq:{push.id}", 0.0)) for push in pushes]
        shares = sample_shares(pushes)
        return [Apply(pushes, [share * by for share, by in zip(shares, factors, strict=True)])]

    def factor(self, distance_sq: float) -> float:
        """Return the factor of the rate for a squared distance; the largest factor for a distance of 0."""
        constant = self.constant
        if distance_sq * self.most <= constant:  # also where there is no distance to divide by
            return self.most
        return max(self.least, constant / distance_sq)


class BoundedStep(_ByDistance):
    """Bound the rate of a push by a constant over the squared distance that the model has moved since.

    The rate of push j is the optimizer's times clip(near / |w_now - w_read|^2, least, most), where w_read is
    the model that the push was computed on.

    Notes
    -----
    Reduces to: the mean gradient when nothing is stale, with most = 1; also with least = most = 1, and when
    near is never exceeded.
    Our reading: the paper's rate is min(C / distance^2, eta_max), to which the thesis adds a minimum for very
    stale pushes. With C = near * eta and eta_max = most * eta this is the same; as a factor, the optimizer's
    schedule and `lr_scaling` keep their meaning, and of several pushes each has its own.
    A push that is not stale counts as distance 0 and is not measured.
    The source gives C no number, and the right one depends on the experiment: distances grow with the model,
    the rate, the momentum and the number of workers. The default is the median in the first epoch of the
    default experiment under ASP (digits, c2, rate 0.1, momentum 0.9: 0.12; without momentum 0.002, where
    it corrects nothing). `bounded_step_by_mean` needs no constant.
    near = 0, takes the mean distance so far, as `bounded_step_by_mean`.

    Examples
    --------
    >>> BoundedStep(near=0.5, least=0.1).factor(2.0)
    0.25
    """

    name = "bounded_step"
    source = SOURCE

    near: float = parameter(0.1, "squared distance at which the factor is 1", source="our reading", ge=0)

    @property
    def constant(self) -> float:
        """The distance given."""
        return self.near or self.mean_distance_sq


class BoundedStepByMean(_ByDistance):
    """Bound the rate of a push if the model has moved further since its base than the mean distance so far.

    As `bounded_step`, with the mean of the squared distances measured until now, this commit's among them,
    in place of the constant: pushes count for less that are staler than usual.

    Notes
    -----
    Reduces to: the mean gradient when nothing is stale, with most = 1.
    This is not the published rule: distances below the mean, about half of them and more, are not corrected
    however far the model has moved, and rates do not rise as the model settles. It needs no constant that
    depends on the experiment.
    """

    name = "bounded_step_by_mean"
    source = "our variant of Dutta et al. 2018"

    @property
    def constant(self) -> float:
        """The mean distance so far."""
        return self.mean_distance_sq
