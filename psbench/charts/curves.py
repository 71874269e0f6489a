"""Loss, accuracy and the like along a run, one line per strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from psbench.charts.colours import looks
from psbench.charts.source import Data, labels_of, source, thin
from psbench.metrics import interval

#: what a curve may be drawn against: column and title
AXES = {
    "time_s": "time (s)",
    "epoch": "epochs (samples applied / size of the data)",
    "updates": "updates (versions of the model)",
    "bytes": "bytes sent, up and down",
}

#: what a curve may show: column and (axis title, format, title of the chart)
VALUES = {
    "val_accuracy": ("validation accuracy", ".0%", "Validation accuracy"),
    "val_loss": ("validation loss", "", "Validation loss"),
    "train_loss": ("training loss", "", "Training loss"),
    "samples_per_s": ("samples applied per second", "~s", "Throughput"),
}


def curve(
    data: Data,
    y: str = "val_accuracy",
    x: str = "time_s",
    *,
    labels: Sequence[str] | None = None,
    strategies: Sequence[str] | None = None,
    height: int = 260,
) -> alt.LayerChart:
    """Draw one line per label, with its interval over seeds as a band and its switches as marked rules.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `label`, `x` and `y`; optional `{y}_low` and `{y}_high` (the band) and `event` (a text on
        rows that mark a switch; such rows need `x` only). Lines are thinned to about 1000 points.
    y, x : str
        Columns; `VALUES` and `AXES` know their titles.
    labels, strategies : sequence of str, optional
        Labels in the order of the legend, and the strategy each stands for, which gives its colour. Needed
        for streamed data.
    height : int, pixels

    Returns
    -------
    altair.LayerChart
        As wide as what contains it.
    """
    labels = labels_of(data, labels)
    table = data if isinstance(data, str) else thin(data)
    y_title, y_format, title = VALUES.get(y, (y, "", y))
    base = alt.Chart().encode(x=_x(x), color=_colour(labels, strategies))
    shown = base.transform_filter(f"isValid(datum['{y}'])")
    layers: list[alt.Chart] = []
    if not isinstance(table, str) and f"{y}_low" in table and table[f"{y}_low"].notna().any():
        layers.append(_band(base, y))
    scale = alt.Scale(zero=False, padding=4)
    tooltip = [
        alt.Tooltip("label:N"),
        alt.Tooltip(f"{x}:Q", format=".4~g"),
        alt.Tooltip(f"{y}:Q", format=".4~g"),
    ]
    line = shown.mark_line(clip=True, interpolate="linear").encode(
        y=alt.Y(f"{y}:Q", title=y_title, scale=scale, axis=alt.Axis(format=y_format or "~g", tickCount=6)),
        strokeDash=_dash(labels, strategies),
        tooltip=tooltip,
    )
    layers.append(line)
    if _few(table, labels, y):
        layers.append(_points(shown, y, labels, strategies, tooltip))
    layers += _events(base)
    return alt.LayerChart(
        layer=layers,
        data=source(table),
        width="container",
        height=height,
        title=title,
        description=f"{title} against {AXES.get(x, x)}",
        usermeta={"x": x, "axes": AXES if x in AXES else {}},
    )


def _x(x: str) -> alt.X:
    return alt.X(f"{x}:Q", title=AXES.get(x, x), axis=alt.Axis(grid=False, format="~s", tickCount=8))


def _colour(labels: list[str], strategies: Sequence[str] | None) -> alt.Color:
    found = looks(labels, strategies)
    scale = alt.Scale(domain=labels, range=[found[label].colour for label in labels])
    return alt.Color(
        "label:N", scale=scale, legend=alt.Legend(title=None, symbolType="stroke", symbolSize=300)
    )


def _dash(labels: list[str], strategies: Sequence[str] | None) -> alt.StrokeDash:
    found = looks(labels, strategies)
    scale = alt.Scale(domain=labels, range=[found[label].dash for label in labels])
    return alt.StrokeDash("label:N", scale=scale, legend=alt.Legend(title=None))


def _band(base: alt.Chart, y: str) -> alt.Chart:
    area: alt.Chart = (
        base.transform_filter(f"isValid(datum['{y}_low'])")
        .mark_area(opacity=0.16, clip=True)
        .encode(y=alt.Y(f"{y}_low:Q"), y2=alt.Y2(f"{y}_high"))
    )
    return area


def _points(
    shown: alt.Chart, y: str, labels: list[str], strategies: Sequence[str] | None, tooltip: list[alt.Tooltip]
) -> alt.Chart:
    found = looks(labels, strategies)
    scale = alt.Scale(domain=labels, range=[found[label].shape for label in labels])
    points: alt.Chart = shown.mark_point(filled=True, size=34, opacity=0.9, clip=True).encode(
        y=alt.Y(f"{y}:Q"), shape=alt.Shape("label:N", scale=scale, legend=None), tooltip=tooltip
    )
    return points


def _few(table: Data, labels: list[str], y: str) -> bool:
    """Whether points can be told apart: shapes on a line of hundreds would hide it."""
    return not isinstance(table, str) and y in table and table[y].notna().sum() <= 60 * max(len(labels), 1)


def _events(base: alt.Chart) -> list[alt.Chart]:
    marked = base.transform_filter("isValid(datum.event)")
    rule = marked.mark_rule(strokeWidth=1.5, strokeDash=[4, 3]).encode(tooltip=["label:N", "event:N"])
    text = marked.mark_text(align="left", dx=5, dy=6, baseline="top", fontWeight=600).encode(
        y=alt.value(0), text="event:N"
    )
    return [rule, text]


def with_seeds(table: pd.DataFrame, values: Sequence[str]) -> pd.DataFrame:
    """Return the mean over seeds at each evaluation, with a 95 % interval.

    Parameters
    ----------
    table : DataFrame
        Columns `label`, `seed`, `point` (the evaluation's number), any of `AXES`, and `values`.
    values : sequence of str

    Returns
    -------
    DataFrame
        One row for each label and point that every seed reached: means, `{value}_low`, `{value}_high`
        (t distribution; missing with one seed) and `n`.

    Notes
    -----
    Seeds reach an evaluation at different times; the mean is put at their mean time.
    """
    axes = [name for name in AXES if name in table]
    rows: list[dict[str, Any]] = []
    seeds = table.groupby("label")["seed"].nunique().to_dict()
    for (label, point), group in table.groupby(["label", "point"], sort=False):
        if len(group) < seeds[label]:
            continue
        row: dict[str, Any] = {"label": label, "point": point, "n": len(group)}
        row |= {name: group[name].mean() for name in axes}
        for value in values:
            mean, half = interval(group[value].to_numpy())
            row |= {value: mean, f"{value}_low": _minus(mean, half), f"{value}_high": _minus(mean, half, -1)}
        rows.append(row)
    return pd.DataFrame(rows)


def _minus(mean: float, half: float | None, sign: int = 1) -> float | None:
    return None if half is None else mean - sign * half
