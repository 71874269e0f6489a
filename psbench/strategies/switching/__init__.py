"""Switch rules: when to change to the next strategy; one rule per file."""

from psbench.strategies.switching.after import After as After
from psbench.strategies.switching.at_time import AtTime as AtTime
from psbench.strategies.switching.empirical import Empirical as Empirical
from psbench.strategies.switching.empirical import relative_change as relative_change
from psbench.strategies.switching.manual import Manual as Manual
from psbench.strategies.switching.noise_adaptive import NoiseAdaptive as NoiseAdaptive
from psbench.strategies.switching.noise_adaptive import noise_of as noise_of
from psbench.strategies.switching.stragglers import OnStragglers as OnStragglers
