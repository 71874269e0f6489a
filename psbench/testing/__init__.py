"""Tools for testing parts and backends: checkers of their contracts, scripted clusters, and a toy experiment.

Only `toy_experiment` and `check_backend` need torch.

>>> from psbench.strategies.consistency import SSP
>>> check_strategy(SSP(staleness_bound=2), clusters=3)
"""

from psbench.testing.backend_contract import check_backend
from psbench.testing.contract import BrokenContract, check_strategy
from psbench.testing.random_cluster import random_cluster
from psbench.testing.scripted_cluster import ScriptedCluster
from psbench.testing.toys import toy_experiment

__all__ = [
    "BrokenContract",
    "ScriptedCluster",
    "check_backend",
    "check_strategy",
    "random_cluster",
    "toy_experiment",
]
