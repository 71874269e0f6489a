"""A data set, and the contract of what loads one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np

from psbench.core.part import Part
from psbench.data.split import Indices, tenths
from psbench.errors import DataError
from psbench.seeds import Streams

if TYPE_CHECKING:
    from torch import Tensor

    Augment = Callable[[Tensor, np.random.Generator], Tensor]

Task: TypeAlias = Literal["classification", "regression"]


@dataclass(frozen=True)
class Dataset:
    """What is to be learned from, whole; batches are taken by index.

    Parameters
    ----------
    name : str
    train_x, val_x : Tensor, float32, (N, ...)
        Images are (N, channels, height, width), other samples (N, features). `val_x` may have length 0. They
        may be views of a file: nothing here copies them.
    train_y, val_y : Tensor, (N,)
        int64: classes 0 .. len(classes) - 1. float32: numbers to be predicted; then there are no classes.
    classes : tuple of str
    augment : callable or None
        Changes a training batch by chance: (batch, generator) -> a new batch of the same shape.
    target_scale : (float, float)
        Mean and deviation that were taken out of targets that are numbers: y deviation + mean is as it was.

    Raises
    ------
    DataError
        If lengths, shapes or targets do not fit together, or there is no training sample.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    val_x: Tensor
    val_y: Tensor
    classes: tuple[str, ...]
    augment: Augment | None = None
    target_scale: tuple[float, float] = (0.0, 1.0)

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
        numbers = self.task == "regression"
        if y.is_floating_point() != numbers or numbers == bool(self.classes):
            raise DataError(
                f"data set {self.name!r}: {part} targets are {y.dtype} and there are {len(self.classes)} "
                "classes; give classes and int64, or no classes and float32"
            )
        if numbers:
            self._check_numbers(part, y)
        elif len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(self.classes):
            raise DataError(
                f"data set {self.name!r}: {part} labels run from {int(y.min())} to {int(y.max())}, "
                f"but there are {len(self.classes)} classes, numbered from 0"
            )

    def _check_numbers(self, part: str, y: Tensor) -> None:
        if len(y) and not (math.isfinite(float(y.min())) and math.isfinite(float(y.max()))):
            raise DataError(f"data set {self.name!r}: some {part} targets are no numbers; leave those out")

    @property
    def task(self) -> Task:
        """Whether the targets are classes or numbers."""
        return "regression" if self.train_y.is_floating_point() else "classification"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train_x.shape[1:])

    @property
    def num_classes(self) -> int:
        """The number of classes; 0 where the target is a number."""
        return len(self.classes)

    @property
    def num_outputs(self) -> int:
        """How many numbers a model answers with: one a class, or the number to be predicted."""
        return len(self.classes) or 1

    @cached_property
    def strata(self) -> tuple[Indices, tuple[str, ...]]:
        """What shardings by label go by: the stratum of each training sample, and what strata are called.

        Strata are the classes. Where the target is a number they are its tenths, from the smallest to the
        largest (our reading): fewer where the ends of several coincide, as among whole numbers.
        """
        if self.task == "classification":
            return self.train_y.numpy(), self.classes
        return tenths(self.train_y.numpy(), *self.target_scale)


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
