"""The server's half of SCAFFOLD: the mean of the workers' models, and of their control variates."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.core.arithmetic import weighted_sum
from psbench.core.controlled import ControlledModels
from psbench.core.needs import NEEDS_BARRIER
from psbench.strategies.aggregation.mean import sample_shares
from psbench.strategies.aggregation.model_average import MovesToMean

SOURCE = "Karimireddy et al. 2020 (SCAFFOLD)"


class ControlVariates(ControlledModels, MovesToMean):
    """Move to the mean of the models, x <- x + eta_g (mean_i y_i - x), and keep c = mean_i c_i.

    y_i is the model of worker i after its corrected steps, and c_i its new control variate (communication
    `corrected_sgd`). Both travel to the server; x and c travel back.

    Parameters
    ----------
    global_lr : float, > 0
        eta_g; 1 takes the mean itself.

    Notes
    -----
    Reduces to: `model_average` where all c_i are 0.
    The paper's workers send c_i+ - c_i and the server adds the mean: with all of N workers in every round
    (S = N, which a barrier has) that is the mean of all c_i+. Our reading: the c_i+ themselves are sent, so
    that c stays the mean of those that are here when a worker is lost, whose c_i would remain in it for ever.
    Means are weighted by samples, which are equal for equal batches. The paper draws S of N workers for each
    round; here all take part.
    """

    name = "control_variates"
    source = "Karimireddy et al. 2020 (SCAFFOLD), Alg. 1, lines 16 and 17"
    linear = True
    needs = (NEEDS_BARRIER,)

    global_lr: float = parameter(1.0, "rate of the server's step to the mean model", source=SOURCE, gt=0)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        return [Apply(pushes, sample_shares(pushes))]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Move x towards the mean of the models, and c to the mean of the control variates."""
        mean = step.sum(pushes)
        x.copy_(mean if self.global_lr == 1.0 else x + self.global_lr * (mean - x))
        controls, weights = [push.more["control"] for push in pushes], [push.weight for push in pushes]
        state.vector("control").copy_(weighted_sum(controls, weights))
