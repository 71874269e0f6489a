"""How pushes become the next model."""

from psbench.aggregation.accumulated import Accumulated
from psbench.aggregation.block_momentum import BlockMomentum
from psbench.aggregation.bounded_step import BoundedStep, BoundedStepByMean
from psbench.aggregation.dyn_sgd_versioned import DynSGDVersioned
from psbench.aggregation.exchange import Exchange
from psbench.aggregation.loss_weighted import LossWeighted
from psbench.aggregation.mean import Mean, Sum
from psbench.aggregation.model_average import ModelAverage
from psbench.aggregation.staleness import DynSGD, StalenessWeighted

__all__ = [
    "Accumulated",
    "BlockMomentum",
    "BoundedStep",
    "BoundedStepByMean",
    "DynSGD",
    "DynSGDVersioned",
    "Exchange",
    "LossWeighted",
    "Mean",
    "ModelAverage",
    "StalenessWeighted",
    "Sum",
]
