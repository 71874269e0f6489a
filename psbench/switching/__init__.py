"""When and how to change to another strategy."""

from psbench.switching.rules import After, Empirical, Manual, relative_change
from psbench.switching.stragglers import OnStragglers

__all__ = ["After", "Empirical", "Manual", "OnStragglers", "relative_change"]
