"""The worker's half of SCAFFOLD: local steps, each corrected by control variates."""

from __future__ import annotations

from collections.abc import Mapping

from psbench.core import State, Vector, WorkerStep
from psbench.core.controlled import CorrectedSteps
from psbench.strategies.communication.local_sgd import LocalSGD

SOURCE = "Karimireddy et al. 2020 (SCAFFOLD)"


class CorrectedSGD(CorrectedSteps, LocalSGD):
    """Take K local steps along g - c_i + c, then push the model y_i and a new control variate c_i.

    c is the global control variate, which comes with the model x; c_i the worker's own. Where workers' data
    differ, g_i - c_i + c is about the gradient of all: workers do not drift apart to their own optima.
    The new one is option II: c_i <- c_i - c + (x - y_i) / (K lr).

    Notes
    -----
    Reduces to: `local_sgd` where all control variates stay 0; plain SGD with one worker, whose c_i is c.
    For plain SGD (x - y_i) / (K lr) is the mean of the K directions g - c_i + c, so that option II is the
    mean of the worker's K gradients. Kept is that mean: the same to rounding, and as the paper means it, too,
    where the rate changes between the steps or the worker's optimizer has a momentum.
    Our reading: a worker that comes late begins with c_i = c, which leaves the mean of all c_i as it is.
    """

    name = "corrected_sgd"
    source = "Karimireddy et al. 2020 (SCAFFOLD), Alg. 1, lines 7 to 14, option II"

    def begin(self, w: Vector, model: Vector, state: State, own: WorkerStep) -> None:
        """Start from the model, with the correction c - c_i."""
        super().begin(w, model, state, own)
        correction = own.answer["control"] - state.vector("control", own.answer["control"])
        # -0.0 where it is 0: added to a gradient that is absent, it leaves that absent
        state["correction"] = correction.masked_fill_(correction == 0, -0.0)
        state.vector("gradients").zero_()
        state["steps"] = 0

    def step(self, w: Vector, gradient: Vector, state: State, own: WorkerStep) -> None:
        state["gradients"].add_(gradient)
        state["steps"] += 1
        super().step(w, gradient + state["correction"], state, own)

    def payload(self, w: Vector, state: State, own: WorkerStep) -> Mapping[str, Vector]:  # pyrefly: ignore[bad-override]
        """Return the model and the new control variate."""
        state["control"] = state["gradients"] / state["steps"]
        return {"vector": super().payload(w, state, own), "control": state["control"]}
