"""Pieces of HTML: tables, and a page whose charts need no internet.

Vega, Vega-Lite and vega-embed are written into the page once, the charts as specifications. A content
security policy in the page forbids it to load anything from anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from psbench import charts
from psbench.charts import Figure

#: rows of a chart's table that are shown; more is no help to a reader
TABLE_ROWS = 60

#: what a curve is drawn against, in the choice beside it
_SHORT = {"time_s": "time", "epoch": "epochs", "updates": "updates", "bytes": "bytes"}


def page(template: str, **values: Any) -> str:
    known = {"figures": FigureList(), "css": Markup(_asset("report.css"))}
    return _templates().get_template(template).render(known | values)


@cache
def _templates() -> Environment:
    """Return the templates, in which all text is escaped that is not marked as HTML."""
    loader = PackageLoader("psbench.results")
    return Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )


def _macro(name: str, *values: Any) -> Markup:
    """Return the result of a macro of `macros.html`."""
    found: Markup = getattr(_templates().get_template("macros.html").module, name)(*values)
    return found


class FigureList:
    """The figures of a page, numbered as they are placed in it."""

    def __init__(self) -> None:
        self.specs: list[dict[str, Any]] = []

    def place(self, figure: Figure) -> Markup:
        """Return the HTML of a figure: title, chart, note and table."""
        spec = figure.spec
        title, subtitle = spec.pop("title", ""), ""
        if isinstance(title, dict):
            title, subtitle = title["text"], title.get("subtitle", "")
        number = len(self.specs)
        self.specs.append(spec)
        said = (subtitle and f"{subtitle[0].upper()}{subtitle[1:]}.", figure.note)
        meta = spec.get("usermeta", {})
        axes = {name: _SHORT[name] for name in meta.get("axes", {})}
        described, note = spec.get("description", title), " ".join(filter(None, said))
        table = frame_table(figure.table)
        return _macro("figure", number, title, described, note, axes, meta.get("x"), table)

    def grid(self, figures: Iterable[Figure]) -> Markup:
        """Return figures side by side if they fit."""
        return Markup('<div class="grid">{}</div>').format(Markup("").join(map(self.place, figures)))

    def scripts(self) -> Markup:
        """Return Vega (once), the chart specifications, and the script that renders them."""
        import vl_convert

        data = {"light": charts.theme(), "dark": charts.theme(dark=True), "specs": self.specs}
        return Markup(
            f"<script>{_in_script(vl_convert.javascript_bundle())}</script>\n"  # pyrefly: ignore[missing-argument]
            f'<script type="application/json" id="data">{_json_in_script(data)}</script>\n'
            f"<script>\n{_asset('report.js')}</script>\n"
        )


def _in_script(code: str) -> str:
    """Return code that is safe inside a script element: no text in it ends the element."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", code, flags=re.IGNORECASE)


def _json_in_script(data: Any) -> str:
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return resources.files("psbench.charts").joinpath(name).read_text(encoding="utf-8")


def table_html(headings: Sequence[str], rows: Sequence[Sequence[str]], remarks: Iterable[str]) -> str:
    """Return a table and the remarks below it, for a notebook."""
    return str(_macro("remarked", headings, rows, remarks))


def frame_table(table: pd.DataFrame) -> Markup:
    """Return a chart's table; of a long one evenly picked rows."""
    step = max(1, -(-len(table) // TABLE_ROWS))
    shown = table.iloc[::step]
    kept = [name for name in shown if shown[name].notna().any()]
    rows = [[_short(value) for value in row] for row in shown[kept].astype(object).to_numpy().tolist()]
    return _macro("shown", list(map(str, kept)), rows, step, len(table))


def _short(value: Any) -> str:
    if value is None or value is pd.NA or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def swatch(colour: str, dash: Sequence[int]) -> Markup:
    """Return a drawn sample of a line."""
    return _macro("swatch", colour, " ".join(map(str, dash)) if dash[1] else "none")
