"""The data source of a chart: a table, or the name of a table that is streamed into a view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import altair as alt
import numpy as np
import pandas as pd

from psbench.arrays import Booleans, Doubles
from psbench.errors import ParameterError
from psbench.system.private_apis import unchecked_rows

#: a table, or the name under which a view will be given rows (`alt.NamedData`)
Data: TypeAlias = pd.DataFrame | str

#: a line of more points than this looks no different on a screen
POINTS = 1000


def source(data: Data) -> alt.InlineData | alt.NamedData:
    """Return Altair's form of the data; numbers are kept to six digits, missing ones become null."""
    return alt.NamedData(data) if isinstance(data, str) else unchecked_rows()(values=records(data))


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as plain JSON-able dicts."""
    columns = {str(name): plain(table[name].tolist()) for name in table.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def thin(table: pd.DataFrame, by: str = "label", points: int = POINTS) -> pd.DataFrame:
    """Return about `points` evenly spaced rows for each value of `by`, including the first and the last.

    Rows that mark an event (a text in column `event`) are all kept.
    """
    if table.empty:
        return table
    place = table.groupby(by, sort=False).cumcount().to_numpy()
    size = table.groupby(by, sort=False)[by].transform("size").to_numpy()
    step = np.maximum(size / points, 1.0)
    keep: Booleans = np.floor(place / step) > np.floor((place - 1) / step)
    keep |= place == size - 1
    if "event" in table:
        keep |= table["event"].notna().to_numpy()
    return table[keep]


def labels_in(data: Data, labels: Sequence[str] | None, column: str = "label") -> list[str]:
    """Return the labels in the order given, or as they first appear in the table."""
    if labels is not None:
        return list(labels)
    if isinstance(data, str):
        raise ParameterError(f"data set {data!r} is streamed: give the values that {column!r} will have")
    return [str(label) for label in dict.fromkeys(data[column])]


def height_of(data: Data, column: str, step: int) -> int | alt.Step:
    # in pixels where the number is known: Vega-Lite warns of a step in a chart as wide as its page
    return alt.Step(step) if isinstance(data, str) else step * max(data[column].nunique(), 1)


def plain(values: Iterable[Any]) -> list[Any]:
    """Return values for JSON, with numbers to six digits; missing or non-finite values become None."""
    if not isinstance(values, np.ndarray):
        values = list(values)
        return values if {*map(type, values)} <= _PLAIN else [_plain(value) for value in values]
    if values.dtype.kind != "f":
        found: list[Any] = values.tolist()
        return found
    return [None if value != value else value for value in _six_digits(values.astype(float)).tolist()]


def _six_digits(values: Doubles) -> Doubles:
    """Return numbers to six digits; non-finite ones become NaN.

    >>> _six_digits(np.array([0.1234567, 123456.7, 1234567.0])).tolist()
    [0.123457, 123457.0, 1234570.0]
    """
    size = np.abs(values)
    usual = (size > 1e-16) & (size < 1e16)  # powers of ten up to 1e22 are exact
    power = np.floor(np.log10(np.where(usual, size, 1.0)))
    up, down = 10.0 ** np.maximum(5 - power, 0), 10.0 ** np.maximum(power - 5, 0)
    rounded = np.rint(values * up / down) * down / up
    return np.where(np.isfinite(values), np.where(usual, rounded, values), np.nan)


#: types of values that JSON takes as they are
_PLAIN = {int, str, bool, type(None)}


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA:
        return None
    if isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    number = float(value)
    return float(f"{number:.6g}") if np.isfinite(number) else None
