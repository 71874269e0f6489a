"""The Vega configuration of every chart, for light and dark surroundings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
LIGHT = {"text": "#1f2328", "soft": "#59636e", "line": "#d1d9e0", "grid": "#eaeef2", "paper": "#ffffff"}
DARK = {"text": "#e6edf3", "soft": "#9aa4af", "line": "#3d444d", "grid": "#262c36", "paper": "#15191f"}
#: the colour of the text around, more or less of it: for charts drawn as SVG within a page
PAGE = {
    "text": "currentColor",
    **{
        name: f"color-mix(in srgb, currentColor {percent}%, transparent)"
        for name, percent in {"soft": 75, "line": 25, "grid": 12}.items()
    },
}

#: how every chart writes numbers: a space before the sign of percents, and nothing where there is no number,
#: as on the axis of a chart that has no row yet
NUMBERS: dict[str, Any] = {
    "decimal": ".",
    "thousands": ",",
    "grouping": [3],
    "currency": ["", ""],
    "percent": "\u00a0%",
    "nan": "",
}


def theme(dark: bool = False, background: str | None = "transparent") -> dict[str, Any]:
    """Return the configuration; without a background the page shows through."""
    ink = DARK if dark else LIGHT
    return _config(ink, ink["paper"] if background is None else background)


def page_theme() -> dict[str, Any]:
    """Return the configuration that follows the page around the chart, light or dark; it needs SVG."""
    return _config(PAGE, "transparent")


def _config(ink: Mapping[str, str], background: str) -> dict[str, Any]:
    return {
        "background": background,
        "locale": {"number": NUMBERS},
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": ink["soft"],
            "titleColor": ink["soft"],
            "domainColor": ink["line"],
            "tickColor": ink["line"],
            "gridColor": ink["grid"],
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "titlePadding": 8,
        },
        "axisBand": {"grid": False, "ticks": False, "domain": False, "labelPadding": 6},
        "legend": {
            "labelColor": ink["text"],
            "titleColor": ink["soft"],
            "labelFontSize": 12,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "orient": "top",
            "symbolStrokeWidth": 2,
            "symbolSize": 90,
            "offset": 6,
        },
        "title": {
            "color": ink["text"],
            "subtitleColor": ink["soft"],
            "fontSize": 14,
            "fontWeight": 600,
            "anchor": "start",
            "offset": 10,
        },
        "text": {"color": ink["text"], "fontSize": 11},
        "rule": {"color": ink["soft"]},
        "line": {"strokeWidth": 2},
        "bar": {"cornerRadius": 1},
    }
