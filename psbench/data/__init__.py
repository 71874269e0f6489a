"""Data sets by name, or the user's own: held in memory, or views of files larger than that.

`psbench.data` is also the function that wraps the user's own data, `psbench.data.own.entry.data`.
"""

import sys
from types import ModuleType
from typing import Any

from psbench.data.base import Dataset as Dataset
from psbench.data.base import DataSource as DataSource
from psbench.data.cifar import CIFAR10 as CIFAR10
from psbench.data.cifar import CIFAR100 as CIFAR100
from psbench.data.digits import Digits as Digits
from psbench.data.folder import Folder as Folder
from psbench.data.images import CropAndFlip as CropAndFlip
from psbench.data.markov import Markov as Markov
from psbench.data.mixture import Mixture as Mixture
from psbench.data.mnist import MNIST as MNIST
from psbench.data.mnist import FashionMNIST as FashionMNIST
from psbench.data.own import ImportedData as ImportedData
from psbench.data.own import OwnData as OwnData
from psbench.data.own import PerWorker as PerWorker
from psbench.data.own import as_data as as_data
from psbench.data.own import data as data
from psbench.data.own.replicated import Replicated as Replicated
from psbench.data.synthetic_tables import SyntheticTable as SyntheticTable
from psbench.data.synthetic_tables import generate as generate
from psbench.data.table import CSV as CSV
from psbench.data.table import Parquet as Parquet
from psbench.data.text import Text as Text


class _Callable(ModuleType):
    """A callable module: `psbench.data` is both a function and the package of data sets."""

    def __call__(self, *arguments: Any, **options: Any) -> DataSource:
        return data(*arguments, **options)


_Callable.__call__.__doc__ = data.__doc__
sys.modules[__name__].__class__ = _Callable
