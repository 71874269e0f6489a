"""What SelSync's workers exchange when they synchronise: their models, or their gradients."""

from __future__ import annotations

from typing import ClassVar, Literal

from psbench.core.actions import Action, Apply
from psbench.core.events import Push
from psbench.core.parts import Aggregation
from psbench.core.specification import parameter
from psbench.core.view import ClusterView
from psbench.strategies.aggregation.mean import sample_shares
from psbench.strategies.aggregation.model_average import average

SOURCE = "Tyagi and Swany 2023 (SelSync)"


class Exchange(Aggregation):
    """Average the workers' models, or have each apply the mean of their last gradients to its own.

    Parameters
    ----------
    aggregate : "parameters" or "gradient"
        PA: the models are averaged after the local step, so all continue from one model. GA: the mean
        gradient takes the place of each worker's own, and what their models differed by before remains.

    Notes
    -----
    Reduces to: `model_average` with "parameters"; `mean` with "gradient", while all models are equal.
    Our reading: with "gradient" the server applies the mean gradients too, and a newcomer begins from there.

    Source
    ------
    Tyagi and Swany (2023), "Accelerating Distributed ML Training via Selective Synchronization", CLUSTER.

    Examples
    --------
    >>> Exchange().payload, Exchange(aggregate="gradient").reply
    ('parameters', 'aggregate')
    """

    name: ClassVar[str] = "exchange"
    source: ClassVar[str] = SOURCE

    aggregate: Literal["parameters", "gradient"] = parameter(
        "parameters", "what is averaged at a synchronisation", source=SOURCE
    )

    @property
    def payload(self) -> Literal["gradient", "parameters"]:
        """What is averaged."""
        return self.aggregate

    @property
    def reply(self) -> Literal["model", "aggregate"]:
        """The mean model, or the mean gradient."""
        return "model" if self.aggregate == "parameters" else "aggregate"

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each push by its samples."""
        if self.aggregate == "parameters":
            return [average(pushes, view)]
        return [Apply(pushes, sample_shares(pushes))]
