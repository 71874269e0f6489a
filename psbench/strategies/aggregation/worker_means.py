"""The mean of the workers' mean gradients."""

from __future__ import annotations

from collections import Counter

from psbench.core import Action, Aggregation, Apply, ClusterView, Push


class WorkerMeans(Aggregation):
    """Give every worker of a commit the same weight, regardless of its number of pushes or samples.

    With W workers, of which worker i has b_i samples in the commit, a push of b samples weighs b / (W b_i).

    Notes
    -----
    Reduces to: `mean` when every worker has as many samples in the commit.

    Examples
    --------
    >>> pushes = [Push(0, 0, 1, 0, samples=4), Push(1, 1, 1, 0, samples=4), Push(2, 0, 2, 0, samples=4)]
    >>> WorkerMeans().on_commit(pushes, ClusterView(2, 1, 1))[0].weights
    [0.25, 0.5, 0.25]
    """

    name = "worker_means"
    source = "Tyurin and Richtarik 2023, Malenia SGD"
    weighs_samples = False

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each push by its share of its worker's samples, over the number of workers."""
        samples: Counter[int] = Counter()
        for push in pushes:
            samples[push.worker] += push.samples
        return [Apply(pushes, [push.samples / samples[push.worker] / len(samples) for push in pushes])]
