"""The worker's half of gossip: one step, and a mixture of its model with others'."""

from __future__ import annotations

from psbench.core import ClusterView, Orders, State, Vector, WorkerPolicy, WorkerStep
from psbench.core.peer_to_peer import MixedSteps


class StepThenMix(MixedSteps):
    """Step, then exchange the new model: w_i <- sum_j W_ij (w_j - lr g_j(w_j)).

    Each worker keeps its optimizer's momentum. Under stochastic gradient push its rate is lr/a_i.

    Notes
    -----
    Reduces to: BSP, in the complete graph. Known as adapt-then-combine.
    """

    name = "step_then_mix"
    source = "Assran et al. 2019 (SGP)"
    forgets_momentum = False

    def worker_policy(self) -> WorkerPolicy:
        return WorkerPolicy()

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the rate of a worker whose weight in stochastic gradient push is not 1."""
        weight = view.workers[worker].push_weight
        return {} if weight == 1.0 else {"lr_scale": 1.0 / weight}


class MixThenStep(StepThenMix):
    """Exchange the model before the step, then step: w_i <- sum_j W_ij w_j - lr g_i(w_i).

    g_i is the gradient at the worker's own w_i, not at the mixture. What is exchanged is known before the
    gradient is, so it travels while that is computed: a worker waits only for neighbours that have not
    begun the same step.

    Notes
    -----
    Reduces to: `step_then_mix` up to the first step, from equal starts. It is not BSP in the complete graph,
    since each model differs from the mean by its own last step.
    """

    name = "mix_then_step"
    source = "Lian et al. 2017 (D-PSGD)"
    sends_first = True

    def begin(self, w: Vector, model: Vector, state: State, own: WorkerStep) -> None:
        """Continue from the mixture, with one step along the gradient computed before it."""
        w.copy_(model)
        if state.number("has_gradient"):
            own.move(state["gradient"])
            state["has_gradient"] = 0

    def step(self, w: Vector, gradient: Vector, state: State, own: WorkerStep) -> None:
        """Keep the gradient until the mixture is known."""
        state["gradient"], state["has_gradient"] = gradient, 1
