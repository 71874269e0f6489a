"""A data set, and the contract of its sources."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np

from psbench.arrays import Array, Integers
from psbench.core.part import Part
from psbench.data.several import SampleLayout, Several, in_words, layout_of, sample_bytes
from psbench.data.split import parts_in_order, tenths
from psbench.errors import DataError, UnknownName
from psbench.seeds import Streams

if TYPE_CHECKING:
    from torch import Tensor

    Augment = Callable[[Tensor, np.random.Generator], Tensor]

#: what is to be predicted: a class, one number or several, the next token at each place, or whatever a loss
#: of the user's makes of it
Task: TypeAlias = Literal["classification", "regression", "sequence", "own"]
#: more different whole numbers than this are taken for numbers, not for classes
MOST_CLASSES = 1000
#: the first whole number that a 32-bit float does not tell from the next
_EXACT = 2**24


@dataclass(frozen=True)
class Dataset:
    """A data set with training and validation samples; batches are taken by index.

    Parameters
    ----------
    name : str
    train_x, val_x : Tensor, (N, ...), or Several of them
        Images are (N, channels, height, width), tokens int64, (N, T), other samples (N, features). float32,
        unless they are the user's own. `val_x` may have length 0. They may be views of a file: nothing here
        copies them.
    train_y, val_y : Tensor, (N,) or more dimensions
        int64, (N,): classes 0 .. len(classes) - 1. float32, (N,) or (N, numbers): numbers to be predicted;
        then there are no classes. int64, (N, T): at each place the next token, of the vocabulary `classes`.
    classes : tuple of str
    augment : callable or None
        Changes a training batch by chance: (batch, generator) -> a new batch of the same shape.
    target_scale : (float, float)
        Mean and deviation that were taken out of targets that are numbers: y deviation + mean is as it was.
    kind : Task or None
        The task, where the targets' type does not say it: "own", for a loss of the user's.
    shards : tuple of ndarray of int64, or None
        Training samples of each worker, of data that is divided already.
    columns : mapping of str to ndarray, (N,)
        Of the training samples: what is known of them beside inputs and targets.
    val_columns : mapping of str to ndarray, (M,)
        Those of the validation samples, as far as they are known.
    features : tuple of str
        What columns of samples of shape (features,) are called; may be empty.
    is_column : bool
        Whether targets (N,) were given as (N, 1): losses and metrics take them so, see `as_given`.

    Raises
    ------
    DataError
        If lengths, shapes or targets do not fit together, or there is no training sample.
    """

    name: str
    train_x: Tensor | Several
    train_y: Tensor
    val_x: Tensor | Several
    val_y: Tensor
    classes: tuple[str, ...]
    augment: Augment | None = None
    target_scale: tuple[float, float] = (0.0, 1.0)
    kind: Task | None = None
    shards: tuple[Integers, ...] | None = None
    columns: Mapping[str, Array] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    is_column: bool = False
    val_columns: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.train_x) == 0:
            raise DataError(f"data set {self.name!r} has no training sample")
        if (one := self.input_layout) != (other := layout_of(self.val_x)):
            raise DataError(
                f"data set {self.name!r}: training samples have shape {in_words(one)}, "
                f"validation samples {in_words(other)}; they must be equal"
            )
        self._check_part("training", self.train_x, self.train_y)
        self._check_part("validation", self.val_x, self.val_y)

    def _check_part(self, part: str, x: Tensor | Several, y: Tensor) -> None:
        if len(x) != len(y):
            raise DataError(f"data set {self.name!r}: {len(x)} {part} samples but {len(y)} labels")
        if self.task == "own":
            return
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
            raise DataError(f"data set {self.name!r}: some {part} targets are not numbers; remove them")

    @property
    def task(self) -> Task:
        """The kind of task: classification, regression, or tokens."""
        if self.kind is not None:
            return self.kind
        if self.train_y.is_floating_point():
            return "regression"
        return "classification" if self.train_y.ndim == 1 else "sequence"

    def as_given(self, targets: Tensor) -> Tensor:
        """Return some of the targets in the shape that they were given in, for losses and metrics."""
        return targets.unsqueeze(1) if self.is_column else targets

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample; () for several tensors."""
        return () if isinstance(self.train_x, Several) else tuple(self.train_x.shape[1:])

    @property
    def input_layout(self) -> SampleLayout:
        """Type and shape of each tensor of a sample."""
        return layout_of(self.train_x)

    @property
    def num_classes(self) -> int:
        """The number of classes; 0 for numeric targets."""
        return len(self.classes)

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a model: one per class or token, or the numbers to be predicted."""
        return len(self.classes) or math.prod(self.train_y.shape[1:])

    @property
    def sample_bytes(self) -> int:
        """One training sample on the wire."""
        return sample_bytes(self.train_x)

    @cached_property
    def strata(self) -> tuple[Integers, tuple[str, ...]]:
        """Strata for shardings by label: the stratum of each training sample, and the names of the strata.

        Strata are the classes. Where the target is a number (of several, the first) they are its tenths, from
        the smallest to the largest: fewer where the ends of several coincide, as among whole numbers. Where
        there is neither, as in text, they are tenths of the data in the order that it has (our readings).
        """
        if self.task == "classification":
            return self.train_y.numpy(), self.classes
        if self.task == "regression":
            targets = self.train_y if self.train_y.ndim == 1 else self.train_y[:, 0]
            return tenths(targets.numpy(), *self.target_scale)
        return parts_in_order(len(self.train_y))

    def column(self, name: str) -> Array:
        """Return a column of the training samples, (N,): one of `columns`, or an input.

        Raises
        ------
        UnknownName
        DataError
            If it is an input whose values may be merged.
        """
        if name in self.columns:
            return self.columns[name]
        return self._input(name, self.train_x)

    def val_column(self, name: str) -> Array:
        """Return a column of the validation samples, (M,); see `column`."""
        if name in self.val_columns:
            return self.val_columns[name]
        if name in self.columns:
            raise DataError(f"data {self.name!r}: column {name!r} is available for training samples only")
        return self._input(name, self.val_x)

    def _input(self, name: str, inputs: Tensor | Several) -> Array:
        if name in self.features and not isinstance(inputs, Several):
            values: Array = inputs[:, self.features.index(name)].numpy()
            if (np.abs(values) >= _EXACT).any():
                raise DataError(
                    f"data {self.name!r}: column {name!r} is an input, but inputs are 32-bit floats, which "
                    f"cannot distinguish whole numbers from {_EXACT} on; keep it for the sharding: keep: "
                    f"[{name}]"
                )
            return values
        raise UnknownName(f"column of data {self.name!r}", name, [*self.columns, *self.features])


class DataSource(Part):
    """Names a data set and loads it."""

    domain: ClassVar[str] = "data"
    #: whether what it loads are views of files, which processes share and memory need not hold
    mapped: ClassVar[bool] = False

    def load(self, streams: Streams) -> Dataset:
        """Return the data set; randomness comes from `streams` alone.

        Raises
        ------
        DataError
            If a file is missing, truncated or not what it says.
        """
        raise NotImplementedError(f"{type(self).__name__} must define load")

    @property
    def travels(self) -> bool:
        """Return True if a live run sends the data to its processes, because they cannot load it by name."""
        return False

    def bare(self) -> DataSource:
        """Return the source without its Python object, as its specification describes it."""
        return self

    @property
    def num_shards(self) -> int | None:
        """Number of shards in the data itself; None if a sharding divides it."""
        return None
