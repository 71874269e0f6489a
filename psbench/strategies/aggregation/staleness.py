"""The mean gradient, in which a stale push counts for less."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PrivateAttr

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, parameter
from psbench.strategies.aggregation.mean import sample_shares

SOURCE = "Zhang et al. 2016; Gupta et al. 2016; thesis 3.2.2"


class _ByStaleness(Aggregation):
    """Weigh each push by its share of the commit's samples, divided by a function of its staleness."""

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Divide each push's share; a push is stale by the versions made since the one it started from."""
        staleness = [view.version - push.base_version for push in pushes]
        divisors = self._divisors(staleness)
        shares = sample_shares(pushes)
        return [Apply(pushes, [share / by for share, by in zip(shares, divisors, strict=True)])]

    def _divisors(self, staleness: list[int]) -> list[float]:
        raise NotImplementedError


class StalenessWeighted(_ByStaleness):
    """Divide the rate of a push by its staleness: the rates of n-softsync.

    Parameters
    ----------
    rate : "per_gradient", "mean" or "fixed"
        per_gradient: lr / staleness for a stale push, lr for a fresh one (Zhang et al.; the thesis).
        mean: lr / mean staleness of all pushes so far (Gupta et al.). fixed: lr.

    Notes
    -----
    Reduces to: the mean gradient with rate = "fixed", or when nothing is stale.
    It takes the optimizer's rate as it is (`lr_scaling` none): staleness is about n when n versions are
    made while every worker pushes once, so dividing by it already makes the n small steps as long together
    as the one step of a barrier. With "fixed" nothing does, unless `lr_scaling` is "by_share".
    Our reading: Gupta et al. divide by the average staleness, "about n", which they know beforehand; we
    average what was seen, which comes to n in their setting, and never divide by less than 1.

    Examples
    --------
    >>> stale = Push(0, 0, 1, base_version=6, samples=8)
    >>> StalenessWeighted().on_commit([stale], ClusterView(4, 1, 1, version=10))[0].weights
    [0.25]
    """

    name = "staleness_weighted"
    source = SOURCE

    rate: Literal["per_gradient", "mean", "fixed"] = parameter(
        "per_gradient",
        "divisor of the rate: each push's staleness, the mean staleness, or 1",
        source=SOURCE,
    )

    _pushes: int = PrivateAttr(0)
    _staleness: int = PrivateAttr(0)  # summed over those pushes

    @property
    def shares_rate(self) -> bool:  # pyrefly: ignore[bad-override]
        return self.rate != "fixed"

    def _divisors(self, staleness: list[int]) -> list[float]:
        if self.rate == "fixed":
            return [1.0] * len(staleness)
        if self.rate == "per_gradient":
            return [max(1.0, s) for s in staleness]
        self._pushes += len(staleness)
        self._staleness += sum(staleness)
        return [max(1.0, self._staleness / self._pushes)] * len(staleness)


class DynSGD(_ByStaleness):
    """Divide a push by its staleness plus 1.

    Notes
    -----
    Reduces to: ConSGD (every push at lr/n) when n workers push in strict rotation; SGD with one worker.
    It takes the optimizer's rate as it is (`lr_scaling` none): staleness is what shares it out. Where fast
    workers overtake slow ones the divisors average less than n, so all steps together are longer than a
    barrier's: a rate that BSP just bears, with momentum, may be too large here.
    Our reading: the rule that needs no older models, d = versions since the worker's pull, its own included.
    The paper's variant that keeps several versions and corrects earlier contributions is
    `dyn_sgd_versioned`.

    Examples
    --------
    >>> fresh, stale = Push(0, 0, 1, base_version=10, samples=8), Push(1, 1, 1, base_version=7, samples=8)
    >>> view = ClusterView(4, 1, 1, version=10)
    >>> [DynSGD().on_commit([push], view)[0].weights for push in (fresh, stale)]
    [[1.0], [0.25]]
    """

    name = "dyn_sgd"
    source = "Jiang et al. 2017"
    shares_rate: ClassVar[bool] = True

    def _divisors(self, staleness: list[int]) -> list[float]:
        return [s + 1.0 for s in staleness]
