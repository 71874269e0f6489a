"""Where parameters live."""

from psbench.placement.all_reduce import AllReduce
from psbench.placement.map_reduce import MapReduce
from psbench.placement.parameter_server import ParameterServer

__all__ = ["AllReduce", "MapReduce", "ParameterServer"]
