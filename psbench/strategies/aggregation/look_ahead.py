"""Momentum look-ahead: every difference is applied when it arrives, with an averaged outer momentum."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.strategies.aggregation.mean import sample_shares
from psbench.strategies.aggregation.nesterov import nesterov, steady_step

SOURCE = "Ajanthan et al. 2025 (MLA)"


class LookAheadOuter(Aggregation):
    """Step along a worker's difference D and the mean direction m of all before it.

    m <- g m + (1 - g) D; x <- x - h (D + g m). Of several pushes D is the mean.

    Parameters
    ----------
    outer_lr : float, > 0
        h.
    outer_momentum : float, 0 <= g < 1
        g. m averages the differences, so that a constant D is applied 1 + g times.

    Notes
    -----
    Reduces to: averaging the models (`model_average`) under a barrier, with g = 0 and h = 1; `outer` with
    nesterov_form `average` under a barrier; `heloco` without its corrections and without its look-ahead on
    the way down.
    The paper's text was not at hand. The step is as in others' implementation of it,
    rafey1104/async_diloco_pytorch bb76d72, server/async_server.py, and as eqs. 18-19 of HeLoCo, which names
    it; the default rate and momentum are theirs.

    Examples
    --------
    >>> LookAheadOuter(outer_lr=0.5, outer_momentum=0.5).effective_outer_rate
    0.75
    """

    name = "look_ahead_outer"
    source = SOURCE
    payload = "difference"
    linear = True

    outer_lr: float = parameter(0.7, "rate of the outer step", source=SOURCE, gt=0)
    outer_momentum: float = parameter(0.9, "momentum of the outer step", source=SOURCE, ge=0, lt=1)

    @property
    def effective_outer_rate(self) -> float:
        """Return h (1 + g): m tends to a constant D."""
        return self.outer_lr * steady_step(self.outer_momentum, "average")

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each difference by its samples."""
        return [Apply(pushes, sample_shares(pushes))]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Take the outer step along the mean difference."""
        momentum = state.vector("momentum")
        x.sub_(nesterov(step.sum(pushes), momentum, self.outer_momentum, "average"), alpha=self.outer_lr)
