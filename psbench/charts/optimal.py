"""Gradient norms over time, with the worst-case optimal time of the cluster as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from psbench.charts.colours import GREY, looks
from psbench.charts.names import TITLES
from psbench.charts.pieces import layered, look_scale, tooltips

#: the lines of the bounds: column of the table, words beside the line, and dashes
BOUNDS: Mapping[str, tuple[str, list[int]]] = {
    "guaranteed": ("guaranteed", [9, 4]),
    "unavoidable": ("no method guarantees less", [2, 3]),
}
#: titles of what is drawn
_VALUES = {
    "gradient_norm_sq": "squared norm of the gradient, smallest so far",
    "loss": "training loss, smallest so far",
}


def optimal_chart(
    table: pd.DataFrame, bounds: pd.DataFrame, value: str, among: Sequence[str]
) -> alt.LayerChart:
    """Draw curves of runs, and the time of each bound, on logarithmic axes.

    Parameters
    ----------
    table : DataFrame
        `label`, `time_s` and the value. What is known at time 0 is drawn from the left edge on.
    bounds : DataFrame
        The value, `guaranteed` and `unavoidable`, in seconds; where a time is 0 there is no line.
    value : str
        Column of what is drawn: "gradient_norm_sq" or "loss".
    among : sequence of str
        All labels, for colours.
    """
    lines = bounds.melt(value, list(BOUNDS), var_name="bound", value_name="time_s").query("time_s > 0")
    edge = 0.7 * pd.concat([table["time_s"], lines["time_s"]]).where(lambda times: times > 0).min()
    both = pd.concat([table.assign(time_s=table["time_s"].clip(lower=edge)), lines], ignore_index=True)
    drawn, scale = looks(list(among)), alt.Scale(type="log", nice=False, padding=6)
    digits = "~g" if both["time_s"].max() < 1e5 else ".0e"
    x = alt.X(
        "time_s:Q", title="time (s)", scale=scale, axis=alt.Axis(format=digits, tickCount=8, grid=False)
    )
    y = alt.Y(f"{value}:Q", title=_VALUES[value], scale=scale, axis=alt.Axis(format="~g", tickCount=6))
    base = alt.Chart().encode(x=x, y=y, tooltip=tooltips("time_s:Q .4~g", f"{value}:Q .4~g"))
    legend = alt.Legend(title=None, symbolType="stroke", symbolSize=400)
    layers = [
        base.transform_filter("isValid(datum.label)")
        .mark_line(interpolate="step-after")
        .encode(
            color=alt.Color("label:N", scale=look_scale(drawn), legend=legend),
            strokeDash=alt.StrokeDash("label:N", scale=look_scale(drawn, "dash"), legend=legend),
        )
    ]
    for name, (words, dash) in BOUNDS.items():
        own = base.transform_filter(f"datum.bound == '{name}'")
        line = own.mark_line(color=GREY, strokeWidth=2, strokeDash=dash)
        layers.append(line.encode(order=alt.Order(f"{value}:Q")))  # several values may have one time
        # at the lower end, where the curves of runs are far to the left
        end = own.transform_joinaggregate(end=f"min({value})").transform_filter(
            f"datum.end == datum['{value}']"
        )
        layers.append(end.mark_text(align="right", dx=-10, text=words))
    described = f"{TITLES['optimal']}: a curve for each strategy, and lines of the worst case"
    return layered(layers, both, TITLES["optimal"], described, 300)
