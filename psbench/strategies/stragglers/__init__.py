"""How much work each worker gets."""

from psbench.strategies.stragglers.dbs_sgd import DBS
from psbench.strategies.stragglers.drop import DropStragglers
from psbench.strategies.stragglers.dual_binary_search import DualBinarySearch
from psbench.strategies.stragglers.fixed import Fixed
from psbench.strategies.stragglers.flex_rr import FlexRR
from psbench.strategies.stragglers.lb_bsp import LBBSP

__all__ = ["DBS", "LBBSP", "DropStragglers", "DualBinarySearch", "Fixed", "FlexRR"]
