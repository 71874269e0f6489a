"""DC-ASGD: a stale gradient is corrected by the model's displacement since its base version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter

SOURCE = "Zheng et al. 2017 (DC-ASGD)"
#: of the adaptive form: decay of the mean square of the gradients, and what is added to it
_DECAY, _EPSILON = 0.95, 1e-7


class DelayCompensated(Aggregation):
    """Step along g + lambda g * g * (x - b), where b is the version that the gradient g was computed on.

    g * g stands for the diagonal of the Hessian, so that the sum approximates the gradient at x.

    Parameters
    ----------
    compensation : float, >= 0
        lambda; 0 corrects nothing. Of the adaptive form it is lambda_0.
    form : "constant" or "adaptive"
        adaptive: MS <- .95 MS + .05 g^2 and lambda = lambda_0 / sqrt(MS + 1e-7), entry by entry.

    Notes
    -----
    Reduces to: ASP with lambda = 0; SGD with one worker, as b is then x.
    Our reading: pushes of one commit are taken one after the other. The adaptive form is from accounts of
    others, where lambda_0 is 2; it could not be checked against the paper. MXNet's `dcasgd` keeps one
    previous model for all workers, which is not the paper's algorithm.
    """

    name = "delay_compensated"
    source = "Zheng et al. 2017 (DC-ASGD), eq. 10, Alg. 2"
    needs_base = True
    weighs_samples = False

    compensation: float = parameter(0.04, "weight of the correction", source=SOURCE, ge=0)
    form: Literal["constant", "adaptive"] = parameter(
        "constant", "whether the weight adapts to the size of the gradients", source=SOURCE
    )

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Give each push weight 1."""
        return [Apply(pushes, [1.0] * len(pushes))]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Correct each gradient by the way from its base to the model, and step along it."""
        for push in pushes:
            gradient = push.vector
            assert push.base is not None  # as the part declares that it needs it
            correction = gradient * gradient * (x - push.base)
            if self.form == "adaptive":
                square = state.vector("mean_square").mul_(_DECAY)
                square.addcmul_(gradient, gradient, value=1 - _DECAY)
                correction.div_((square + _EPSILON).sqrt_())
            step.move(gradient.add(correction, alpha=self.compensation) if self.compensation else gradient)
