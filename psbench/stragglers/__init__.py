"""How much work each worker gets."""

from psbench.stragglers.dbs_sgd import DBS
from psbench.stragglers.fixed import Fixed

__all__ = ["DBS", "Fixed"]
