"""Charts for workers without a server: the spread of gradients, and the exchange graph."""

from __future__ import annotations

from math import cos, pi, sin

import altair as alt
import pandas as pd

from psbench.charts.colours import BLUE
from psbench.charts.names import TITLES
from psbench.charts.pieces import framed, layered, tooltips
from psbench.charts.source import Data, height_of, source


def gradient_spread_chart(data: Data, title: str = TITLES["gradient_spread"]) -> alt.Chart:
    """Draw for each pair of workers how many of one's gradients the other's model lacks.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        As `metrics.gradient_spread` returns it.
    """
    chart = (
        alt.Chart(source(data))
        .mark_rect()
        .encode(
            x=alt.X("of:O", title="gradients of worker", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("worker:O", title="model of worker"),
            color=alt.Color(
                "missing:Q", title="lacking gradients", scale=alt.Scale(scheme="blues", domainMin=0)
            ),
            tooltip=tooltips("worker:O", "of:O", "made:Q", "received:Q", "missing:Q"),
        )
    )
    return framed(chart, title, f"{title}: a square for each pair of workers", height_of(data, "worker", 24))


def lag_chart(data: Data, title: str = TITLES["gradient_lag"]) -> alt.LayerChart:
    """Draw how many gradients of others a model lacks during a run: the mean over pairs, and the maximum.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        As `metrics.lags` returns it.
    """
    base = alt.Chart().encode(x=alt.X("time_s:Q", title="time (s)"))
    lacks = alt.Y("most:Q", title="lacking gradients")
    line = base.mark_line(color=BLUE, interpolate="step-after").encode(
        y=alt.Y("mean:Q"),
        tooltip=tooltips("time_s:Q .4g", "mean:Q .3g", "most:Q"),
    )
    most = base.mark_area(opacity=0.25, color=BLUE, interpolate="step-after").encode(y=lacks)
    return layered([most, line], data, title, f"{title}: a line and an area")


def graph_chart(edges: list[tuple[int, int]], title: str = "Who sends to whom") -> alt.LayerChart:
    """Draw a graph of workers on a circle; see `psbench.strategies.placement.graphs.edges`.

    Examples
    --------
    >>> graph_chart([(0, 1), (1, 0)]).to_dict()["title"]
    'Who sends to whom'
    """
    workers = sorted({worker for edge in edges for worker in edge})
    angle = {worker: 2 * pi * place / max(1, len(workers)) for place, worker in enumerate(workers)}
    at = {worker: (sin(a), cos(a)) for worker, a in angle.items()}
    lines = pd.DataFrame(
        [(*at[a], *at[b], f"{a} to {b}") for a, b in edges], columns=["x", "y", "x2", "y2", "edge"]
    )
    dots = pd.DataFrame([(*at[w], w) for w in workers], columns=["x", "y", "worker"])
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-1.2, 1.2]))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-1.2, 1.2]))
    layers = [
        alt.Chart(lines)
        .mark_rule(opacity=0.5)
        .encode(x=x, y=y, x2=alt.X2("x2"), y2=alt.Y2("y2"), tooltip=[alt.Tooltip("edge:N")]),
        alt.Chart(dots).mark_circle(size=420, color=BLUE, opacity=1).encode(x=x, y=y),
        alt.Chart(dots)
        .mark_text(color="white", fontWeight="bold")
        .encode(x=x, y=y, text=alt.Text("worker:N")),
    ]
    return alt.LayerChart(layer=layers, width=260, height=260, title=title)
