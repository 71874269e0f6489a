"""The chart of what waiting costs (time) and buys (fresh gradients), with the names of its points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from psbench.charts.colours import BLUE, GREY
from psbench.charts.names import TITLES
from psbench.charts.pieces import layered, tooltips
from psbench.charts.source import Data
from psbench.charts.ticks import time_axis

#: pixels between the frame of the chart and its points, so that words below a point stay clear of the axis
_ROOM = 18
#: widths of a chart, in pixels, at which it is looked which names fit, and pixels down to a staleness of 0
_WIDTHS, _HEIGHT = (200, 280, 360, 440, 520), 90
#: axes reach further than what is drawn
_DRAWN = 0.8
#: mean width of a character and line height of the labels, in pixels
_LETTER, _LINE = 6.2, 12
#: pixels from a point to the middle of its name, and from the run's point to its name
_RAISED, _OWN = 12, (9, 11)


def trade_chart(data: Data, title: str = TITLES["trade"]) -> alt.LayerChart:
    """Draw the cost of waiting (time) against its benefit (fresh gradients), with a curve over all bounds.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `label`, `per_100_s` (for 100 applied gradients), `staleness` (their mean, versions), `order`
        (the place along the curve of SSP with each bound, None for the run itself), and those of
        `names_of_points`.
    title : str
    """
    axis = time_axis(data, "per_100_s")
    x = alt.X("per_100_s:Q", title="time for 100 gradients", scale=alt.Scale(zero=False), axis=axis)
    fewer = "datum.value < 0"  # than none is no staleness
    shown = {"condition": {"test": fewer, "value": 0}, "value": 1}
    marks = alt.Axis(
        tickCount=4, labelExpr=f"{fewer} ? '' : datum.label", gridOpacity=shown, tickOpacity=shown
    )
    y = alt.Y("staleness:Q", title="staleness: updates missed", axis=marks, scale=alt.Scale(padding=_ROOM))
    tooltip = tooltips("label:N", "per_100_s:Q .4~r", "staleness:Q .3~r")
    base = alt.Chart().encode(x=x, y=y, tooltip=tooltip)
    bounds = base.transform_filter("isValid(datum.order)")
    own = base.transform_filter("!isValid(datum.order)")
    dx, dy = _OWN
    layers = [
        bounds.mark_line(color=GREY, strokeWidth=1).encode(order=alt.Order("order:Q")),
        bounds.mark_point(color=GREY, filled=True, opacity=1, size=22),
        # a name begins at its point, above the curve that falls; that of the last stands in its middle
        bounds.mark_text(
            align=alt.expr("datum.order ? 'left' : 'center'"),
            dy=-_RAISED,
            opacity=alt.expr("isValid(datum.room) && width >= datum.room ? 1 : 0"),
        ).encode(text=alt.Text("name:N")),
        # points without a name answer the pointer: also one that is only near them
        bounds.mark_point(filled=True, opacity=0, size=300),
        own.mark_point(color=BLUE, filled=True, opacity=1, size=110),
        own.mark_text(align="left", dx=dx, dy=dy, fontWeight=600).encode(text=alt.Text("label:N")),
    ]
    described = "Mean staleness against the time for 100 gradients, for each staleness bound"
    return layered(layers, data, title, described)


class _Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)


def names_of_points(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the names of the points, and from which width of the chart on each has room.

    It has room where it lies over no other name, nor over the run's own point and the words beside that. The
    two ends come first.

    Parameters
    ----------
    columns : mapping
        `label`, `per_100_s`, `staleness` and `order` of `trade_chart`; `order` is 0 for the bound 0.

    Returns
    -------
    dict of column to list
        `name` and `room` (pixels; None: it has no room in any chart).

    Examples
    --------
    >>> points = {"label": ["bound 0", "bound 1", "bound 5", "ASP"], "order": [0, 1, 2, 3]}
    >>> names_of_points(points | {"per_100_s": [9.0, 8.9, 4.0, 2.0], "staleness": [1.0, 1.1, 2.0, 4.0]})
    {'name': ['bound 0', '1', '5', 'ASP: no bound'], 'room': [0, None, 200, 0]}
    """
    labels, orders = columns["label"], columns["order"]
    curve = [place for place, order in enumerate(orders) if order is not None]
    ends = {curve[0], curve[-1]} if curve else set()
    names = [_name(label, place in ends) for place, label in enumerate(labels)]
    room: list[int | None] = [None] * len(labels)
    pixels = {width: _pixels(columns, width) for width in _WIDTHS}
    own = [place for place, order in enumerate(orders) if order is None]
    taken = {width: [box for place in own for box in _own_boxes(*at[place])] for width, at in pixels.items()}
    # after the ends, points of large bounds, which are furthest apart
    for place in dict.fromkeys([*curve[-1:], *curve[:1], *reversed(curve)]):
        for width in reversed(_WIDTHS):  # a wider chart may have no room where a narrower one has
            box = _box(names[place], *pixels[width][place], centred=not orders[place])
            if any(map(box.meets, taken[width])):
                break
            taken[width].append(box)
            room[place] = 0 if place in ends and width == _WIDTHS[0] else width
    return {"name": names, "room": room}


def _name(label: str, is_end: bool) -> str:
    """Return the name of a point: between the ends, which say that it is one, only the bound.

    >>> _name("bound 3", False), _name("bound 0", True), _name("ASP", True)
    ('3', 'bound 0', 'ASP: no bound')
    """
    if label == "ASP":
        return "ASP: no bound"
    return label if is_end else label.removeprefix("bound ")


def _pixels(columns: Mapping[str, Sequence[Any]], width: int) -> list[tuple[float, float]]:
    """Return where the points are in a chart; its times begin at the least, staleness at 0."""
    times = np.array(columns["per_100_s"], dtype=float)
    stale = np.array(columns["staleness"], dtype=float)
    across = (times - times.min()) / (np.ptp(times) or 1.0) * _DRAWN * width
    down = (1.0 - stale / (stale.max() or 1.0)) * _HEIGHT
    return list(zip(across.tolist(), down.tolist(), strict=True))


def _box(name: str, x: float, y: float, centred: bool = False) -> _Box:
    wide, middle = _LETTER * len(name), y - _RAISED
    left = x - wide / 2 if centred else x
    return _Box(left, middle - _LINE / 2, left + wide, middle + _LINE / 2)


def _own_boxes(x: float, y: float) -> Iterator[_Box]:
    """Yield where a run's point is, and its words."""
    dx, dy = _OWN
    yield _Box(x - 7, y - 7, x + 7, y + 7)
    yield _box("this run", x + dx, y + dy + _RAISED)
