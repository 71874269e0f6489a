"""The user's own data: arrays, torch Datasets, frames, Hugging Face datasets, and lists of them."""

from psbench.data.own.entry import as_data as as_data
from psbench.data.own.entry import data as data
from psbench.data.own.imported import ImportedData as ImportedData
from psbench.data.own.part import OwnData as OwnData
from psbench.data.own.per_worker import PerWorker as PerWorker
