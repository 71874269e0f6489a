"""Charts of workers: their activities, and the share of their work that was used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from psbench.charts.colours import ORANGE, PHASE_COLOURS, WAIT
from psbench.charts.names import DOING, TITLES
from psbench.charts.pieces import (
    equal_share,
    framed,
    label_colour,
    label_height,
    label_rows,
    layered,
    tooltips,
    words_alone,
)
from psbench.charts.source import Data, height_of, labels_in, source, thin
from psbench.charts.ticks import time_axis, value_axis

#: thickness of a phase's bar, as a share of its line: messages are half as thick as computing and waiting
_THICKNESS = {"compute": 0.9, "pull": 0.45, "send": 0.45, "wait": 0.9, "cancelled": 0.45}
_STEP = 17
#: said in the place of an empty chart
NO_WAIT = "No worker waited."
#: more spans than this cannot be distinguished on a screen
SPANS = 400
#: more cells than this have no room for a number
NUMBERS = 240
#: more workers than this do not fit; some are left out, evenly
WORKERS = 24


def timeline_chart(data: Data, title: str = TITLES["timeline"], height: int | None = None) -> alt.LayerChart:
    """Draw spans of `metrics.timeline` as bars along time, one line per worker.

    Phases differ in colour and in thickness. The tooltip says why and for whom.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `worker`, `phase`, `start_s`, `end_s`, `reason`, `waited_for`. See `window` to cut a
        readable piece out of a long run: nothing is left out here.
    title : str
    height : int, pixels, optional
        By default 17 for each worker.
    """
    base = (
        alt.Chart()
        .transform_calculate(doing=_DOING)
        .encode(
            x=alt.X(
                "start_s:Q",
                title="time",
                scale=alt.Scale(zero=False, nice=False),
                axis=time_axis(data, "start_s", "end_s"),
            ),
            x2=alt.X2("end_s"),
            y=alt.Y("worker:O", title="worker", axis=alt.Axis(grid=False)),
            color=_phase_colour(data, symbolType="square"),
            tooltip=[
                *tooltips("worker:O", "doing:N", "reason:N"),
                alt.Tooltip("waited_for:O", title="waited for worker"),
                alt.Tooltip("start_s:Q", title="from (s)", format=".5~g"),
                alt.Tooltip("end_s:Q", title="to (s)", format=".5~g"),
            ],
        )
    )
    layers = [
        base.transform_filter(alt.datum.phase == phase).mark_bar(
            height=alt.RelativeBandSize(share), cornerRadius=0
        )
        for phase, share in _THICKNESS.items()
        if isinstance(data, str) or phase in set(data["phase"])
    ]
    # the full height of a row answers the pointer, also where a message is a thin bar
    answering = base.mark_bar(height=alt.RelativeBandSize(1), cornerRadius=0)
    layers.append(answering.encode(color=alt.ColorValue("transparent")))
    described = "Timeline: spans of computing, receiving, sending and waiting of each worker"
    return layered(layers, data, title, described, height or height_of(data, "worker", _STEP))


def window(spans: pd.DataFrame, start_s: float = 0.0, limit: int = SPANS) -> pd.DataFrame:
    """Return a readable piece of a timeline from `start_s` on: at most `limit` spans and 24 workers.

    The piece ends where the limit is reached, the same for all workers, and spans are cut there. Of more
    than 24 workers every second, third, ... is kept.
    """
    workers = np.unique(spans["worker"])
    workers = workers[:: max(1, -(-len(workers) // WORKERS))]
    seen = spans[spans["worker"].isin(workers) & (spans["end_s"] > start_s)]
    starts = np.sort(seen["start_s"].to_numpy())
    stop = starts[limit] if len(starts) > limit else seen["end_s"].max()
    piece: pd.DataFrame = seen[seen["start_s"] < stop].copy()
    piece["start_s"] = piece["start_s"].clip(lower=start_s)
    piece["end_s"] = piece["end_s"].clip(upper=stop)
    return piece


def around(spans: pd.DataFrame, at_s: float, limit: int = SPANS) -> pd.DataFrame:
    """Return a readable piece of a timeline with `at_s` about in its middle."""
    before = np.sort(spans.loc[spans["start_s"] < at_s, "start_s"].to_numpy())
    start = before[-min(len(before), limit // 2)] if len(before) else at_s
    return window(spans, float(start), limit)


def time_use_chart(
    data: Data, rows: str = "worker", title: str = TITLES["time_use"], phases: Sequence[str] | None = None
) -> alt.Chart:
    """Draw the share of time in each phase, stacked, one bar per worker (or label).

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `rows`, `phase`, `fraction` (0 to 1).
    rows : "worker" or "label"
    title : str
    phases : sequence of str, optional
        Those that streamed data have; by default all.
    """
    if not isinstance(data, str):
        phases = data.loc[data["fraction"] > 0, "phase"].unique().tolist()
    chart = _stacked(data, rows, "phase", list(PHASE_COLOURS), title, "share of the time present")
    shown: alt.Chart = chart.transform_calculate(doing=_DOING).encode(
        color=_phase_colour(data, phases),
        tooltip=tooltips(f"{rows}:O", "doing:N", "fraction:Q .1%"),
    )
    return shown


#: what a worker does in the phase of a row
_DOING = f"{DOING}[datum.phase]"


def _phase_colour(data: Data, phases: Sequence[str] | None = None, **legend: Any) -> alt.Color:
    """Return the colours of the phases that there are, and of waiting, which is looked for."""
    if phases is None:
        phases = list(PHASE_COLOURS) if isinstance(data, str) else data["phase"].unique().tolist()
    known = {DOING[name]: colour for name, colour in PHASE_COLOURS.items() if name in {*phases, "wait"}}
    scale = alt.Scale(domain=list(known), range=list(known.values()))
    return alt.Color("doing:N", scale=scale, legend=alt.Legend(title=None, **legend))


def step_chart(data: Data, title: str = TITLES["steps"]) -> alt.Chart:
    """Draw the mean milliseconds of reading and of computing a mini-batch, stacked, one bar per worker.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `worker`, `part` ("reading" or "computing"), `ms`.
    title : str
    """
    names = ["reading", "computing"]
    chart = (
        alt.Chart(source(data))
        .mark_bar(size=13)
        .encode(
            x=alt.X("ms:Q", title="mean time of a mini-batch (ms)"),
            y=alt.Y("worker:O", title="worker"),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=names, range=[ORANGE, PHASE_COLOURS["compute"]]),
                legend=alt.Legend(title=None),
            ),
            order=alt.Order("part:N", sort="descending"),
            tooltip=tooltips("worker:O", "part:N", "ms:Q .5~r"),
        )
    )
    described = f"{title}: milliseconds of reading and of computing by worker"
    return framed(chart, title, described, height_of(data, "worker", _STEP + 2))


def idle_chart(
    data: Data, rows: str = "worker", reasons: Sequence[str] | None = None, title: str = TITLES["idle"]
) -> alt.Chart:
    """Draw the share of time spent waiting, stacked by reason, one bar per worker (or label).

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `rows`, `reason`, `fraction` (0 to 1). Without a row the chart says that no worker waited.
    rows : "worker" or "label"
    reasons : sequence of str, optional
        Needed for streamed data.
    title : str
    """
    if not isinstance(data, str) and data.empty:
        return words_alone(NO_WAIT, title)
    if reasons is None:
        reasons = labels_in(data, None, "reason")
    # all of it is waiting, and has the colour of waiting: reasons differ in how strong that is
    # (by `opacity`: Vega-Lite draws no legend of `fillOpacity`)
    strength = alt.Scale(domain=list(reasons), range=np.linspace(1.0, 0.35, len(reasons)).tolist())
    legend = alt.Legend(title=None, symbolFillColor=WAIT, symbolStrokeWidth=0)
    chart = _stacked(data, rows, "reason", reasons, title, "share of time spent waiting")
    shown: alt.Chart = chart.encode(
        fill=alt.FillValue(WAIT), opacity=alt.Opacity("reason:O", scale=strength, legend=legend)
    )
    return shown


def _stacked(data: Data, rows: str, by: str, names: Sequence[str], title: str, x_title: str) -> alt.Chart:
    height = height_of(data, rows, _STEP + 2) if rows == "worker" else label_height(data)
    chart = (
        alt.Chart(source(data))
        .transform_calculate(order=f"indexof({list(names)}, datum['{by}'])")
        .mark_bar(size=13)
        .encode(
            x=alt.X(
                "fraction:Q",
                title=x_title,
                axis=value_axis("~%"),
                scale=alt.Scale(domain=[0, 1], clamp=True),
            ),
            y=_rows(rows),
            order=alt.Order("order:Q"),
            tooltip=tooltips(f"{rows}:O", f"{by}:N", "fraction:Q .1%"),
        )
    )
    return framed(chart, title, f"{title}: {x_title}", height)


def _rows(rows: str) -> alt.Y:
    """Return the axis of the bars; workers by number, as in a live run they first wait in any order."""
    return alt.Y("worker:O", title="worker") if rows == "worker" else label_rows()


def share_chart(
    data: Data,
    *,
    labels: Sequence[str] | None = None,
    among: Sequence[str] | None = None,
    title: str = TITLES["share"],
) -> alt.LayerChart:
    """Draw each worker's share of the applied pushes, with the equal share as a dashed rule.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `label`, `worker`, `share` (0 to 1), `applied` (pushes), `equal` (one over the workers).
    labels, among : sequence of str, optional
        As for `curve`.
    title : str
    """
    labels = labels_in(data, labels)
    axis = alt.Axis(format="~%", tickCount=5)
    base = alt.Chart().encode(x=alt.X("worker:O", title="worker", axis=alt.Axis(labelAngle=0)))
    bars = base.mark_bar().encode(
        y=alt.Y("share:Q", title="share of applied pushes", axis=axis),
        color=label_colour(labels, among),
        xOffset=alt.XOffset("label:N", sort=labels),
        tooltip=tooltips("label:N", "worker:O", "share:Q .1%", "applied:Q"),
    )
    return layered([bars, equal_share()], data, title, "Share of the applied pushes of each worker")


def batch_size_chart(data: Data, title: str = TITLES["batch_size"]) -> alt.Chart:
    """Draw the batch size of each worker along time.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `worker`, `time_s`, `batch_size` (samples a step).
    title : str
    """
    table = data if isinstance(data, str) else thin(data, by="worker")
    chart = (
        alt.Chart(source(table))
        .mark_line(interpolate="step-after", strokeWidth=1.5)
        .encode(
            x=alt.X("time_s:Q", title="time", axis=time_axis(table, "time_s")),
            y=alt.Y(
                "batch_size:Q", title="samples a step", scale=alt.Scale(zero=False), axis=value_axis("~r")
            ),
            color=alt.Color("worker:O", scale=alt.Scale(scheme="viridis"), legend=alt.Legend(title="worker")),
            detail=alt.Detail("worker:O"),
            tooltip=tooltips("worker:O", "time_s:Q .5~r", "batch_size:Q"),
        )
    )
    return framed(chart, title, title)


def label_chart(data: Data, title: str = TITLES["labels"]) -> alt.LayerChart:
    """Draw the number of samples of each class in each worker's shard; small tables also show numbers.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `worker`, `class`, `samples`.
    title : str
    """
    base = alt.Chart().encode(
        x=alt.X("class:N", title="class or range", sort=None, axis=alt.Axis(labelAngle=0, labelLimit=70)),
        y=alt.Y("worker:O", title="worker"),
        tooltip=tooltips("worker:O", "class:N", "samples:Q"),
    )
    # opacity of one colour reads the same on light and dark; at most 0.7, so that numbers stay readable
    scale = alt.Scale(range=[0.04, 0.7], domainMin=0)
    layers: list[alt.Chart] = [
        base.mark_rect(fill=PHASE_COLOURS["compute"]).encode(
            fillOpacity=alt.FillOpacity("samples:Q", scale=scale, legend=None)
        )
    ]
    if not isinstance(data, str) and len(data) <= NUMBERS:
        layers.append(base.mark_text().encode(text=alt.Text("samples:Q")))
    described = "Samples of each class in each worker's shard"
    return layered(layers, data, title, described, height_of(data, "worker", _STEP + 3))
