"""The mean gradient of a commit."""

from __future__ import annotations

from psbench.core import Action, Aggregation, Apply, ClusterView, Push


class Mean(Aggregation):
    """Apply the mean gradient over the samples of the commit.

    Each push carries the mean over its own samples, so it weighs as many as it has. With equal batches
    that is 1/k; with unequal ones it is what keeps a full barrier equal to single-node SGD on the union.

    Examples
    --------
    >>> pushes = [Push(0, 0, 1, 0, samples=3), Push(1, 1, 1, 0, samples=1)]
    >>> Mean().on_commit(pushes, ClusterView(2, 1, 1))[0].weights
    [0.75, 0.25]
    """

    name = "mean"
    source = "thesis 2.1.2"

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each push by its samples."""
        return [Apply(pushes, sample_shares(pushes))]


def sample_shares(pushes: list[Push]) -> list[float]:
    """Return each push's share of the commit's samples."""
    if len(pushes) == 1:
        return [1.0]
    samples = sum(push.samples for push in pushes)
    return [push.samples / samples for push in pushes]


class Sum(Aggregation):
    """Add the gradients of the commit; use a learning rate divided by the number of workers.

    Notes
    -----
    Reduces to: the mean, when the optimizer's rate is lr/n and all n push.
    """

    name = "sum"
    source = "thesis 2.2.1 (its TensorFlow BSP)"
    weighs_samples = False

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        return [Apply(pushes, [1.0] * len(pushes))]
