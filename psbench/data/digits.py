"""Handwritten digits that ship with scikit-learn: no file, no network."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from psbench.arrays import Doubles, Integers
from psbench.core.specification import parameter
from psbench.data.base import Dataset, DataSource
from psbench.data.split import stratified_split
from psbench.seeds import Streams


class Digits(DataSource):
    """1,797 digits of 8 x 8 pixels in ten classes, scaled from 0..16 to 0..1, as (1, 8, 8) images."""

    name: ClassVar[str] = "digits"
    source: ClassVar[str] = "Alpaydin and Kaynak 1998, UCI; the test part, as scikit-learn ships it"

    val_fraction: float = parameter(0.2, "share of the samples set aside for validation", ge=0, lt=1)

    def load(self, streams: Streams) -> Dataset:
        """Return the digits, split by chance."""
        import torch

        table = _table()
        images = torch.from_numpy((table[:, :-1] / 16.0).astype(np.float32)).reshape(-1, 1, 8, 8)
        labels = torch.from_numpy(table[:, -1].astype(np.int64))
        train, val = map(
            torch.from_numpy, stratified_split(labels.numpy(), self.val_fraction, streams.generator("split"))
        )
        classes = tuple(map(str, range(10)))
        return Dataset(self.name, images[train], labels[train], images[val], labels[val], classes)


@cache
def _table() -> Doubles:
    """Return pixels and label of each digit; do not change them, because later runs share them.

    The file is read without importing scikit-learn, which takes as long as torch and is used for nothing else
    in most runs.
    """
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return _numbers(gzip.decompress(file.read_bytes())).reshape(-1, 65).astype(np.float64)
    from sklearn.datasets import load_digits

    return np.column_stack(load_digits(return_X_y=True))


def _numbers(text: bytes) -> Integers:
    r"""Return whole numbers below 100, each followed by a comma or the end of a line.

    Every process of a run reads the digits, and `numpy.loadtxt` would take most of that time.

    >>> _numbers(b"0,12,5\n16,3,7\n").tolist()
    [0, 12, 5, 16, 3, 7]
    """
    digit = np.frombuffer(b"," + text, dtype=np.uint8).astype(np.int64) - ord("0")
    ends = np.flatnonzero(digit < 0)[1:]
    tens = digit[ends - 2]
    found: Integers = digit[ends - 1] + 10 * np.where(tens < 0, 0, tens)
    return found
