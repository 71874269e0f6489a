"""Rows of a live chart: numbered, sent once, complete for a page that comes late."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from psbench_widgets import LiveChart

SPEC = {"mark": "line", "data": {"name": "source"}}


class Page:
    """What the page does with messages: the rules of `store.js`, in Python."""

    def __init__(self, chart: LiveChart) -> None:
        self.chart = chart
        self.rows: list[dict[str, Any]] = []
        self.era, self.next = -1, 0
        chart.send = self.receive  # type: ignore[method-assign]

    def hello(self) -> None:
        self.chart._on_message(None, {"kind": "hello", "have": {"source": [self.era, self.next]}}, [])

    def receive(self, content: dict[str, Any], buffers: Any = None) -> None:
        for part in content["parts"]:
            if part["era"] > self.era:
                self.era, self.next, self.rows = part["era"], part["start"], []
            columns = part["columns"]
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            assert part["from"] <= self.next or part["from"] == part["start"], "a gap"
            self.rows += rows[max(0, self.next - part["from"]) :]
            self.next = max(self.next, part["from"] + len(rows))


def test_nothing_is_sent_before_a_page_asks() -> None:
    chart = LiveChart(spec=SPEC)
    page = Page(chart)
    chart.append({"x": [1, 2]})
    assert page.rows == []
    page.hello()
    assert page.rows == [{"x": 1}, {"x": 2}]
    chart.append({"x": [3]})
    assert [row["x"] for row in page.rows] == [1, 2, 3]


def test_a_second_hello_brings_only_what_is_new() -> None:
    chart = LiveChart(spec=SPEC)
    page = Page(chart)
    page.hello()
    chart.append({"x": [1, 2]})
    page.hello()
    assert page.rows == chart.rows() == [{"x": 1}, {"x": 2}]


def test_replacing_begins_a_new_era() -> None:
    chart = LiveChart(spec=SPEC)
    page = Page(chart)
    page.hello()
    chart.append({"x": [1, 2]})
    chart.replace({"y": [7]})
    assert page.rows == [{"y": 7}]
    chart.clear()
    assert page.rows == chart.rows() == []


def test_the_oldest_rows_are_forgotten() -> None:
    chart = LiveChart(spec=SPEC, max_rows=3)
    chart.append({"x": [1, 2]})
    chart.append({"x": [3, 4, 5]})
    assert [row["x"] for row in chart.rows()] == [3, 4, 5]
    page = Page(chart)
    page.hello()
    assert [row["x"] for row in page.rows] == [3, 4, 5]


def test_numbers_that_json_does_not_know_become_none() -> None:
    np = pytest.importorskip("numpy")
    chart = LiveChart(spec=SPEC)
    chart.append({"x": np.array([1, 2]), "y": [float("nan"), np.float32(0.5)]})
    assert chart.rows() == [{"x": 1, "y": None}, {"x": 2, "y": 0.5}]
    assert type(chart.rows()[0]["x"]) is int


@pytest.mark.parametrize("columns", [{"x": [1], "y": []}, {"z": [1]}])
def test_columns_that_do_not_fit_are_refused(columns: dict[str, list[int]]) -> None:
    chart = LiveChart(spec=SPEC)
    chart.append({"x": [1], "y": [2]})
    with pytest.raises(ValueError, match="columns"):
        chart.append(columns)
    assert chart.rows() == [{"x": 1, "y": 2}]


def test_threads_and_hellos_at_once_lose_and_double_nothing() -> None:
    chart = LiveChart(spec=SPEC)
    page = Page(chart)

    def feed() -> None:
        for i in range(2000):
            chart.append({"x": [i]})

    feeder = threading.Thread(target=feed)
    feeder.start()
    while feeder.is_alive():
        page.hello()
    feeder.join()
    page.hello()
    assert [row["x"] for row in page.rows] == list(range(2000))


def test_all_charts_share_one_engine_and_a_closed_one_is_made_anew() -> None:
    first, second = LiveChart(spec=SPEC), LiveChart(spec=SPEC)
    assert first.engine is second.engine
    first.engine.close()
    assert LiveChart(spec=SPEC).engine is not first.engine


def test_the_engine_is_small_enough_and_asks_nobody_else() -> None:
    from psbench_widgets.assets import STATIC

    script = (STATIC / "engine.js").read_text()
    assert len(script.encode()) < 1_100_000
    assert "cdn.jsdelivr" not in script
    assert (STATIC / "THIRD_PARTY_LICENSES.txt").stat().st_size > 10_000
