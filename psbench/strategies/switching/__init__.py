"""When and how to change to another strategy: one rule a file."""

from psbench.strategies.switching.after import After
from psbench.strategies.switching.at_time import AtTime
from psbench.strategies.switching.empirical import Empirical, relative_change
from psbench.strategies.switching.manual import Manual
from psbench.strategies.switching.noise_adaptive import NoiseAdaptive, noise_of
from psbench.strategies.switching.stragglers import OnStragglers

__all__ = [
    "After",
    "AtTime",
    "Empirical",
    "Manual",
    "NoiseAdaptive",
    "OnStragglers",
    "noise_of",
    "relative_change",
]
