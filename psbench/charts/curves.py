"""Curves along a run, one line per strategy: the values (loss, ...) and the axes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from psbench.charts.colours import looks
from psbench.charts.names import TITLES
from psbench.charts.pieces import layered, look_scale, tooltips
from psbench.charts.source import Data, labels_in, thin
from psbench.charts.ticks import time_axis, value_axis
from psbench.errors import UnknownName
from psbench.metrics import interval

#: what a curve may be drawn against: column and title
AXES = {
    "time_s": "time (s)",
    "epoch": "epochs (samples applied / size of the data)",
    "updates": "updates (versions of the model)",
    "bytes": "bytes sent, up and down",
}
#: other names of axes: those of what `compare` may make equal
_QUANTITIES = {"time": "time_s", "samples": "epoch"}

#: what a curve may show: column and (axis title, format of its numbers)
VALUES = {
    "val_accuracy": ("validation accuracy", "~%"),
    "train_accuracy": ("training accuracy", "~%"),
    "val_loss": ("validation loss", ""),
    "train_loss": ("training loss", ""),
    "train_gradient_norm_sq": ("squared norm of the gradient", "~g"),
    "consensus_distance": ("sum of squared distances to the mean model", "~g"),
    "class_distance": ("share of samples of another class", "~%"),
    "samples_per_s": ("samples applied per second", "~s"),
}

#: put before labels where bands and points are coloured: Vega-Lite merges the legends of equal domains,
#: and ours is to show lines
_LOOK = "look of "


def curve(
    data: Data,
    y: str = "val_accuracy",
    x: str = "time_s",
    *,
    labels: Sequence[str] | None = None,
    shown: Sequence[str] | None = None,
    axes: Mapping[str, str] = AXES,
    height: int = 260,
) -> alt.LayerChart:
    """Draw one line per label, with its interval over seeds as a band and its switches as marked rules.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `label`, `x` and `y`; optional `{y}_low` and `{y}_high` (the band), `event` (a text on rows
        that mark a switch; such rows need `x` only) and `is_repeated` (its text is not written). Lines are
        thinned to about 1000 points.
    y, x : str
        Columns; `VALUES` and `AXES` know their titles.
    labels : sequence of str, optional
        Labels in the order of the legend, and the strategy each stands for, which gives its colour. Needed
        for streamed data.
    shown : sequence of str, optional
        The labels that are drawn, if not all: the looks are those they have among all.
    axes : mapping of column to title
        What the curve may be drawn against; see `axes_of`.
    height : int, pixels

    Returns
    -------
    altair.LayerChart
        As wide as what contains it.
    """
    labels = labels_in(data, labels)
    table = data if isinstance(data, str) else thin(data)
    words = _words(y)
    y_title, y_format = VALUES.get(y, (words, ""))
    title = TITLES.get(y, words[0].upper() + words[1:])
    all_looks = looks(labels)
    drawn = {label: all_looks[label] for label in (labels if shown is None else shown)}
    is_long = max(map(len, drawn), default=0) > LONGEST
    has_legend = len(drawn) > ENDS or (is_long and len(drawn) > 1)
    legend = alt.Legend(title=None, symbolType="stroke", symbolSize=400) if has_legend else None
    colour = alt.Color("label:N", scale=look_scale(drawn), legend=legend)
    fill = alt.Fill("look:N", scale=look_scale(drawn, "colour", _LOOK), legend=None)
    base = alt.Chart().transform_calculate(look=f"'{_LOOK}' + datum.label").encode(x=_x(x, axes, table))
    valid = _without_late_start(base.transform_filter(f"isValid(datum['{y}'])"), x)
    layers: list[alt.Chart] = []
    if not isinstance(table, str) and f"{y}_low" in table and table[f"{y}_low"].notna().any():
        known = valid.transform_filter(f"isValid(datum['{y}_low'])").mark_area(fillOpacity=0.14, clip=True)
        layers.append(known.encode(y=alt.Y(f"{y}_low:Q"), y2=alt.Y2(f"{y}_high"), fill=fill))
    is_share = y == "class_distance"  # from 0, and no padding below it
    scale = alt.Scale(zero=is_share, padding=0 if is_share else 4)
    tooltip = tooltips("label:N", f"{x}:Q .5~r", f"{y}:Q .5~r")
    line = valid.mark_line(clip=True).encode(
        y=alt.Y(f"{y}:Q", title=y_title, scale=scale, axis=value_axis(y_format)),
        color=colour,
        strokeDash=alt.StrokeDash("label:N", scale=look_scale(drawn, "dash"), legend=legend),
        tooltip=tooltip,
    )
    layers += _highlighted(line, f"pointed_{y}_{x}") if len(drawn) > ENDS else [line]
    if _few(table, len(drawn), y):
        shape = alt.Shape("look:N", scale=look_scale(drawn, "shape", _LOOK), legend=None)
        points = valid.mark_point(size=34, strokeWidth=0, fillOpacity=1, clip=True)
        layers.append(points.encode(y=alt.Y(f"{y}:Q"), fill=fill, shape=shape, tooltip=tooltip))
    if not has_legend:
        layers += _ends(valid, x, y, y_format, colour, has_names=not is_long)
    if isinstance(table, str) or ("event" in table and table["event"].notna().any()):
        layers += _events(base, x, colour, is_falling=y.endswith("loss"))
    known_axes = {"x": x, "axes": dict(axes) if x in axes else {}}
    described = f"{title} against {axes.get(x, x)}"
    return layered(layers, table, title, described, height, usermeta=known_axes)


def _words(column: str) -> str:
    """Return the name of a column in words.

    >>> _words("test_loss"), _words("compute_s"), _words("val_f1")
    ('test loss', 'compute (s)', 'validation f1')
    """
    words = column.replace("val_", "validation ", 1) if column.startswith("val_") else column
    return re.sub("_s$", " (s)", words).replace("_", " ")


def axes_of(clocks: Sequence[str]) -> dict[str, str]:
    """Return the axes for runs with these clocks: column and title.

    Seconds of one clock are named after it; those of several are none of the choices.

    Examples
    --------
    >>> axes_of(["wall"])["time_s"], "time_s" in axes_of(["virtual", "wall"])
    ('wall-clock time (s)', False)
    """
    if len(clocks) > 1:
        return {name: title for name, title in AXES.items() if name != "time_s"}
    named = {"virtual": "virtual time (s)", "wall": "wall-clock time (s)"}
    return AXES | {"time_s": named.get(clocks[0], AXES["time_s"])}


def axis_of(name: str) -> str:
    """Return the column of an axis, given its name in `AXES` or the name of a quantity.

    >>> axis_of("samples")
    'epoch'
    """
    found = _QUANTITIES.get(name, name)
    if found not in AXES:
        raise UnknownName("axis", name, [*AXES, *_QUANTITIES])
    return found


def _x(x: str, axes: Mapping[str, str], table: Data) -> alt.X:
    title = axes.get(x, x)
    from_zero = alt.Scale(zero=True)  # also where all lines begin late
    if x.endswith("_s"):
        axis, title = time_axis(table, x), title.removesuffix(" (s)")
    else:
        axis = value_axis("~s", grid=False, tickCount=8)
    return alt.X(f"{x}:Q", title=title, axis=axis, scale=from_zero)


#: a line begins late if its second point comes after so many times the usual pause between points
_LATE = 5


def _without_late_start(valid: alt.Chart, x: str) -> alt.Chart:
    """Return the points of lines, but not the first of one that begins late.

    The line to its second point would show a rise over a time in which the model stayed what it was.
    """
    return (
        valid.transform_window(
            following=f"lead({x})", number="row_number()", groupby=["label"], sort=[alt.SortField(x)]
        )
        .transform_calculate(pause=f"isValid(datum.following) ? datum.following - datum['{x}'] : null")
        .transform_joinaggregate(usual="median(pause)", points="count()", groupby=["label"])
        .transform_filter(
            f"datum.number > 1 || datum.points < 5 || datum.pause <= {_LATE} * datum.usual || !datum.usual"
        )
    )


def _few(table: Data, lines: int, y: str) -> bool:
    """Return whether the table is small enough to show points: hundreds of points would hide the line."""
    return not isinstance(table, str) and y in table and table[y].notna().sum() <= 60 * max(lines, 1)


def _highlighted(line: alt.Chart, name: str) -> list[alt.Chart]:
    """Return lines that stand out under the pointer, and wider invisible ones that catch the pointer."""
    pointed = alt.selection_point(name=name, fields=["label"], on="pointerover", clear="pointerout")
    faded = alt.when(pointed).then(alt.value(1)).otherwise(alt.value(0.2))
    wide = line.mark_line(clip=True, strokeWidth=14, opacity=0).encode(strokeDash=alt.value([1, 0]))
    return [line.encode(opacity=faded), wide.add_params(pointed)]


#: so many lines are named at their ends: the words of more would lie over each other
ENDS = 2
#: letters of the longest name that there is room for at the end of a line; a single line needs none
LONGEST = 24


def _ends(
    valid: alt.Chart, x: str, y: str, y_format: str, colour: alt.Color, has_names: bool
) -> list[alt.Chart]:
    """Return a dot where each line ends, with its name and last value: no name over another, or a line."""
    last = (
        # after the end of a line the next point is of the other one
        valid.transform_window(next=f"lead({y})", sort=[alt.SortField(x)])
        .transform_joinaggregate(last=f"max({x})", groupby=["label"])
        .transform_joinaggregate(end=f"max({x})")
        .transform_calculate(late=f"datum['{x}'] < datum.last - {_UNDER} * datum.end ? null : datum['{y}']")
        .transform_joinaggregate(highest="max(late)", groupby=["label"])
        .transform_filter(f"datum['{x}'] == datum.last")
        .transform_calculate(is_below=f"isValid(datum.next) && datum.next > datum['{y}'] ? 1 : 0")
        .transform_joinaggregate(least=f"min({y})", most=f"max({y})", lines="count()", below="sum(is_below)")
        .transform_window(place="row_number()", sort=[alt.SortField(y, order="descending")])
    )
    # a name stands above its end, or below it if the other line goes on above and there is room
    room = "scale('y', {}) < range('y')[0] - 24"
    below = "(datum.is_below && " + room.format(f"datum['{y}']") + ")"
    # of two above their ends, the upper one's makes room for the other's
    gap = "scale('y', datum.least) - scale('y', datum.most)"
    is_alone = f"datum.place == datum.lines || (datum.below && {room.format('datum.least')})"
    raised = f"({is_alone} ? 0 : max(0, 15 - ({gap})))"
    # of a single line, above what it has been at where its name stands
    lifted = f"(datum.lines == 1 ? scale('y', datum['{y}']) - scale('y', datum.highest) : 0)"
    end = ".1%" if y.endswith("accuracy") else ".2~p" if y_format.endswith("%") else ".3~r"
    value = f"format(datum['{y}'], '{end}')"
    dot = last.mark_circle(size=45, opacity=1).encode(y=f"{y}:Q", color=colour)
    # on the side on which there is room: above a line that falls to its end, or below one that rises, that
    # is the right one
    name = "datum.label + '  ' + " if has_names else ""
    at = f"scale('x', datum['{x}'])"
    right = f"!{below}" if y.endswith("loss") else below
    is_free = f"{at} < {_ROOM} || ({right} && {at} < range('x')[1] - {_ROOM})"
    text = last.transform_calculate(ending=f"{name}{value}").mark_text(
        align=alt.expr(f"{is_free} ? 'left' : 'right'"),
        dy=alt.expr(f"{below} ? 13 : {is_free} ? -11 - {raised} : -11 - {raised} - {lifted}"),
        fontWeight=600,
    )
    return [dot, text.encode(y=f"{y}:Q", text="ending:N")]


#: pixels that the words at a mark need, and the share of a chart that they may take
_ROOM, _UNDER = 110, 0.3


def _events(base: alt.Chart, x: str, colour: alt.Color, is_falling: bool) -> list[alt.Chart]:
    """Return a line for each switch; its words are above a curve that falls, and below one that rises."""
    marked = base.transform_filter("isValid(datum.event)")
    rule = marked.mark_rule(strokeWidth=1.5, strokeDash=[4, 3]).encode(
        color=colour, tooltip=tooltips("label:N", "event:N")
    )
    # before the line, or after it where there is no room before
    early = f"scale('x', datum['{x}']) < {_ROOM}"
    text = (
        marked.transform_filter("!datum.is_repeated")
        .mark_text(
            align=alt.expr(f"{early} ? 'left' : 'right'"),
            dx=alt.expr(f"{early} ? 5 : -5"),
            dy=4 if is_falling else -4,
            baseline="top" if is_falling else "bottom",
            fontWeight=600,
        )
        .encode(y=alt.value(0 if is_falling else "height"), text=alt.Text("event:N"))
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
        (t distribution, cut to what is possible; missing with one seed) and `n`.

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
            row |= {value: mean} | _limits(value, mean, half)
        rows.append(row)
    return pd.DataFrame(rows)


def _limits(value: str, mean: float, half: float | None) -> dict[str, float | None]:
    """Return the ends of the interval, limited to possible values: an accuracy is at most 1."""
    if half is None:
        return {f"{value}_low": None, f"{value}_high": None}
    highest = 1.0 if value.endswith("accuracy") else float("inf")
    lowest = 0.0 if value in VALUES else -float("inf")  # a metric of the user's may be negative
    return {f"{value}_low": max(mean - half, lowest), f"{value}_high": min(mean + half, highest)}
