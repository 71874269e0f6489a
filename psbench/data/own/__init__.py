"""Data of the user's own: arrays, torch Datasets, frames, Hugging Face datasets, lists of these."""

from psbench.data.own.elsewhere import ImportedData
from psbench.data.own.entry import as_data, data
from psbench.data.own.part import OwnData
from psbench.data.own.per_worker import PerWorker

__all__ = ["ImportedData", "OwnData", "PerWorker", "as_data", "data"]
