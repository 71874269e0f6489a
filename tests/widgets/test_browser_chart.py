"""A live chart in a real browser: rows arrive, a reload shows every row once, nothing leaves the machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .jupyter import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

CELLS = [
    """
import threading, time
import altair as alt
from psbench_widgets import LiveChart
spec = alt.Chart(alt.NamedData("source")).mark_line().encode(x="x:Q", y="y:Q", color="who:N").properties(
    width="container", height=200).to_dict()
chart = LiveChart(spec=spec, title="two lines", renderer="svg")
other = LiveChart(spec=spec, title="the other", renderer="svg")
chart
""",
    "other",
    """
def feed():
    for i in range(100):
        chart.append({"x": [i, i], "y": [i % 7, i % 5], "who": ["a", "b"]})
        time.sleep(0.03)
    chart.state = "done"
threading.Thread(target=feed).start()
""",
    "other.append({'x': [1.0, 2.0], 'y': [3.0, float('nan')], 'who': ['a', 'a']})",
]


@pytest.mark.nightly
def test_rows_arrive_survive_a_reload_and_stay_at_home(page: Page, screenshots: Path) -> None:
    page.open("chart", CELLS)
    page.run_all()
    web = page.page
    chart = web.locator(".psb-chart").first
    chart.wait_for()
    web.wait_for_function("() => Number(document.querySelector('.psb-chart').dataset.rows) > 20")
    page.reload()
    page.run_cell(1)  # a view that opens later
    web.wait_for_selector('.psb-chart[data-state="done"]')
    web.wait_for_function("() => document.querySelector('.psb-chart').dataset.rows === '200'")
    lines = web.locator(".psb-chart").first.locator('path[aria-roledescription="line mark"]')
    assert lines.count() == 2
    # every point once: 100 corners make a path of 100 commands
    assert [len(re.findall("[ML]", path.get_attribute("d") or "")) for path in lines.all()] == [100, 100]
    web.wait_for_function("() => document.querySelectorAll('.psb-chart')[1].dataset.rows === '2'")
    web.locator(".psb-chart-toggle").first.click()
    assert "every" in (web.locator(".psb-chart caption").first.text_content() or "")
    page.shot(screenshots / "live-chart.png")
    assert page.errors == []
    assert page.strangers == []
