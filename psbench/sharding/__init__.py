"""Who trains on which samples."""

from psbench.sharding.base import Sharding
from psbench.sharding.report import label_counts
from psbench.sharding.uniform import Modular, Random

__all__ = ["Modular", "Random", "Sharding", "label_counts"]
