"""Ticks of a time axis in seconds, minutes or hours, depending on its range; never "1e+1"."""

from __future__ import annotations

import re
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from psbench.charts.names import words_of_field
from psbench.charts.source import Data

#: marks that an axis has at most about
_MARKS = 7
#: seconds between two marks where an axis has minutes or hours
_STEPS = (30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
#: an axis is in seconds up to this many, and in minutes up to so many
_SECONDS, _MINUTES = 120, 7200
#: numbers of a parameter whose largest is at least this many times the smallest lie on a logarithmic axis
_WIDE = 20


def time_axis(data: Data, *columns: str) -> alt.Axis:
    """Return an axis for seconds; its numbers have units.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        What is drawn; the axis of one that is streamed follows it.
    columns : str
        The columns with times.
    """
    if isinstance(data, str):
        return alt.Axis(grid=False, values=alt.ExprRef(_VALUES), labelExpr=_LABEL.replace("SPAN", _SPAN))
    times = np.concatenate([data[name].to_numpy(dtype=float) for name in columns])
    times = times[np.isfinite(times)]
    low, high = (float(times.min()), float(times.max())) if len(times) else (0.0, 0.0)
    given: dict[str, Any] = {}
    if high > low:
        step = step_of(high - low)
        places = np.arange(np.ceil(low / step), np.floor(high / step * (1 + 1e-9)) + 1)
        given = {"values": [float(f"{place * step:.12g}") for place in places]}
    return alt.Axis(grid=False, labelExpr=_LABEL.replace("SPAN", repr(high - low)), **given)


def value_axis(number_format: str, **more: Any) -> alt.Axis:
    """Return the axis of a curve's values; thousands and millions have SI prefixes."""
    given: dict[str, Any] = {"format": number_format or "~r"}
    given["tickCount"] = 5 if number_format.endswith("%") else 6
    if number_format == "~s":
        given["labelExpr"] = "datum.value ? datum.label : '0'"
    return alt.Axis(**given | more)


def parameter_axis(values: pd.Series[Any], path: str) -> alt.X:
    """Return the channel of a column `x` of a parameter's values: numbers to scale, names side by side.

    `path` is the parameter's, as in a specification.

    >>> [parameter_axis(pd.Series([1, last]), "lr").to_dict()["scale"].get("type") for last in (19.9, 20)]
    [None, 'log']
    """
    title = words_of_field(path)
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        return alt.X("x:N", title=title, sort=None, axis=alt.Axis(labelAngle=0))
    wide = len(values) > 0 and values.min() > 0 and values.max() / values.min() >= _WIDE
    scale = alt.Scale(type="log", nice=False, padding=12) if wide else alt.Scale(zero=False, padding=12)
    ticks = sorted(values.unique().tolist())
    # without digits Vega writes 112 as 1.1e+2
    axis = alt.Axis(grid=False, values=ticks, format=".6~g") if len(ticks) <= 10 else alt.Axis(grid=False)
    return alt.X("x:Q", title=title, scale=scale, axis=axis)


def unit_in_title(channel: Any) -> Any:
    """Return an encoding with the time unit in its axis title, and plain numbers on the axis.

    >>> unit_in_title({"title": "time", "axis": {"labelExpr": _LABEL.replace("SPAN", "600.0")}})
    {'title': 'time (min)', 'axis': {'labelExpr': "format(datum.value / 60, '.9~f')"}}
    """
    axis: Any = channel.get("axis") if isinstance(channel, dict) else None
    found = _OF_SPAN.match(axis.get("labelExpr", "")) if isinstance(axis, dict) else None
    if found is None or not isinstance(axis, dict) or not isinstance(channel.get("title"), str):
        return channel
    span_s = float(found[1])
    size, unit = (1, "s") if span_s <= _SECONDS else (60, "min") if span_s <= _MINUTES else (3600, "h")
    bare = axis | {"labelExpr": f"format(datum.value / {size}, '.9~f')"}
    return channel | {"title": f"{channel['title']} ({unit})", "axis": bare}


def step_of(span_s: float) -> float:
    """Return the seconds between two ticks of an axis that covers `span_s`.

    >>> step_of(0.7), step_of(66.0), step_of(210.0), step_of(800.0), step_of(40_000.0), step_of(1e6)
    (0.1, 10.0, 30, 120, 7200, 172800)
    """
    rough = span_s / _MARKS
    if span_s <= _SECONDS:
        power = 10.0 ** np.floor(np.log10(rough))
        return float(f"{power * next(n for n in (1, 2, 5, 10) if rough <= 1.0001 * n * power):.12g}")
    days = int(np.ceil(rough / _STEPS[-1])) * _STEPS[-1]
    return next((step for step in _STEPS if rough <= step), days)


# the same in the language of Vega, for data that are not there yet
_SPAN = "(domain('x')[1] - domain('x')[0])"
_ROUGH = f"({_SPAN} / {_MARKS})"
_POWER = f"pow(10, floor(log({_ROUGH}) / LN10))"
_TENS = " : ".join(f"{_ROUGH} <= {1.0001 * n} * {_POWER} ? {n}" for n in (1, 2, 5)) + " : 10"
_COARSE = " : ".join(f"{_ROUGH} <= {step} ? {step}" for step in _STEPS)
_DAYS = f"{_STEPS[-1]} * ceil({_ROUGH} / {_STEPS[-1]})"
_STEP = f"({_SPAN} <= {_SECONDS} ? {_POWER} * ({_TENS}) : ({_COARSE} : {_DAYS}))"
_FIRST = f"ceil(domain('x')[0] / {_STEP}) * {_STEP}"
_VALUES = f"{_SPAN} > 0 ? sequence({_FIRST}, domain('x')[1] + {_STEP} / 1e6, {_STEP}) : [domain('x')[0]]"
# of a curve that has one point, at 0, Vega would call the mark NaN; a single point has all of its digits
_LABEL = (
    "!isFinite(datum.value) ? '' : datum.value == 0 ? '0'"
    f" : SPAN <= {_SECONDS} ? format(datum.value, SPAN > 0 ? '.9~f' : '.3~r') + ' s'"
    f" : SPAN <= {_MINUTES} ? format(datum.value / 60, '.2~f') + ' min'"
    " : format(datum.value / 3600, '.2~f') + ' h'"
)
_OF_SPAN = re.compile(re.escape(_LABEL.partition("SPAN")[0]) + "([0-9.e+-]+) <=")
