"""The server's half of EF21: a step along the mean of its estimates of the workers' gradients."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PrivateAttr

from psbench.core import Action, Apply, ClusterView, Push, Pushed, State, Step, Vector
from psbench.core.arithmetic import weighted_sum
from psbench.core.estimates import EstimatedGradients
from psbench.core.needs import NEEDS_BARRIER, Need
from psbench.strategies.aggregation.mean import sample_shares


class GradientEstimates(EstimatedGradients):
    """Add each push to the estimate of its worker, e_i <- e_i + c_i, and step along their mean e.

    c_i = C(g_i - e_i) is what worker i sends (communication `gradient_differences`), which keeps e_i too.

    Notes
    -----
    Reduces to: the mean gradient with codec 'none', as then e_i = g_i.
    The paper's server keeps the mean e alone and adds mean_i c_i, which is the same while the same workers
    push. Our reading: it keeps each e_i, so that the mean is of those that are here. A worker that
    restarts sends differences from 0, and the server resets its e_i to 0.
    """

    name = "gradient_estimates"
    source = "Richtarik et al. 2021 (EF21), Alg. 2, lines 7 and 3"
    needs = (
        NEEDS_BARRIER,
        Need(
            "consistency",
            lambda c: not c.cancels,
            "{part} and the worker sum the same pushes, but {other} may discard some",
        ),
    )

    _tickets: dict[str, int] = PrivateAttr(default_factory=dict)  # by worker, of the last commit

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each estimate by its push's samples, and list the workers with a known estimate."""
        last, self._tickets = self._tickets, {f"{push.worker}": push.ticket for push in pushes}
        # a worker that was lost, or whose work became void, restarts with a later ticket
        known = [push.worker for push in pushes if last.get(f"{push.worker}") == push.ticket - 1]
        return [Apply(pushes, sample_shares(pushes), {f"knows {worker}": 1.0 for worker in known})]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Add the workers' messages to their estimates, and step along the mean of the estimates."""
        names = [f"estimate {push.worker}" for push in pushes]
        for name in {*state} - {*names}:
            del state[name]
        for name, push in zip(names, pushes, strict=True):
            if f"knows {push.worker}" in step.numbers:
                state.vector(name).add_(push.vector)
            else:
                state[name] = push.vector.clone()
        step.move(weighted_sum([state[name] for name in names], [push.weight for push in pushes]))
