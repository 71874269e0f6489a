"""Strategy-Switch's empirical rule: switch when the validation loss has stopped changing."""

from __future__ import annotations

from itertools import pairwise

from psbench.core import parameter
from psbench.strategies.switching.loss_window import LossWindow


class Empirical(LossWindow):
    """Switch when the validation loss changes by less than a fixed share from epoch to epoch.

    After every epoch k with more than `window` validation losses v:
    s = 1/window * sum over i < window of abs(v(k-i) - v(k-i-1)) / v(k-i-1); switch when s < threshold.
    Once only, and never back.

    Notes
    -----
    Our reading: each term's denominator is inside the sum (thesis eq. 4.1 and its example; the paper's
    eq. 1 leaves it outside), and equality does not switch. Epochs are those of committed samples, however
    often the model is evaluated (see `LossWindow`); where some have no evaluation, s is the sum of the
    changes seen over the epochs that they span.
    A small validation set makes a noisy loss, whose changes may never get below 1 %: see `noise_adaptive`.

    Examples
    --------
    >>> round(100 * relative_change([.500, .450, .420, .415, .413, .412]), 4)
    3.7162
    """

    name = "empirical"
    source = "thesis eq. 4.1; Strategy-Switch 2025, eq. 1"
    #: 2: counts epochs, not evaluations; in virtual time acts at the version that was evaluated

    window: int = parameter(
        5, "changes of the loss to average over", unit="epochs", source="thesis eq. 4.1", ge=1
    )
    threshold: float = parameter(
        0.01, "mean relative change below which to switch", source="thesis eq. 4.1", gt=0, le=1
    )

    @property
    def span(self) -> int:
        """Epochs that the losses must span."""
        return self.window

    def value_and_threshold(self, losses: list[float], epochs: int) -> tuple[float, float]:
        return relative_change(losses, epochs), self.threshold

    def is_settled(self, value: float, threshold: float) -> bool:
        """Return whether s is below the threshold."""
        return value < threshold

    def reason(self, value: float, threshold: float) -> str:
        """Return the reason for the switch."""
        return f"loss changed by {value:.2%} an epoch, below {threshold:.2%}"

    def nearest(self, found: list[tuple[float, float]]) -> str:
        """Return a sentence about the smallest s."""
        least = min(value for value, _ in found)
        return f"the change was {100 * least:.3g} % at its smallest, threshold {100 * self.threshold:.3g} %"


def relative_change(losses: list[float], epochs: int | None = None) -> float:
    """Return the mean over epochs of abs(v_i - v_(i-1)) / v_(i-1); 0 where v_(i-1) is 0.

    Parameters
    ----------
    losses : list of float
    epochs : int or None
        How many epochs the losses span; None takes one from each to the next.
    """
    pairs = list(pairwise(losses))
    changes = sum(abs(new - old) / old for old, new in pairs if old)
    return changes / (len(pairs) if epochs is None else epochs)
