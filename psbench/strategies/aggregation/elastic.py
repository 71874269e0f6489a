"""The server's half of elastic averaging: the centre is drawn towards each worker's model."""

from __future__ import annotations

from psbench.core import Action, Apply, ClusterView, Push, parameter
from psbench.core.needs import NEEDS_SINGLE_PUSHES
from psbench.strategies.aggregation.model_average import MovesToMean

SOURCE = "Zhang et al. 2015 (EASGD)"


class ElasticCentre(MovesToMean):
    """Move the centre x and a worker's model w towards each other by the same amount, alpha (w - x).

    Parameters
    ----------
    elastic_rate : float, 0 <= alpha < 1
        The same as of the communication part `elastic`, which has the worker's half.

    Notes
    -----
    Reduces to: independent workers with alpha = 0. Moves keep the sum of all models and the
    centre. The paper takes alpha = .9/n.

    Examples
    --------
    >>> part = ElasticCentre(elastic_rate=0.25)
    >>> part.on_commit([Push(0, 0, 1, 0, samples=8)], ClusterView(2, 1, 1))[0].weights
    [0.25]
    """

    name = "elastic_centre"
    source = "Zhang et al. 2015 (EASGD), Alg. 1"
    needs = (NEEDS_SINGLE_PUSHES,)

    elastic_rate: float = parameter(
        0.1, "share of the distance by which centre and worker move", source=SOURCE, ge=0, lt=1
    )

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh the worker's model by alpha, and the centre by 1 - alpha."""
        return [Apply(pushes, [self.elastic_rate], {"keep": 1.0 - self.elastic_rate})]
