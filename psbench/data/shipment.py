"""A data set on its way to another process, reduced to the needed samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from psbench.arrays import Array, Integers
from psbench.core.selection import SampleGroups
from psbench.data.base import Dataset, Task
from psbench.data.several import Several, each_array
from psbench.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from psbench.data.base import Augment


class PartialTensor:
    """Some rows of a remote tensor, indexed by their numbers in the whole tensor.

    Parameters
    ----------
    held : int64 array, ascending
        Numbers of the rows that are here.
    values : Tensor, (len(held), ...)
    total : int
        Rows of the whole.

    Raises
    ------
    DataError
        Whenever a row is asked for that is not here.
    """

    def __init__(self, held: Integers, values: Tensor, total: int) -> None:
        self._held, self._values, self._total = held, values, total
        self.shape = (total, *values.shape[1:])
        self.dtype, self.ndim, self.nbytes = values.dtype, values.ndim, values.nbytes

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, where: Tensor | slice) -> Tensor:
        rows = np.arange(self._total)[where] if isinstance(where, slice) else where.numpy()
        if not len(rows):
            return self._values[:0]
        places = np.searchsorted(self._held, rows)
        found = places < len(self._held)
        found[found] = self._held[places[found]] == rows[found]
        if not found.all():
            raise DataError(
                f"data: sample {rows[~found][0]} is not in this process, which has only its own samples"
            )
        import torch

        return self._values[torch.from_numpy(places)]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.ndim

    def element_size(self) -> int:
        """Return the bytes of a number."""
        return self._values.element_size()

    def is_floating_point(self) -> bool:
        """Return True if the numbers are floats."""
        return self._values.is_floating_point()

    def min(self) -> Tensor:
        """Return the minimum of the present numbers, or 0."""
        return self._values.min() if self._values.numel() else self._values.sum()

    def max(self) -> Tensor:
        """Return the maximum of the present numbers, or 0."""
        return self._values.max() if self._values.numel() else self._values.sum()


@dataclass(frozen=True, eq=False)
class _Part:
    """Samples and targets: all, or those with the indices `held`. Arrays are sent without a copy."""

    x: Array | Several
    y: Array
    total: int
    held: Integers | None

    @classmethod
    def of(cls, x: Tensor | Several, y: Tensor, held: Integers | None) -> Self:
        import torch

        if held is None:
            return cls(each_array(x, torch.Tensor.numpy), y.numpy(), len(y), None)
        held = np.unique(held)
        where = torch.from_numpy(held)
        return cls(each_array(x[where], torch.Tensor.numpy), y[where].numpy(), len(y), held)

    def tensors(self) -> tuple[Any, Any]:
        """Return the arrays of this part for a data set."""
        return each_array(self.x, self._rows), self._rows(self.y)

    def _rows(self, array: Array) -> Tensor:
        import torch

        # what has travelled may be a view of a message, which must not be written to
        values = torch.from_numpy(array if array.flags.writeable else array.copy())
        # rows are used as a tensor that is indexed by rows
        return values if self.held is None else cast("Tensor", PartialTensor(self.held, values, self.total))


@dataclass(frozen=True, eq=False)
class Shipment:
    """A data set for one process, with the shards of all workers, so that sharding is not repeated.

    It is for data that a process cannot load by its name: an object of the user's, or one set a worker.
    """

    name: str
    classes: tuple[str, ...]
    augment: Augment | None
    target_scale: tuple[float, float]
    kind: Task
    is_column: bool
    train: _Part
    val: _Part
    shards: tuple[Integers, ...]
    columns: Mapping[str, Array]
    groups: Mapping[str, SampleGroups]

    @classmethod
    def of(
        cls,
        data: Dataset,
        shards: tuple[Integers, ...],
        train: Integers | None,
        val: Integers | None,
        groups: Mapping[str, SampleGroups] | None = None,
    ) -> Self:
        """Return the data set with some training and validation samples, by their numbers; None: all.

        `groups` has the neighbourhoods that were found in all samples.
        """
        return cls(
            name=data.name,
            classes=data.classes,
            augment=data.augment,
            target_scale=data.target_scale,
            kind=data.task,
            is_column=data.is_column,
            train=_Part.of(data.train_x, data.train_y, train),
            val=_Part.of(data.val_x, data.val_y, val),
            shards=shards,
            columns=data.columns,
            groups=groups or {},
        )

    def dataset(self) -> Dataset:
        """Return the data set, in which samples that were not sent cannot be read."""
        return Dataset(
            self.name,
            *self.train.tensors(),
            *self.val.tensors(),
            self.classes,
            self.augment,
            target_scale=self.target_scale,
            kind=self.kind,
            is_column=self.is_column,
            shards=self.shards,
            columns=self.columns,
        )
