"""Readers of the user's data: pairs of arrays, torch Datasets, frames, Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psbench.arrays import Array
from psbench.data.blocks import is_index_name, warn_of_index
from psbench.data.own.arrays import as_array, column_values, input_array
from psbench.data.own.memory import check_texts
from psbench.data.own.padded import PaddedRows, Padding, put_together
from psbench.errors import DataError, ParameterError, UnknownName
from psbench.system.limits import check_memory

#: what targets are called where no column is named
USUAL_TARGETS = ("label", "labels", "target", "y", "fine_label")


@dataclass(frozen=True)
class Read:
    """Samples and targets as read.

    Parameters
    ----------
    x, y : array-like
    kind : str
        What they came in.
    classes : tuple of str
        What the object says that its classes are called, in the order of their numbers; may be empty.
    features : tuple of str
        Names of the columns of x; may be empty.
    columns : mapping of str to array
        Columns that are no inputs.
    """

    x: Any
    y: Any
    kind: str
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    columns: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class ColumnRoles:
    """Roles of columns: the target, the inputs (None: all others), and columns to keep."""

    target: str | None = None
    features: tuple[str, ...] | None = None
    keep: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != ColumnRoles()

    def inputs_among(self, names: Sequence[str], target: str) -> list[str]:
        """Return the columns that are inputs.

        Raises
        ------
        UnknownName, ParameterError
            If a column is not there, or there is no input.
        """
        for name in (*(self.features or ()), *self.keep):
            if name not in names:
                raise UnknownName("column of data", name, names)
        if self.features is not None and target in self.features:
            raise ParameterError(f"data: {target!r} is the target; remove it from features")
        chosen = names if self.features is None else self.features
        for name in chosen:
            if self.features is None and is_index_name(name) and name not in (target, *self.keep):
                warn_of_index("data", name)
                chosen = [other for other in chosen if other != name]
        found = [name for name in chosen if name != target and (self.features or name not in self.keep)]
        if not found:
            raise ParameterError(f"data: no column is left for inputs beside {target!r}")
        return found


def is_array(value: Any) -> bool:
    """Return True if a value is an array or a tensor; tables and mappings of splits have a shape too."""
    return (hasattr(value, "shape") or hasattr(value, "__array__")) and not (
        hasattr(value, "columns") or is_hugging_face(value) or isinstance(value, Mapping)
    )


# ---------------------------------------------------------------- frames


def is_frame(value: Any) -> bool:
    """Return True if a value is a table with named columns that Arrow can read: pandas, polars, pyarrow."""
    return hasattr(value, "__arrow_c_stream__") and hasattr(value, "columns")


def read_frame(frame: Any, columns: ColumnRoles) -> Read:
    """Read a table: numeric columns are inputs, in its order.

    Raises
    ------
    DataError, ParameterError, UnknownName
        If the target is not given, or a column is not there, not numeric, or has no value somewhere.
    """
    kind = f"{type(frame).__module__.split('.')[0]}.{type(frame).__name__}"
    if not hasattr(frame, "iloc"):
        import pyarrow

        frame = pyarrow.table(frame).to_pandas()
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"data: the frame has two columns {twice!r}; rename one")
    target = target_of(columns.target, names, "ps.data(frame, target=...)")
    by_name = {name: frame.iloc[:, place] for place, name in enumerate(names)}
    inputs = columns.inputs_among(names, target)
    for name in inputs:
        if by_name[name].dtype.kind not in "fiub":
            raise DataError(
                f"data: column {name!r} is not numeric (it has {by_name[name].dtype}); encode it, exclude "
                f"it with features=[...], or keep it for a sharding with keep=[{name!r}]"
            )
    check_memory(
        8 * len(frame) * len(inputs), f"data: {len(frame)} rows of {len(inputs)} columns", "use less"
    )
    kinds = [getattr(by_name[name].dtype, "numpy_dtype", by_name[name].dtype) for name in inputs]
    # float32 holds small whole numbers as they are
    x = np.empty((len(frame), len(inputs)), dtype=np.result_type(np.float32, *kinds))
    for place, name in enumerate(inputs):
        x[:, place] = by_name[name].to_numpy(dtype=np.float64, na_value=np.nan)
    kept = {name: _plain(by_name[name], name) for name in columns.keep}
    return Read(x, _plain(by_name[target], target), kind, (), tuple(inputs), kept)


def _plain(series: Any, name: str) -> Array:
    """Return a column as an array of numbers or texts.

    Raises
    ------
    DataError
        If it has no value somewhere.
    """
    values = column_values(series, f"column {name!r}")
    if values.dtype.kind in "fiub":
        return values
    found = values.tolist()
    if all(isinstance(value, str) for value in found):
        check_texts(found, len(found), f"column {name!r}")
        return np.array(found)
    return np.array(found) if np.array(found).dtype.kind in "fiub" else np.array(list(map(str, found)))


def target_of(given: str | None, names: Sequence[str], how: str) -> str:
    """Return the target column, which must be given and exist; `how` describes how to give it."""
    if given is not None:
        if given not in names:
            raise UnknownName("target column of data", str(given), names)
        return given
    raise ParameterError(f"data: give the target column, as {how}; the columns are {', '.join(names)}")


# ---------------------------------------------------------------- Hugging Face datasets


def is_hugging_face(value: Any) -> bool:
    """Return True if a value has the columns and features of a Hugging Face dataset."""
    return all(hasattr(value, name) for name in ("features", "column_names", "__getitem__", "__len__"))


def is_transformed(dataset: Any) -> bool:
    """Return whether a Hugging Face dataset has a transform, applied on access."""
    return dict(getattr(dataset, "format", {})).get("type") == "custom"


def classes_of(dataset: Any, target: str | None) -> tuple[str, ...]:
    """Return the names of the classes of a Hugging Face dataset's target; () if it has none."""
    features = dict(dataset.features or {})
    usual = next((name for name in USUAL_TARGETS if name in features), None)
    return names_of(getattr(features.get(target or usual), "names", None))


def _holds_images(dataset: Any) -> bool:
    return any(type(feature).__name__ == "Image" for feature in dict(dataset.features).values())


def splits_of(value: Any) -> tuple[Any, Any | None] | None:
    """Return the training and validation parts of a mapping of splits; None for other values."""
    if not isinstance(value, Mapping) or not value or not all(map(is_hugging_face, value.values())):
        return None
    if "train" not in value:
        raise DataError(f"data: the splits {', '.join(value)} do not include 'train'; give one of them")
    return value["train"], next(
        (value[name] for name in ("validation", "val", "test") if name in value), None
    )


def read_hugging_face(dataset: Any, columns: ColumnRoles, padding: Padding = None) -> Read:
    """Read a Hugging Face dataset, without importing its library.

    Raises
    ------
    DataError, ParameterError, UnknownName
    """
    if _holds_images(dataset):
        dataset = dataset.with_format(None)  # others hold a palette's numbers, or have channels last
    names = [str(name) for name in dataset.column_names]
    usual = next((name for name in USUAL_TARGETS if name in names), None)
    target = target_of(columns.target or usual, names, "ps.data(dataset, target=...)")
    inputs = columns.inputs_among(names, target)
    found = {name: _numeric_column(dataset, name) for name in inputs}
    if scalars := all(rows.is_scalar for rows in found.values()):
        x = np.stack([rows.padded(None)[0] for rows in found.values()], axis=1)
    else:
        x = put_together(found, len(found) > 1, padding)
    classes = classes_of(dataset, target)
    kept = {name: np.array(list(map(str, dataset[name]))) for name in columns.keep}
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    return Read(
        x, as_array(dataset[target][:], target), kind, classes, tuple(inputs) if scalars else (), kept
    )


def _numeric_column(dataset: Any, name: str) -> PaddedRows:
    values = dataset[name][:]
    what = f"column {name!r}"
    rows: PaddedRows | None = None
    for number, value in enumerate(values):
        row = input_array(value, what)
        if row.dtype.kind not in "fiub":
            raise DataError(
                f"data: {what} is not numeric (its value {number} is {value!r}); encode it, or exclude it "
                "with features=[...]"
            )
        if rows is None:
            rows = PaddedRows(row, len(values), what)
        rows.put(number, row)
    if rows is None:
        raise DataError(f"data: {what} is empty")
    return rows


def names_of(found: Any) -> tuple[str, ...]:
    """Return the names of classes if they are texts; else empty."""
    texts = isinstance(found, (list, tuple)) and all(isinstance(name, str) for name in found)
    return tuple(found) if texts else ()
