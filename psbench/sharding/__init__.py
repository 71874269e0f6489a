"""Who trains on which samples."""

from psbench.sharding.base import Division, Sharding
from psbench.sharding.by_function import ImportedSharding, as_sharding
from psbench.sharding.distribution_aware import DistributionAware
from psbench.sharding.given import Column, Given
from psbench.sharding.report import ShardingReport, label_counts, measure_data
from psbench.sharding.seldp import SelDP
from psbench.sharding.skewed import Dirichlet, LabelsPerWorker, Quantity, ShardPerClass
from psbench.sharding.stratified import Stratified
from psbench.sharding.uniform import Modular, Random

__all__ = [
    "Column",
    "Dirichlet",
    "DistributionAware",
    "Division",
    "Given",
    "ImportedSharding",
    "LabelsPerWorker",
    "Modular",
    "Quantity",
    "Random",
    "SelDP",
    "ShardPerClass",
    "Sharding",
    "ShardingReport",
    "Stratified",
    "as_sharding",
    "label_counts",
    "measure_data",
]
