"""Charts of staleness, clock lead, bytes, server contents, and the values that a switch rule used."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from psbench.arrays import Array, Integers
from psbench.charts.colours import GREY, HUES, OLIVE, PHASE_COLOURS, looks
from psbench.charts.names import TITLES
from psbench.charts.pieces import (
    equal_share,
    event_marks,
    framed,
    label_colour,
    label_height,
    label_rows,
    layered,
    look_scale,
    tooltips,
)
from psbench.charts.source import Data, labels_in, source
from psbench.charts.ticks import time_axis, value_axis

#: what is counted: axis title, and what the shares are shares of
_AXIS_TITLES = {
    "staleness": ("staleness (versions)", "share of applied pushes"),
    "lead": ("clock lead (steps)", "share of started steps"),
}


#: what an axis of whole numbers writes: nothing between two of them
_WHOLE = "datum.value % 1 ? '' : format(datum.value, ',d')"


def bars(counts: Integers, bins: int = 40) -> dict[str, Array]:
    """Return the bars of a histogram, at most `bins` of equal width, from the counts of 0, 1, 2, ...

    Returns
    -------
    dict of column to array
        `value` and `last` (the first and the last number of the bin), `low` and `high` (the ends of its bar,
        which is drawn half a step to each side), `count`, `share` (of all values).

    Examples
    --------
    >>> bars(np.array([2, 1, 0, 0, 0, 1]))["share"].tolist()
    [0.5, 0.25, 0.0, 0.0, 0.0, 0.25]
    """
    width = max(-(-len(counts) // bins), 1)
    first = np.arange(0, len(counts), width)
    found = np.add.reduceat(counts, first) if len(counts) else counts
    last = first + width - 1
    numbers = {"value": first, "last": last, "low": first - 0.5, "high": last + 0.5}
    return {**numbers, "count": found, "share": found / max(int(counts.sum()), 1)}


def histogram(
    data: Data,
    quantity: str = "staleness",
    *,
    labels: Sequence[str] | None = None,
    among: Sequence[str] | None = None,
) -> alt.Chart:
    """Draw the distribution of staleness or clock lead.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `label` and those of `bars`, for one or a few labels.
    quantity : "staleness" or "lead"
    labels, among : sequence of str, optional
        As for `curve`.
    """
    (x_title, y_title), title = _AXIS_TITLES[quantity], TITLES[quantity]
    labels = labels_in(data, labels)
    chart = (
        alt.Chart(source(data))
        .mark_bar(opacity=1.0 if len(labels) == 1 else 0.6, binSpacing=1)
        .encode(
            x=alt.X(
                "low:Q",
                title=x_title,
                bin="binned",
                # bars stand on the numbers they count, so a bar for 5 does not reach 6
                scale=alt.Scale(nice=False, zero=False),
                # a scale from -.5 to 1.5 has ticks at halves, whatever the least step is
                axis=alt.Axis(grid=False, ticks=False, labelExpr=_WHOLE),
            ),
            x2=alt.X2("high"),
            y=alt.Y("share:Q", title=y_title, stack=None, axis=alt.Axis(format="~%", tickCount=5)),
            color=label_colour(labels, among),
            tooltip=[
                alt.Tooltip("label:N"),
                alt.Tooltip("value:Q", title="from"),
                alt.Tooltip("last:Q", title="to"),
                *tooltips("count:Q", "share:Q .1%"),
            ],
        )
    )
    return framed(chart, title, f"{title}: a histogram")


def spread_chart(
    data: Data,
    quantity: str = "staleness",
    *,
    labels: Sequence[str] | None = None,
    among: Sequence[str] | None = None,
) -> alt.LayerChart:
    """Draw for each label the range of most values, their mean and the largest: comparable at a glance.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `label`, `low` and `high` (5th and 95th percentile), `mean`, `max`.
    quantity : "staleness" or "lead"
    labels, among : sequence of str, optional
        As for `curve`.
    """
    (x_title, _), title = _AXIS_TITLES[quantity], TITLES[quantity]
    labels = labels_in(data, labels)
    base = alt.Chart().encode(
        y=label_rows(labels),
        color=alt.Color("label:N", scale=look_scale(looks(labels, among)), legend=None),
        tooltip=tooltips("label:N", *(f"{name}:Q .3~r" for name in ("low", "mean", "high", "max"))),
    )
    bar = base.mark_bar(size=8, opacity=0.45).encode(
        x=alt.X("low:Q", title=x_title, axis=alt.Axis(tickMinStep=1, labelExpr=_WHOLE)), x2=alt.X2("high")
    )
    mean = base.mark_tick(thickness=3, size=18).encode(x=alt.X("mean:Q"))
    largest = base.mark_point(filled=True, size=28).encode(x=alt.X("max:Q"))
    return layered(
        [bar, mean, largest],
        data,
        alt.Title(title, subtitle="bar: 5th to 95th percentile, tick: mean, point: largest"),
        f"{title}: 5th percentile, mean, 95th percentile and largest value",
        label_height(data),
    )


def traffic_chart(data: Data, title: str = TITLES["bytes"]) -> alt.Chart:
    """Draw the bytes sent up and down, one bar per label.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `label`, `direction` ("up" or "down"), `bytes`.
    title : str
    """
    colours = alt.Scale(domain=["up", "down"], range=[PHASE_COLOURS["send"], PHASE_COLOURS["pull"]])
    chart = (
        alt.Chart(source(data))
        .mark_bar(size=13)
        .encode(
            x=alt.X("bytes:Q", title="bytes", axis=value_axis("~s")),
            y=label_rows(),
            color=alt.Color("direction:N", scale=colours, legend=alt.Legend(title=None)),
            order=alt.Order("direction:N", sort="descending"),
            tooltip=tooltips("label:N", "direction:N", "bytes:Q .4~s"),
        )
    )
    return framed(chart, title, "Bytes sent to and from workers", label_height(data))


def server_chart(
    data: Data, quantities: Sequence[str] | None = None, title: str = TITLES["servers"]
) -> alt.LayerChart:
    """Draw each server's share of the entries, the requests and the parts, with the equal share as a rule.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `server`, `quantity`, `count`, `share` (0 to 1), `equal` (one over the servers).
    quantities : sequence of str, optional
        Needed for streamed data.
    title : str
    """
    quantities = labels_in(data, quantities, "quantity")
    colours = alt.Scale(domain=quantities, range=list(HUES[: len(quantities)]))
    base = alt.Chart().encode(x=alt.X("server:O", title="server", axis=alt.Axis(labelAngle=0)))
    bars = base.mark_bar().encode(
        y=alt.Y("share:Q", title="share of all", axis=alt.Axis(format="~%", tickCount=5)),
        color=alt.Color("quantity:N", scale=colours, legend=alt.Legend(title=None)),
        xOffset=alt.XOffset("quantity:N", sort=quantities),
        tooltip=tooltips("server:O", "quantity:N", "count:Q", "share:Q .1%"),
    )
    described = "Share of the entries, requests and parts that each server holds"
    return layered([bars, equal_share()], data, title, described)


def load_chart(data: Data, title: str = TITLES["server_load"]) -> alt.LayerChart:
    """Draw each server's load over the run, relative to the mean, and the moves of parameters.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `time_s`, `server` (as text), `relative`, `load_s`; rows that mark a move have `time_s` and
        `event` instead.
    title : str
    """
    base = alt.Chart().encode(x=alt.X("time_s:Q", title="time", axis=time_axis(data, "time_s")))
    seen = base.transform_filter("isValid(datum.relative)")
    lines = seen.mark_line(point={"filled": True, "size": 30}).encode(
        y=alt.Y("relative:Q", title="load over the servers' mean", scale=alt.Scale(zero=True)),
        color=alt.Color("server:N", legend=alt.Legend(title="server"), scale=alt.Scale(range=list(HUES))),
        tooltip=[
            *tooltips("server:N", "time_s:Q .5~r", "relative:Q .3~r"),
            alt.Tooltip("load_s:Q", format=".3~r", title="busy (s)"),
        ],
    )
    mean = alt.Chart().mark_rule(strokeDash=[4, 3]).encode(y=alt.datum(1.0))
    return layered(
        [mean, lines, *event_marks(base, [6, 4], align="left", dx=5)],
        data,
        alt.Title(title, subtitle="dashed horizontal: equal load; dashed vertical: parameters moved"),
        "Each server's load at every measurement, relative to the mean, and the moves of parameters",
        220,
    )


def rule_chart(data: Data, title: str = TITLES["rule"]) -> alt.LayerChart:
    """Draw the value of a switch rule against its threshold, and the switch.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `epoch`, `value`, `threshold`; rows that mark a switch have `epoch` and `event` instead.
    title : str
    """
    x = alt.X("epoch:Q", title="epochs", axis=alt.Axis(grid=False, tickMinStep=1))
    base = alt.Chart().encode(x=x)
    seen = base.transform_filter("isValid(datum.value)")
    tooltip = tooltips("epoch:Q", "value:Q .3~%", "threshold:Q .3~%")
    y = alt.Y(
        "value:Q",
        title="mean relative change of the loss",
        scale=alt.Scale(zero=True),
        axis=alt.Axis(format="~%"),
    )
    value = seen.mark_line(point={"filled": True, "size": 34, "color": OLIVE}, color=OLIVE).encode(
        y=y, tooltip=tooltip
    )
    threshold = seen.mark_line(strokeDash=[6, 4], color=GREY).encode(y=alt.Y("threshold:Q"))
    return layered(
        [threshold, value, *event_marks(base, [4, 3], align="right", dx=-5)],
        data,
        alt.Title(title, subtitle="solid: the rule's value, dashed: its threshold"),
        "The switch rule's value after each epoch, its threshold, and the switch",
        220,
    )
