"""Where parameters live."""

from psbench.placement.all_reduce import AllReduce
from psbench.placement.map_reduce import MapReduce
from psbench.placement.parameter_server import ParameterServer
from psbench.placement.reassignment import ByLoad, Never, Reassignment

__all__ = ["AllReduce", "ByLoad", "MapReduce", "Never", "ParameterServer", "Reassignment"]
