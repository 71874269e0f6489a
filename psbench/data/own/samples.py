"""Reads samples one by one or in a batch: torch Datasets, DataLoaders, mappings of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from psbench.arrays import Array, Integers
from psbench.data.own.arrays import as_array, input_array
from psbench.data.own.loaders import check_by_number, is_loader, is_stream, loaded
from psbench.data.own.memory import check_samples
from psbench.data.own.padded import PaddedRows, Padding, as_several, put_together, with_lengths_of_mask
from psbench.data.own.readers import USUAL_TARGETS, ColumnRoles, Read, names_of, target_of
from psbench.data.several import Several
from psbench.errors import DataError, ParameterError

NO_COLUMNS = "data: target, features and keep are for tables; arrays have no column names"

#: samples that are read several times, from all over the data, and how often each is
_LOOKED_AT, _READINGS = 16, 4


def is_torch_dataset(value: Any) -> bool:
    """Return whether a value has indexed or iterable samples, and is no array, list or mapping."""
    by_number = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    known = isinstance(value, (Sequence, Mapping)) or hasattr(value, "__array__") or hasattr(value, "toarray")
    return (by_number and not known) or is_stream(value)


def read_mapping(source: Mapping[str, Any], columns: ColumnRoles) -> Read:
    x, y = _parted(source, columns, "the mapping")
    return Read(as_several(x, "X"), y, "mapping of arrays")


def read_dataset(dataset: Any, columns: ColumnRoles, padding: Padding = None) -> Read:
    """Read the samples of a map-style torch Dataset, or the samples that a DataLoader draws, once in order.

    A sample is (input, target), (input, ..., target), ((input, ...), target), ({name: input}, target), or a
    mapping that holds the target too. What a DataLoader's own collate_fn makes of all samples is the data.

    Raises
    ------
    DataError, ParameterError
        If it is empty, samples have no target, have different shapes, or change each time they are read.
    """
    from torch.utils.data import Subset, TensorDataset

    collate = None
    if is_loader(dataset):
        dataset, numbers, collate = loaded(dataset)
        if numbers is not None:
            dataset = Subset(dataset, numbers.tolist())
    check_by_number(dataset)
    if not len(dataset):
        raise DataError(f"data: the {type(dataset).__name__} is empty")
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    root, numbers = _root(dataset)
    classes = names_of(getattr(root, "classes", None))
    if type(root) is TensorDataset and collate is None:
        if len(root.tensors) < 2:
            raise DataError("data: the TensorDataset has one tensor; expected inputs and targets")
        *x, y = root.tensors if numbers is None else root[numbers]
        return Read(as_several(tuple(x), "X"), y, kind, classes)
    if collate is not None:
        x, y = _collated(dataset, collate, columns)
    else:
        x, y = _one_by_one(dataset, columns, padding)
    return Read(x, y, kind, classes)


def _root(dataset: Any) -> tuple[Any, Integers | None]:
    """Return the dataset below nested Subsets, and the indices of their samples in it (None: all)."""
    from torch.utils.data import Subset

    numbers = None
    while type(dataset) is Subset:
        own = np.asarray(dataset.indices)
        numbers = own if numbers is None else own[numbers]
        dataset = dataset.dataset
    return dataset, numbers


def _check_fixed(read: Callable[[int], Sequence[Array]], count: int, what: str) -> None:
    """Raise if samples differ each time they are read.

    A flip with probability 1/2 is missed in one of 10^14 data sets, as each sample is read four times.

    Parameters
    ----------
    read : callable (number) -> arrays
    count : int
    what : str
        What message calls the reading of a sample.
    """
    places = sorted({each * count // _LOOKED_AT for each in range(min(_LOOKED_AT, count))})
    for place in places:
        first = read(place)
        for _ in range(max(_READINGS, _LOOKED_AT * _READINGS // len(places)) - 1):
            if not _equal(first, read(place)):
                raise DataError(f"data: sample {place} {what}")


def _equal(one: Sequence[Array], other: Sequence[Array]) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(one, other, strict=True)
    )


def _collated(dataset: Any, collate: Any, columns: ColumnRoles) -> tuple[Any, Any]:
    """Return the batch that a collate_fn makes of all samples, which must be reproducible."""
    what = f"the batch of the collate_fn of the {type(dataset).__name__}"

    def twice(place: int) -> list[Array]:
        sample = dataset[place]
        x, y = _parted(collate([sample, sample]), columns, what)
        return [*_arrays(as_several(x, "X")), as_array(y, "y")]

    _check_fixed(
        twice,
        len(dataset),
        "changes each time the collate_fn is called, so it may be random; samples are read only once, so "
        "use a deterministic collate_fn",
    )
    check_samples(dataset.__getitem__, len(dataset), f"data: what the {type(dataset).__name__} gives")
    x, y = _parted(collate([dataset[number] for number in range(len(dataset))]), columns, what)
    x = as_several(x, "X")
    return (with_lengths_of_mask(x) if isinstance(x, Several) else x), y


def _arrays(inputs: Any) -> list[Array]:
    return list(inputs.parts) if isinstance(inputs, Several) else [as_array(inputs, "X")]


def _one_by_one(dataset: Any, columns: ColumnRoles, padding: Padding) -> tuple[Any, Array]:
    def arrays(place: int) -> list[Array]:
        inputs, y, _ = _sample(dataset, place, columns)
        return [*inputs.values(), y]

    count = len(dataset)
    inputs, y0, named = _sample(dataset, 0, columns)
    _check_fixed(
        arrays,
        count,
        f"of the {type(dataset).__name__} changes each time it is read, so a transform may be random; "
        "samples are read only once, so use a deterministic transform",
    )
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
    """Return the inputs of a sample by name or number, its target, and whether the inputs have names."""
    x, y = _parted(dataset[number], columns, f"sample {number} of the {type(dataset).__name__}")
    named = isinstance(x, Mapping)
    several = {str(name): each for name, each in x.items()} if named else _numbered(x)
    inputs = {name: input_array(each, f"input {name} of sample {number}") for name, each in several.items()}
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
            raise ParameterError(
                "data: keep is for tables; samples of a Dataset have only inputs and a target"
            )
        return {name: sample[name] for name in columns.inputs_among(names, target)}, sample[target]
    if columns:
        raise ParameterError(NO_COLUMNS)
    if not isinstance(sample, (tuple, list)) or len(sample) < 2:
        found = f"{len(sample)} values" if isinstance(sample, (tuple, list)) else f"a {type(sample).__name__}"
        raise DataError(
            f"data: {what} is {found}; expected a pair (input, target), (input, input, target), or a mapping"
        )
    return (sample[0] if len(sample) == 2 else tuple(sample[:-1])), sample[-1]
