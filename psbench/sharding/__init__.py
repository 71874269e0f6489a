"""Who trains on which samples."""

from psbench.sharding.base import Division, Sharding
from psbench.sharding.distribution_aware import DistributionAware
from psbench.sharding.report import ShardingReport, label_counts, measure
from psbench.sharding.seldp import SelDP
from psbench.sharding.skewed import Dirichlet, LabelsPerWorker, Quantity, ShardPerClass
from psbench.sharding.stratified import Stratified
from psbench.sharding.uniform import Modular, Random

__all__ = [
    "Dirichlet",
    "DistributionAware",
    "Division",
    "LabelsPerWorker",
    "Modular",
    "Quantity",
    "Random",
    "SelDP",
    "ShardPerClass",
    "Sharding",
    "ShardingReport",
    "Stratified",
    "label_counts",
    "measure",
]
