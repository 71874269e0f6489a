"""Tables as CSV, with cells escaped that spreadsheet programs would treat as formulas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

#: how a cell begins that spreadsheet programs compute, or that hides such a one
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def cell(value: Any) -> Any:
    """Return a cell's value; a text that begins like a formula gets an apostrophe in front.

    Ends of lines are those that Python's writers put in quotes: others would begin a row.

    >>> [cell(value) for value in ("=1+1", "-0.5", "-cmd", "asp", -0.5, None)]
    ["'=1+1", '-0.5', "'-cmd", 'asp', -0.5, None]
    """
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    text = f"'{value}" if is_formula else value
    return re.sub("\r\n?", "\n", text) if isinstance(text, str) else text


def csv_of(frame: pd.DataFrame) -> bytes:
    """Return a data frame as CSV, without its index."""
    safe = frame.copy(deep=False)
    for name in frame:
        column = frame[name]
        if column.dtype == "category":
            safe[name] = column.cat.rename_categories([cell(each) for each in column.cat.categories])
        elif column.dtype.kind in "OTU":
            safe[name] = column.map(cell)
    return safe.rename(columns=cell).to_csv(index=False).encode()


def csv_of_rows(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return text.getvalue()
