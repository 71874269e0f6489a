"""When to change to another strategy."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

from pydantic import PrivateAttr

from psbench.core.actions import Action, Note, SwitchTo
from psbench.core.events import Evaluated, SwitchRequested
from psbench.core.part import Switching, parameter
from psbench.core.view import ClusterView
from psbench.errors import ParameterError


class _Once(Switching):
    """What the published rules share: they switch once, and who switches by hand has the last word."""

    _done: bool = PrivateAttr(default=False)

    def on_switch_requested(self, event: SwitchRequested, view: ClusterView) -> list[Action]:
        """Switch now, and never again of one's own accord."""
        self._done = True
        return super().on_switch_requested(event, view)

    def _switch_once(self, reason: str) -> list[Action]:
        self._done = True
        return [SwitchTo(1, reason)]


class After(_Once):
    """Switch when a fraction of the epochs is done.

    Parameters
    ----------
    fraction : float, 0 to 1
        alpha of the paper. 0 switches before the first step and 1 never.
    whole_epochs : bool
        Whether to cut at the nearest whole epoch, or where the fraction says, to the update.

    Notes
    -----
    Reduces to: the second strategy when fraction = 0; the first when it is 1.
    Our reading: epochs 1 to alpha e, rounded to the nearest whole epoch, run under the first; a run of less
    than two epochs is cut where the fraction says. Sync-Switch counts mini-batches instead: `whole_epochs`
    off, since an epoch here is a number of samples whoever trains on them.

    Source
    ------
    Strategy-Switch (IEEE Access 2025), alpha %; Sync-Switch (ICDCS 2021); `protocols` 7.1, 7.2.

    Examples
    --------
    >>> After(fraction=0.25).fraction
    0.25
    """

    name: ClassVar[str] = "after"
    source: ClassVar[str] = "Strategy-Switch 2025, alpha %"
    needs_epochs: ClassVar[bool] = True

    fraction: float = parameter(
        0.25, "share of the epochs under the first strategy", source="Strategy-Switch 2025", ge=0, le=1
    )
    whole_epochs: bool = parameter(
        True, "cut at the nearest whole epoch, not within one", source="Strategy-Switch 2025"
    )

    def start(self, view: ClusterView) -> list[Action]:
        """Switch at once if nothing is to run under the first strategy."""
        if view.epochs is None:
            raise without_epochs(self.name)
        return self._switch(view)

    def on_applied(self, view: ClusterView) -> list[Action]:
        """Switch when the epochs of the first strategy are done."""
        return self._switch(view)

    def _switch(self, view: ClusterView) -> list[Action]:
        if self._done:
            return []
        # nearest whole epoch, halves upwards; a run of part of an epoch is cut where it says
        epochs = view.epochs or 0.0
        until = self.fraction * epochs
        until = int(until + 0.5) if self.whole_epochs and epochs >= 2 else until
        if until >= epochs or view.epoch < until * (1 - 1e-9):
            return []
        return self._switch_once(f"after {100 * self.fraction:.4g}% of the epochs")


class Empirical(_Once):
    """Switch when the validation loss has stopped changing.

    After every epoch k with more than `window` validation losses v:
    s = 1/window * sum over i < window of abs(v(k-i) - v(k-i-1)) / v(k-i-1); switch when s < threshold.
    Once only, and never back.

    Parameters
    ----------
    window : int, epochs, >= 1
    threshold : float, > 0
        Mean relative change under which training counts as settled; 0.01 is 1 %.

    Notes
    -----
    Our reading: each term's denominator is inside the sum (thesis eq. 4.1 and its example; the paper's
    eq. 1 leaves it outside), and equality does not switch.

    Source
    ------
    Thesis eq. 4.1; Strategy-Switch (IEEE Access 2025), eq. 1; `protocols` 7.1.

    Examples
    --------
    >>> round(100 * relative_change([.500, .450, .420, .415, .413, .412]), 4)
    3.7162
    """

    name: ClassVar[str] = "empirical"
    source: ClassVar[str] = "thesis eq. 4.1"
    needs_validation: ClassVar[bool] = True

    window: int = parameter(
        5, "changes of the loss to average over", unit="epochs", source="thesis eq. 4.1", ge=1
    )
    threshold: float = parameter(
        0.01, "mean relative change below which to switch", source="thesis eq. 4.1", gt=0, le=1
    )
    _losses: list[float] = PrivateAttr(default_factory=list)

    def on_evaluated(self, event: Evaluated, view: ClusterView) -> list[Action]:
        """Take the epoch's validation loss and decide; the value is noted for the charts."""
        if "val_loss" not in event.values:
            raise ParameterError(
                "switch rule 'empirical' reads the validation loss, and this data set has no validation data"
            )
        self._losses = [*self._losses, event.values["val_loss"]][-self.window - 1 :]
        if self._done or len(self._losses) <= self.window:
            return []
        change = relative_change(self._losses)
        note = Note(f"rule empirical value={change:.6g} threshold={self.threshold:.6g} epoch={event.epoch}")
        if not change < self.threshold:  # also when it is not a number
            return [note]
        why = f"loss changed by {change:.2%} an epoch, below {self.threshold:.2%}"
        return [note, *self._switch_once(why)]


class Manual(Switching):
    """Switch only when a person asks.

    Examples
    --------
    >>> Manual().name
    'manual'
    """

    name: ClassVar[str] = "manual"
    source: ClassVar[str] = "by hand"


def without_epochs(rule: str) -> ParameterError:
    """Return the error of a rule that asks for the number of epochs where there is none."""
    return ParameterError(
        f"switch rule {rule!r} needs to know the number of epochs: set stop.epochs, or use 'empirical'"
    )


def relative_change(losses: list[float]) -> float:
    """Return the mean of abs(v_i - v_(i-1)) / v_(i-1) over consecutive losses; 0 where v_(i-1) is 0."""
    pairs = list(pairwise(losses))
    return sum(abs(new - old) / old for old, new in pairs if old) / len(pairs)
