"""Plain data of files, checked against a type before use."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from psbench.core.specification import problem
from psbench.errors import DataError, in_short

if TYPE_CHECKING:
    import pandas as pd

_T = TypeVar("_T")


class FileData(BaseModel):
    """A mapping of a file: its keys are known, and its numbers finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


def typed(kind: type[_T], plain: Any, where: str | Path) -> _T:
    """Return plain data as a value of a type.

    Raises
    ------
    DataError
        With the file (`where`) and the place in it, if it is none.

    >>> typed(int, "x", "numbers.json")
    Traceback (most recent call last):
    psbench.errors.DataError: numbers.json: must be a whole number, got 'x'
    """
    try:
        checked: _T = _checker(kind).validate_python(plain)
        return checked
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, first["loc"]))
        place = f"{where}: {path}" if path else str(where)
        got = "" if first["type"] == "missing" else f", got {in_short(first['input'])}"
        raise DataError(f"{place}: {problem(first)}{got}") from None


@cache
def _checker(kind: Any) -> TypeAdapter[Any]:
    """Return the cached checker of a type: creating one takes 5 ms, and each run of a paper needs one."""
    return TypeAdapter(kind)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises
    ------
    DataError
        If it cannot be read or is none.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or 'is not text'}") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: is not JSON, or is truncated, at line {error.lineno}") from None
    except (ValueError, RecursionError):  # a number of 5,000 digits, a list in a list in a list
        raise DataError(f"{path}: its numbers or lists are too long") from None


def numbers_of(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of a table as numbers: NaN for a non-numeric cell, infinity for an overflow."""
    import pandas as pd

    # as whole numbers of Python such cells could not be converted, as texts they can
    readable = column.astype(str) if column.dtype == object else column
    return pd.to_numeric(readable, errors="coerce")
