"""The mean of the workers' models."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Status, Step, Vector
from psbench.strategies.aggregation.mean import sample_shares

SOURCE = "Wang and Joshi 2019 (AdaComm), eq. 1"


class MovesToMean(Aggregation):
    """Base of parts whose pushes are models: w <- keep w + sum_i weight_i w_i, statistics likewise."""

    payload = "parameters"
    linear = True

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        mean, keep = step.sum(pushes), step.numbers["keep"]
        x.copy_(mean.add(x, alpha=keep) if keep else mean)

    def update_buffers(self, buffers: Vector, pushes: Sequence[Pushed], step: Step) -> None:
        """Average the running statistics with the same weights; without a `keep`, over the pushers only."""
        buffers.mul_(step.numbers.get("keep", 0.0))
        for push in pushes:
            buffers.add_(push.buffers, alpha=push.weight)


class ModelAverage(MovesToMean):
    """Average the pushed models, weighted by their numbers of samples.

    Notes
    -----
    Reduces to: the mean gradient, when each worker has taken one step of plain SGD from the current version.
    Our reading: the paper knows a barrier only. Without one, k pushes of n active workers move the server by
    their share, w <- (1 - k/n) w + (k/n) mean, so that all together move it as far as a barrier does.

    Examples
    --------
    >>> from psbench.core.view import WorkerView
    >>> view = ClusterView(4, 1, 1, num_active=4, num_computing=3)
    >>> apply = ModelAverage().on_commit([Push(0, 0, 1, 0, samples=8)], view)[0]
    >>> apply.numbers, apply.weights
    ({'keep': 0.75}, [0.25])
    """

    name = "model_average"
    source = SOURCE

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each model by its samples, and the old model by the share of the other workers."""
        return [average(pushes, view)]


def average(pushes: list[Push], view: ClusterView) -> Apply:
    """Return the move of the server's model towards the mean of the pushed models."""
    share = _share_of_all(pushes, view)
    return Apply(pushes, [share * own for own in sample_shares(pushes)], {"keep": 1.0 - share})


def _share_of_all(pushes: list[Push], view: ClusterView) -> float:
    """Return the share of the active workers in a commit; 1 if no other worker has work to push."""
    if not view.num_under_way:  # newcomers, who wait for their first model, have no work to contribute
        pushers = {push.worker for push in pushes}
        if all(w.id in pushers for w in view.workers.values() if w.status is Status.PUSHED):
            return 1.0
    return min(1.0, len(pushes) / view.num_active)
