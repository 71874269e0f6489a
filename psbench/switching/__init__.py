"""When and how to change to another strategy."""

from psbench.switching.rules import After, Empirical, Manual, relative_change

__all__ = ["After", "Empirical", "Manual", "relative_change"]
