"""Reads what the user's data may come in: pairs of arrays, torch Datasets, frames, Hugging Face datasets."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psbench.data.own.arrays import Array, as_array
from psbench.errors import DataError, ParameterError, UnknownName
from psbench.system.limits import check_memory

#: what targets are called where no column is named
_USUAL_TARGETS = ("label", "labels", "target", "y", "fine_label")


@dataclass(frozen=True)
class Read:
    """Samples and targets as they came.

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
class Columns:
    """Which columns are what: the target, the inputs (None: all others), and those that are kept."""

    target: str | None = None
    features: tuple[str, ...] | None = None
    keep: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Columns()

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
            raise ParameterError(
                f"data: {target!r} is the target, so it is no input; leave it out of features"
            )
        chosen = names if self.features is None else self.features
        found = [name for name in chosen if name != target and (self.features or name not in self.keep)]
        if not found:
            raise ParameterError(f"data: no column is left for inputs beside {target!r}")
        return found


def is_array(value: Any) -> bool:
    """Whether it is an array or a tensor; tables and mappings of splits have a shape too."""
    return hasattr(value, "shape") and not (
        is_frame(value) or is_hugging_face(value) or isinstance(value, Mapping)
    )


# ---------------------------------------------------------------- frames


def is_frame(value: Any) -> bool:
    """Whether it is a pandas DataFrame."""
    return type(value).__module__.split(".")[0] == "pandas" and hasattr(value, "dtypes") and value.ndim == 2


def read_frame(frame: Any, columns: Columns) -> Read:
    """Read a DataFrame: numeric columns are inputs, in its order.

    Raises
    ------
    DataError, ParameterError, UnknownName
        If the target is not given, or a column is not there, not numeric, or has no value somewhere.
    """
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"data: the frame has two columns {twice!r}; rename one")
    target = _target(columns.target, names, "ps.data(frame, target=...)")
    by_name = {name: frame.iloc[:, place] for place, name in enumerate(names)}
    inputs = columns.inputs_among(names, target)
    for name in inputs:
        if by_name[name].dtype.kind not in "fiub":
            raise DataError(
                f"data: column {name!r} is not numeric (it has {by_name[name].dtype}); encode it, leave it "
                f"out with features=[...], or keep it for a sharding with keep=[{name!r}]"
            )
    check_memory(
        8 * len(frame) * len(inputs), f"data: {len(frame)} rows of {len(inputs)} columns", "use less"
    )
    x = np.empty((len(frame), len(inputs)), dtype=np.float32)
    for place, name in enumerate(inputs):
        x[:, place] = by_name[name].to_numpy(dtype=np.float64, na_value=np.nan)
    kept = {name: _plain(by_name[name], name) for name in columns.keep}
    return Read(x, _plain(by_name[target], target), "pandas.DataFrame", (), tuple(inputs), kept)


def _plain(series: Any, name: str) -> Array:
    """Return a column as an array of numbers or texts.

    Raises
    ------
    DataError
        If it has no value somewhere.
    """
    missing = series.isna().to_numpy()
    if missing.any():
        raise DataError(
            f"data: column {name!r} has no value in row {int(np.argmax(missing))}; leave such rows out, "
            "or fill them"
        )
    values = series.to_numpy()
    if values.dtype.kind in "fiub":
        return np.asarray(values)
    found = values.tolist()
    if all(isinstance(value, str) for value in found):
        return np.array(found)
    return np.array(found) if np.array(found).dtype.kind in "fiub" else np.array(list(map(str, found)))


def _target(given: str | None, names: Sequence[str], how: str) -> str:
    if given is not None:
        if given not in names:
            raise UnknownName("target column of data", str(given), names)
        return given
    raise ParameterError(f"data: say which column is to be learned, as {how}; there are {', '.join(names)}")


# ---------------------------------------------------------------- torch Datasets


def is_torch_dataset(value: Any) -> bool:
    """Whether it is map-style: has a length and samples by number, and is no array, list or mapping."""
    return (
        hasattr(value, "__getitem__")
        and hasattr(value, "__len__")
        and not isinstance(value, (Sequence, Mapping, np.ndarray))
        and not hasattr(value, "detach")
        and not hasattr(value, "dtypes")
    )


def is_loader(value: Any) -> bool:
    """Whether it is a torch DataLoader."""
    return hasattr(value, "dataset") and hasattr(value, "collate_fn")


def of_loader(loader: Any) -> Any:
    """Return the Dataset of a DataLoader, and say what is not taken of it.

    Raises
    ------
    DataError
        If it puts batches together in a way of its own, which would be lost.
    """
    from torch.utils.data import default_collate

    if loader.collate_fn is not default_collate and loader.batch_size is not None:
        raise DataError(
            "data: the DataLoader has a collate_fn of its own, which would not be applied; give a Dataset "
            "whose samples are ready"
        )
    warnings.warn(
        "data: of a DataLoader its dataset is taken; the batch size and the order are the experiment's "
        "(batch_size=...)",
        UserWarning,
        stacklevel=2,
    )
    return loader.dataset


def read_dataset(dataset: Any) -> Read:
    """Read all samples of a map-style torch Dataset, or of a DataLoader's, once, in order.

    Raises
    ------
    DataError
        If it is empty, samples are no pairs, have different shapes, or change each time they are read.
    """
    dataset = of_loader(dataset) if is_loader(dataset) else dataset
    if not is_torch_dataset(dataset):
        raise DataError(
            f"data: a {type(dataset).__name__} is not map-style (it has no length, or no samples by number); "
            "give a Dataset that is"
        )
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    classes = _names(getattr(dataset, "classes", None))
    tensors = getattr(dataset, "tensors", None)
    if kind.endswith(".TensorDataset") and tensors is not None:
        if len(tensors) != 2:
            raise DataError(
                f"data: the TensorDataset has {len(tensors)} tensors; expected inputs and targets"
            )
        return Read(tensors[0], tensors[1], kind, classes)
    if not len(dataset):
        raise DataError(f"data: the {type(dataset).__name__} is empty")
    x0, y0 = _sample(dataset, 0)
    if not np.array_equal(x0, _sample(dataset, 0)[0]):
        raise DataError(
            f"data: sample 0 of the {type(dataset).__name__} is another one each time it is read, as if a "
            "transform drew by chance; samples are read once, so give it a transform without chance"
        )
    what = f"data: {len(dataset)} samples of shape {x0.shape}"
    check_memory(len(dataset) * (x0.nbytes + y0.nbytes), what, "use fewer, such as torch's Subset")
    x = np.empty((len(dataset), *x0.shape), dtype=x0.dtype)
    targets: list[Array] = []
    for number in range(len(dataset)):
        sample, target = _sample(dataset, number)
        if sample.shape != x0.shape or target.shape != y0.shape:
            raise DataError(
                f"data: sample {number} has shape {sample.shape} and a target of {target.shape}, but "
                f"sample 0 {x0.shape} and {y0.shape}; bring all to one shape"
            )
        x[number] = sample
        targets.append(target)
    return Read(x, np.stack(targets), kind, classes)


def _sample(dataset: Any, number: int) -> tuple[Array, Array]:
    sample = dataset[number]
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        found = f"{len(sample)} values" if isinstance(sample, (tuple, list)) else f"a {type(sample).__name__}"
        raise DataError(
            f"data: sample {number} of the {type(dataset).__name__} is {found}; expected a pair (input, "
            "target)"
        )
    return as_array(sample[0], f"the input of sample {number}"), as_array(sample[1], f"target {number}")


def _names(found: Any) -> tuple[str, ...]:
    texts = isinstance(found, (list, tuple)) and all(isinstance(name, str) for name in found)
    return tuple(found) if texts else ()


# ---------------------------------------------------------------- Hugging Face datasets


def is_hugging_face(value: Any) -> bool:
    """Whether it has the columns and features of a Hugging Face dataset."""
    return all(hasattr(value, name) for name in ("features", "column_names", "__getitem__", "__len__"))


def splits_of(value: Any) -> tuple[Any, Any | None] | None:
    """Return training and validation part of a mapping of splits; None if it is none."""
    if not isinstance(value, Mapping) or not value or not all(map(is_hugging_face, value.values())):
        return None
    if "train" not in value:
        raise DataError(f"data: among the splits {', '.join(value)} is none called 'train'; give one of them")
    return value["train"], next(
        (value[name] for name in ("validation", "val", "test") if name in value), None
    )


def read_hugging_face(dataset: Any, columns: Columns) -> Read:
    """Read a Hugging Face dataset, whose library is not needed for it.

    Raises
    ------
    DataError, ParameterError, UnknownName
    """
    names = [str(name) for name in dataset.column_names]
    usual = next((name for name in _USUAL_TARGETS if name in names), None)
    target = _target(columns.target or usual, names, "ps.data(dataset, target=...)")
    inputs = columns.inputs_among(names, target)
    found = [_numeric_column(dataset, name) for name in inputs]
    scalars = all(array.ndim == 1 for array in found)
    if len(found) > 1 and not scalars:
        raise DataError(
            f"data: columns {', '.join(inputs)} are more than one input; name one with features=[...]"
        )
    x = np.stack(found, axis=1) if scalars else found[0]
    classes = _names(getattr(dataset.features[target], "names", None))
    kept = {name: np.array(list(map(str, dataset[name]))) for name in columns.keep}
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    return Read(
        x, as_array(dataset[target][:], target), kind, classes, tuple(inputs) if scalars else (), kept
    )


def _numeric_column(dataset: Any, name: str) -> Array:
    values = dataset[name][:]
    try:
        array = np.stack([as_array(value, f"column {name!r}") for value in values])
    except ValueError:
        raise DataError(f"data: rows of column {name!r} have different shapes; bring all to one") from None
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"data: column {name!r} is not numeric (its first value is {values[0]!r}); encode it, or leave "
            "it out with features=[...]"
        )
    return _channels_first(array) if hasattr(values[0], "getbands") else array


def _channels_first(images: Array) -> Array:
    """Return images of PIL, (N, height, width) or (N, height, width, channels), with channels in front."""
    return images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
