"""Charts for a two-column paper: its widths, its font, and units in axis titles.

A chart is laid out as on the screen and then scaled to the width of a column, at which its smallest font size
is 8 points; SVG and PDF are written in that size. Title and warnings are left to the figure's caption. All
colours are opaque, as some programs that typesetters use know no others.

Source
------
The founding documents are in the format of the IEEE's conferences (IEEEtran): columns of 3.5 inches,
.25 apart, Times, captions of 8 points.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from psbench.charts.colours import on_paper
from psbench.charts.theme import theme
from psbench.charts.ticks import unit_in_title
from psbench.errors import ParameterError
from psbench.system.files import atomic_write

#: inches of a figure in a column, and of one across both
WIDTHS = {"column": 3.4, "page": 7.0}
_FONT = "'Times New Roman', 'Liberation Serif', 'Nimbus Roman', 'TeX Gyre Termes', Times, serif"
#: points in an inch, and the font size in points of what is 11 pixels on the screen
_INCH, _LETTER = 72, 8
_SCALE = _LETTER / 11
#: what the height of a chart is of that on the screen, if it is not rows
_FLAT, _HIGH = 0.75, 160
_TRANSLUCENT = re.compile(r"#[0-9A-Fa-f]{8}\b")
_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')


def for_paper(spec: dict[str, Any], width: str) -> dict[str, Any]:
    """Return a sheet's specification as a figure of a paper.

    Parameters
    ----------
    spec : dict
        Of charts below each other.
    width : "column" or "page"

    Raises
    ------
    ParameterError
        If it is neither.
    """
    if width not in WIDTHS:
        raise ParameterError(f"width: {width!r} is not a known width; choose from {', '.join(WIDTHS)}")
    wanted = WIDTHS[width] * _INCH / _SCALE
    charts = [_plain(chart, is_alone=len(spec["vconcat"]) == 1) for chart in spec["vconcat"]]
    found = spec | {"vconcat": charts, "config": _config(), "spacing": 16, "padding": 1}
    found["usermeta"] = {"paper_in": WIDTHS[width]}
    more = wanted - _size_of(_svg(found))[0]  # what labels and legends take shows when it is drawn
    return found | {"vconcat": [chart | {"width": chart["width"] + more} for chart in charts]}


def write(spec: dict[str, Any], path: Path) -> None:
    """Write a figure of a paper as SVG or PDF, in its size."""
    import vl_convert

    svg = _svg(spec)
    width, height = _size_of(svg)
    inches = spec["usermeta"]["paper_in"]
    high = inches * height / width
    is_svg = path.suffix == ".svg"
    points = f'width="{inches * _INCH:.2f}" height="{high * _INCH:.2f}"'  # in a PDF a pixel is one
    size = f'width="{inches:g}in" height="{high:.4f}in"' if is_svg else points
    sized = _SIZE.sub(size, svg, count=1)
    with atomic_write(path) as file:
        file.write(sized.encode() if is_svg else vl_convert.svg_to_pdf(sized))


def _svg(spec: dict[str, Any]) -> str:
    import vl_convert

    return _TRANSLUCENT.sub(lambda found: on_paper(found[0]), vl_convert.vegalite_to_svg(spec))


def _size_of(svg: str) -> tuple[float, float]:
    found = _SIZE.search(svg)
    assert found is not None
    return float(found[1]), float(found[2])


def _plain(chart: dict[str, Any], is_alone: bool) -> dict[str, Any]:
    """Return a chart without its title if a caption replaces it, and with units in the axis titles."""
    found = {name: value for name, value in chart.items() if name != "title" or not is_alone}
    height = found.get("height")
    if isinstance(height, (int, float)) and height >= _HIGH:
        found["height"] = round(_FLAT * height)
    if "layer" in found:
        found["layer"] = [_with_units(each) for each in found["layer"]]
    return _with_units(found)


def _with_units(chart: dict[str, Any]) -> dict[str, Any]:
    if "encoding" not in chart:
        return chart
    return chart | {"encoding": {name: unit_in_title(value) for name, value in chart["encoding"].items()}}


def _config() -> dict[str, Any]:
    """Return the look: black on white, thin lines, the paper's font."""
    found = theme(background="white")
    ink = {"labelColor": "black", "titleColor": "black"}
    axis = ink | {"domainColor": "black", "tickColor": "black", "gridColor": "#e4e4e4", "titlePadding": 4}
    return found | {
        "font": _FONT,
        "axis": found["axis"] | axis,
        "axisY": {"minExtent": 30},
        "legend": found["legend"] | ink | {"labelFontSize": 11, "offset": 2, "symbolStrokeWidth": 1.5},
        "title": found["title"] | {"color": "black", "fontSize": 12, "fontWeight": "normal", "offset": 4},
        "text": {"color": "black", "fontSize": 11},
        "rule": {"color": "black"},
        "line": {"strokeWidth": 1.4},
    }
