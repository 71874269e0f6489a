"""Conversion of the user's arrays to training arrays, with checks that name the first fault."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from psbench.arrays import Array, Floats
from psbench.data.own.memory import check_texts
from psbench.data.scaling import blocks, warn_of_coarse
from psbench.data.several import Several
from psbench.errors import DataError
from psbench.system.limits import check_memory

#: how whole numbers among inputs are meant: left as they are, as numbers to compute with, or as tokens
Inputs: TypeAlias = Literal["as_is", "numbers", "tokens"]


def as_array(value: Any, what: str) -> Array:
    """Return a NumPy array from an array-like: a torch tensor on any device, a list, a pandas Series.

    Raises
    ------
    DataError
        If it is none, or has masked or missing values, naming `what`.
    """
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        raise DataError(f"data: {what} is a sparse matrix; give its .toarray()")
    if hasattr(value, "layout") and str(value.layout) != "torch.strided":
        raise DataError(f"data: {what} is a tensor of layout {value.layout}; give its .to_dense()")
    if isinstance(value, list) and value and isinstance(value[0], str):
        check_texts(value, len(value), what)
    try:
        if hasattr(value, "detach"):  # a tensor, without importing torch
            value = value.detach().cpu()
            return np.asarray(value.float() if str(value.dtype) == "torch.bfloat16" else value)
        if hasattr(value, "isna") and hasattr(value, "to_numpy"):
            return _of_pandas(value, what)
        if isinstance(value, (list, tuple)) and any(map(np.ma.isMaskedArray, value)):
            value = np.ma.array(value)
        if np.ma.isMaskedArray(value):
            return _without_mask(value, what)
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"data: {what} is not an array ({reason})") from None


def _of_pandas(value: Any, what: str) -> Array:
    """Return a Series, an Index, an extension array, or a DataFrame of such columns as an array."""
    if value.ndim == 1:
        return column_values(value, what)
    if all(isinstance(dtype, np.dtype) for dtype in value.dtypes):
        return np.asarray(value)
    columns = (value.iloc[:, place] for place in range(value.shape[1]))
    named = zip(columns, value.columns, strict=True)
    return np.stack([column_values(each, f"column {name!r} of {what}") for each, name in named], axis=1)


def column_values(series: Any, what: str) -> Array:
    """Return the values of a pandas Series as pandas stores them.

    Raises
    ------
    DataError
        If it has no value somewhere.
    """
    missing = np.asarray(series.isna())
    if missing.any():
        raise DataError(
            f"data: {what} has a missing value in row {int(np.argmax(missing))}; remove such rows, or fill "
            "them"
        )
    return np.asarray(series.to_numpy())


def _without_mask(array: Any, what: str) -> Array:
    masked = np.argwhere(np.ma.getmaskarray(array))
    if len(masked):
        row, *rest = (int(place) for place in masked[0]) if array.ndim else (0,)
        where = f" in row {row}{_column(rest, ())}" if array.ndim else ""
        raise DataError(f"data: {what} is masked{where}; remove such rows, or fill them")
    return np.asarray(array.data)


#: modes of PIL whose numbers are what they look like: grey or RGB, of 8, 16 or 32 bits
_PLAIN_MODES = ("L", "LA", "RGB", "RGBA", "I", "F")


def input_array(value: Any, what: str) -> Array:
    """Return an input as an array; an image of PIL with its channels in front.

    Images of two colours become grey, and those of a palette or another colour space become RGB: a palette's
    numbers say nothing of its colours. (In targets, such as the masks of a segmentation, they are classes.)
    """
    if not hasattr(value, "getbands"):
        return as_array(value, what)
    if value.mode not in _PLAIN_MODES and not value.mode.startswith("I;"):
        with warnings.catch_warnings():  # transparency is left out, as data 'folder' does
            warnings.simplefilter("ignore")
            value = value.convert("L" if value.mode == "1" else "RGB")
    pixels = np.asarray(value)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def inputs_of(
    value: Any, what: str, inputs: Inputs = "as_is", names: Sequence[str] = (), exact: bool = False
) -> Any:
    """Return samples as float32, int64 or uint8, (N, ...); only a change of type copies them.

    Of `Several` each part is treated so; booleans stay what they are there, as masks are, and a part may have
    one number a sample.

    Parameters
    ----------
    value : array-like, (N, ...)
    what : str
        What messages call it.
    inputs : "as_is", "numbers" or "tokens"
        Whether whole numbers stay what they are, become float32, or int64.
    names : sequence of str
        Of the columns, for messages; may be empty.
    exact : bool
        Whether one array of numbers is to be standardised: it becomes float64, unless it is float32.

    Raises
    ------
    DataError
        If it is empty, has one dimension only, is not numeric, or some number is not finite.
    """
    if not isinstance(value, Several):
        return _checked(as_array(value, what), what, inputs, names, exact=exact)
    called = value.names or tuple(map(str, range(len(value.parts))))
    parts = tuple(
        _checked(part, f"{what}[{name!r}]", inputs, part=True)
        for name, part in zip(called, value.parts, strict=True)
    )
    return Several(parts, value.names, value.lengths, value.padding)


def _checked(
    array: Array,
    what: str,
    inputs: Inputs,
    names: Sequence[str] = (),
    part: bool = False,
    exact: bool = False,
) -> Array:
    if part and array.dtype.kind == "b":
        return array
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"data: {what} has dtype {array.dtype}, but inputs must be numbers; encode them first"
            f"{_first_text(array)}"
        )
    if array.ndim < 2 and not part:
        raise DataError(
            f"data: {what} has shape {array.shape}; expected (samples, features) or more dimensions, "
            f"such as {what}.reshape(-1, 1)"
        )
    if array.size == 0:
        raise DataError(f"data: {what} is empty: its shape is {array.shape}")
    if array.dtype.kind == "f":
        if inputs == "tokens":
            raise DataError(f"data: {what} has dtype {array.dtype}, but tokens must be whole numbers")
        check_finite(array, what, names)
    found = _typed(array, what, inputs, exact)
    return found if found.flags.c_contiguous else np.ascontiguousarray(found)


def _typed(array: Array, what: str, inputs: Inputs, exact: bool) -> Array:
    if array.dtype.kind in "fb" or inputs == "numbers":
        wanted: Any = np.float64 if exact and array.dtype != np.float32 else np.float32
    else:
        wanted = np.uint8 if array.dtype == np.uint8 and inputs == "as_is" else np.int64
    if array.dtype == wanted:
        return array
    check_memory(array.size * np.dtype(wanted).itemsize, f"data: {what} as {np.dtype(wanted)}", "use less")
    found = as_floats(array, what) if wanted is np.float32 else array.astype(wanted)
    if wanted is np.float32:
        warn_of_merged(array, what)
    return found


def as_floats(array: Array, what: str) -> Floats:
    """Return numbers as float32.

    Raises
    ------
    DataError
        If one is too large for it.
    """
    with np.errstate(over="ignore"):
        found: Floats = array.astype(np.float32, copy=False)
    check_finite(found, f"{what} as a 32-bit float")
    return found


def warn_of_merged(array: Array, what: str) -> None:
    """Warn of columns with values that coincide as 32-bit floats."""
    if array.dtype == np.float32 or array.dtype.itemsize <= 2 or not len(array):
        return
    columns = array.reshape(len(array), -1)
    warn_of_coarse(f"data: {what}", columns.min(axis=0), columns.max(axis=0))


def check_finite(array: Array, what: str, names: Sequence[str] = ()) -> None:
    """Raise DataError at the first number that is NaN or infinite, naming row and column."""
    for begin, end in blocks(len(array)):
        wrong = ~np.isfinite(array[begin:end])
        if wrong.any():
            row, *rest = (int(place) for place in np.argwhere(wrong)[0])
            value = array[(begin + row, *rest)]
            raise DataError(
                f"data: {what} has {value} in row {begin + row}{_column(rest, names)}; remove such rows, "
                "or fill them"
            )


def _column(place: Sequence[int], names: Sequence[str]) -> str:
    if not place:
        return ""
    if len(place) == 1:
        return f", column {names[place[0]]!r}" if names else f", column {place[0]}"
    return f", at {tuple(place)}"


def _first_text(array: Array) -> str:
    """Return the first value that is not a number, for a message."""
    odd = next((each for each in array.ravel()[:1000].tolist() if not isinstance(each, (int, float))), None)
    return "" if odd is None else f" (such as {odd!r})"
