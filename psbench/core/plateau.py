"""A rate that falls when evaluations stop improving: the rule and its state, which the engine holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class PlateauRule:
    """Lowers a factor of the learning rate when evaluations stop improving.

    Parameters
    ----------
    column : str
        The evaluated value, as `val_loss`.
    lower : bool
        Whether the smaller one is the better.
    gamma : float
        Multiplies the factor at each plateau.
    patience : int, evaluations
        As many without an improvement are borne; the next lowers the rate.
    threshold : float
        By what share of the best value another is better.
    cooldown : int, evaluations
        After a fall as many are not counted.
    floor : float
        The factor never falls below.

    Source
    ------
    torch.optim.lr_scheduler.ReduceLROnPlateau with threshold_mode "rel" and eps 0.

    Examples
    --------
    >>> rule = PlateauRule("val_loss", True, gamma=0.5, patience=1, threshold=0, cooldown=0, floor=0)
    >>> [rule.update({"val_loss": loss}) for loss in (1, 1)], rule.factor
    (['', ''], 1.0)
    >>> rule.update({"val_loss": 2}), rule.factor
    ('val_loss has not improved for 2 evaluations: the rate is multiplied by 0.5 from now on', 0.5)
    """

    column: str
    lower: bool
    gamma: float
    patience: int
    threshold: float
    cooldown: int
    floor: float
    factor: float = field(default=1.0, init=False)
    _best: float = field(default=math.inf, init=False)
    _since_best: int = field(default=0, init=False)
    _cooling: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._best = math.inf if self.lower else -math.inf

    def update(self, values: Mapping[str, float]) -> str:
        """Handle an evaluation; return a note if the factor falls, else an empty text."""
        value = float(values[self.column])
        if self._is_better(value):
            self._best, self._since_best = value, 0
        else:
            self._since_best += 1
        if self._cooling:
            self._cooling -= 1
            self._since_best = 0
        if self._since_best <= self.patience:
            return ""
        without, before = self._since_best, self.factor
        self.factor = min(before, max(before * self.gamma, self.floor))
        self._cooling, self._since_best = self.cooldown, 0
        if self.factor == before:
            return ""
        return (
            f"{self.column} has not improved for {without} evaluations: the rate is multiplied by "
            f"{self.factor:.4g} from now on"
        )

    def _is_better(self, value: float) -> bool:
        if self.lower:
            return value < self._best * (1.0 - self.threshold)
        return value > self._best * (self.threshold + 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        own = {"best": self._best, "since_best": self._since_best, "cooling": self._cooling}
        return {"factor": self.factor} | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.factor, self._best = state["factor"], state["best"]
        self._since_best, self._cooling = state["since_best"], state["cooling"]
