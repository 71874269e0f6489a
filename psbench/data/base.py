"""A data set in memory, and the contract of what loads one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from psbench.core.part import Part
from psbench.errors import DataError
from psbench.seeds import Streams

if TYPE_CHECKING:
    from torch import Tensor

    Augment = Callable[[Tensor, np.random.Generator], Tensor]


@dataclass(frozen=True)
class Dataset:
    """A classification data set, whole and in memory; batches are taken by index.

    Parameters
    ----------
    name : str
    train_x, val_x : Tensor, float32, (N, ...)
        Images are (N, channels, height, width), other samples (N, features). `val_x` may have length 0.
    train_y, val_y : Tensor, int64, (N,)
        Classes 0 .. len(classes) - 1.
    classes : tuple of str
    augment : callable or None
        Changes a training batch by chance: (batch, generator) -> a new batch of the same shape.

    Raises
    ------
    DataError
        If lengths, shapes or labels do not fit together, or there is no training sample.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    val_x: Tensor
    val_y: Tensor
    classes: tuple[str, ...]
    augment: Augment | None = None

    def __post_init__(self) -> None:
        if len(self.train_x) == 0:
            raise DataError(f"data set {self.name!r} has no training sample")
        if self.train_x.shape[1:] != self.val_x.shape[1:]:
            raise DataError(
                f"data set {self.name!r}: training samples have shape {tuple(self.train_x.shape[1:])}, "
                f"validation samples {tuple(self.val_x.shape[1:])}; they must be equal"
            )
        self._check_part("training", self.train_x, self.train_y)
        self._check_part("validation", self.val_x, self.val_y)

    def _check_part(self, part: str, x: Tensor, y: Tensor) -> None:
        if len(x) != len(y):
            raise DataError(f"data set {self.name!r}: {len(x)} {part} samples but {len(y)} labels")
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(self.classes):
            raise DataError(
                f"data set {self.name!r}: {part} labels run from {int(y.min())} to {int(y.max())}, "
                f"but there are {len(self.classes)} classes, numbered from 0"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train_x.shape[1:])

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)


class DataSource(Part):
    """Names a data set and loads it."""

    domain: ClassVar[str] = "data"

    def load(self, streams: Streams) -> Dataset:
        """Return the data set; chance comes from `streams` alone.

        Raises
        ------
        DataError
            If a file is missing, truncated or not what it says.
        """
        raise NotImplementedError(f"{type(self).__name__} must define load")
