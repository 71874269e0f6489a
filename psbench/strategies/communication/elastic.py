"""The worker's half of elastic averaging: its own model is pulled towards the centre."""

from __future__ import annotations

from psbench.core import State, Vector, WorkerStep, parameter
from psbench.strategies.communication.local_sgd import LocalSGD

SOURCE = "Zhang et al. 2015 (EASGD)"


class Elastic(LocalSGD):
    """Move the local model towards the centre after an exchange: w <- w - alpha (w - x).

    x is the centre before it moved towards w. The worker is sent the centre afterwards, x' = x + alpha (w -
    x), so that alpha (w - x) = alpha / (1 - alpha) (w - x').

    Parameters
    ----------
    elastic_rate : float, 0 <= alpha < 1
        The same as of the aggregation part `elastic_centre`.
    local_momentum : "cleared" or "kept"
        Kept, with the Nesterov momentum of the experiment's optimizer, is EAMSGD.

    Notes
    -----
    Reduces to: independent workers with alpha = 0. With a rate of 0 and equal starts
    nothing moves.
    Our reading: a worker that comes back without a push under way begins from the centre.
    """

    name = "elastic"
    source = "Zhang et al. 2015 (EASGD), Algs. 1 and 2"

    elastic_rate: float = parameter(
        0.1, "share of the distance by which centre and worker move", source=SOURCE, ge=0, lt=1
    )

    def begin(self, w: Vector, model: Vector, state: State, own: WorkerStep) -> None:
        """Move towards the centre; a worker without a model takes the centre."""
        if state.number("pushed"):
            w.sub_(w - model, alpha=self.elastic_rate / (1.0 - self.elastic_rate))
            if self.forgets_momentum:
                own.forget()
            if own.kind == "difference":  # what its steps make of the model that it goes on from
                state["received"] = w.clone()
        else:
            super().begin(w, model, state, own)
        state["pushed"] = 0

    def payload(self, w: Vector, state: State, own: WorkerStep) -> Vector:
        state["pushed"] = 1
        return super().payload(w, state, own)
