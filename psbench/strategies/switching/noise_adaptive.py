"""Switch when the validation loss changes less than its noise: an adaptive threshold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, sqrt

from psbench.core import parameter
from psbench.strategies.switching.loss_window import LossWindow, relative_changes

SOURCE = "future work of Strategy-Switch (2025), sec. VI; our design"


class NoiseAdaptive(LossWindow):
    """Switch when noise alone explains the change of the loss over the window.

    After every epoch k with more than `window` W validation losses v, d_i = (v_i - v_(i-1)) / v_(i-1):
    the net change an epoch, m = abs(sum of the last W d_i) / W; the noise of one loss, relative to it,
    sigma = sqrt(mean of (d_(i+1) - d_i)^2 / 6); switch when m <= factor * sqrt(2) * sigma / W.
    Once only, and never back.

    Notes
    -----
    The published rule averages changes without their sign, so noise alone keeps its s at 2/sqrt(pi) = 1.13
    times sigma: where sigma is above 0.9 % it waits for luck to get below 1 %. Here the signs stay, so
    noise cancels and a fall adds up, and the threshold is what independent noise makes of the difference of
    two losses, spread over the window.
    Differences of successive d_i have the variance 6 sigma^2 if each loss has an independent relative error
    of standard deviation sigma (their coefficients are 1, -2, 1), and a steady relative fall drops out of
    them. A fall that itself slows down within the window counts as noise, by less the slower it is.
    Constant losses without noise switch (0 <= 0); a steady fall without noise never does.
    Epochs without an evaluation (see `LossWindow`) have no d_i; W is then the epochs that the losses span.

    Examples
    --------
    >>> rule = NoiseAdaptive(window=3)
    >>> value, threshold = rule.value_and_threshold([1.0, 0.5, 0.25, 0.125], 3)
    >>> value, threshold, rule.is_settled(value, threshold)
    (0.5, 0.0, False)
    """

    name = "noise_adaptive"
    source = SOURCE
    fewest = 4  # two differences of changes: one alone is too poor an estimate of noise

    window: int = parameter(5, "epochs over which the loss is compared", unit="epochs", source=SOURCE, ge=3)
    factor: float = parameter(
        1.0, "largest net change, in standard deviations of the noise", source=SOURCE, ge=0
    )

    @property
    def span(self) -> int:
        """Epochs that the losses must span."""
        return self.window

    def value_and_threshold(self, losses: list[float], epochs: int) -> tuple[float, float]:
        """Return the net change per epoch, and its threshold from the noise."""
        net = abs(sum(relative_changes(losses))) / epochs
        return net, self.factor * sqrt(2) * noise_of(losses) / epochs

    def is_settled(self, value: float, threshold: float) -> bool:
        """Return whether noise explains the net change."""
        return value <= threshold

    def reason(self, value: float, threshold: float) -> str:
        """Return the reason for the switch."""
        return f"loss changed by {value:.2%} an epoch, of which noise explains {threshold:.2%}"

    def nearest(self, found: list[tuple[float, float]]) -> str:
        """Return a sentence about the smallest net change relative to the noise."""
        value, threshold = min(found, key=lambda pair: pair[0] / pair[1] if pair[1] else inf)
        return (
            f"the net change came closest at {100 * value:.3g} % per epoch, where noise explains "
            f"{100 * threshold:.3g} %"
        )


def noise_of(losses: Sequence[float]) -> float:
    """Return the relative standard deviation of a loss about its course, from differences of changes.

    Shapes
    ------
    losses : at least 3; of fewer the noise is 0

    Examples
    --------
    >>> noise_of([1.0, 0.5, 0.25, 0.125])
    0.0
    """
    bends = [(second - first) ** 2 for first, second in pairwise(relative_changes(losses))]
    return sqrt(sum(bends) / len(bends) / 6) if bends else 0.0
