"""How much work each worker gets."""

from psbench.stragglers.dbs_sgd import DBS
from psbench.stragglers.drop import DropStragglers
from psbench.stragglers.dual_binary_search import DualBinarySearch
from psbench.stragglers.fixed import Fixed
from psbench.stragglers.flex_rr import FlexRR
from psbench.stragglers.lb_bsp import LBBSP

__all__ = ["DBS", "LBBSP", "DropStragglers", "DualBinarySearch", "Fixed", "FlexRR"]
