"""Data sets by name, or the user's own: held in memory, or views of files larger than that.

`psbench.data` is also the function that wraps the user's own data, `psbench.data.own.entry.data`.
"""

import sys
from types import ModuleType
from typing import Any

from psbench.data.augment import CropAndFlip
from psbench.data.base import Dataset, DataSource
from psbench.data.cifar import CIFAR10, CIFAR100
from psbench.data.digits import Digits
from psbench.data.folder import Folder
from psbench.data.markov import Markov
from psbench.data.mixture import Mixture
from psbench.data.mnist import MNIST, FashionMNIST
from psbench.data.own import ImportedData, OwnData, PerWorker, as_data, data
from psbench.data.own.replicated import Replicated
from psbench.data.synthetic_tables import SyntheticTable, generate
from psbench.data.table import CSV, Parquet
from psbench.data.text import Text

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CSV",
    "MNIST",
    "CropAndFlip",
    "DataSource",
    "Dataset",
    "Digits",
    "FashionMNIST",
    "Folder",
    "ImportedData",
    "Markov",
    "Mixture",
    "OwnData",
    "Parquet",
    "PerWorker",
    "Replicated",
    "SyntheticTable",
    "Text",
    "as_data",
    "data",
    "generate",
]


class _Callable(ModuleType):
    """A module that may be called: `psbench.data` is a function and the place of the data sets."""

    def __call__(self, *arguments: Any, **options: Any) -> DataSource:
        return data(*arguments, **options)


_Callable.__call__.__doc__ = data.__doc__
sys.modules[__name__].__class__ = _Callable
