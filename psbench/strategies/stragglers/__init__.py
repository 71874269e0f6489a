"""Straggler parts: how much work each worker gets."""

from psbench.strategies.stragglers.dbs_sgd import DBS as DBS
from psbench.strategies.stragglers.drop import DropStragglers as DropStragglers
from psbench.strategies.stragglers.dual_binary_search import DualBinarySearch as DualBinarySearch
from psbench.strategies.stragglers.elastic_parallelism import ElasticParallelism as ElasticParallelism
from psbench.strategies.stragglers.fixed import Fixed as Fixed
from psbench.strategies.stragglers.flex_rr import FlexRR as FlexRR
from psbench.strategies.stragglers.lb_bsp import LBBSP as LBBSP
