"""Sums of gradients, pushed by workers that compute while their pushes are in transit."""

from __future__ import annotations

from psbench.core import Action, Apply, ClusterView, Push
from psbench.core.aggregation import GradientSums


class Accumulated(GradientSums):
    """Move the model by the mean of the workers' sums of gradients: w <- w - (lr/n) sum_i a_i.

    A push carries the sum over its steps of each step's mean gradient, so it weighs as its worker's batch
    (samples a step), however many steps it took: each step moves the model as it would have under `mean`.

    Notes
    -----
    Reduces to: the mean gradient over the samples, when every push is of one step.

    Examples
    --------
    >>> pushes = [Push(0, 0, 1, 0, samples=8, steps=1), Push(1, 1, 1, 0, samples=24, steps=3)]
    >>> Accumulated().on_commit(pushes, ClusterView(2, 1, 1))[0].weights
    [0.5, 0.5]
    """

    name = "accumulated"
    source = "Wang, Guo, Li 2019, OSP"

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each push by its worker's share of one joint step of all pushing workers."""
        batches = [push.samples / push.steps for push in pushes]
        together = sum(batches)
        return [Apply(pushes, [batch / together for batch in batches])]
