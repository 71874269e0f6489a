"""Where parameters live."""

from psbench.strategies.placement.all_reduce import AllReduce
from psbench.strategies.placement.gossip import Gossip
from psbench.strategies.placement.map_reduce import MapReduce
from psbench.strategies.placement.parameter_server import ParameterServer
from psbench.strategies.placement.reassignment import ByLoad, Never, Reassignment
from psbench.strategies.placement.sharded import Sharded
from psbench.strategies.placement.summing_servers import SummingServers

__all__ = [
    "AllReduce",
    "ByLoad",
    "Gossip",
    "MapReduce",
    "Never",
    "ParameterServer",
    "Reassignment",
    "Sharded",
    "SummingServers",
]
