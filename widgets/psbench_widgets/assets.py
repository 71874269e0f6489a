"""Shared assets of psbench's pages: the script, and the theme of charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psbench.charts import PHASE_COLOURS, theme

STATIC = Path(__file__).parent / "static"


def themes() -> dict[str, Any]:
    """Return the look of every chart, light and dark, and the colours that the page itself uses."""
    return {
        "light": theme(),
        "dark": theme(dark=True),
        "looks": {"phases": PHASE_COLOURS | {"switching": "#B64082B3"}},
    }
