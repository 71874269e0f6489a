"""Figures of the papers, redrawn in their axes from our runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import altair as alt
import numpy as np
import pandas as pd

from psbench import charts
from psbench.charts import Figure
from psbench.charts.colours import BLUE, GREY, ORANGE
from psbench.charts.pieces import look_scale
from psbench.metrics import interval
from psbench_papers.outcome import Reproduction
from psbench_papers.records import PaperRecord
from psbench_papers.schema import Drawing

#: points of a closed form that is drawn as a line
_LINE = 60
_OURS, _THEIRS = BLUE, ORANGE

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
    """Return the figures for which runs exist."""
    drawn = (_DRAWN[drawing.kind](found, drawing) for drawing in found.paper.drawings)
    return [figure for figure in drawn if figure is not None]


def _curves(found: Reproduction, drawing: Drawing) -> Figure | None:
    """Draw a value along the runs, the mean over seeds, with a band for the interval."""
    labels = _labels(found, drawing)
    tables = [_mean_curve(found.runs(name), labels[name], drawing) for name in drawing.experiments]
    kept = [table for table in tables if len(table)]
    if not kept:
        return None
    table = pd.concat(kept)
    colours, dashes = _looks(labels)
    legend = alt.Legend(title=None, columns=3, symbolOpacity=1, symbolType="stroke", symbolSize=400)
    base = alt.Chart(table).encode(
        x=alt.X(f"{drawing.x}:Q", title=_TITLES.get(drawing.x, drawing.x)),
        color=alt.Color("experiment:N", scale=colours, legend=legend),
    )
    dash = alt.StrokeDash("experiment:N", scale=dashes, legend=legend)
    title = _TITLES.get(drawing.y, drawing.y)
    scale = alt.Scale(zero=False, type="log" if drawing.y.endswith("loss") else "linear")
    line = base.mark_line().encode(y=alt.Y(f"{drawing.y}:Q", title=title, scale=scale), strokeDash=dash)
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    return _figure(drawing, band + line, table)


def _mean_curve(runs: list[PaperRecord], label: str, drawing: Drawing) -> pd.DataFrame:
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
    return table.assign(experiment=label)


def _bars(found: Reproduction, drawing: Drawing) -> Figure | None:
    """Draw a measure of each experiment, or its ratio to a baseline, with the printed numbers."""
    labels = _labels(found, drawing)
    rows = [_bar(found, drawing, name, labels[name]) for name in drawing.experiments]
    table = pd.DataFrame([row for group in rows for row in group])
    if not len(table):
        return None
    base = alt.Chart(table).encode(
        x=alt.X("experiment:N", sort=list(labels.values()), title=None, axis=alt.Axis(labelAngle=-25)),
        xOffset=alt.XOffset("whose:N", sort=["theirs", "ours"]),
    )
    colour = alt.Color(
        "whose:N",
        scale=alt.Scale(domain=["theirs", "ours"], range=[_THEIRS, _OURS]),
        legend=alt.Legend(title=None),
    )
    bars = base.mark_bar().encode(y=alt.Y("value:Q", title=drawing.x, stack=None), color=colour)
    rules = base.mark_rule().encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    return _figure(drawing, bars + rules, table)


def _points(found: Reproduction, drawing: Drawing) -> Figure | None:
    """Draw a measure of each experiment as a point with its interval, on an axis without 0."""
    labels = _labels(found, drawing)
    rows = [row for name in labels for row in _bar(found, drawing, name, labels[name])]
    table = pd.DataFrame([row for row in rows if row["whose"] == "ours"])
    if not len(table):
        return None
    base = alt.Chart(table).encode(
        y=alt.Y("experiment:N", sort=list(labels.values()), title=None, axis=alt.Axis(labelLimit=260))
    )
    values = alt.X("value:Q", title=drawing.x, scale=alt.Scale(zero=False))
    rules = base.mark_rule(color=_OURS).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"))
    return _figure(
        drawing, rules + base.mark_point(filled=True, size=60, color=_OURS).encode(x=values), table
    )


def _bar(found: Reproduction, drawing: Drawing, name: str, label: str) -> list[dict[str, float | str]]:
    ours = _number(found, drawing, name)
    printed = next(
        (
            row.printed
            for row in found.paper.rows
            if (row.experiment, row.baseline, row.measure, row.form)
            == (name, drawing.baseline, drawing.measure, drawing.form)
            and row.relation == "="
            and row.value is not None
        ),
        None,
    )
    factor = 100.0 if drawing.form == "difference" else 1.0
    numbers = {
        "ours": None if ours is None else [factor * value for value in ours],
        "theirs": None if printed is None else [printed] * 3,
    }
    return [
        {"experiment": label, "whose": whose} | dict(zip(("value", "low", "high"), values, strict=True))
        for whose, values in numbers.items()
        if values is not None
    ]


def _number(found: Reproduction, drawing: Drawing, name: str) -> tuple[float, float, float] | None:
    ours = found.estimate(drawing.form, drawing.measure, [name, *filter(None, [drawing.baseline])])
    if ours is None:
        return None
    ends = (ours.low, ours.high) if ours.seeds > 1 else (ours.mean, ours.mean)
    return ours.mean, *ends


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
        alt.Chart(table).mark_rule(color=_OURS).encode(x=xs, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        alt.Chart(table)
        .mark_point(filled=True, size=70, color=_OURS)
        .encode(x=xs, y=alt.Y("value:Q", title=drawing.y)),
    ]
    line = _closed_form(found, drawing, table)
    if line is not None:
        layers.insert(
            0, alt.Chart(line).mark_line(color=_THEIRS, strokeDash=[6, 3]).encode(x=xs, y=alt.Y("value:Q"))
        )
        table = pd.concat([table, line])
    return _figure(drawing, cast(alt.LayerChart, alt.layer(*layers)), table)


def _gaps(found: Reproduction, drawing: Drawing) -> Figure | None:
    """Draw by how much experiments differ from the baselines of their rows, a line for each label."""
    assert isinstance(drawing.experiments, Mapping)  # only a mapping says where a point is
    labels = _labels(found, drawing)
    baselines = {
        row.experiment: row.baseline
        for row in found.paper.rows
        if (row.measure, row.form, row.minus) == (drawing.measure, drawing.form, "")
    }
    points = []
    for name, x in drawing.experiments.items():
        ours = found.estimate(drawing.form, drawing.measure, [name, baselines[name]])
        if ours is not None:
            point = {"x": x, "value": ours.mean, "low": ours.low, "high": ours.high}
            points.append(point | {"series": labels[name]})
    if not points:
        return None
    table = pd.DataFrame(points)
    colours, dashes = _looks({name: labels[name] for name in drawing.experiments})
    scale = alt.Scale(type="log", nice=False, padding=12)
    values = sorted(set(drawing.experiments.values()))
    axis = alt.Axis(values=values, labelOverlap="greedy", format="~g")
    # linear near 0 and logarithmic beyond, as a run that is about to diverge costs a hundred times as much
    heights = alt.Scale(type="symlog", constant=0.1)
    ticks = alt.Axis(values=[-0.1, 0, 0.1, 0.3, 1, 3, 10, 30], format="~r")
    base = alt.Chart(table).encode(
        x=alt.X("x:Q", title=drawing.x, scale=scale, axis=axis),
        color=alt.Color("series:N", scale=colours, legend=alt.Legend(title=None)),
    )
    line = base.mark_line(point=True).encode(
        y=alt.Y("value:Q", title=drawing.y, scale=heights, axis=ticks),
        strokeDash=alt.StrokeDash("series:N", scale=dashes, legend=None),
    )
    rules = base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q", scale=heights), y2=alt.Y2("high:Q"))
    zero = alt.Chart(pd.DataFrame({"value": [0.0]})).mark_rule(color=GREY).encode(y="value:Q")
    return _figure(drawing, cast(alt.LayerChart, zero + rules + line), table)


def _closed_form(found: Reproduction, drawing: Drawing, table: pd.DataFrame) -> pd.DataFrame | None:
    if not drawing.formula:
        return None
    xs = np.linspace(table["x"].min(), table["x"].max(), _LINE)
    if all(float(x).is_integer() for x in table["x"]):
        xs = np.unique(np.round(xs))
    values = [found.closed_form(drawing.formula, {**drawing.arguments, drawing.argument: x}) for x in xs]
    return None if None in values else pd.DataFrame({"x": xs, "value": values, "from": "closed form"})


def _figure(drawing: Drawing, chart: alt.LayerChart | alt.FacetChart, table: pd.DataFrame) -> Figure:
    title = f"{drawing.place}: {drawing.title}"
    described = chart.properties(title=title, description=title, width="container", height=260)
    return Figure(described, table, drawing.note, drawing.id)


def _labels(found: Reproduction, drawing: Drawing) -> dict[str, str]:
    """Return the label of each experiment in a figure."""
    names = list(drawing.experiments)
    strategies = [_strategy(found, name) for name in names]
    usual = strategies if len({*strategies}) == len(names) else [name.replace("_", " ") for name in names]
    return dict(zip(names, usual, strict=True)) | drawing.labels


def _strategy(found: Reproduction, experiment: str) -> str:
    runs = found.runs(experiment)
    return str(json.loads(runs[0].spec)["strategy"]["name"]) if runs else experiment


def _looks(labels: Mapping[str, str]) -> tuple[alt.Scale, alt.Scale]:
    """Return colours and dashes of the experiments."""
    known = charts.looks(labels.values())
    return look_scale(known), look_scale(known, "dash")


_DRAWN = {"curves": _curves, "bars": _bars, "points": _points, "sweep": _sweep, "gaps": _gaps}
