"""Everything that is measured, derived from the event log alone.

Tables are pandas data frames with units in the column names. `staleness` counts versions and `clock_lead`
counts steps: two quantities, never mixed.
"""

from psbench.metrics.chunks import chunks, chunks_sent
from psbench.metrics.clocks import clock_lead
from psbench.metrics.curves import evaluations, throughput, time_to_target, training_loss
from psbench.metrics.gossip import heard_of, lags
from psbench.metrics.independence import independence, mean_independence
from psbench.metrics.interval import interval, standard_deviation
from psbench.metrics.pushes import batch_sizes, pushes, share_of_applied, staleness, unused_workers
from psbench.metrics.rows import end_of
from psbench.metrics.servers import reassignments, server_loads
from psbench.metrics.spans import PHASES, seconds_without_computing, sends_beside, timeline
from psbench.metrics.summary import summarise, usage
from psbench.metrics.switches import rule_values, switches
from psbench.metrics.timebase import clock_of, repeatability
from psbench.metrics.totals import idle, idle_fraction, time_use
from psbench.metrics.traffic import conservation, messages, total_bytes
from psbench.metrics.votes import local_steps_ratio
from psbench.metrics.warnings import never_switched

__all__ = [
    "PHASES",
    "batch_sizes",
    "chunks",
    "chunks_sent",
    "clock_lead",
    "clock_of",
    "conservation",
    "end_of",
    "evaluations",
    "heard_of",
    "idle",
    "idle_fraction",
    "independence",
    "interval",
    "lags",
    "local_steps_ratio",
    "mean_independence",
    "messages",
    "never_switched",
    "pushes",
    "reassignments",
    "repeatability",
    "rule_values",
    "seconds_without_computing",
    "sends_beside",
    "server_loads",
    "share_of_applied",
    "staleness",
    "standard_deviation",
    "summarise",
    "switches",
    "throughput",
    "time_to_target",
    "time_use",
    "timeline",
    "total_bytes",
    "training_loss",
    "unused_workers",
    "usage",
]
