"""The mean of the workers' models, with a momentum of the whole block of local steps."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.core.needs import NEEDS_BARRIER
from psbench.strategies.aggregation.mean import sample_shares
from psbench.strategies.aggregation.model_average import MovesToMean

SOURCE = "Wang and Joshi 2019 (AdaComm), eqs. 7-8; Chen and Huo 2016"


class BlockMomentum(MovesToMean):
    """Treat all steps since the last averaging as one large step, and apply a momentum to it.

    u <- beta u + G with G = (w - mean_i w_i)/lr, then w <- w - lr u.

    Notes
    -----
    Reduces to: `model_average` with 0; the server's momentum, when each worker has taken one plain step.
    Our reading: with a momentum on the workers too, G as the sum of their gradients is not G as the way they
    went; we take the latter ("accumulated local updates as one big gradient step").
    """

    name = "block_momentum"
    source = SOURCE
    needs = (NEEDS_BARRIER,)
    linear = True

    block_momentum: float = parameter(
        0.3, "momentum of whole blocks of local steps; 0: plain average", source=SOURCE, ge=0, lt=1
    )

    @property
    def effective_outer_rate(self) -> float:
        """1/(1 - beta)."""
        return 1.0 / (1.0 - self.block_momentum)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each model by its samples."""
        return [Apply(pushes, sample_shares(pushes))]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Move to m - lr beta u, which is w - lr u' for u' = beta u + G, G = (w - m)/lr and the mean m."""
        mean, beta = step.sum(pushes), self.block_momentum
        before, way = state.get("momentum"), (x - mean) / step.lr
        if before is not None:
            way.add_(before, alpha=beta)
            mean = mean.sub(before, alpha=step.lr * beta)
        state["momentum"] = way
        x.copy_(mean)
