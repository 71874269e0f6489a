"""The part of a specification that represents the user's own data."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from psbench.arrays import Array, Integers
from psbench.core.specification import parameter
from psbench.core.user_object import Own
from psbench.data.base import Dataset, DataSource
from psbench.data.own.content import Content
from psbench.data.scaling import standardise
from psbench.data.several import Several, each_array
from psbench.data.split import stratified_split
from psbench.errors import DataError
from psbench.seeds import Streams
from psbench.system.limits import check_memory

if TYPE_CHECKING:
    from torch import Tensor


class OwnData(Own, DataSource):
    """Data that the user passed as an object; its specification names it, and does not hold it.

    Made by `as_data` and `psbench.data`. What is loaded are the arrays themselves: with a validation set of
    their own, and without `standardise`, nothing is copied.

    Parameters
    ----------
    val_fraction : float, 0 <= val_fraction < 1
        Share of the samples that is set aside for validation where none were given, chosen by the stream
        "split": of every class alike, as in the data sets that psbench has.

    Raises
    ------
    DataError
        On loading, if the object is not there, or is not what it was when the experiment was made.
    """

    source: ClassVar[str] = "your own data"

    val_fraction: float = parameter(0.2, "share set aside for validation if none is given", ge=0, lt=1)
    standardise: bool = parameter(False, "standardise features and numeric targets to mean 0 and deviation 1")

    @property
    def travels(self) -> bool:
        """True: the object is in this process only."""
        return True

    @property
    def content(self) -> Content:
        """The content.

        Raises
        ------
        SpecError
            If this is the specification of a saved run, which does not hold it.
        """
        return cast(Content, self.object)

    def load(self, streams: Streams) -> Dataset:
        """Return the content as a data set, split by chance if no validation set was given."""
        content = self.content
        if content.fingerprint() != self.fingerprint:
            raise DataError(
                f"data 'own': the {self.type or 'object'} has changed since the experiment was created; "
                "create it again"
            )
        if content.val_x is None or content.val_y is None:
            train, val = self._split(content, streams)
            rows: list[Any] = [content.x[train], content.y[train], content.x[val], content.y[val]]
            columns = {name: column[train] for name, column in content.columns.items()}
            val_columns = {name: column[val] for name, column in content.columns.items()}
        else:
            rows = [content.x, content.y, content.val_x, content.val_y]
            columns, val_columns = dict(content.columns), dict(content.val_columns)
        scale = (0.0, 1.0)
        if self.standardise:
            rows[0], rows[2] = _standardised(rows[0], rows[2], "samples")[0]
            if content.task == "regression":
                (rows[1], rows[3]), scale = _standardised(rows[1], rows[3], "targets")
        train_x, train_y, val_x, val_y = (each_array(part, tensor) for part in rows)
        return Dataset(
            self.name,
            train_x,
            train_y,
            val_x,
            val_y,
            content.classes,
            target_scale=scale,
            kind=content.task,
            columns=columns,
            val_columns=val_columns,
            features=content.features,
            is_column=content.is_column,
        )

    def _split(self, content: Content, streams: Streams) -> tuple[Integers, Integers]:
        alike = content.y if content.task == "classification" else np.zeros(len(content.y), dtype=np.int64)
        return stratified_split(alike, self.val_fraction, streams.generator("split"))


def _standardised(train: Any, val: Any, what: str) -> tuple[list[Array], tuple[float, float]]:
    """Return both arrays standardised by the training targets, and a single column's mean and deviation."""
    if isinstance(train, Several):
        raise DataError(
            f"data 'own': {what} are {train.called}, but only a single array can be standardised; "
            "standardise beforehand"
        )
    if train.dtype.kind != "f":
        raise DataError(f"data 'own': {what} are {train.dtype}, but only floats can be standardised")
    needed = train.nbytes + val.nbytes + 4 * (train.size + val.size)
    check_memory(needed, f"data 'own': standardised {what}", "standardise beforehand")
    both = np.concatenate([train, val]).reshape(len(train) + len(val), -1)
    scaled = np.empty(both.shape, dtype=np.float32)
    mean, deviation = standardise(both, len(train), scaled)
    parts = [scaled[: len(train)].reshape(train.shape), scaled[len(train) :].reshape(val.shape)]
    return parts, (float(mean[0]), float(deviation[0]))


def tensor(array: Array) -> Tensor:
    """Return a tensor of the same memory, which is never written to, since the array may be read-only.

    64-bit floats, which are kept where they are to be standardised, become 32-bit ones.
    """
    import torch

    array = array.astype(np.float32, copy=False) if array.dtype == np.float64 else array
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)
