"""How pushes become the next model."""

from psbench.strategies.aggregation.accumulated import Accumulated
from psbench.strategies.aggregation.block_momentum import BlockMomentum
from psbench.strategies.aggregation.bounded_step import BoundedStep, BoundedStepByMean
from psbench.strategies.aggregation.by_distance import ClippedMean, GeometricMedian, Krum
from psbench.strategies.aggregation.delay_compensated import DelayCompensated
from psbench.strategies.aggregation.delayed_nesterov import DelayedNesterov
from psbench.strategies.aggregation.dyn_sgd_versioned import DynSGDVersioned
from psbench.strategies.aggregation.eager_outer import EagerOuter
from psbench.strategies.aggregation.elastic import ElasticCentre
from psbench.strategies.aggregation.exchange import Exchange
from psbench.strategies.aggregation.federated import FedAsync, FedBuff
from psbench.strategies.aggregation.loss_weighted import LossWeighted
from psbench.strategies.aggregation.mean import Mean, Sum
from psbench.strategies.aggregation.mixing import NeighbourAverage, PairAverage, PushSum
from psbench.strategies.aggregation.model_average import ModelAverage
from psbench.strategies.aggregation.one_bit_adam import OneBitAdam
from psbench.strategies.aggregation.outer import Outer
from psbench.strategies.aggregation.power_sgd import PowerSGD
from psbench.strategies.aggregation.radial_outer import RadialOuter
from psbench.strategies.aggregation.robust import Median, TrimmedMean
from psbench.strategies.aggregation.sparse_outer import SparseOuter
from psbench.strategies.aggregation.staleness import DynSGD, StalenessWeighted
from psbench.strategies.aggregation.two_levels import TwoLevels

__all__ = [
    "Accumulated",
    "BlockMomentum",
    "BoundedStep",
    "BoundedStepByMean",
    "ClippedMean",
    "DelayCompensated",
    "DelayedNesterov",
    "DynSGD",
    "DynSGDVersioned",
    "EagerOuter",
    "ElasticCentre",
    "Exchange",
    "FedAsync",
    "FedBuff",
    "GeometricMedian",
    "Krum",
    "LossWeighted",
    "Mean",
    "Median",
    "ModelAverage",
    "NeighbourAverage",
    "OneBitAdam",
    "Outer",
    "PairAverage",
    "PowerSGD",
    "PushSum",
    "RadialOuter",
    "SparseOuter",
    "StalenessWeighted",
    "Sum",
    "TrimmedMean",
    "TwoLevels",
]
