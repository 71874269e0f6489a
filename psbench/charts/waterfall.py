"""The waterfall: how the difference between two values is made up of shares."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from psbench.charts.colours import BLUE, GREEN, GREY, PHASE_COLOURS
from psbench.charts.curves import VALUES
from psbench.charts.pieces import layered
from psbench.charts.ticks import value_axis

#: pixels of a bar and the space below it
_ROW = 34


def waterfall_chart(table: pd.DataFrame, title: str, unit: str) -> alt.LayerChart:
    """Draw a bar for each share, each beginning where the one before it ends.

    Parameters
    ----------
    table : DataFrame
        `step` (text, in order), `start` and `stop` (where its bar is), `share` (`start` - `stop`), `low` and
        `high` (the interval of `stop`; NaN: none), and `kind`: "value" (a run's own value, drawn from 0),
        "share" or "rest".
    title : str
    unit : str
        What the values are: a column of a log's evaluations, or any words.
    """
    unit = VALUES.get(unit, (unit, ""))[0]
    order = table["step"].tolist()
    own = table["kind"] == "value"
    signed = table["share"].map("{:+.3g}".format)
    shown = table.assign(text=signed.where(~own, table["start"].map("{:.3g}".format)))
    sign = pd.Series(np.where(table["share"] >= 0, "more", "less"), index=table.index)
    shown = shown.assign(look=table["kind"].where(table["kind"] != "share", sign))
    ends = shown[["start", "stop", "low", "high"]]
    lowest, highest = ends.min().min(), ends.max().max()
    room = 0.15 * (highest - lowest) or 0.1 * abs(highest) or 1.0
    scale = alt.Scale(domain=[lowest - room, highest + room], nice=False, zero=False)
    kinds = ["value", "more", "less", "rest"]
    colour = alt.Color(
        "look:N",
        scale=alt.Scale(domain=kinds, range=[PHASE_COLOURS["compute"], BLUE, GREEN, GREY]),
        legend=None,
    )
    y = alt.Y("step:N", sort=order, title=None, axis=alt.Axis(labelLimit=280))
    base = alt.Chart().encode(y=y)
    tips = [alt.Tooltip("step:N", title="of"), alt.Tooltip("text:N", title=unit)]
    x = alt.X("start:Q", scale=scale, title=unit, axis=value_axis("~r"))
    bars = (
        base.transform_filter("datum.kind != 'value'")
        .mark_bar(height=16)
        .encode(x=x, x2="stop:Q", color=colour, tooltip=tips)
    )
    values = (
        base.transform_filter("datum.kind == 'value'")
        .mark_tick(thickness=3, size=22)
        .encode(x=alt.X("stop:Q", scale=scale), color=colour, tooltip=tips)
    )
    spread = (
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.5, color=GREY)
        .encode(x=alt.X("low:Q", scale=scale), x2="high:Q")
    )
    text = base.transform_calculate(
        at="max(datum.start, datum.stop, isValid(datum.high) ? datum.high : datum.stop)"
    )
    labels = text.mark_text(align="left", dx=6).encode(x=alt.X("at:Q", scale=scale), text="text:N")
    words = f"How the difference in {unit} between two runs is made up of shares."
    return layered([bars, values, spread, labels], shown, title, words, _ROW * len(order))
