"""Clusters: speed, network, memory, stragglers and faults; published test beds by name."""

from psbench.clusters.cluster import Cluster, Machine, make_cluster
from psbench.clusters.faults import Corruption, Failure, LateJoin, Slowdown, Throttle
from psbench.clusters.generic import Custom, Homogeneous
from psbench.clusters.geo import AsyncDilocoToy, HalosGeo
from psbench.clusters.network import Network
from psbench.clusters.profile import Profile
from psbench.clusters.published import C1, C2, AdaCommTestbed, DbsSgd, Hermes, Okeanos, ShardingTestbed
from psbench.clusters.step_time import Constant, LogNormal, Pareto, ShiftedExponential, StepTime
from psbench.clusters.timing import StepTimes
from psbench.clusters.trace import Trace

__all__ = [
    "C1",
    "C2",
    "AdaCommTestbed",
    "AsyncDilocoToy",
    "Cluster",
    "Constant",
    "Corruption",
    "Custom",
    "DbsSgd",
    "Failure",
    "HalosGeo",
    "Hermes",
    "Homogeneous",
    "LateJoin",
    "LogNormal",
    "Machine",
    "Network",
    "Okeanos",
    "Pareto",
    "Profile",
    "ShardingTestbed",
    "ShiftedExponential",
    "Slowdown",
    "StepTime",
    "StepTimes",
    "Throttle",
    "Trace",
    "make_cluster",
]
