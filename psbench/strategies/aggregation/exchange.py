"""SelSync's exchange at a synchronisation: models, or gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.core.aggregation import PayloadKind, ReplyKind
from psbench.strategies.aggregation.mean import sample_shares
from psbench.strategies.aggregation.model_average import MovesToMean, average

SOURCE = "Tyagi and Swany 2023 (SelSync)"


class Exchange(MovesToMean):
    """Average the workers' models, or apply the mean of their last gradients to each local model.

    Parameters
    ----------
    aggregate : "parameters" or "gradient"
        PA: the models are averaged after the local step, so all continue from one model. GA: the mean
        gradient takes the place of each worker's own, and what their models differed by before remains.

    Notes
    -----
    Reduces to: `model_average` with "parameters"; `mean` with "gradient", while all models are equal.
    Our reading: with "gradient" the server applies the mean gradients too, and a newcomer begins from there.
    """

    name = "exchange"
    source = SOURCE
    linear = True

    aggregate: Literal["parameters", "gradient"] = parameter(
        "parameters", "quantity that a synchronisation averages", source=SOURCE
    )

    @property
    def payload(self) -> PayloadKind:  # pyrefly: ignore[bad-override]
        """The averaged vectors: models or gradients."""
        return self.aggregate

    @property
    def reply(self) -> ReplyKind:  # pyrefly: ignore[bad-override]
        """The mean model, or the mean gradient."""
        return "model" if self.aggregate == "parameters" else "aggregate"

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each push by its samples."""
        if self.aggregate == "parameters":
            return [average(pushes, view)]
        return [Apply(pushes, sample_shares(pushes))]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Move to the mean of the models; or along the mean gradient, which is sent to the workers too."""
        if self.aggregate == "parameters":
            super().update(x, pushes, state, step)
        else:
            Aggregation.update(self, x, pushes, state, step)

    def update_buffers(self, buffers: Vector, pushes: Sequence[Pushed], step: Step) -> None:
        """Average the running statistics like the models."""
        if self.aggregate == "parameters":
            super().update_buffers(buffers, pushes, step)
        else:
            Aggregation.update_buffers(self, buffers, pushes, step)
