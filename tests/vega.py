"""Charts as a reader draws them: the marks of a Vega-Lite specification."""

from __future__ import annotations

import json
import re
from typing import Any

import vl_convert

#: of JupyterLab, and of psbench itself
JUPYTERLAB, OWN = "5.20", "6.4"


def marks(chart: dict[str, Any], version: str) -> list[str]:
    """Return what is drawn, without the ticks of axes, which may differ between versions."""
    svg = vl_convert.vegalite_to_svg(chart, vl_version=version)
    return re.findall(r'<(?:path|text) aria-label="[^"]*" role="graphics-symbol"[^>]*>', svg)


def with_rows(chart: dict[str, Any]) -> dict[str, Any]:
    """Return a chart whose tables are columns as one whose tables are rows, as they were before."""
    tables = {
        name: json.loads(table) if isinstance(table, str) else table
        for name, table in chart["datasets"].items()
    }

    def plain(part: Any) -> Any:
        if isinstance(part, list):
            return [plain(each) for each in part]
        if not isinstance(part, dict):
            return part
        kept = {key: plain(value) for key, value in part.items() if key != "datasets"}
        if "transform" in kept:
            kept["transform"] = [each for each in kept["transform"] if "flatten" not in each]
        return kept

    rows = {
        name: [
            dict(zip(columns, row, strict=True))
            for columns in table
            for row in zip(*columns.values(), strict=True)
        ]
        for name, table in tables.items()
    }
    return plain(chart) | {"datasets": rows}
