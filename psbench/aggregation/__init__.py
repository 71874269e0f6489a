"""How pushes become the next model."""

from psbench.aggregation.mean import Mean, Sum
from psbench.aggregation.staleness import DynSGD, StalenessWeighted

__all__ = ["DynSGD", "Mean", "StalenessWeighted", "Sum"]
