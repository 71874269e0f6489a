"""A user's targets as classes, numbers or tokens; which they are follows from their dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psbench.arrays import Array
from psbench.data.base import MOST_CLASSES, Task
from psbench.data.own.arrays import as_array, as_floats, check_finite, warn_of_merged
from psbench.data.own.memory import check_texts
from psbench.errors import DataError, ParameterError, in_short

#: how torch's losses and other libraries' data mark a sample without a label
_NO_LABEL = (-100, -1)


@dataclass(frozen=True)
class Targets:
    """Targets of the training and the validation samples; see `Dataset` for their types and `is_column`."""

    train: Array
    val: Array | None
    classes: tuple[str, ...]
    task: Task
    is_column: bool = False


def encode_targets(
    train: object,
    val: object | None,
    task: Task | None = None,
    classes: int | Sequence[str] | None = None,
    largest_token: int | None = None,
    exact: bool = False,
) -> Targets:
    """Return targets as they are trained on.

    Whole numbers and texts are classes, numbered in ascending order; whole numbers from 0 keep their values.
    Other numbers are numbers to be predicted. Whole numbers in two dimensions are the next tokens if the
    inputs are whole numbers too.

    Parameters
    ----------
    train, val : array-like, (N,) or (N, numbers) or (N, tokens)
    task : Task or None
        None: as the type says.
    classes : int, sequence of str, or None
        How many classes there are, or what they are called, in the order of their numbers; None: those that
        occur.
    largest_token : int or None
        Among the inputs, if these are whole numbers; the vocabulary goes at least that far.
    exact : bool
        Whether numbers to be predicted are to be standardised: they are float64 then.

    Raises
    ------
    DataError, ParameterError
    """
    parts = [_targets(train, "y")] + ([] if val is None else [_targets(val, "y_val")])
    if any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        raise DataError(f"data: y has shape {parts[0].shape}, but y_val {parts[1].shape}")
    is_column = task != "own" and parts[0].shape[1:] == (1,)
    if is_column:
        parts = [part[:, 0] for part in parts]
    task = task or _task_of(parts[0], largest_token is not None)
    if task == "classification":
        coded, names = _classes(parts, classes)
    elif task == "sequence":
        coded, names = _tokens(parts, classes, largest_token or 0)
    else:
        if classes is not None:
            raise ParameterError(f"data: classes are given, but the task is {task!r}; remove one")
        numbers = [_numbers(part, exact) if task == "regression" else _as_given(part) for part in parts]
        coded, names = numbers, ()
    return Targets(coded[0], coded[1] if len(coded) > 1 else None, names, task, is_column)


def _targets(value: object, what: str) -> Array:
    """Return targets in an array; texts are strings."""
    array = as_array(value, what)
    if array.ndim == 0:
        raise DataError(f"data: {what} is {value!r}; expected one target per sample")
    if array.dtype.kind == "O":
        array = _from_objects(array, what)
    if array.dtype.kind not in "fiubU":
        raise DataError(f"data: {what} has dtype {array.dtype}; expected whole numbers, texts, or numbers")
    if array.dtype.kind == "f":
        check_finite(array, what)
    return array


def _from_objects(array: Array, what: str) -> Array:
    """Return an array of Python objects as one of texts, or of numbers."""
    from pandas import isna

    missing = np.argwhere(isna(array))
    if len(missing):
        raise DataError(f"data: {what} has a missing value in row {int(missing[0, 0])}; remove such rows")
    kinds = {type(value) for value in array.ravel().tolist()}
    if kinds == {str}:
        check_texts(array.ravel(), array.size, what)
    if kinds == {str} or kinds <= {int, float, bool}:
        return np.array(array.tolist())
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise DataError(f"data: {what} has dtype object, holding {names}; give texts only, or numbers only")


def _task_of(y: Array, tokens: bool) -> Task:
    if y.dtype.kind == "f":
        return "regression"
    if y.ndim == 1:
        return "classification"
    if y.ndim == 2 and tokens:
        return "sequence"
    raise DataError(
        f"data: y has shape {y.shape} and dtype {y.dtype}; {_one_target(y)}, or give the task: "
        "ps.data(..., task=...)"
    )


def _one_target(y: Array) -> str:
    """Return advice on targets with several whole numbers per sample."""
    looked_at = y[:1000]
    if y.ndim != 2 or not set(np.unique(looked_at).tolist()) <= {0, 1}:
        return "give one target per sample"
    if (looked_at.sum(axis=1) == 1).all():
        return "give y.argmax(1)"
    return "for several labels per sample give y as floats, with loss='bce'"


def _numbers(y: Array, exact: bool) -> Array:
    if y.dtype.kind == "U":
        raise DataError(f"data: y holds texts such as {y[0]!r}, which task 'regression' cannot predict")
    if y.ndim > 2:
        raise DataError(f"data: y has shape {y.shape}; expected (samples,) or (samples, numbers)")
    found = as_floats(y, "y")
    if exact:
        return y.astype(np.float64, copy=False)
    warn_of_merged(y, "y")
    return found


def _as_given(y: Array) -> Array:
    if y.dtype.kind == "U":
        raise DataError(f"data: y holds texts such as {y.ravel()[0]!r}; encode them for a loss of your own")
    return y.astype(np.float32 if y.dtype.kind == "f" else np.int64, copy=False)


def _classes(
    parts: Sequence[Array], given: int | Sequence[str] | None
) -> tuple[list[Array], tuple[str, ...]]:
    if parts[0].ndim != 1:
        raise DataError(
            f"data: y has shape {parts[0].shape}; expected one class per sample: {_one_target(parts[0])}"
        )
    values = [_whole(part) for part in parts]
    found = np.unique(np.concatenate(values))
    if found.dtype.kind == "U":
        return _named(values, found, given)
    if given is None:
        _check_marks(found, values)
        if len(found) > MOST_CLASSES and len(found) > len(parts[0]) // 2:
            raise DataError(
                f"data: y has {len(found)} different whole numbers in {len(parts[0])} samples; if they are "
                "numbers to be predicted, give floats or task='regression'"
            )
        return [np.searchsorted(found, part) for part in values], tuple(map(str, found.tolist()))
    names = tuple(map(str, range(given))) if isinstance(given, int) else tuple(map(str, given))
    if int(found[0]) < 0 or int(found[-1]) >= len(names):
        raise DataError(
            f"data: labels run from {int(found[0])} to {int(found[-1])}, but there are {len(names)} "
            "classes, numbered from 0"
        )
    return values, names


def _check_marks(found: Array, values: Sequence[Array]) -> None:
    """Reject the values by which other libraries mark unlabelled samples; -1 and 1 are two classes."""
    marks = [mark for mark in _NO_LABEL if mark in found]
    if not marks or found.tolist() == [-1, 1]:
        return
    place = next(int(np.argmax(part == marks[0])) for part in values if (part == marks[0]).any())
    raise DataError(
        f"data: y has the label {marks[0]}, first in row {place}, which usually marks unlabelled samples; "
        "remove such rows, or number the classes from 0"
    )


def _whole(y: Array) -> Array:
    """Return labels as int64 or text."""
    if y.dtype.kind == "f" and (y % 1 != 0).any():
        raise DataError(f"data: y holds {y[y % 1 != 0][0]}, which is not a class; set task='regression'")
    return y if y.dtype.kind == "U" else y.astype(np.int64, copy=False)


def _named(
    values: Sequence[Array], found: Array, given: int | Sequence[str] | None
) -> tuple[list[Array], tuple[str, ...]]:
    """Return texts as places among their names."""
    if isinstance(given, int):
        raise ParameterError("data: y holds texts, so classes must be their names, or omitted")
    names = found if given is None else np.array([str(name) for name in given])
    if len(set(names.tolist())) < len(names):
        raise ParameterError(f"data: classes contains a name twice: {in_short(names.tolist())}")
    unknown = np.setdiff1d(found, names)
    if len(unknown):
        raise DataError(f"data: y holds {str(unknown[0])!r}, which is not among classes")
    order = np.argsort(names)
    places = [order[np.searchsorted(names, part, sorter=order)].astype(np.int64) for part in values]
    return places, tuple(map(str, names.tolist()))


def _tokens(
    parts: Sequence[Array], given: int | Sequence[str] | None, largest: int
) -> tuple[list[Array], tuple[str, ...]]:
    if parts[0].dtype.kind not in "iu" or parts[0].ndim != 2:
        raise DataError(
            f"data: y has shape {parts[0].shape} and dtype {parts[0].dtype}; for task 'sequence' give whole "
            "numbers, (samples, tokens)"
        )
    largest = max(largest, *(int(part.max()) for part in parts))
    if min(int(part.min()) for part in parts) < 0:
        raise DataError("data: y holds negative numbers, but tokens are numbered from 0")
    given = largest + 1 if given is None else given
    names = tuple(map(str, range(given) if isinstance(given, int) else given))
    if largest >= len(names):
        raise DataError(f"data: tokens run to {largest}, but there are {len(names)} classes, numbered from 0")
    return [part.astype(np.int64, copy=False) for part in parts], names
