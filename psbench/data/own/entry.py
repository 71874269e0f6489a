"""The data of an experiment: a name, a mapping, or an object that holds the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from psbench.arrays import Array
from psbench.core.part import make_part
from psbench.data.base import DataSource, Task
from psbench.data.own.arrays import Inputs, as_array, inputs_of
from psbench.data.own.content import Content
from psbench.data.own.loaders import is_loader
from psbench.data.own.overlap import warn_of_shared_samples
from psbench.data.own.padded import Padding, as_several
from psbench.data.own.part import OwnData
from psbench.data.own.per_worker import PerWorker
from psbench.data.own.readers import (
    ColumnRoles,
    Read,
    classes_of,
    is_array,
    is_frame,
    is_hugging_face,
    is_transformed,
    read_frame,
    read_hugging_face,
    splits_of,
)
from psbench.data.own.samples import NO_COLUMNS, is_torch_dataset, read_dataset, read_mapping
from psbench.data.own.targets import encode_targets
from psbench.data.several import SampleLayout, Several, in_words, layout_of, without_lengths
from psbench.errors import DataError, ParameterError, UnknownName, in_short

_KINDS = (
    "a name or a mapping with a name, (X, y), (X, y, X_val, y_val), a torch Dataset, ps.data(frame, "
    "target=...), a Hugging Face dataset, or a list with one of these for each worker"
)


def as_data(value: Any) -> DataSource:
    """Return the data source that a name, a mapping or the user's own object means.

    Parameters
    ----------
    value : str, mapping, DataSource, tuple, torch Dataset or DataLoader, Hugging Face dataset, or list
        (X, y) or (X, y, X_val, y_val) are NumPy arrays, torch tensors or lists; an X of several tensors is a
        tuple of them, for a model whose `forward` takes them in this order, or a mapping, for one that takes
        them by name. A pair of Datasets (of torch
        or of Hugging Face), or of DataLoaders, is one to train on and one to validate on. A list holds a data
        set for each worker. Whatever needs options is wrapped by `data`.

    Raises
    ------
    SpecError, DataError
        If it is nothing of these, or its content cannot be trained on.

    Examples
    --------
    >>> as_data("digits").name
    'digits'
    >>> as_data(([[0.0], [1.0]], ["no", "yes"])).content.classes
    ('no', 'yes')
    """
    if isinstance(value, DataSource):
        return value
    if isinstance(value, list):
        return _one_each(value)
    if isinstance(value, str) or (isinstance(value, Mapping) and not splits_of(value)):
        return _named(value)
    return data(value)


def _named(value: Any) -> DataSource:
    fields = dict(value) if isinstance(value, Mapping) else {"name": value}
    if fields.get("name") == OwnData.name:
        return OwnData.described(fields)
    if fields.get("name") == PerWorker.name and isinstance(fields.get("data"), list):
        return _one_each(fields["data"])
    return cast(DataSource, make_part("data", fields))


def _one_each(values: Sequence[Any]) -> PerWorker:
    if len(values) == 2 and all(map(is_array, values)):
        raise DataError(
            "data: a list has one data set for each worker; give inputs and targets as a tuple (X, y)"
        )
    return PerWorker(data=tuple(map(as_data, values)))


def data(
    source: Any,
    target: Any = None,
    *,
    features: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    validation: Any = None,
    val_fraction: float | None = None,
    task: Task | None = None,
    classes: int | Sequence[str] | None = None,
    standardise: bool = False,
    inputs: Inputs = "as_is",
    padding: Padding = None,
) -> DataSource:
    """Wrap data of your own, with options, for `Experiment(data=...)`.

    Parameters
    ----------
    source : DataFrame, (X, y), (X, y, X_val, y_val), torch Dataset, Hugging Face dataset or mapping of splits
        A list has one for each worker, each with these options. A torch Dataset, or what the sampler of a
        DataLoader draws from it, is read once, in order; its samples are (x, y), (a, b, y), ((a, b), y), or
        mappings with the target among them, as a mapping of whole arrays may be too. X may also come first
        and y second: `data(X, y)`. Floats become 32-bit; a memory-mapped float32 array is not copied. Tables
        of polars and pyarrow are read as a DataFrame is.
    target : str
        The column to be learned, of a frame or a Hugging Face dataset.
    features : list of str or None
        The columns that are inputs; None: all but the target and `keep`.
    keep : list of str
        Columns that are no inputs, but that a sharding may go by: `{name: column, column: ...}`.
    validation : as `source`, or None
        The validation set.
    val_fraction : float or None, 0 <= val_fraction < 1
        Share that is set aside for validation if no validation set is given; None: 0.2.
    task : "classification", "regression", "sequence", "own" or None
        None: from the type of the targets. Whole numbers and texts are classes, other numbers are to be
        predicted, whole numbers (N, T) of inputs that are whole numbers are the next tokens. With "own"
        targets stay as they are, for a loss of your own.
    classes : int, list of str, or None
        How many classes there are, or their names in the order of their numbers, where not all occur.
    standardise : bool
        Bring each feature to mean 0 and deviation 1 over the training samples, and targets that are numbers.
    inputs : "as_is", "numbers" or "tokens"
        What becomes of inputs that are whole numbers: as they are (int64, or uint8), numbers to compute with
        (float32), or tokens (int64).
    padding : float, mapping of input to float, or None
        What samples that are shorter than others are filled with, at their ends; a batch is then as long as
        its longest sample. None: 0 where there is an `attention_mask`, else samples must be equally long.

    Returns
    -------
    DataSource
        Read at once, and checked. A saved run holds its fingerprint, and not the data.

    Raises
    ------
    SpecError, DataError
        On lengths that differ, NaN, texts among inputs, empty data, a column that is missing or not numeric,
        and options that do not go together; naming what, and where.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"size": [1.0, 2.0, 3.0], "kind": ["a", "b", "a"]})
    >>> data(frame, target="kind").content.features
    ('size',)
    """
    if is_array(source) and target is not None:
        source, target = (source, target), None
    for what, value, kinds in (("task", task, (None, *get_args(Task))), ("inputs", inputs, get_args(Inputs))):
        if value not in kinds:
            raise UnknownName(f"{what} of data", str(value), filter(None, kinds))
    columns = ColumnRoles(_column_name(target), None if features is None else tuple(features), tuple(keep))

    def wrapped(one: Any) -> DataSource:
        if isinstance(one, DataSource):
            raise ParameterError(f"data: {one.name!r} has options of its own; give them as a mapping")
        train, val = _read(one, columns, padding)
        if validation is not None:
            if val is not None:
                raise ParameterError(
                    "data: a validation set is given twice: with the data, and as validation"
                )
            val = _read(validation, columns, padding)[0]
        if val is not None and val_fraction is not None:
            raise ParameterError(f"data: a validation set is given, so remove val_fraction = {val_fraction}")
        content = _content(train, val, task, classes, inputs, standardise)
        share = {} if val_fraction is None else {"val_fraction": val_fraction}
        return OwnData.around(content, train.kind, content.fingerprint(), standardise=standardise, **share)

    if isinstance(source, list):
        return PerWorker(data=tuple(map(wrapped, source)))
    return wrapped(source)


def _column_name(target: Any) -> str | None:
    if target is None or isinstance(target, str):
        return target
    raise ParameterError(f"data: target must be the name of a column, not {target!r}; give arrays as (X, y)")


def _read(source: Any, columns: ColumnRoles, padding: Padding) -> tuple[Read, Read | None]:
    """Return the training samples of a source, and its validation samples, if any."""
    splits = splits_of(source)
    if splits is not None:
        train, val = splits
        validation = None if val is None else _hugging_face(val, columns, padding)
        return _hugging_face(train, columns, padding), validation
    if is_frame(source):
        return read_frame(source, columns), None
    if is_hugging_face(source):
        return _hugging_face(source, columns, padding), None
    if _is_pair(source, is_hugging_face):
        train, val = (_hugging_face(each, columns, padding) for each in source)
        return train, val
    if hasattr(source, "column_names"):
        raise DataError(
            f"data: {type(source).__name__} has no length: samples must be indexed; give a Hugging "
            "Face Dataset that is not streamed"
        )
    if isinstance(source, Mapping):
        return read_mapping(source, columns), None
    if _is_read_once(source):
        return read_dataset(source, columns, padding), None
    if _is_pair(source, _is_read_once):
        train, val = (read_dataset(each, columns, padding) for each in source)
        return train, val
    how = next((name for name in ("compute", "collect") if hasattr(source, name)), None)
    if how and hasattr(type(source), "columns"):  # a frame of dask or polars
        raise DataError(f"data: the {type(source).__name__} is not computed yet; give its .{how}()")
    if columns:
        raise ParameterError(NO_COLUMNS)
    if isinstance(source, tuple):
        return _pairs(source)
    raise DataError(f"data: expected {_KINDS}; {_what(source)}")


def _hugging_face(source: Any, columns: ColumnRoles, padding: Padding) -> Read:
    if not is_transformed(source):
        return read_hugging_face(source, columns, padding)
    return replace(read_dataset(source, columns, padding), classes=classes_of(source, columns.target))


def _pairs(source: tuple[Any, ...]) -> tuple[Read, Read | None]:
    if len(source) not in (2, 4):
        raise DataError(f"data: got a tuple of length {len(source)}; give (X, y) or (X, y, X_val, y_val)")
    kind = "(X, y)" if len(source) == 2 else "(X, y, X_val, y_val)"
    train = Read(as_several(source[0], "X"), source[1], kind)
    return train, None if len(source) == 2 else Read(as_several(source[2], "X_val"), source[3], kind)


def _is_pair(source: Any, kind: Callable[[Any], bool]) -> bool:
    """Return whether `source` is a (train, validation) pair."""
    return isinstance(source, tuple) and len(source) == 2 and all(map(kind, source))


def _is_read_once(source: Any) -> bool:
    return is_torch_dataset(source) or is_loader(source)


def _what(source: Any) -> str:
    if is_array(source):
        return f"an array of shape {tuple(source.shape)} alone has no targets"
    if hasattr(source, "__iter__") and not hasattr(source, "__len__"):
        return f"a {type(source).__name__} has no length: samples must be indexed (a map-style Dataset)"
    return f"got {type(source).__name__}: {source!r:.40}"


def _content(
    train: Read,
    val: Read | None,
    task: Task | None,
    classes: int | Sequence[str] | None,
    inputs: Inputs,
    exact: bool,
) -> Content:
    """Return samples and targets, checked, as they are trained on; `exact`: as they are standardised."""
    x = inputs_of(train.x, "X", inputs, train.features, exact)
    val_y = None
    val_x = None if val is None else inputs_of(val.x, "X_val", inputs, val.features, exact)
    y = as_array(train.y, "y")
    _check_lengths("X", len(x), "y", y)
    if val is not None and val_x is not None:
        val_y = as_array(val.y, "y_val")
        _check_lengths("X_val", len(val_x), "y_val", val_y)
        # as they are once they have been standardised
        one, other = (_as_trained_on(layout_of(each)) for each in (x, val_x))
        if one != other:
            raise DataError(
                f"data: samples of X are {in_words(one)} of {_types(one)}, but those of X_val "
                f"{in_words(other)} of {_types(other)}; they must be equal"
            )
    if val is not None and val.features != train.features:
        raise DataError(
            "data: the validation set has different columns from the training set, or in a different order"
        )
    numbers = train.classes and y.dtype.kind in "iu"
    tokens = not isinstance(x, Several) and x.dtype.kind in "iu"
    largest = int(x.max()) if tokens else None
    if numbers and val is not None and val.classes != train.classes[: len(val.classes)]:
        raise DataError(
            f"data: the classes of the training set are {in_short(train.classes)}, but those of the "
            f"validation set {in_short(val.classes)}, so the same number means different classes; "
            "give both the same classes"
        )
    if classes is None and numbers and task in (None, "classification"):
        classes = train.classes
    found = encode_targets(y, val_y, task, classes, largest, exact)
    if found.train.ndim > 1:  # as long as the inputs, perhaps, which then must not be cut
        x, val_x = without_lengths(x), without_lengths(val_x)
    if found.val is not None:
        warn_of_shared_samples([(x, found.train)], val_x, found.val)
    return Content(
        x=x,
        y=found.train,
        val_x=val_x,
        val_y=found.val,
        classes=found.classes,
        task=found.task,
        features=train.features,
        columns=dict(train.columns),
        is_column=found.is_column,
        val_columns={} if val is None else dict(val.columns),
    )


def _as_trained_on(layout: SampleLayout) -> SampleLayout:
    return [["float32" if dtype == "float64" else dtype, *shape] for dtype, *shape in layout]


def _types(layout: SampleLayout) -> str:
    return ", ".join(str(dtype) for dtype, *_ in layout)


def _check_lengths(x: str, samples: int, y: str, targets: Array) -> None:
    count = len(targets) if targets.ndim else 1
    if count != samples:
        raise DataError(f"data: {x} has {samples} samples, but {y} {count}; give one target for each sample")
