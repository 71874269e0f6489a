"""Placement parts: the location of the parameters."""

from psbench.strategies.placement.all_reduce import AllReduce as AllReduce
from psbench.strategies.placement.gossip import Gossip as Gossip
from psbench.strategies.placement.map_reduce import MapReduce as MapReduce
from psbench.strategies.placement.parameter_server import ParameterServer as ParameterServer
from psbench.strategies.placement.peers import Peers as Peers
from psbench.strategies.placement.reassignment import ByLoad as ByLoad
from psbench.strategies.placement.reassignment import Never as Never
from psbench.strategies.placement.reassignment import Reassignment as Reassignment
from psbench.strategies.placement.sharded import Sharded as Sharded
from psbench.strategies.placement.shared_memory import SharedMemory as SharedMemory
from psbench.strategies.placement.summing_servers import SummingServers as SummingServers
