"""Time axes say seconds, minutes or hours by what they cover; shares begin at 0."""

from __future__ import annotations

import html
import re

import pandas as pd
import pytest
import vl_convert

from psbench import charts
from psbench.charts.ticks import unit_in_title


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (0.004, ["0", "0.001 s", "0.002 s", "0.003 s", "0.004 s"]),
        (66.0, ["0", "10 s", "20 s", "30 s", "40 s", "50 s", "60 s"]),
        (120.0, ["0", "20 s", "40 s", "60 s", "80 s", "100 s", "120 s"]),
        (800.0, ["0", "2 min", "4 min", "6 min", "8 min", "10 min", "12 min"]),
        (40_000.0, ["0", "2 h", "4 h", "6 h", "8 h", "10 h"]),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_marks_follow_the_range(end: float, expected: list[str], is_streamed: bool) -> None:
    rows = {"label": ["a"] * 3, "time_s": [0.0, end / 3, end], "train_loss": [2e-3, 5.0, 30.0]}
    data = pd.DataFrame(rows | {"epoch": [0, 1, 2], "event": [None] * 3})
    chart = charts.curve("source" if is_streamed else data, "train_loss", "time_s", labels=["a"])
    spec = charts.spec(chart)
    if is_streamed:
        spec["datasets"] = {"source": data.to_dict("records")}
    drawn = vl_convert.vegalite_to_svg(spec | {"width": 400}, vl_version="6.4")
    texts = [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)<", drawn)]
    # an axis that grows with its data may end at a round number beyond them
    assert texts[: len(expected)] == expected
    assert not [text for text in texts if re.search(r"\de[+-]?\d", text)]


@pytest.mark.parametrize(
    ("span_s", "unit", "unit_s"),
    [(120.0, "s", 1), (121.0, "min", 60), (7200.0, "min", 60), (7201.0, "h", 3600)],
)
def test_a_paper_has_the_unit_of_the_marks_in_the_title(span_s: float, unit: str, unit_s: int) -> None:
    data = pd.DataFrame({"label": ["a"] * 2, "time_s": [0.0, span_s], "train_loss": [1.0, 0.5]})
    spec = charts.spec(charts.curve(data, "train_loss", "time_s", labels=["a"]))
    axes = [layer["encoding"]["x"] for layer in spec["layer"] if "x" in layer.get("encoding", {})]
    found = {(each["title"], each["axis"]["labelExpr"]) for each in map(unit_in_title, axes)}
    assert found == {(f"time ({unit})", f"format(datum.value / {unit_s}, '.9~f')")}


def test_a_share_of_samples_begins_at_0() -> None:
    """There is none below it."""
    data = pd.DataFrame({"label": ["a"] * 2, "epoch": [0.0, 1.0], "class_distance": [0.09, 0.06]})
    spec = charts.spec(charts.curve(data, "class_distance", "epoch", labels=["a"]))
    drawn = vl_convert.vegalite_to_svg(spec | {"width": 400}, vl_version="6.4")
    (ends,) = re.findall(r"Y-axis[^\"]* values from ([^\"]*)\"", drawn)
    assert ends == "0% to 9%"
