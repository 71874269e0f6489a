"""Base of rules that decide by the validation losses of the last epochs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Evaluated, Note
from psbench.core.rounding import floor
from psbench.errors import ParameterError
from psbench.strategies.switching.once import SwitchOnce


class LossWindow(SwitchOnce):
    """Base of rules that compare a value of the last epochs' validation losses with a threshold.

    Notes
    -----
    Our reading of "after every epoch": an epoch is as many committed samples as the training set has. Its
    loss is that of the first evaluation at or after its end; further evaluations before the next epoch has
    ended do not count. An epoch without an evaluation (`evaluate_every` above 1) has no loss: the losses
    kept span at least `window` epochs, and as few more as possible.
    """

    needs_validation = True
    #: losses without which there is no decision, however many epochs they span
    fewest: ClassVar[int] = 2

    _losses: list[float] = PrivateAttr(default_factory=list)
    _epochs: list[int] = PrivateAttr(default_factory=list)  # that had ended at each of them

    @property
    def awaits_evaluation(self) -> bool:  # pyrefly: ignore[bad-override]
        """Return True if the next evaluation may cause a switch."""
        return not self._done

    @property
    def span(self) -> int:
        """Epochs that the losses must span."""
        raise NotImplementedError

    def on_evaluated(self, event: Evaluated, view: ClusterView) -> list[Action]:
        """Keep the epoch's loss and decide; value and threshold are noted for the charts."""
        found = self._compare(event)
        if found is None or self._done:
            return []
        value, threshold = found
        note = Note(f"rule {self.name} value={value:.6g} threshold={threshold:.6g} epoch={self._epochs[-1]}")
        if not self.is_settled(value, threshold):  # also when it is not a number
            return [note]
        return [note, *self._switch_once(self.reason(value, threshold))]

    def why_not(self, evaluations: Sequence[Evaluated], trained: float, planned: float | None) -> str:
        """Return the closest approach to the threshold, or the lack of losses."""
        again = self.fresh()
        found = [pair for event in evaluations if (pair := again._compare(event)) is not None]
        if not found:
            needed = f"losses of {self.span + 1} epochs"
            return f"the rule needs the validation {needed}, and the run ended after {trained:.4g} epochs"
        if any(self.is_settled(*pair) for pair in found):
            return "the rule requested it, but the run ended before the hand-over"
        numbers = [pair for pair in found if pair[0] == pair[0]]
        return self.nearest(numbers) if numbers else "the validation loss was not a number"

    def value_and_threshold(self, losses: list[float], epochs: int) -> tuple[float, float]:
        """Return the rule's value and its threshold, for losses that span `epochs` epochs."""
        raise NotImplementedError

    def is_settled(self, value: float, threshold: float) -> bool:
        """Return whether to switch."""
        raise NotImplementedError

    def reason(self, value: float, threshold: float) -> str:
        """Return the reason for the switch."""
        raise NotImplementedError

    def nearest(self, found: list[tuple[float, float]]) -> str:
        """Return the closest approach of values to their thresholds."""
        raise NotImplementedError

    def _compare(self, event: Evaluated) -> tuple[float, float] | None:
        """Take an evaluation; return value and threshold if it ends an epoch and the losses suffice."""
        if "val_loss" not in event.values:
            raise ParameterError(
                f"switch rule {self.name!r} needs the validation loss, but the data set has no "
                "validation data"
            )
        epoch = epochs_ended(event)
        if len(self._epochs) < len(self._losses):  # from a checkpoint of the time when each counted as one
            self._epochs = list(range(epoch - len(self._losses), epoch))
        if epoch <= (self._epochs[-1] if self._epochs else 0):
            return None
        self._keep(epoch, event.values["val_loss"])
        epochs = self._epochs[-1] - self._epochs[0]
        if epochs < self.span or len(self._losses) < self.fewest:
            return None
        return self.value_and_threshold(self._losses, epochs)

    def _keep(self, epoch: int, loss: float) -> None:
        epochs, losses = [*self._epochs, epoch], [*self._losses, loss]
        while len(losses) > self.fewest and epoch - epochs[1] >= self.span:
            epochs, losses = epochs[1:], losses[1:]
        self._epochs, self._losses = epochs, losses


def epochs_ended(event: Evaluated) -> int:
    """Return the number of epochs that had ended at an evaluation.

    Backends state the samples trained on in epochs as `epoch`; without it the evaluations are taken for one
    an epoch.

    Examples
    --------
    >>> epochs_ended(Evaluated(6, 40, {"epoch": 1.52})), epochs_ended(Evaluated(6, 40, {}))
    (1, 6)
    """
    return floor(event.values.get("epoch", event.epoch))


def relative_changes(losses: Sequence[float]) -> list[float]:
    """Return (v_i - v_(i-1)) / v_(i-1) of consecutive losses, skipping v_(i-1) = 0."""
    return [(new - old) / old for old, new in pairwise(losses) if old]
