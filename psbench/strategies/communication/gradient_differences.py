"""The worker's half of EF21: differences of its gradient from an estimate that the server has, too."""

from __future__ import annotations

from psbench.core import State, Vector, WorkerPolicy, WorkerStep
from psbench.core.estimates import SentDifferences

SOURCE = "Richtarik et al. 2021 (EF21)"


class GradientDifferences(SentDifferences):
    """Push C(g - e_i), where g is the worker's gradient, and keep the estimate e_i <- e_i + C(g - e_i).

    C is the codec. The server adds the same to its own e_i, so that both have one estimate, which comes
    nearer to the gradient with every push: what C leaves out of one push is part of the next difference.

    Notes
    -----
    Reduces to: `every_step` with codec 'none', as then e_i = g.
    The theory asks for a codec that brings e_i nearer to g for certain, as top-k does. Codecs with error
    feedback are refused: the estimate takes its place.
    Our reading: e_i begins at 0, so that the first push is C(g), as in the paper's experiments.
    """

    name = "gradient_differences"
    source = "Richtarik et al. 2021 (EF21), Alg. 2, lines 5 and 6"

    def worker_policy(self) -> WorkerPolicy:
        return WorkerPolicy()

    def begin(self, w: Vector, model: Vector, state: State, own: WorkerStep) -> None:
        """Keep the estimate; discard an unpushed gradient."""
        state["samples"] = 0

    def payload(self, w: Vector, state: State, own: WorkerStep) -> Vector:
        difference: Vector = super().payload(w, state, own) - state.vector("estimate")
        return difference

    def sent(self, w: Vector, vector: Vector, state: State, own: WorkerStep) -> None:
        """Add the sent difference to the estimate, as the server does."""
        state["estimate"].add_(vector)
