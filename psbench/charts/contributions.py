"""Charts of contributions: each gradient's fate, and the classes that a model was trained on."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from psbench.charts.colours import BLUE, ORANGE, VIOLET
from psbench.charts.names import TITLES
from psbench.charts.pieces import framed, label_height, label_rows, layered, tooltips
from psbench.charts.source import Data, height_of, labels_in, source

_STEP = 19
#: fates of used gradients: their ages in versions, each twice as wide as the one before; fresh ones are dark
AGES = ("0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64 and more")


def age_group(age: int) -> str:
    """Return the group of an age, in versions.

    >>> [age_group(age) for age in (0, 1, 3, 4, 31, 64, 1000)]
    ['0', '1', '2-3', '4-7', '16-31', '64 and more', '64 and more']
    """
    return AGES[min(int(age).bit_length(), len(AGES) - 1)]


def in_order(fates: Sequence[str]) -> list[str]:
    """Return fates in stacking order: ages of used gradients, then reasons of unused ones.

    >>> in_order(["late", "4-7", "0", "late"])
    ['0', '4-7', 'late']
    """
    return [*(age for age in AGES if age in fates), *sorted({*fates} - {*AGES})]


def contribution_chart(
    data: Data, rows: str = "worker", fates: Sequence[str] | None = None, title: str = TITLES["contributions"]
) -> alt.Chart:
    """Draw each worker's (or label's) gradients, stacked: used ones by age, then unused ones by reason.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `rows`, `fate` (an age of `AGES`, or why it was not used), `gradients`, `share` (of all).
    rows : "worker" or "label"
    fates : sequence of str, optional
        Needed for streamed data.
    title : str
    """
    fates = in_order(labels_in(data, fates, "fate"))
    unused = [fate for fate in fates if fate not in AGES]
    colours = alt.Scale(domain=fates, range=[*_ages(fates), *_shades(VIOLET, "#D5CEFB", len(unused))])
    legend = alt.Legend(title="age, or why unused", symbolType="square")
    y = alt.Y("worker:O", title="worker") if rows == "worker" else label_rows()
    chart = (
        alt.Chart(source(data))
        .transform_calculate(order=f"indexof({fates}, datum.fate)")
        .mark_bar(size=13)
        .encode(
            x=alt.X(
                "share:Q",
                title="share of all gradients",
                axis=alt.Axis(format="~%", tickCount=5),
                scale=alt.Scale(domain=[0, 1], clamp=True) if rows == "label" else alt.Undefined,
            ),
            y=y,
            color=alt.Color("fate:N", scale=colours, legend=legend),
            order=alt.Order("order:Q"),
            tooltip=tooltips(f"{rows}:O", "fate:N", "gradients:Q", "share:Q .1%"),
        )
    )
    height = height_of(data, rows, _STEP) if rows == "worker" else label_height(data)
    return framed(chart, title, f"{title}: used by age, and unused by reason", height)


def _ages(fates: Sequence[str]) -> list[str]:
    """Return the colours of the ages among fates: each has the same in every chart."""
    known = dict(zip(AGES, _shades(BLUE, "#CFE6F5", len(AGES)), strict=True))
    return [known[fate] for fate in fates if fate in known]


def _shades(first: str, last: str, count: int) -> list[str]:
    """Return colours at equal distances from the first to the last.

    >>> _shades("#000000", "#102030", 3)
    ['#000000', '#081018', '#102030']
    """
    ends = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in (first, last)]
    return [
        "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(*ends, strict=True))
        for part in np.linspace(0.0, 1.0, count)
    ]


def trained_chart(
    data: Data, title: str = TITLES["trained"], groups: str = "class or range"
) -> alt.LayerChart:
    """Draw each group's share of the training so far, with its share of the data as a tick.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `group`, `samples`, `share` (0 to 1), `whole` (0 to 1).
    title, groups : str
    """
    axis = alt.Axis(labelAngle=0, labelLimit=70)
    base = alt.Chart().encode(
        x=alt.X("group:N", title=groups, sort=None, axis=axis),
        tooltip=tooltips("group:N", "samples:Q .4~r", "share:Q .1%", "whole:Q .1%"),
    )
    bars = base.mark_bar(color=BLUE).encode(
        y=alt.Y("share:Q", title="share of the samples", axis=alt.Axis(format="~%", tickCount=5))
    )
    ticks = base.mark_tick(color=ORANGE, opacity=1, thickness=4, size=26).encode(y=alt.Y("whole:Q"))
    return layered([bars, ticks], data, title, f"{title}: share of each {groups}, and its share of the data")
