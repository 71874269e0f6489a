"""When a worker pushes."""

from psbench.communication.every_step import EveryStep

__all__ = ["EveryStep"]
