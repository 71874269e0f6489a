"""Switch after a fraction of the epochs."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, ClusterView, Evaluated, parameter
from psbench.core.rounding import floor
from psbench.strategies.switching.once import SwitchOnce, without_epochs


class After(SwitchOnce):
    """Switch after a fraction of the epochs.

    Parameters
    ----------
    fraction : float, 0 to 1
        alpha of the paper. 0 switches before the first step and 1 never.

    Notes
    -----
    Reduces to: the second strategy when fraction = 0; the first when it is 1.
    Our reading: epochs 1 to alpha e, rounded to the nearest whole epoch, run under the first; a run of less
    than two epochs is cut at the exact fraction. Sync-Switch counts mini-batches instead: `whole_epochs`
    off, since an epoch here is a number of samples, whichever strategy trains on them.
    """

    name = "after"
    source = "Strategy-Switch 2025, alpha %; Sync-Switch, ICDCS 2021"
    needs_epochs = True

    fraction: float = parameter(
        0.25, "share of the epochs under the first strategy", source="Strategy-Switch 2025", ge=0, le=1
    )
    whole_epochs: bool = parameter(
        True, "switch at the nearest epoch boundary", source="Strategy-Switch 2025"
    )

    def start(self, view: ClusterView) -> list[Action]:
        """Switch at once if the first strategy gets no share."""
        if view.epochs is None:
            raise without_epochs(self.name)
        return self._switch(view)

    def on_applied(self, view: ClusterView) -> list[Action]:
        """Switch when the epochs of the first strategy are done."""
        return self._switch(view)

    def why_not(self, evaluations: Sequence[Evaluated], trained: float, planned: float | None) -> str:
        """Return that the run ended before the switch was due."""
        due = self._due(planned or 0.0)
        if due >= (planned or 0.0):  # never was asked for
            return ""
        return f"the run ended after {trained:.4g} epochs, before the switch at epoch {due:.4g}"

    def _switch(self, view: ClusterView) -> list[Action]:
        if self._done:
            return []
        epochs = view.epochs or 0.0
        due = self._due(epochs)
        if due >= epochs or view.epoch < due * (1 - 1e-9):
            return []
        return self._switch_once(f"after {100 * self.fraction:.4g}% of the epochs")

    def _due(self, epochs: float) -> float:
        """Return the epoch of the switch: the nearest whole one, halves upwards, in a run of two or more."""
        due = self.fraction * epochs
        return floor(due + 0.5) if self.whole_epochs and epochs >= 2 else due
