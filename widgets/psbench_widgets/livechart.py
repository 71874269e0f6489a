"""A chart whose rows arrive while it is displayed."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import traitlets

from psbench_widgets.frontend import FrontendWidget

ColumnValues = Mapping[str, Sequence[Any]]


class LiveChart(FrontendWidget):
    """A Vega-Lite chart that is drawn once and then fed with rows.

    Parameters
    ----------
    spec : dict
        A Vega-Lite specification whose data sets are named, as `alt.Chart(alt.NamedData("source"))` makes
        it. A new one is drawn with the rows that are already there.
    title, note : str
        Shown above the chart.
    nothing : str
        Shown in the place of the chart, if not empty.
    renderer : "canvas" or "svg"
    max_rows : int, rows of a data set
        The oldest are forgotten beyond it, here and on the page.

    Notes
    -----
    Rows may be appended from any thread. They are numbered, and a page asks for what it has not got: one
    that is opened late, or reloaded, shows every row once. Nothing is sent before a page has asked.

    Examples
    --------
    >>> chart = LiveChart(spec={"mark": "line", "data": {"name": "source"}})
    >>> chart.append({"x": [1, 2], "y": [0.5, float("nan")]})
    >>> chart.rows()
    [{'x': 1, 'y': 0.5}, {'x': 2, 'y': None}]
    """

    spec = traitlets.Dict().tag(sync=True)
    title = traitlets.Unicode("").tag(sync=True)
    note = traitlets.Unicode("").tag(sync=True)
    nothing = traitlets.Unicode("").tag(sync=True)
    state = traitlets.Enum(("empty", "live", "done"), default_value="empty").tag(sync=True)
    renderer = traitlets.Enum(("canvas", "svg"), default_value="canvas").tag(sync=True)
    max_rows = traitlets.Int(20_000, min=1).tag(sync=True)

    def __init__(self, **values: Any) -> None:
        self._lock = threading.RLock()
        self._tables: dict[str, _Table] = {}
        self._signals: dict[str, Any] = {}
        self._asked = False
        super().__init__(**{"kind": "chart"} | values)
        self.on_msg(self._on_message)

    def append(self, columns: ColumnValues, source: str = "source", **signals: Any) -> None:
        """Add rows, given as columns of equal length, and set signals of the specification.

        Raises
        ------
        ValueError
            If the columns differ in length, or are not those of the rows before.
        """
        plain = {name: _plain_values(column) for name, column in columns.items()}
        with self._lock:
            table = self._tables.setdefault(source, _Table())
            first = table.append(plain, self.max_rows)
            self._signals.update(signals)
            self._tell([table.part(source, first)], signals)

    def replace(self, columns: ColumnValues, source: str = "source", **signals: Any) -> None:
        """Replace all earlier rows."""
        with self._lock:
            if source in self._tables:
                self._tables[source] = _Table(era=self._tables[source].era + 1)
            self.append(columns, source, **signals)

    def clear(self) -> None:
        """Forget all rows."""
        with self._lock:
            for source, table in list(self._tables.items()):
                self._tables[source] = _Table(era=table.era + 1)
            self._tell([table.part(source, 0) for source, table in self._tables.items()], {})

    def count(self, source: str = "source") -> int:
        """Return the number of stored rows of a data set."""
        with self._lock:
            table = self._tables.get(source)
            return table.next - table.start if table else 0

    def rows(self, source: str = "source") -> list[dict[str, Any]]:
        """Return the rows that are kept of a data set."""
        with self._lock:
            columns = self._tables[source].columns if source in self._tables else {}
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _tell(self, parts: list[dict[str, Any]], signals: Mapping[str, Any]) -> None:
        if self._asked and (parts or signals):
            self.send({"kind": "rows", "parts": parts, "signals": dict(signals)})

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, dict) or content.get("kind") != "hello":
            return
        have = content.get("have", {})
        with self._lock:
            self._asked = True
            parts = [
                table.since(source, *have.get(source, (-1, 0))) for source, table in self._tables.items()
            ]
            self._tell(parts, self._signals)


class _Table:
    """The rows of one data set as columns; row `start` is the oldest that is kept."""

    def __init__(self, era: int = 0) -> None:
        self.era = era
        self.start = 0
        self.columns: dict[str, list[Any]] = {}

    @property
    def next(self) -> int:
        """The number that the next row gets."""
        return self.start + (len(next(iter(self.columns.values()))) if self.columns else 0)

    def append(self, columns: dict[str, list[Any]], max_rows: int) -> int:
        """Add rows and return the number of the first."""
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns differ in length: {lengths}")
        if self.columns and columns.keys() != self.columns.keys():
            raise ValueError(f"expected the columns {list(self.columns)}, got {list(columns)}")
        first = self.next
        for name, column in columns.items():
            self.columns.setdefault(name, []).extend(column)
        self._forget(self.next - self.start - max_rows)
        return max(first, self.start)

    def _forget(self, count: int) -> None:
        if count > 0:
            self.start += count
            for column in self.columns.values():
                del column[:count]

    def since(self, source: str, era: int, number: int) -> dict[str, Any]:
        """Return the rows missing on a page that has the rows of `era` up to `number`."""
        known = era == self.era and self.start <= number <= self.next
        return self.part(source, number if known else self.start)

    def part(self, source: str, first: int) -> dict[str, Any]:
        """Return the rows from number `first` on, as a message part."""
        columns = {name: column[first - self.start :] for name, column in self.columns.items()}
        return {"source": source, "era": self.era, "start": self.start, "from": first, "columns": columns}


#: types of values that JSON takes as they are, besides finite floats
_PLAIN = {int, str, bool, type(None)}


def _plain_values(column: Sequence[Any]) -> list[Any]:
    """Return a column for JSON, looking at single values only where one of them may need it."""
    kinds = set(map(type, column))
    if kinds <= _PLAIN or (kinds == {float} and math.isfinite(sum(column))):
        return list(column)
    return [value if type(value) in _PLAIN else plain_value(value) for value in column]


def plain_value(value: Any) -> Any:
    """Return a value for JSON: NumPy scalars unpacked, NaN and infinity as None."""
    if type(value) is not float and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
