"""Data sets by name, held in memory."""

from psbench.data.base import Dataset, DataSource
from psbench.data.digits import Digits
from psbench.data.mixture import Mixture

__all__ = ["DataSource", "Dataset", "Digits", "Mixture"]
