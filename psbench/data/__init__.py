"""Data sets by name: held in memory, or views of files larger than that."""

from psbench.data.augment import CropAndFlip
from psbench.data.base import Dataset, DataSource
from psbench.data.cifar import CIFAR10, CIFAR100
from psbench.data.digits import Digits
from psbench.data.folder import Folder
from psbench.data.mixture import Mixture
from psbench.data.mnist import MNIST, FashionMNIST
from psbench.data.replicated import Replicated
from psbench.data.synthetic_tables import SyntheticTable, generate
from psbench.data.table import CSV

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
    "Mixture",
    "Replicated",
    "SyntheticTable",
    "generate",
]
