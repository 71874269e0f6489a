"""Stacked charts that display themselves in a notebook without internet.

Altair's own renderers fetch Vega-Lite 6 from the network, and JupyterLab (to 4.6) ships Vega-Lite 5. Our
charts mean the same in both, so a sheet offers itself twice: as Vega-Lite 5, which JupyterLab draws alive in
the colours of its theme, also in a notebook that is only opened; and as a picture, for every other reader
(a code host, an exported page). The picture also keeps JupyterLab from storing a larger one of its own.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, TypeAlias, get_args

import altair as alt

from psbench.charts.paper import for_paper, write
from psbench.charts.theme import page_theme, theme
from psbench.errors import ParameterError

LIVE = "application/vnd.vegalite.v5+json"
_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
#: pixels of the picture for each of the chart's: with more, a saved notebook would grow by half
_SCALE = 1
#: room for the labels of a y axis, so that charts below each other begin at the same place
_LEFT: dict[str, Any] = {"axisY": {"minExtent": 52}}
#: colours of the picture: charts have few, and with a palette it takes a fifth of the space
_PALETTE = 96
#: pixels on the screen, and where nothing else is said
Width: TypeAlias = int | Literal["column", "page"]
_SCREEN = 640

Style: TypeAlias = Literal["screen", "paper"]


class Sheet(alt.VConcatChart):
    """Stacked charts; as the last expression of a cell they are displayed.

    It is an Altair chart like any other: `save`, `to_dict` and `properties` work.
    """

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle, options = self.still()
        bundle[LIVE] = live(self.to_dict(validate=False))
        options[LIVE] = {"embed_options": {"renderer": "svg", "actions": False}}
        return bundle, options

    def to_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Return the specification, in which each chart's expressions find its own scales."""
        spec: dict[str, Any] = super().to_dict(*arguments, **options)
        spec["vconcat"] = [_with_own_scales(chart, place) for place, chart in enumerate(spec["vconcat"])]
        return spec

    def save(self, fp: Any, *arguments: Any, **options: Any) -> None:
        """Write the charts as Altair does; charts for a paper as SVG or PDF, in the paper's size."""
        spec = self.to_dict()
        if not isinstance(fp, (str, Path)) or "paper_in" not in spec.get("usermeta", {}):
            super().save(fp, *arguments, **options)
        elif Path(fp).suffix in (".svg", ".pdf"):
            write(spec, Path(fp))
        else:
            raise ParameterError(f"{fp}: the name of a figure for a paper must end in .svg or .pdf")

    def still(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the picture and its description as the content of a notebook output, and its metadata."""
        words, picture = self._words(), _picture(self.to_dict(validate=False))
        return {"text/plain": words, "image/png": picture}, {"image/png": {"alt": words}}

    def _words(self) -> str:
        descriptions = [str(chart.description) for chart in self.vconcat]
        title = {} if self.title is alt.Undefined else self.title.to_dict()
        above = [title["text"], *title["subtitle"]] if title else []
        return "\n".join([*above, "Charts:", *(f"- {words}" for words in descriptions)])


#: an expression's use of the scale of an axis
_SCALE_OF_AXIS = re.compile(r"\b(scale|range)\('([xy])'")


def _with_own_scales(chart: dict[str, Any], place: int) -> dict[str, Any]:
    """Return a chart of a stack with the names that Vega-Lite gives to its scales there."""
    text = json.dumps(chart)
    found = _SCALE_OF_AXIS.sub(rf"\1('concat_{place}_\2'", text)
    return chart if found == text else dict(json.loads(found))


def styled(sheet: Sheet, warnings: Sequence[str], style: Style, width: Width | None) -> Sheet:
    """Return a sheet with its warnings, or as a figure of a paper ("column", if no width is given)."""
    if style == "screen":
        return with_warnings(sheet, warnings, pixels_of(style, width))
    done: Sheet = Sheet.from_dict(for_paper(sheet.to_dict(), "column" if width is None else str(width)))
    return done


def pixels_of(style: Style, width: Width | None) -> int:
    """Return the width of charts on the screen.

    Raises
    ------
    ParameterError
        If there is no such style, or the width is one of another.
    """
    if style not in get_args(Style):
        raise ParameterError(f"style: {style!r} is not one of {', '.join(get_args(Style))}")
    if style == "screen" and isinstance(width, str):
        raise ParameterError(f"width: {width!r} needs style='paper'; on the screen, give pixels")
    return width if isinstance(width, int) else _SCREEN


def stack(charts: Iterable[Any], width: int = _SCREEN) -> Sheet:
    """Return charts one below the other, each with its own legends; timelines, and sequences, share time.

    Parameters
    ----------
    charts : iterable of Chart or LayerChart
        As this package makes them: as wide as what contains them.
    width : int, pixels
    """
    wide = [chart.properties(width=width) for chart in charts]
    for chart in wide:
        chart.usermeta = alt.Undefined  # belongs to the top level
    own: dict[str, str] = dict.fromkeys(_LOOKS, "independent")
    if len(wide) > 1 and {_time_of(chart) for chart in wide} in ({"start_s"}, {"from_s"}):
        own["x"] = "shared"  # the same stretch of time: what is compared is not stretched
    return Sheet(
        vconcat=wide,
        spacing=34,
        resolve=alt.Resolve(scale=own),
        config=alt.Config(**theme(background=None), **_LEFT),
    )


_LOOKS = "color", "size", "shape", "strokeDash", "fill", "fillOpacity", "opacity"


def _time_of(chart: Any) -> str:
    """Return the column that a chart, or its first layer that has one, draws from left to right."""
    of_own: Any = getattr(getattr(chart, "encoding", alt.Undefined), "x", alt.Undefined)
    if of_own is not alt.Undefined:
        return str(getattr(of_own, "shorthand", "")).partition(":")[0]
    layers: Any = getattr(chart, "layer", alt.Undefined)
    return next(filter(None, map(_time_of, layers)), "") if layers is not alt.Undefined else ""


def with_warnings(sheet: Sheet, warnings: Sequence[str], width: int = 640) -> Sheet:
    """Return the sheet with the runs' warnings above the charts."""
    if not warnings:
        return sheet
    letters = max(40, width // 6)  # of the size that a subtitle has
    lines = [line for text in warnings for line in wrap(text, letters, subsequent_indent="    ")]
    title = alt.TitleParams("Warnings", subtitle=lines, anchor="start", subtitlePadding=4)
    shown: Sheet = sheet.properties(title=title)
    return shown


def live(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a specification as Vega-Lite 5 in the colours of the page."""
    tables = spec.get("datasets", {})
    named = {name: json.dumps(_columns(rows), separators=(",", ":")) for name, rows in tables.items()}
    charts = [_flattened(chart, tables) for chart in spec["vconcat"]]
    look = {"$schema": _SCHEMA, "config": page_theme() | _LEFT}
    return _flattened(spec, tables) | look | {"datasets": named, "vconcat": charts}


def _columns(rows: list[dict[str, Any]]) -> list[dict[str, list[Any]]]:
    """Return a table as a single row of columns: half the size, as no name is repeated.

    >>> _columns([{"x": 1, "y": 3}, {"x": 2, "y": 4}]), _columns([])
    ([{'x': [1, 2], 'y': [3, 4]}], [])
    """
    return [{name: [row[name] for row in rows] for name in rows[0]}] if rows else []


def _flattened(chart: dict[str, Any], tables: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the chart with its data in columns, expanded to rows before any other transform.

    >>> _flattened({"data": {"name": "pushes"}}, {"pushes": [{"x": 1, "y": 3}]})["transform"]
    [{'flatten': ['x', 'y']}]
    """
    chart = _shared(chart)
    if "layer" in chart:  # a layer may have a table of its own
        chart |= {"layer": [_flattened(layer, tables) for layer in chart["layer"]]}
    rows = tables.get(chart.get("data", {}).get("name", ""))
    if not rows:
        return chart
    return chart | {"transform": [{"flatten": list(rows[0])}, *chart.get("transform", [])]}


def _shared(chart: dict[str, Any]) -> dict[str, Any]:
    """Return the chart with the encodings that all its layers share moved to the top level."""
    layers = chart.get("layer", [])
    if len(layers) < 2:
        return chart
    first, *others = (layer.get("encoding", {}) for layer in layers)
    same = {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
    slim = [
        layer | {"encoding": {k: v for k, v in layer.get("encoding", {}).items() if k not in same}}
        for layer in layers
    ]
    return chart | {"encoding": same | chart.get("encoding", {}), "layer": slim}


def _picture(spec: dict[str, Any]) -> bytes:
    """Return the chart as a small PNG."""
    import vl_convert
    from PIL import Image

    drawn = Image.open(io.BytesIO(vl_convert.vegalite_to_png(spec, scale=_SCALE)))
    small = io.BytesIO()
    drawn.convert("RGB").quantize(_PALETTE, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()
