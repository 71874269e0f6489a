"""Charts with specification and rows separated, as the page expects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from psbench import charts


def static(figure: charts.Figure) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a finished figure's specification with its data named "source", and the data."""
    spec = bare(figure.chart)
    inside: dict[str, Any] = spec.pop("datasets", {})  # Altair names inline data by its digest
    rows = inside.get(spec["data"].get("name", ""), spec["data"].get("values", []))
    return spec | {"data": {"name": "source"}}, rows


def as_columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns; missing values become None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def bare(chart: Any) -> dict[str, Any]:
    """Return a chart's specification without its title, which the page shows itself."""
    found = chart if isinstance(chart, dict) else charts.spec(chart)
    found.pop("title", None)
    found.pop("$schema", None)
    return found


def titles(figure: charts.Figure) -> tuple[str, str]:
    """Return a figure's title, and the note beside it."""
    title = figure.chart.title  # a specification of the whole chart takes as long as to draw it
    plain = title.to_dict() if isinstance(title, alt.TitleParams) else {"text": str(title)}
    return plain["text"], " ".join(filter(None, (plain.get("subtitle", ""), figure.note)))
