"""When and how to change to another strategy: one rule a file."""

from psbench.switching.after import After
from psbench.switching.empirical import Empirical, relative_change
from psbench.switching.manual import Manual
from psbench.switching.noise_adaptive import NoiseAdaptive, noise_of
from psbench.switching.stragglers import OnStragglers

__all__ = ["After", "Empirical", "Manual", "NoiseAdaptive", "OnStragglers", "noise_of", "relative_change"]
