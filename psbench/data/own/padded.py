"""Rows of different lengths, joined into one array and padded at their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from psbench.arrays import Array
from psbench.data.own.arrays import as_array
from psbench.data.several import Several
from psbench.errors import DataError, UnknownName
from psbench.system.limits import check_memory

#: what shorter samples are filled with: one number, one for each input by name, or none
Padding: TypeAlias = float | Mapping[str, float] | None
#: the input that says which entries are padding
MASK = "attention_mask"


class PaddedRows:
    """An array that is filled row by row, and widened for longer rows.

    Parameters
    ----------
    first : array, (...)
        The first row.
    count : int
        Rows that will come.
    what : str
        What messages call it.

    Examples
    --------
    >>> rows = PaddedRows(np.array([1, 2]), 2, "tokens")
    >>> rows.put(0, np.array([1, 2]))
    >>> rows.put(1, np.array([3]))
    >>> rows.padded(0.0)[0].tolist(), rows.padded(0.0)[1].tolist()
    ([[1, 2], [3, 0]], [2, 1])
    """

    def __init__(self, first: Array, count: int, what: str) -> None:
        self._what, self._first = what, first.shape
        check_memory(count * first.nbytes, f"data: {count} of {what}, {first.shape} each", "use fewer")
        self._values = np.empty((count, *first.shape), first.dtype)
        self._lengths = np.zeros(count, dtype=np.int64)

    def put(self, number: int, row: Array) -> None:
        """Store a row.

        Raises
        ------
        DataError
            If it has another shape than the first, its length aside.
        """
        if row.shape[1:] != self._first[1:] or row.ndim != len(self._first):
            raise DataError(
                f"data: {self._what} of sample {number} has shape {row.shape}, but that of sample 0 "
                f"{self._first}; bring all to one shape"
            )
        if row.dtype != self._values.dtype:
            self._values = self._values.astype(np.result_type(row, self._values))
        if row.ndim == 0:
            self._values[number] = row
            return
        if len(row) > self._values.shape[1]:
            self._widen(max(len(row), self._values.shape[1] * 3 // 2))
        self._values[number, : len(row)] = row
        self._lengths[number] = len(row)

    def _widen(self, width: int) -> None:
        old = self._values
        size = old.itemsize * len(old) * width * int(np.prod(old.shape[2:], dtype=np.int64))
        check_memory(size, f"data: {self._what}, padded to {width}", "use fewer, or cut the longest")
        self._values = np.empty((len(old), width, *old.shape[2:]), old.dtype)
        self._values[:, : old.shape[1]] = old

    @property
    def is_scalar(self) -> bool:
        """Return True if a row is a single number."""
        return not self._first

    @property
    def uneven(self) -> int | None:
        other = self._lengths != self._lengths[0]
        return int(np.argmax(other)) if other.any() else None

    def padded(self, value: float | None) -> tuple[Array, Array | None]:
        """Return the rows and their lengths; None for the lengths if they are equal.

        Raises
        ------
        DataError
            If they are not, and there is no value to fill them with.
        """
        if self._values.ndim == 1 or (odd := self.uneven) is None:
            return self._values, None
        if value is None:
            shape = (int(self._lengths[odd]), *self._first[1:])
            raise DataError(
                f"data: {self._what} of sample {odd} has shape {shape}, "
                f"but that of sample 0 {self._first}; give a padding value, such as ps.data(..., "
                "padding=0), or bring all to one shape"
            )
        longest = int(self._lengths.max())
        values = self._values[:, :longest]
        values[np.arange(longest) >= self._lengths[:, None]] = value
        return np.ascontiguousarray(values), self._lengths


def put_together(found: Mapping[str, PaddedRows], named: bool, padding: Padding) -> Any:
    """Return the inputs of all samples: one array, or `Several`.

    Parameters
    ----------
    found : mapping of name to PaddedRows
    named : bool
        Whether the names are the arguments of `forward`; else the order counts.
    padding : float, mapping of name to float, or None
        None fills with zeros where a mask tells them apart.

    Raises
    ------
    DataError, UnknownName
    """
    if isinstance(padding, Mapping):
        for name in padding:
            if name not in found:
                raise UnknownName("padding of data", str(name), list(found))
    default = 0.0 if named and MASK in found else None
    values = [
        padding.get(name, default)
        if isinstance(padding, Mapping)
        else default
        if padding is None
        else float(padding)
        for name in found
    ]
    arrays = [rows.padded(value) for rows, value in zip(found.values(), values, strict=True)]
    lengths = tuple(length for _, length in arrays)
    if len(arrays) == 1 and lengths[0] is None:
        return arrays[0][0]
    filled = tuple(0.0 if value is None else value for value in values)
    return Several(tuple(array for array, _ in arrays), tuple(found) if named else (), lengths, filled)


def with_lengths_of_mask(inputs: Several) -> Several:
    """Return padded inputs with the lengths given by their mask: up to its last 1."""
    if MASK not in inputs.names:
        return inputs
    mask = np.asarray(inputs.parts[inputs.names.index(MASK)])
    if mask.ndim != 2:
        return inputs
    places = np.arange(1, mask.shape[1] + 1)
    lengths = ((mask != 0) * places).max(axis=1)
    follows = [np.shape(part)[:2] == mask.shape for part in inputs.parts]
    return Several(
        inputs.parts,
        inputs.names,
        tuple(lengths if each else None for each in follows),
        (0.0,) * len(follows),
    )


def as_several(value: Any, what: str) -> Any:
    """Return a tuple or mapping of arrays as `Several`, a single one as an array; other values unchanged.

    Raises
    ------
    DataError
        If its arrays have different numbers of rows.
    """
    named = isinstance(value, Mapping)
    if not named and not (isinstance(value, tuple) and value and all(hasattr(v, "shape") for v in value)):
        return value
    names = [str(name) for name in value] if named else [str(place) for place in range(len(value))]
    given: Sequence[Any] = list(value.values()) if named else value
    parts = tuple(as_array(each, f"{what}[{name!r}]") for name, each in zip(names, given, strict=True))
    if not parts:
        raise DataError(f"data: {what} is empty")
    for name, part in zip(names, parts, strict=True):
        if part.ndim == 0 or len(part) != len(parts[0]):
            raise DataError(
                f"data: {what} has {parts[0].shape} as {names[0]!r} and {part.shape} as {name!r}; give "
                "both the same number of samples"
            )
    return Several(parts, tuple(names) if named else ()) if named or len(parts) > 1 else parts[0]
