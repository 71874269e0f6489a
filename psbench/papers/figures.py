"""Figures of the papers, redrawn in their axes from our runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import cast

import altair as alt
import numpy as np
import pandas as pd

from psbench import charts
from psbench.charts import Figure
from psbench.charts.colours import BLUE, VERMILLION
from psbench.metrics import interval
from psbench.papers.measures import measured
from psbench.papers.outcome import Reproduction
from psbench.papers.records import Record
from psbench.papers.schema import Drawing
from psbench.papers.verdict import estimate

#: points of a closed form that is drawn as a line
_LINE = 60
_OURS, _THEIRS = BLUE, VERMILLION

_TITLES = {
    "time_s": "time (s, virtual)",
    "epoch": "epoch",
    "updates": "iterations (updates)",
    "val_accuracy": "validation accuracy",
    "train_accuracy": "training accuracy",
    "train_loss": "training loss",
    "val_loss": "validation loss",
}


def figures(found: Reproduction) -> list[Figure]:
    """Return the figures whose runs are there."""
    drawn = (_DRAWN[drawing.kind](found, drawing) for drawing in found.paper.drawings)
    return [figure for figure in drawn if figure is not None]


def _curves(found: Reproduction, drawing: Drawing) -> Figure | None:
    """Draw a value along the runs, the mean over seeds, with a band for the interval."""
    tables = [_mean_curve(found.runs(name), name, drawing) for name in drawing.experiments]
    kept = [table for table in tables if len(table)]
    if not kept:
        return None
    table = pd.concat(kept)
    colours = _looks(found, drawing.experiments)
    base = alt.Chart(table).encode(
        x=alt.X(f"{drawing.x}:Q", title=_TITLES.get(drawing.x, drawing.x)),
        color=alt.Color("experiment:N", scale=colours, legend=alt.Legend(title=None, columns=3)),
    )
    title = _TITLES.get(drawing.y, drawing.y)
    scale = alt.Scale(zero=False, type="log" if drawing.y.endswith("loss") else "linear")
    line = base.mark_line().encode(y=alt.Y(f"{drawing.y}:Q", title=title, scale=scale))
    band = base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
    return _figure(drawing, band + line, table)


def _mean_curve(runs: list[Record], name: str, drawing: Drawing) -> pd.DataFrame:
    """Return the mean over seeds at the points of the shortest run, by position along the run."""
    frames = [pd.DataFrame(run.curve) for run in runs]
    columns = [frame for frame in frames if {drawing.x, drawing.y} <= set(frame)]
    if not columns:
        return pd.DataFrame()
    end = min(frame[drawing.x].max() for frame in columns)
    first = max(frame[drawing.x].min() for frame in columns)
    x = np.linspace(first, end, 40)
    values = np.array([np.interp(x, frame[drawing.x], frame[drawing.y]) for frame in columns])
    halves = [interval(values[:, i])[1] or 0.0 for i in range(len(x))]
    mean = values.mean(axis=0)
    low, high = mean - halves, mean + halves
    if drawing.y.endswith("loss"):  # the axis is logarithmic
        low = np.maximum(low, values.min(axis=0))
    table = pd.DataFrame({drawing.x: x, drawing.y: mean, "low": low, "high": high})
    return table.assign(experiment=name)


def _bars(found: Reproduction, drawing: Drawing) -> Figure | None:
    """Draw a measure of each experiment, or its ratio to a baseline, with the printed numbers beside it."""
    rows = [_bar(found, drawing, name) for name in drawing.experiments]
    table = pd.DataFrame([row for group in rows for row in group])
    if not len(table):
        return None
    base = alt.Chart(table).encode(
        x=alt.X("experiment:N", sort=list(drawing.experiments), title=None, axis=alt.Axis(labelAngle=-25)),
        xOffset=alt.XOffset("whose:N", sort=["theirs", "ours"]),
    )
    colour = alt.Color(
        "whose:N",
        scale=alt.Scale(domain=["theirs", "ours"], range=[_THEIRS, _OURS]),
        legend=alt.Legend(title=None),
    )
    bars = base.mark_bar().encode(y=alt.Y("value:Q", title=drawing.x, stack=None), color=colour)
    rules = base.mark_rule().encode(y="low:Q", y2="high:Q")
    return _figure(drawing, bars + rules, table)


def _bar(found: Reproduction, drawing: Drawing, name: str) -> list[dict[str, object]]:
    ours = _number(found, drawing, name)
    printed = next(
        (
            float(row.value)
            for row in found.paper.rows
            if (row.experiment, row.baseline, row.measure, row.form)
            == (name, drawing.baseline, drawing.measure, drawing.form)
            and row.relation == "="
        ),
        None,
    )
    bars: list[dict[str, object]] = []
    if ours is not None:
        factor = 100.0 if drawing.form == "difference" else 1.0
        mean, low, high = (factor * value for value in ours)
        bars.append({"experiment": name, "whose": "ours", "value": mean, "low": low, "high": high})
    if printed is not None:
        low_high = {"low": printed, "high": printed}
        bars.append({"experiment": name, "whose": "theirs", "value": printed} | low_high)
    return bars


def _number(found: Reproduction, drawing: Drawing, name: str) -> tuple[float, float, float] | None:
    names = [name, *filter(None, [drawing.baseline])]
    groups = [[measured(r.measures, drawing.measure) for r in found.runs(each)] for each in names]
    if not all(groups) or len({len(group) for group in groups}) > 1:
        return None
    ours = estimate(drawing.form, *groups)
    return ours.mean, ours.low, ours.high


def _sweep(found: Reproduction, drawing: Drawing) -> Figure | None:
    """Draw a number against a parameter, and the closed form as a line through all of its range."""
    assert isinstance(drawing.experiments, Mapping)  # only a mapping says where a point is
    points = []
    for name, x in drawing.experiments.items():
        ours = _number(found, drawing, name)
        if ours is not None:
            points.append({"x": x, "value": ours[0], "low": ours[1], "high": ours[2], "from": "runs"})
    if not points:
        return None
    table = pd.DataFrame(points)
    xs = alt.X("x:Q", title=drawing.x)
    layers = [
        alt.Chart(table).mark_rule(color=_OURS).encode(x=xs, y="low:Q", y2="high:Q"),
        alt.Chart(table)
        .mark_point(filled=True, size=70, color=_OURS)
        .encode(x=xs, y=alt.Y("value:Q", title=drawing.y)),
    ]
    line = _closed_form(found, drawing, table)
    if line is not None:
        layers.insert(
            0, alt.Chart(line).mark_line(color=_THEIRS, strokeDash=[6, 3]).encode(x=xs, y="value:Q")
        )
        table = pd.concat([table, line])
    return _figure(drawing, cast(alt.LayerChart, alt.layer(*layers)), table)


def _closed_form(found: Reproduction, drawing: Drawing, table: pd.DataFrame) -> pd.DataFrame | None:
    if not drawing.formula:
        return None
    xs = np.linspace(table["x"].min(), table["x"].max(), _LINE)
    if all(float(x).is_integer() for x in table["x"]):
        xs = np.unique(np.round(xs))
    values = [found.closed_form(drawing.formula, {**drawing.arguments, drawing.argument: x}) for x in xs]
    return None if None in values else pd.DataFrame({"x": xs, "value": values, "from": "closed form"})


def _figure(drawing: Drawing, chart: alt.LayerChart, table: pd.DataFrame) -> Figure:
    title = f"{drawing.place}: {drawing.title}"
    described = chart.properties(title=title, description=title, width="container", height=260)
    return Figure(described, table, drawing.note, drawing.id)


def _looks(found: Reproduction, experiments: Iterable[str]) -> alt.Scale:
    """Return the colours of the experiments' strategies; of several with the same, the later are others."""
    names = list(experiments)
    strategies = []
    for name in names:
        runs = found.runs(name)
        strategies.append(json.loads(runs[0].spec)["strategy"]["name"] if runs else name)
    known = charts.looks(names, strategies)
    return alt.Scale(domain=names, range=[known[name].colour for name in names])


_DRAWN = {"curves": _curves, "bars": _bars, "sweep": _sweep}
