"""Asynchronous federated averaging: FedAsync takes a model at a time, FedBuff several differences."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.core.needs import NEEDS_SINGLE_PUSHES
from psbench.strategies.aggregation.model_average import MovesToMean

FEDASYNC, FEDBUFF = "Xie et al. 2019 (FedAsync)", "Nguyen et al. 2022 (FedBuff)"


def staleness_weight(staleness: int, exponent: float) -> float:
    """Return (1 + staleness)^-exponent, s(tau) of both papers; an exponent of 0 ignores staleness.

    Examples
    --------
    >>> staleness_weight(3, 0.5), staleness_weight(3, 0)
    (0.5, 1.0)
    """
    return float((1 + staleness) ** -exponent)


class FedAsync(MovesToMean):
    """Move the model towards a worker's: x <- (1 - a) x + a w with a = alpha (1 + staleness)^-exponent.

    Notes
    -----
    Reduces to: SGD with one worker and alpha = 1.
    Left out: the proximal term of the workers' loss, and the hinge form of the weight.

    Examples
    --------
    >>> view = ClusterView(2, 1, 1, version=3)
    >>> FedAsync().on_commit([Push(0, 0, 1, base_version=0, samples=8)], view)[0].weights
    [0.3]
    """

    name = "fedasync"
    source = "Xie et al. 2019 (FedAsync), Alg. 1"
    needs = (NEEDS_SINGLE_PUSHES,)

    mixing: float = parameter(0.6, "share of a model with staleness 0", source=FEDASYNC, gt=0, le=1)
    staleness_exponent: float = parameter(
        0.5, "exponent of the staleness in the share", source=FEDASYNC, ge=0
    )

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Mix the pushed model into the server's: x <- (1 - share) x + share w."""
        (push,) = pushes
        share = self.mixing * staleness_weight(view.version - push.base_version, self.staleness_exponent)
        return [Apply(pushes, [share], {"keep": 1.0 - share})]


class FedBuff(Aggregation):
    """Apply the mean of buffered differences, weighted by staleness: x <- x - lr mean_j s(tau_j) D_j.

    Notes
    -----
    Reduces to: `outer` with plain under a barrier, with an exponent of 0; asynchronous local SGD with a
    buffer of one. The buffer is the consistency part's: `k_batch_asp` makes a version of every k pushes while
    no worker waits.
    Left out: secure aggregation and noise.

    Examples
    --------
    >>> pushes = [Push(0, 0, 1, base_version=3, samples=8), Push(1, 1, 1, base_version=0, samples=8)]
    >>> FedBuff().on_commit(pushes, ClusterView(2, 1, 1, version=3))[0].weights
    [0.5, 0.25]
    """

    name = "fedbuff"
    source = "Nguyen et al. 2022 (FedBuff), Alg. 1; weights of Xie et al. 2019"
    payload = "difference"
    linear = True
    weighs_samples = False

    outer_lr: float = parameter(1.0, "rate of the server", source=FEDBUFF, gt=0)
    staleness_exponent: float = parameter(0.5, "exponent of the staleness in a weight", source=FEDBUFF, ge=0)
    normalise: bool = parameter(
        False, "divide by the sum of the weights instead of their number", source=FEDBUFF
    )

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each difference by its staleness."""
        stale = [view.version - push.base_version for push in pushes]
        weights = [staleness_weight(each, self.staleness_exponent) for each in stale]
        total = sum(weights) if self.normalise else len(weights)
        return [Apply(pushes, [weight / total for weight in weights])]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Step along the weighted mean."""
        x.sub_(step.sum(pushes), alpha=self.outer_lr)
