"""Shardings: the assignment of training samples to workers."""

from psbench.sharding.base import Division as Division
from psbench.sharding.base import Sharding as Sharding
from psbench.sharding.by_function import ImportedSharding as ImportedSharding
from psbench.sharding.by_function import as_sharding as as_sharding
from psbench.sharding.data_sensitive_hashing import DataSensitiveHashing as DataSensitiveHashing
from psbench.sharding.distribution_aware import DistributionAware as DistributionAware
from psbench.sharding.given import Column as Column
from psbench.sharding.given import Given as Given
from psbench.sharding.report import ShardingReport as ShardingReport
from psbench.sharding.report import label_counts as label_counts
from psbench.sharding.report import measure_data as measure_data
from psbench.sharding.seldp import SelDP as SelDP
from psbench.sharding.skewed import Dirichlet as Dirichlet
from psbench.sharding.skewed import LabelsPerWorker as LabelsPerWorker
from psbench.sharding.skewed import Quantity as Quantity
from psbench.sharding.skewed import ShardPerClass as ShardPerClass
from psbench.sharding.stratified import Stratified as Stratified
from psbench.sharding.uniform import Modular as Modular
from psbench.sharding.uniform import Random as Random
