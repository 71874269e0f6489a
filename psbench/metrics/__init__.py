"""Measurements, all derived from the event log.

Tables are pandas data frames with units in the column names. `staleness` counts versions and `clock_lead`
counts steps: two quantities, never mixed.
"""

from psbench.metrics.chunks import chunks as chunks
from psbench.metrics.chunks import chunks_sent as chunks_sent
from psbench.metrics.clocks import clock_lead as clock_lead
from psbench.metrics.computation_tree import ComputationTree as ComputationTree
from psbench.metrics.computation_tree import computation_tree as computation_tree
from psbench.metrics.contributions import contributions as contributions
from psbench.metrics.curves import evaluations as evaluations
from psbench.metrics.curves import throughput as throughput
from psbench.metrics.curves import time_to_target as time_to_target
from psbench.metrics.curves import training_loss as training_loss
from psbench.metrics.energy import energy as energy
from psbench.metrics.energy import energy_totals as energy_totals
from psbench.metrics.gossip import gradient_spread as gradient_spread
from psbench.metrics.gossip import lags as lags
from psbench.metrics.independence import independence as independence
from psbench.metrics.independence import mean_independence as mean_independence
from psbench.metrics.interval import interval as interval
from psbench.metrics.interval import standard_deviation as standard_deviation
from psbench.metrics.lost_updates import lost_updates as lost_updates
from psbench.metrics.pushes import batch_sizes as batch_sizes
from psbench.metrics.pushes import pushes as pushes
from psbench.metrics.pushes import share_of_applied as share_of_applied
from psbench.metrics.pushes import staleness as staleness
from psbench.metrics.rows import end_of as end_of
from psbench.metrics.servers import reassignments as reassignments
from psbench.metrics.servers import server_loads as server_loads
from psbench.metrics.spans import PHASES as PHASES
from psbench.metrics.spans import seconds_without_computing as seconds_without_computing
from psbench.metrics.spans import sends_beside as sends_beside
from psbench.metrics.spans import timeline as timeline
from psbench.metrics.summary import summarise as summarise
from psbench.metrics.summary import usage as usage
from psbench.metrics.switches import rule_values as rule_values
from psbench.metrics.switches import switches as switches
from psbench.metrics.timebase import clock_of as clock_of
from psbench.metrics.timebase import repeatability as repeatability
from psbench.metrics.totals import idle as idle
from psbench.metrics.totals import idle_fraction as idle_fraction
from psbench.metrics.totals import time_use as time_use
from psbench.metrics.traffic import conservation as conservation
from psbench.metrics.traffic import messages as messages
from psbench.metrics.traffic import total_bytes as total_bytes
from psbench.metrics.trained_groups import class_distance as class_distance
from psbench.metrics.trained_groups import group_distance as group_distance
from psbench.metrics.trained_groups import trained_groups as trained_groups
from psbench.metrics.utilisation import utilisation as utilisation
from psbench.metrics.votes import local_steps_ratio as local_steps_ratio
from psbench.metrics.warnings import never_switched as never_switched
