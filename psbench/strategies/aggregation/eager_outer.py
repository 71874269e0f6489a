"""The server's half of Eager DiLoCo: the mean of the differences that its workers step along."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.core.needs import NEEDS_BARRIER
from psbench.strategies.aggregation.nesterov import nesterov

SOURCE = "Kale et al. 2025 (Eager updates), sec. 3"


class EagerOuter(Aggregation):
    """Send all workers the mean difference D, and step along ((k - 1) D' + D)/k, where D' is the last one.

    That is the mean of what the k workers step along, so that x is the mean of their x_i.

    Parameters
    ----------
    outer_lr, outer_momentum : float
        Of the outer step, which is Nesterov's; the same as of the communication part `eager`.

    Notes
    -----
    Reduces to: `outer` with one worker.
    Our reading: batches are of one size, and differences count equally.
    """

    name = "eager_outer"
    source = SOURCE
    payload = "difference"
    reply = "aggregate"
    needs = (NEEDS_BARRIER,)
    weighs_samples = False
    linear = True

    outer_lr: float = parameter(0.7, "rate of the outer step", source=SOURCE, gt=0)
    outer_momentum: float = parameter(0.9, "momentum of the outer step", source=SOURCE, ge=0, lt=1)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Commit the mean."""
        count = len(pushes)
        return [Apply(pushes, [1.0 / count] * count, {"workers": count})]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Apply the mean of the workers' outer steps."""
        mean, k = step.sum(pushes), step.numbers["workers"]
        known = ((k - 1) * state["mean"] + mean) / k if "mean" in state else mean
        x.sub_(nesterov(known, state.vector("velocity"), self.outer_momentum), alpha=self.outer_lr)
        state["mean"] = mean
        step.reply(mean)
