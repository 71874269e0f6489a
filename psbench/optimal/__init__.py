"""How fast training could be: the worst-case optimal time of a cluster, and runs beside it."""

from __future__ import annotations

from psbench.optimal.answer import OptimalTime, optimal_time
from psbench.optimal.bounds import Bound
from psbench.optimal.hard import HardFunction, hard_problem
from psbench.optimal.measured import Problem, measure

__all__ = ["Bound", "HardFunction", "OptimalTime", "Problem", "hard_problem", "measure", "optimal_time"]
