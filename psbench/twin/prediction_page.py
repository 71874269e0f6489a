"""A chart of predictions: bands by setting or by strategy, and a page with both."""

from __future__ import annotations

from pathlib import Path

import altair as alt
import pandas as pd

from psbench.charts import Figure, stack
from psbench.charts.colours import looks
from psbench.charts.names import words_of_field
from psbench.charts.pieces import look_scale
from psbench.charts.ticks import parameter_axis
from psbench.errors import ParameterError
from psbench.percents import exact_percent, percent
from psbench.results.html import page
from psbench.system.files import check_writable, write_text
from psbench.twin.predictions import Predictions

#: what a prediction is written as
FORMATS = (".html", ".svg", ".png", ".pdf")
_ROW = 34


def prediction_table(found: Predictions) -> pd.DataFrame:
    """Return a row for each prediction: `label`, `x` (the setting's value or the strategy), and seconds.

    `value`, `low` and `high`: to the target, or of an epoch; missing where a seed does not reach the target.
    `idle`: 0 to 1.
    """
    rows = []
    for row in found.rows:
        band = row.epoch_s if found.target is None else row.target_s
        ends = (None,) * 3 if band is None else (band.mean, band.low, band.high)
        label, x = row.name, row.value if found.over else row.name
        named = dict(zip(("value", "low", "high"), ends, strict=True))
        rows.append({"label": label, "x": x, **named, "idle": row.idle})
    return pd.DataFrame(rows)


def prediction_figure(found: Predictions) -> Figure:
    """Return the chart of a prediction with its table."""
    table = prediction_table(found)
    known = table[table["value"].notna()]
    title = "seconds of an epoch" if found.target is None else f"seconds to {exact_percent(found.target)}"
    best, same = found.best()
    fastest = f"fastest: {best}; not distinguishable from it: {', '.join(same) or 'none'}"
    missing = [row.title for row in found.rows if found.target is not None and row.target_s is None]
    vague = [row.title for row in found.rows if not row.judged_by.is_prediction]
    said = [
        fastest,
        *([f"no prediction, as the band begins at 0: {', '.join(vague)}"] if vague else []),
        *([f"does not reach the target with every seed: {', '.join(missing)}"] if missing else []),
    ]
    draw = _curves if found.over else _bars
    chart = draw(known, found.over, title).properties(
        width="container",
        title=title,
        description=f"{title} against {found.over or 'the strategy'}, with 90 % bands; {'; '.join(said)}",
    )
    note = f"{'. '.join(said)}. Bands: 90 % intervals for another run, over {found.seeds} seeds; "
    note += f"their median width is {percent(found.width)} of the mean."
    return Figure(chart, table.drop(columns="x") if not found.over else table, note[0].upper() + note[1:])


def _tooltips(x: str) -> list[alt.Tooltip]:
    numbers = [alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("value", "low", "high")]
    return [alt.Tooltip("label:N"), *([alt.Tooltip("x", title=words_of_field(x))] if x else []), *numbers]


def _curves(table: pd.DataFrame, x: str, title: str) -> alt.LayerChart:
    """Draw a line for each strategy with its band; categorical settings are drawn as bars."""
    found = looks(dict.fromkeys(table["label"]))
    legend = alt.Legend(title=None, symbolSize=120, symbolOpacity=1)
    colour = alt.Color("label:N", scale=look_scale(found), legend=legend)
    axis = alt.Axis(format="~g", tickCount=6)
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False, padding=6), axis=axis)
    base = alt.Chart().encode(x=parameter_axis(table["x"], x), color=colour)
    ends = {"y": alt.Y("low:Q", title=title), "y2": alt.Y2("high:Q")}
    band = base.mark_area(opacity=0.16).encode(**ends)
    if table["x"].map(type).isin([str, bool]).any() or table.groupby("label").size().min() < 2:
        band = base.mark_rule(strokeWidth=1.5).encode(**ends)
    line = base.mark_line().encode(
        y=y, strokeDash=alt.StrokeDash("label:N", scale=look_scale(found, "dash"), legend=legend)
    )
    shape = alt.Shape("label:N", scale=look_scale(found, "shape"), legend=legend)
    points = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, shape=shape, tooltip=_tooltips(x))
    return alt.LayerChart(layer=[band, line, points], data=table, height=260)


def _bars(table: pd.DataFrame, x: str, title: str) -> alt.LayerChart:
    """Draw the strategies as rows, each with its band."""
    found = looks(dict.fromkeys(table["label"]))
    base = alt.Chart().encode(
        y=alt.Y("label:N", title=None, sort=list(found)),
        color=alt.Color("label:N", scale=look_scale(found), legend=None),
        tooltip=_tooltips(x),
    )
    axis = alt.Axis(format="~g", tickCount=6)
    band = base.mark_rule(strokeWidth=6, opacity=0.35).encode(
        x=alt.X("low:Q", title=title, scale=alt.Scale(zero=False, padding=12), axis=axis), x2="high:Q"
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(x="value:Q")
    return alt.LayerChart(layer=[band, points], data=table, height=_ROW * max(1, len(found)))


def check_format(path: Path) -> None:
    """Check that a prediction can be written to a file of that name.

    Raises
    ------
    ParameterError, SpecError
    """
    if path.suffix not in FORMATS:
        raise ParameterError(f"{path}: the name of a prediction must end in {', '.join(FORMATS)}")
    check_writable(path.absolute().parent)


def write_prediction(found: Predictions, path: Path) -> Path:
    """Write a prediction as a page, or only its chart, atomically; return the path."""
    check_format(path)
    figure = prediction_figure(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".html":
        stack([figure.chart]).save(path)
        return path
    asked = found.target is not None
    headings = [
        "strategy",
        "s an update",
        "s an epoch",
        "waiting",
        "unused",
        *found.priced.values(),
        *([found.to_target] if asked else []),
    ]
    rows = [
        [
            *(row.title, str(row.update_s), str(row.epoch_s)),
            percent(row.idle, 1),
            percent(row.unused, 1),
            *(str(getattr(row, name)) for name in found.priced),
            *(["not reached" if row.target_s is None else str(row.target_s)] if asked else []),
        ]
        for row in found.rows
    ]
    starved = [f"{row.title}: {text}" for row in found.rows for text in row.starved]
    ties = [f"not distinguishable: {first} and {second}" for first, second in found.ties()]
    text = page(
        "prediction.html",
        title=f"Predicted: {figure.chart.title} over {found.over}" if found.over else "Predicted strategies",
        abstract=["On machines that were measured, in virtual time."],
        figure=figure,
        cells=(headings, rows),
        verdicts=[*starved, *([] if found.over else ties)],
    )
    return write_text(path, text)
