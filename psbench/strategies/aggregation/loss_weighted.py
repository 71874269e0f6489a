"""Hermes' loss-weighted aggregation: the lower a model's test loss, the more it counts."""

from __future__ import annotations

from math import isfinite
from typing import Any

from pydantic import PrivateAttr

from psbench.core import Action, Apply, ClusterView, Measure, Push, parameter
from psbench.core.needs import NEEDS_SINGLE_PUSHES
from psbench.strategies.aggregation.model_average import MovesToMean


class LossWeighted(MovesToMean):
    """Average the server's model and a worker's model, each weighted by 1 / its test loss.

    w <- (W1 w + W2 w_i) / (W1 + W2) with W1 = 1 / L(w) and W2 = 1 / L(w_i). The first push becomes the model.

    Parameters
    ----------
    loss_samples : int, samples, >= 1
        Validation samples that both losses are taken over; at most as many as there are. The paper takes the
        whole test set.

    Notes
    -----
    Reduces to: the plain mean of both when their losses are equal.
    The paper writes it with sums of gradients since the beginning: w <- w0 - lr (W1 s + W2 G) / (W1 + W2),
    w0 - lr s the model and w0 - lr G the worker's. All of these are points on the line from one model to the
    other, so that neither w0 nor the sums are needed, and lr does not appear.
    Our reading: G is what leads from w0 to the worker's own model, also after that was replaced by the
    global one, and whatever optimizer the worker has (in the code G goes on without regard to the
    replacement). A loss of 0 takes its side wholly, two of them take both alike; one that is no number
    counts for nothing.
    The paper ends a run after so many aggregations without a better test loss. Here the experiment's
    `stop: {patience: 25}` does, which counts evaluations; there is one after every push if `evaluate_every`
    is at most what a push brings, several chunks. An equal loss is no improvement (in the code it is).

    Examples
    --------
    >>> worker_share(model_loss=0.5, worker_loss=0.25) == 4 / (2 + 4)
    True
    """

    name = "loss_weighted"
    source = "Hermes, IV-C, eqs. 5-6, Alg. 2"
    measures = ("candidate_loss", "model_loss")
    needs = (NEEDS_SINGLE_PUSHES,)

    loss_samples: int = parameter(
        500, "validation samples for a model's loss", unit="samples", source="ours", ge=1
    )

    _has_model: bool = PrivateAttr(False)  # whether a push has become the model
    _asked_for: int = PrivateAttr(-1)  # the push whose loss is being measured

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Commit the first push with weight 1; measure the loss for later ones."""
        (push,) = pushes
        if not self._has_model:
            self._has_model = True
            return [_mix(push, 1.0)]
        self._asked_for = push.id
        return [Measure("aggregation", {"model_loss": None, "candidate_loss": push.id}, self.loss_samples)]

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Weight the push by its measured loss."""
        share = worker_share(facts["model_loss"], facts["candidate_loss"])
        return [_mix(view.pending[self._asked_for], share)]


def worker_share(model_loss: float, worker_loss: float) -> float:
    """Return W2 / (W1 + W2) for W1 = 1 / model_loss and W2 = 1 / worker_loss, both losses >= 0.

    Examples
    --------
    >>> worker_share(0.5, 0.0), worker_share(0.0, 0.5), worker_share(0.5, float("inf"))
    (1.0, 0.0, 0.0)
    """
    if not isfinite(worker_loss):
        return 0.0
    if not isfinite(model_loss):
        return 1.0
    return model_loss / (model_loss + worker_loss) if model_loss + worker_loss else 0.5


def _mix(push: Push, share: float) -> Apply:
    return Apply([push], [share], {"keep": 1.0 - share})
