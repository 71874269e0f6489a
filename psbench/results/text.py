"""A table and its remarks as text for a terminal, and the digits of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from psbench.terminal import shown

if TYPE_CHECKING:
    from rich.table import Table


#: stands for a no-break space, at which rich would break a line
_NO_BREAK = "\ue000"


def table_text(
    headings: Sequence[str], rows: Sequence[Sequence[str]], remarks: Iterable[str], width: int | None = None
) -> str:
    """Return a table and its remarks; one that is too wide has a column for each row instead.

    Parameters
    ----------
    headings, rows, remarks : texts
    width : int, characters, optional
        By default as wide as the terminal.
    """
    from rich.console import Console

    console = Console(width=width, record=True, file=StringIO(), force_jupyter=False)
    table = _table(headings, rows)
    wanted = console.measure(table, options=console.options.update(max_width=1000)).maximum
    if wanted > console.width:
        sides = [list(side) for side in zip(headings, *rows, strict=True)]
        table = _table(sides[0], sides[1:])
    console.print(table)
    for line in remarks:
        console.print(shown(line), highlight=False, markup=False, style="dim")
    return console.export_text().replace(_NO_BREAK, "\u00a0")


class ShownTable:
    """Base of objects that display themselves as a table with remarks, in a terminal and in a notebook."""

    @property
    def remarks(self) -> list[str]:
        """The meaning of the table's numbers."""
        raise NotImplementedError

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows as text."""
        raise NotImplementedError

    def text(self, width: int | None = None) -> str:
        """Return the table for a terminal, by default as wide as that, with the remarks below it."""
        return table_text(*self.cells(), self.remarks, width)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from psbench.results.html import table_html

        return table_html(*self.cells(), self.remarks)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        table.add_column(escape(shown(heading)), justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(shown(cell)).replace("\u00a0", _NO_BREAK) for cell in row))
    return table


def two_digits(number: float) -> str:
    """Return a number with two significant digits, without an exponent unless it is tiny."""
    return f"{number:#.2g}".rstrip(".") if number < 99.5 else f"{number:.0f}"
