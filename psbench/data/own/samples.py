"""Reads samples that come one by one, or in a batch: torch Datasets, DataLoaders, mappings of arrays."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from psbench.arrays import Array
from psbench.data.own.arrays import as_array
from psbench.data.own.held import check_samples
from psbench.data.own.padded import PaddedRows, Padding, as_several, put_together, with_lengths_of_mask
from psbench.data.own.readers import USUAL_TARGETS, ColumnRoles, Read, names_of, target_of
from psbench.data.several import Several
from psbench.errors import DataError, ParameterError

NO_COLUMNS = "data: target, features and keep are for tables; arrays have no names of columns"


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


def read_mapping(source: Mapping[str, Any], columns: ColumnRoles) -> Read:
    """Read a mapping of names to arrays, of which one is the target."""
    x, y = _parted(source, columns, "the mapping")
    return Read(as_several(x, "X"), y, "mapping of arrays")


def read_dataset(dataset: Any, columns: ColumnRoles, padding: Padding = None) -> Read:
    """Read all samples of a map-style torch Dataset, or of a DataLoader's, once, in order.

    A sample is (input, target), (input, ..., target), ((input, ...), target), ({name: input}, target), or a
    mapping that holds the target too. What a DataLoader's own collate_fn makes of all samples is the data.

    Raises
    ------
    DataError, ParameterError
        If it is empty, samples have no target, have different shapes, or change each time they are read.
    """
    collate = None
    if is_loader(dataset):
        dataset, collate = _of_loader(dataset)
    if not is_torch_dataset(dataset):
        raise DataError(
            f"data: a {type(dataset).__name__} is not map-style (it has no length, or no samples by number); "
            "give a Dataset that is"
        )
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    classes = names_of(getattr(dataset, "classes", None))
    tensors = getattr(dataset, "tensors", None)
    if kind.endswith(".TensorDataset") and tensors is not None:
        if len(tensors) < 2:
            raise DataError(f"data: the TensorDataset has {len(tensors)} tensor; expected inputs and targets")
        return Read(as_several(tuple(tensors[:-1]), "X"), tensors[-1], kind, classes)
    if not len(dataset):
        raise DataError(f"data: the {type(dataset).__name__} is empty")
    if collate is not None:
        x, y = _collated(dataset, collate, columns)
    else:
        x, y = _one_by_one(dataset, columns, padding)
    return Read(x, y, kind, classes)


def _of_loader(loader: Any) -> tuple[Any, Any]:
    """Return the Dataset of a DataLoader and its own collate_fn, and say what is not taken of it."""
    from torch.utils.data import default_collate

    warnings.warn(
        "data: of a DataLoader its dataset is taken; the batch size and the order are the experiment's "
        "(batch_size=...)",
        UserWarning,
        stacklevel=2,
    )
    own = loader.collate_fn is not default_collate and loader.batch_size is not None
    return loader.dataset, loader.collate_fn if own else None


def _collated(dataset: Any, collate: Any, columns: ColumnRoles) -> tuple[Any, Any]:
    """Return what a collate_fn makes of all samples; it must make the same of the same samples."""
    what = f"the batch of the collate_fn of the {type(dataset).__name__}"
    first = [_parted(collate([dataset[0], dataset[0]]), columns, what) for _ in range(2)]
    one, two = (_arrays(as_several(x, "X")) for x, _ in first)
    if not all(map(np.array_equal, one, two)):
        raise DataError(
            "data: the collate_fn makes something else of the same samples each time, as if it drew by "
            "chance; it is called once, so give one without chance"
        )
    check_samples(dataset.__getitem__, len(dataset), f"data: what the {type(dataset).__name__} gives")
    x, y = _parted(collate([dataset[number] for number in range(len(dataset))]), columns, what)
    x = as_several(x, "X")
    return (with_lengths_of_mask(x) if isinstance(x, Several) else x), y


def _arrays(inputs: Any) -> list[Array]:
    return list(inputs.parts) if isinstance(inputs, Several) else [as_array(inputs, "X")]


def _one_by_one(dataset: Any, columns: ColumnRoles, padding: Padding) -> tuple[Any, Array]:
    inputs, y0, named = _sample(dataset, 0, columns)
    again, _, _ = _sample(dataset, 0, columns)
    if not all(np.array_equal(inputs[name], again[name]) for name in inputs):
        raise DataError(
            f"data: sample 0 of the {type(dataset).__name__} is another one each time it is read, as if a "
            "transform drew by chance; samples are read once, so give it a transform without chance"
        )
    count = len(dataset)
    called = {name: _called(name, named, len(inputs)) for name in inputs}
    rows = {name: PaddedRows(inputs[name], count, called[name]) for name in inputs}
    targets = PaddedRows(y0, count, "the target")
    for number in range(count):
        inputs, target, _ = _sample(dataset, number, columns)
        if list(inputs) != list(rows):
            raise DataError(
                f"data: sample {number} has the inputs {', '.join(inputs)}, but sample 0 {', '.join(rows)}"
            )
        for name, each in inputs.items():
            rows[name].put(number, each)
        targets.put(number, target)
    if len(y0.shape) and targets.uneven is not None:
        raise DataError(
            f"data: the target of sample {targets.uneven} is not as long as that of sample 0; bring all to "
            "one shape"
        )
    return put_together(rows, named, padding), targets.padded(None)[0]


def _called(name: str, named: bool, count: int) -> str:
    if named:
        return f"input {name!r}"
    return "the input" if count == 1 else f"input number {name}"


def _sample(dataset: Any, number: int, columns: ColumnRoles) -> tuple[dict[str, Array], Array, bool]:
    """Return the inputs of a sample by name or number, its target, and whether they have names."""
    x, y = _parted(dataset[number], columns, f"sample {number} of the {type(dataset).__name__}")
    named = isinstance(x, Mapping)
    several = {str(name): each for name, each in x.items()} if named else _numbered(x)
    inputs = {name: as_array(each, f"input {name} of sample {number}") for name, each in several.items()}
    return inputs, as_array(y, f"target {number}"), named


def _numbered(x: Any) -> dict[str, Any]:
    parts = x if isinstance(x, tuple) and all(hasattr(each, "shape") for each in x) else (x,)
    return {str(place): each for place, each in enumerate(parts)}


def _parted(sample: Any, columns: ColumnRoles, what: str) -> tuple[Any, Any]:
    """Return inputs and target of a sample or batch."""
    if isinstance(sample, Mapping):
        names = [str(name) for name in sample]
        usual = next((name for name in USUAL_TARGETS if name in names), None)
        target = target_of(columns.target or usual, names, "ps.data(..., target=...)")
        if columns.keep:
            raise ParameterError("data: keep is for tables; such samples hold inputs and a target")
        return {name: sample[name] for name in columns.inputs_among(names, target)}, sample[target]
    if columns:
        raise ParameterError(NO_COLUMNS)
    if not isinstance(sample, (tuple, list)) or len(sample) < 2:
        found = f"{len(sample)} values" if isinstance(sample, (tuple, list)) else f"a {type(sample).__name__}"
        raise DataError(
            f"data: {what} is {found}; expected a pair (input, target), (input, input, target), or a mapping"
        )
    return (sample[0] if len(sample) == 2 else tuple(sample[:-1])), sample[-1]
