"""How pushes become the next model."""

from psbench.aggregation.mean import Mean, Sum

__all__ = ["Mean", "Sum"]
