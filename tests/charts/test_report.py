"""The comparison, and the report as a file."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from psbench.errors import ParameterError, SpecError
from psbench.metrics import interval
from psbench.results.comparison import compare
from psbench.results.report import table_html, write_report


class Elements(HTMLParser):
    """What a page would load, and whether its elements are closed."""

    VOID = frozenset({"meta", "line", "br", "link", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.loaded += [f"{tag} {values[n]}" for n in ("src", "href", "data", "action") if values.get(n)]
        if "id" in values:
            self.ids.append(values["id"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def comparison(runs):
    return compare(runs)


@pytest.fixture(scope="module")
def page(comparison, tmp_path_factory) -> str:
    return comparison.report(tmp_path_factory.mktemp("report") / "deep" / "r.html").read_text()


def test_runs_that_differ_in_their_seed_only_are_one_group(comparison):
    assert {label: len(runs) for label, runs in comparison.groups.items()} == {
        "all_reduce": 2, "asp": 2, "strategy_switch": 1,
    }  # fmt: skip
    assert comparison.baseline == "all_reduce"


def test_the_table_has_means_intervals_and_speed_up(comparison):
    table = comparison.table().set_index("strategy")
    times = [run.summary()["time_s"] for run in comparison.groups["asp"]]
    mean, half = interval(times)
    assert table.loc["asp", "time_s"] == pytest.approx(mean)
    assert table.loc["asp", "time_s_ci"] == pytest.approx(half)
    assert half == pytest.approx(12.706204736 * abs(times[0] - times[1]) / 2)  # t of one degree of freedom
    assert table.loc["asp", "speed_up"] == pytest.approx(table.loc["all_reduce", "time_s"] / mean)
    assert table.loc["all_reduce", "speed_up"] == 1
    assert (
        table.loc["strategy_switch", "time_s_ci"] != table.loc["strategy_switch", "time_s_ci"]
    )  # one seed: none


def test_text_states_the_budget_the_rates_and_the_doubts(comparison):
    text = comparison.text(width=200)
    assert "equal budget: epochs 3 on digits, global batch 128" in text
    assert "warning: fewer than three seeds" in text
    assert "learning rate of asp: lr k/n" in text
    assert re.search(r"all_reduce +2 .* 1\.00 ×", text)


def test_unequal_budgets_are_said(runs):
    other = runs[0].experiment.but(stop={"epochs": 1})
    comparison = compare([runs[0], other])
    assert comparison.budget.startswith("unequal budgets")
    assert any("compare with care" in text for text in comparison.warnings)
    assert list(comparison.groups) == ["all_reduce (epochs=3.0)", "all_reduce (epochs=1.0)"]


def test_experiments_are_run_with_as_many_seeds_as_asked_for(tiny):
    done = []
    comparison = compare([tiny("bsp", seed=5).but(stop={"updates": 2})], seeds=2, done=done.append)
    assert [run.meta["seed"] for run in comparison.runs] == [5, 6]
    assert done == comparison.runs


def test_what_cannot_be_compared_is_refused(runs):
    with pytest.raises(ParameterError, match="nothing to compare"):
        compare([])
    with pytest.raises(ParameterError, match="seeds = 0"):
        compare(runs, seeds=0)
    with pytest.raises(ParameterError, match=r"no run is called 'spp' \(there are: all_reduce, asp"):
        compare(runs, baseline="spp")


def test_a_comparison_is_plain_data(comparison):
    plain = comparison.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_the_report_loads_nothing(page):
    elements = Elements()
    elements.feed(page)
    assert elements.open == []
    assert elements.loaded == []
    assert len(set(elements.ids)) == len(elements.ids)
    assert "default-src 'none'" in page
    assert "@import" not in page.split("</style>")[0]
    assert page.count("window.vegaEmbed=") == 1  # the library is there once


def test_the_report_says_what_was_run_and_why_it_switched(page, comparison):
    (switch,) = comparison.groups["strategy_switch"][0].summary()["switches"]
    assert switch["reason"].replace("&", "&amp;") in page
    assert "name: strategy_switch" in page  # the specification
    assert comparison.runs[0].log.digest() in page
    assert page.count("<details><summary>Table</summary>") == page.count('class="chart"') > 20


def test_text_of_a_user_cannot_break_the_page(runs, tmp_path):
    run = runs[2]
    nasty = type(run)(run.experiment, run.log, run.meta | {"name": "</script><script>alert(1)</script>"})
    page = write_report(tmp_path / "r.html", nasty).read_text()
    assert "<script>alert(1)" not in page
    Elements().feed(page)


def test_a_single_run_has_a_report_without_a_comparison(runs, tmp_path):
    page = write_report(tmp_path / "r.html", runs[2]).read_text()
    assert "speed-up" not in page.split("<script>")[0]
    assert "Waiting, staleness and traffic" not in page


def test_a_report_that_cannot_be_written_says_so_and_leaves_nothing(runs, tmp_path):
    with pytest.raises(SpecError, match="is a folder; name a file in it"):
        write_report(tmp_path, runs[2])
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"file: cannot be written: .*; choose another output folder"):
        write_report(tmp_path / "file" / "r.html", runs[2])
    with pytest.raises(ParameterError, match="no run to report"):
        write_report(tmp_path / "r.html", [])
    assert os.listdir(tmp_path) == ["file"]


def test_an_older_report_is_replaced_whole(runs, tmp_path):
    path = tmp_path / "r.html"
    path.write_text("old")
    assert write_report(path, runs[2]) == path
    assert path.read_text().endswith("</html>\n")
    assert os.listdir(tmp_path) == ["r.html"]


def test_a_notebook_shows_the_table(comparison):
    shown = comparison._repr_html_()
    assert shown == table_html(comparison)
    Elements().feed(shown)
    assert "strategy_switch" in shown


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_is_drawn_in_a_browser_without_internet(comparison, tmp_path, scheme):
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = Path("/usr/bin/chromium")
    if not chromium.exists():
        pytest.skip("no Chromium")
    path = comparison.report(tmp_path / "r.html")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-background-networking",
    ]
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(chromium), args=flags)
        page = browser.new_context(color_scheme=scheme, offline=True).new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-state=drawn]", timeout=60_000)
        assert page.locator(".chart svg").count() == page.locator(".chart").count() > 20
        page.locator("select[data-chart]").first.select_option("epoch")
        page.wait_for_function(
            "document.querySelector('#chart-0 svg').textContent.includes('epochs (samples')"
        )
        browser.close()
    assert said == []
