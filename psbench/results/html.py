"""Pieces of HTML: tables, and a page whose charts are drawn with no internet.

Vega, Vega-Lite and vega-embed are written into the page once, the charts as specifications. A content
security policy in the page forbids it to load anything from anywhere.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

import pandas as pd

from psbench import charts
from psbench.charts import Figure

#: rows of a chart's table that are shown; more is no help to a reader
TABLE_ROWS = 60

#: what the page may load: nothing; Vega makes functions of its expressions, hence 'unsafe-eval'
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'"
#: what a curve is drawn against, in the choice beside it
_SHORT = {"time_s": "time", "epoch": "epochs", "updates": "updates", "bytes": "bytes"}


def document(title: str, body: Sequence[str], figures: FigureList) -> str:
    """Return a page: its sections, and at its end what draws the figures placed in them."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{_asset('report.css')}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n" + figures.scripts() + "</body>\n</html>\n"
    )


class FigureList:
    """The figures of a page, numbered as they are placed in it."""

    def __init__(self) -> None:
        self.specs: list[dict[str, Any]] = []

    def place(self, figure: Figure) -> str:
        """Return the HTML of a figure: title, place of the chart, note, and its table."""
        spec = figure.spec
        title = spec.pop("title", "")
        subtitle = ""
        if isinstance(title, dict):
            title, subtitle = title["text"], title.get("subtitle", "")
        number = len(self.specs)
        self.specs.append(spec)
        note = " ".join(
            text for text in (subtitle and f"{subtitle[0].upper()}{subtitle[1:]}.", figure.note) if text
        )
        described = html.escape(spec.get("description", title), quote=True)
        return (
            f"<figure><figcaption><h4>{html.escape(title)}</h4>{_axis_choice(spec, number)}</figcaption>"
            f'<div class="chart" id="chart-{number}" role="img" aria-label="{described}"></div>'
            + (f'<p class="note">{html.escape(note)}</p>' if note else "")
            + f"<details><summary>Table</summary>{frame_table(figure.table)}</details></figure>"
        )

    def grid(self, figures: Iterable[Figure]) -> str:
        """Return figures side by side where there is room."""
        return '<div class="grid">' + "".join(self.place(figure) for figure in figures) + "</div>"

    def scripts(self) -> str:
        """Return Vega (once), the specifications, and what draws them."""
        import vl_convert

        data = {"light": charts.theme(), "dark": charts.theme(dark=True), "specs": self.specs}
        return (
            f"<script>{_in_script(vl_convert.javascript_bundle())}</script>\n"  # type: ignore[call-arg]
            f'<script type="application/json" id="data">{_json_in_script(data)}</script>\n'
            f"<script>\n{_asset('report.js')}</script>\n"
        )


def _axis_choice(spec: dict[str, Any], number: int) -> str:
    """Return a choice of what a curve is drawn against, if it has one."""
    axes = spec.get("usermeta", {}).get("axes", {})
    if not axes:
        return ""
    selected = {spec["usermeta"]["x"]: " selected"}
    options = "".join(
        f'<option value="{name}"{selected.get(name, "")}>{_SHORT[name]}</option>' for name in axes
    )
    return f'<label class="axis">against <select data-chart="{number}">{options}</select></label>'


def _in_script(code: str) -> str:
    """Return code that may stand inside a script element: no text in it can end the element."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", code, flags=re.IGNORECASE)


def _json_in_script(data: Any) -> str:
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return resources.files("psbench.charts").joinpath(name).read_text(encoding="utf-8")


def table_html(headings: Sequence[str], rows: Sequence[Sequence[str]], remarks: Iterable[str]) -> str:
    """Return a table and the remarks below it, for a notebook."""
    lines = "".join(f"<div><small>{html.escape(line)}</small></div>" for line in remarks)
    return cells_table(headings, rows) + lines


def cells_table(headings: Sequence[str], rows: Sequence[Sequence[str]], look: Sequence[str] = ()) -> str:
    """Return a table of texts; `look` is HTML put before the first cell of each row."""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in headings)
    body = []
    for place, (first, *cells) in enumerate(rows):
        mark = look[place] if look else ""
        body.append(f'<tr><th scope="row">{mark}{html.escape(first)}</th>')
        body += [f"<td>{html.escape(cell)}</td>" for cell in cells]
        body.append("</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def frame_table(table: pd.DataFrame) -> str:
    """Return a chart's table; of a long one evenly picked rows."""
    step = max(1, -(-len(table) // TABLE_ROWS))
    shown = table.iloc[::step]
    kept = [name for name in shown if shown[name].notna().any()]
    rows = [[_short(value) for value in row] for row in shown[kept].astype(object).to_numpy().tolist()]
    skipped = f"<p class='note'>One row in {step} of {len(table):,}.</p>" if step > 1 else ""
    return (
        f'{skipped}<div class="wide">{cells_table([str(name) for name in kept], rows)}</div>'
        if rows
        else "<p>Empty.</p>"
    )


def _short(value: Any) -> str:
    if value is None or value is pd.NA or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def swatch(colour: str, dash: Sequence[int]) -> str:
    """Return a drawn sample of a line."""
    pattern = " ".join(map(str, dash)) if dash[1] else "none"
    return (
        '<svg width="26" height="8" aria-hidden="true"><line x1="0" y1="4" x2="26" y2="4" stroke-width="3" '
        f'stroke="{colour}" stroke-dasharray="{pattern}"/></svg> '
    )
