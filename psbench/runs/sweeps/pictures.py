"""Charts of a sweep: a result over two parameters as a heat map, or against one as lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from psbench.charts.colours import looks
from psbench.charts.display import Sheet, stack
from psbench.charts.names import words_of_field
from psbench.charts.pieces import layered, look_scale
from psbench.charts.source import height_of
from psbench.charts.ticks import parameter_axis
from psbench.errors import ParameterError
from psbench.results.comparison_table import as_text
from psbench.runs.sweeps.table import parameter_in_words, smaller_is_better, title_of

#: pixels of a row of a heat map
_ROW = 34
#: charts below each other; more do not fit on a screen
_MOST_CHARTS = 12


def heatmap(table: pd.DataFrame, paths: Sequence[str], x: str, y: str, value: str, width: int = 640) -> Sheet:
    """Return the mean of a result over two parameters, as colours with the numbers in them.

    A third parameter gives a chart for each of its values. The better values are the darker ones; what
    failed, or never came, has no colour and says so.

    Raises
    ------
    ParameterError
        If there are more parameters than that.
    """
    if x == y:
        raise ParameterError(f"heatmap: {x!r} is on both axes; give two parameters")
    charts = [_heat(rows, x, y, value, f"{title_of(value)}{of}") for of, rows in _apart(table, paths, [x, y])]
    return stack(charts, width)


def _heat(rows: pd.DataFrame, x: str, y: str, value: str, title: str) -> alt.LayerChart:
    data = _plain(rows, value, [x, y])
    data["text"] = [_words(record, value) for record in rows.to_dict("records")]
    data["dark"] = _is_dark(data["value"], bool(smaller_is_better(value)))
    across, down = map(words_of_field, (x, y))
    if across == down:  # as of the two strategies of a switch
        across, down = x, y
    said = (("x", across), ("y", down), ("text", title_of(value)))
    base = alt.Chart().encode(
        x=alt.X("x:N", title=across, sort=None, axis=alt.Axis(labelAngle=0, orient="bottom")),
        y=alt.Y("y:N", title=down, sort=None),
        tooltip=[alt.Tooltip(f"{c}:N", title=name) for c, name in said],
    )
    scale = alt.Scale(scheme="blues", reverse=bool(smaller_is_better(value)), zero=False)
    colour = alt.Color("value:Q", scale=scale, legend=None)
    known = base.transform_filter("isValid(datum.value)").mark_rect().encode(color=colour)
    ink = alt.condition("datum.dark", alt.value("white"), alt.value("#1f2328"))
    texts = [
        base.transform_filter("isValid(datum.value)").mark_text().encode(text=alt.Text("text:N"), color=ink),
        base.transform_filter("!isValid(datum.value)")
        .mark_text(fontStyle="italic")
        .encode(text=alt.Text("text:N")),
    ]
    described = f"{title} over {x} and {y}: a heat map"
    return layered([known, *texts], data, title, described, height_of(data, "y", _ROW))


def _is_dark(values: pd.Series[float], reverse: bool) -> pd.Series[bool]:
    """Return whether text on the colour of each value must be light."""
    span = values.max() - values.min()
    share = (values - values.min()) / span if span > 0 else values * 0 + 0.5
    return (1 - share if reverse else share) > 0.55


def lines(
    table: pd.DataFrame, paths: Sequence[str], x: str, value: str, by: str | None = None, width: int = 640
) -> Sheet:
    """Return the mean of a result against a parameter, with 95 % intervals over seeds.

    A line for each value of `by`; a further parameter gives a chart for each of its values. Numbers of `x`
    have an axis to scale, logarithmic if they span more than a decade; names stand side by side. What failed,
    or never came, is left out, and the note below says of how many.

    Raises
    ------
    ParameterError
        If there are more parameters than that.
    """
    if by == x:
        raise ParameterError(f"lines: {x!r} is already on the axis; give another parameter for by")
    apart = _apart(table, paths, [x] if by is None else [x, by])
    charts = [_curves(rows, x, value, by, f"{title_of(value)}{of}") for of, rows in apart]
    return stack(charts, width)


def _curves(rows: pd.DataFrame, x: str, value: str, by: str | None, title: str) -> alt.LayerChart:
    every = _curve_table(rows, x, value, by)
    data = every[every["value"].notna()]
    labels = list(dict.fromkeys(data["label"]))
    found = looks(labels)
    scales = {channel: look_scale(found, channel) for channel in ("colour", "dash", "shape")}
    legend = None if by is None else alt.Legend(title=None, symbolSize=120)
    along = parameter_axis(data["x"], x)
    base = alt.Chart().encode(x=along, color=alt.Color("label:N", scale=scales["colour"], legend=legend))
    form = "~%" if value.endswith("accuracy") else "~g"
    axis = alt.Axis(format=form, tickCount=6)
    y = alt.Y("value:Q", title=title_of(value), scale=alt.Scale(zero=False, padding=6), axis=axis)
    tooltip = [
        alt.Tooltip("label:N"),
        alt.Tooltip(along.shorthand, title=words_of_field(x)),
        alt.Tooltip("value:Q", format=".4~g"),
        alt.Tooltip("half:Q", title="± (95 %)", format=".2~g"),
    ]
    dash = alt.StrokeDash("label:N", scale=scales["dash"], legend=legend)
    shape = alt.Shape("label:N", scale=scales["shape"], legend=legend)
    spread = base.transform_filter("datum.half > 0").mark_rule(strokeWidth=1.5)
    layers = [
        spread.encode(y=alt.Y("low:Q", title=title_of(value)), y2=alt.Y2("high:Q")),
        base.mark_line().encode(y=y, strokeDash=dash),
        base.mark_point(filled=True, size=60, opacity=1).encode(y=y, shape=shape, tooltip=tooltip),
    ]
    lost = len(every) - len(data)
    said = f"{lost} of {len(every)} settings failed, diverged or did not reach the target with every seed"
    described = f"{title} against {x}" + (f" by {by}" if by else "")
    return layered(layers, data, alt.Title(title, subtitle=[said]) if lost else title, described, 260)


def _curve_table(rows: pd.DataFrame, x: str, value: str, by: str | None) -> pd.DataFrame:
    """Return `x`, `label`, `value`, `half`, `low` and `high`, the ends of the interval."""
    data = _plain(rows, value, [x] if by is None else [x, by], numbers=True)
    data["label"] = title_of(value) if by is None else data.pop("y").map(parameter_in_words)
    data["half"] = data["half"].fillna(0.0)
    data["low"], data["high"] = data["value"] - data["half"], data["value"] + data["half"]
    if value.endswith("accuracy"):  # an interval of few seeds may reach beyond what there is
        data[["low", "high"]] = data[["low", "high"]].clip(0, 1)
    return data


def _apart(
    table: pd.DataFrame, paths: Sequence[str], shown_paths: Sequence[str]
) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of each chart and its subtitle: one chart per value of a remaining parameter."""
    rest = [path for path in paths if path not in shown_paths and table[path].nunique(dropna=False) > 1]
    if not rest:
        return [("", table)]
    count = table[rest[0]].nunique(dropna=False)
    if len(rest) > 1 or count > _MOST_CHARTS:
        raise ParameterError(
            f"chart: {', '.join(rest)} vary too; choose one value of each, as where={{{rest[0]!r}: "
            f"{table[rest[0]].iloc[0]!r}}}"
        )
    groups = table.groupby(rest[0], sort=False, dropna=False)
    return [(f": {rest[0]} {name}", rows) for name, rows in groups]


def _plain(rows: pd.DataFrame, value: str, axes: Sequence[str], *, numbers: bool = False) -> pd.DataFrame:
    """Return `x`, `y`, `value` and `half` (of the interval); non-finite values are missing."""
    columns = {
        name: rows[path] if numbers else rows[path].map(parameter_in_words)
        for name, path in zip("xy", axes, strict=False)
    }
    finite = rows[value].where(rows[value].abs() < float("inf"))
    half = rows[f"{value}_ci"].astype(float)
    return pd.DataFrame({**columns, "value": finite.astype(float), "half": half}).reset_index(drop=True)


def _words(record: dict[Any, Any], value: str) -> str:
    if record["failed"] or record["diverged"] or record["not_run"]:
        worst = next(name for name in ("not_run", "failed", "diverged") if record[name])
        return worst.replace("_", " ")
    return as_text(record, value, deviation=False)
