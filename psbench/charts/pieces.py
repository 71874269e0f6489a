"""Building blocks of charts: frame, tooltips, scales of labels, equal share, event marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import altair as alt
import pandas as pd

from psbench.charts.colours import CurveLook, looks
from psbench.charts.source import Data, height_of, source


def layered(
    layers: Sequence[Any],
    data: Data,
    title: str | alt.Title,
    description: str,
    height: int | alt.Step = 200,
    **more: Any,
) -> alt.LayerChart:
    """Return layers as one chart of the data, as wide as its container."""
    size: dict[str, Any] = {"width": "container", "height": height}
    return alt.LayerChart(
        layer=layers, data=source(data), title=title, description=description, **size, **more
    )


def framed(chart: alt.Chart, title: str, description: str, height: int | alt.Step = 200) -> alt.Chart:
    """Return a chart with its title, as wide as its container."""
    size: dict[str, Any] = {"width": "container", "height": height}
    done: alt.Chart = chart.properties(title=title, description=description, **size)
    return done


def words_alone(words: str, title: str) -> alt.Chart:
    """Return a chart that says that there is nothing to draw."""
    text = alt.Chart(source(pd.DataFrame({"words": [words]}))).mark_text(align="left", fontSize=12)
    return framed(text.encode(x=alt.value(0), text=alt.Text("words:N")), title, f"{title}: {words}", 24)


def tooltips(*fields: str) -> list[alt.Tooltip]:
    """Return tooltips for fields; a field may be followed by a number format.

    Examples
    --------
    >>> [each.to_dict() for each in tooltips("share:Q .1%")]
    [{'field': 'share', 'format': '.1%', 'type': 'quantitative'}]
    """
    parts = (field.split(" ") for field in fields)
    return [alt.Tooltip(name, format=form[0]) if form else alt.Tooltip(name) for name, *form in parts]


def look_scale(drawn: Mapping[str, CurveLook], channel: str = "colour", before: str = "") -> alt.Scale:
    """Return the scale of labels, each with a text before it, in one channel of their looks."""
    domain = [f"{before}{label}" for label in drawn]
    return alt.Scale(domain=domain, range=[getattr(look, channel) for look in drawn.values()])


#: a long name beside its bar goes on in another line: cut off, two could look the same
_LETTERS, _LINE = 26, 13
_LINES = rf"split(trim(replace(datum.label, regexp('(.{{1,{_LETTERS}}})( |$)', 'g'), '$1\n')), '\n')"


def label_rows(labels: Sequence[str] | None = None) -> alt.Y:
    """Return the channel of a row for each label, in this order or in that of the data."""
    # several lines stand around the middle of their row
    middle = alt.ExprRef(f"{-_LINE / 2} * (length({_LINES}) - 1)")
    return alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(labelExpr=_LINES, labelOffset=middle))


def label_height(data: Data) -> int | alt.Step:
    """Return the height of a chart with a row for each label, in which the longest label fits."""
    labels = [] if isinstance(data, str) else data["label"].unique()
    lines = max((len(wrap(str(label), _LETTERS)) for label in labels), default=1)
    return height_of(data, "label", max(28, _LINE * lines + 6))


def label_colour(labels: Sequence[str], among: Sequence[str] | None) -> alt.Color:
    legend = alt.Legend(title=None) if len(labels) > 1 else None
    return alt.Color("label:N", scale=look_scale(looks(labels, among)), legend=legend)


def equal_share() -> alt.Chart:
    """Return a dashed rule at the column `equal`."""
    rule: alt.Chart = alt.Chart().mark_rule(strokeDash=[4, 3]).encode(y=alt.Y("mean(equal):Q"))
    return rule


def event_marks(base: alt.Chart, dash: Sequence[int], **words: Any) -> list[alt.Chart]:
    """Return an upright rule for each row that has an `event`, and its words at the top."""
    marked = base.transform_filter("isValid(datum.event)")
    text = marked.mark_text(dy=6, baseline="top", fontWeight=600, **words)
    return [
        marked.mark_rule(strokeWidth=1.5, strokeDash=dash),
        text.encode(y=alt.value(0), text=alt.Text("event:N")),
    ]
