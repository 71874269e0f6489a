"""The comparison, and the report as a file."""

from __future__ import annotations

import json
import os
import re
import statistics
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from widgets.direct import violations
from widgets.jupyter import FLAGS, browser_path, seldom_asking

from psbench.core.log import EventLog, Kind
from psbench.errors import ParameterError, SpecError
from psbench.metrics import interval, repeatability
from psbench.percents import spaced
from psbench.results import page as results_page
from psbench.results.html import table_html
from psbench.results.report import write_report
from psbench.results.run import Run
from psbench.results.text import two_digits
from psbench.runs.comparing import compare
from psbench.runs.execution import run as execute


class Elements(HTMLParser):
    """What a page would load, and whether its elements are closed."""

    VOID = frozenset({"meta", "line", "br", "wbr", "link", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "a" and values.get("href", "").startswith("#"):
            del values["href"]  # it leads to a place of the page itself
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


def test_a_report_of_two_strategies_has_figures_of_their_waiting(runs, monkeypatch):
    monkeypatch.setattr(results_page, "page", lambda _, **given: bool(given["between"]))
    assert [results_page._page(compare(some), None) for some in (runs[:1], runs[:3])] == [False, True]


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_a_run_that_ended_before_its_first_push_has_a_report(runs, kept, tmp_path):
    run = runs[0]
    stopped = Run(run.experiment, run.log.excerpt(run.log.rows()[:kept]), run.meta)
    assert not len(stopped.log.of_kind(Kind.PUSH)["time_s"])
    assert "<h1>" in write_report(tmp_path / "report.html", stopped).read_text()
    assert stopped.chart()


def test_text_states_the_budget_the_rates_and_the_doubts(comparison, runs):
    text = comparison.text(width=300)
    assert "equal budget: epochs 3 on digits, global batch 128" in text
    assert "warning: fewer than three seeds" in text
    assert "learning rate of asp: lr k/n" in text
    assert comparison.table().set_index("strategy")["lr_convention"]["asp"].startswith("asp: lr k/n")
    three = compare([*runs[:3], runs[0].experiment.but(seed=2)])  # of the first
    assert three.warnings == ["asp: fewer than three seeds: differences may be chance"]
    assert re.search(r"all_reduce +2 .* 1\.00\u00a0×", text)


def test_unequal_budgets_are_said(runs):
    other = runs[0].experiment.but(stop={"epochs": 1})
    comparison = compare([runs[0], other])
    assert comparison.budget.startswith("unequal budgets")
    assert any("compare with care" in text for text in comparison.warnings)
    assert comparison.text(width=400).count("unequal budgets") == 1
    assert list(comparison.groups) == ["all_reduce (epochs=3)", "all_reduce (epochs=1)"]


def test_experiments_are_run_with_as_many_seeds_as_asked_for(tiny):
    done = []
    comparison = compare([tiny("bsp", seed=5).but(stop={"updates": 2})], seeds=2, done=done.append)
    assert [run.meta["seed"] for run in comparison.runs] == [5, 6]
    assert done == comparison.runs


def test_what_cannot_be_compared_is_refused(runs, tiny):
    with pytest.raises(ParameterError, match="nothing to compare"):
        compare([])
    with pytest.raises(ParameterError, match="give a list of runs"):
        compare(runs[0])
    with pytest.raises(ParameterError, match="run: expected an Experiment, such as"):
        execute("asp")
    with pytest.raises(ParameterError, match="seeds = 0"):
        compare(runs, seeds=0)
    begun = []
    for given in (runs, [tiny("asp"), tiny("ssp")]):
        with pytest.raises(SpecError, match=r"unknown baseline 'spp'; did you mean '[as]sp'\? \(known: "):
            compare(given, baseline="spp", done=begun.append)
    assert begun == []


def other(run: Run, *, meta: dict | None = None, rows: int | None = None, **changes) -> Run:
    """A run of another specification, or with a log that ends earlier."""
    log = run.log
    if rows is not None:
        log = EventLog()
        log.extend(run.log.rows(0, rows), run.log.texts[1:])
    return Run(run.experiment.but(**changes), log, run.meta | (meta or {}))


def live(run: Run, name: str = "", rows: int | None = None) -> Run:
    meta = {"backend": "dask", "name": name or run.meta["name"]}
    return other(run, backend="dask", name=name, rows=rows, meta=meta)


def test_the_standard_deviation_is_beside_the_interval(comparison):
    table = comparison.table().set_index("strategy")
    accuracies = [run.summary()["final"]["val_accuracy"] for run in comparison.groups["asp"]]
    assert table.loc["asp", "val_accuracy_sd"] == pytest.approx(statistics.stdev(accuracies))
    assert table["train_accuracy"].between(0.5, 1).all()
    headings, (first, *_) = comparison.cells()
    half, deviation = (table.loc["all_reduce", f"time_s_{name}"] for name in ("ci", "sd"))
    assert first[headings.index("time (s)")].endswith(f" ± {two_digits(half)} ({two_digits(deviation)})")
    assert any("in brackets the standard deviation" in line for line in comparison.remarks)


def test_a_run_given_twice_is_one_seed_and_is_named(runs, tmp_path):
    again = Run.load(runs[2].save(tmp_path))  # the same record, read from a folder
    found = compare([runs[2], runs[3], again, runs[2]])
    assert [run.experiment.seed for run in found.groups["asp"]] == [0, 1]
    assert found.table()["val_accuracy_ci"][0] > 0
    assert "asp: seed 0 was given 3 times with the same run, which counts once" in found.remarks
    alone = compare([runs[2], runs[2]])
    assert alone.table()["n"].tolist() == [1]
    assert "±" not in alone.text(300).split("equal")[0].split("epochs")[0]


def test_the_same_seed_with_another_log_is_no_further_seed(runs):
    stopped = other(runs[2], rows=len(runs[2].log) // 2, meta={"status": "stopped"})
    found = compare([runs[2], runs[3], stopped])
    assert {label: len(each) for label, each in found.groups.items()} == {"asp #1": 2, "asp #2": 1}
    assert any(line.startswith("asp #2: repeats the seeds of another group") for line in found.remarks)


def test_live_runs_of_one_seed_are_repetitions_and_said_to_be(runs):
    repeated = live(runs[2], rows=len(runs[2].log) - 3)
    found = compare([live(runs[2]), repeated])
    assert found.table()["n"].tolist() == [2]
    assert "asp: seed 0 was run live 2 times: its repetitions count like seeds" in found.remarks


def test_the_notes_follow_a_label_that_is_renamed(runs):
    found = compare([runs[0], runs[2], runs[2]]).renamed({"asp": "mine", "all_reduce": "base"})
    assert list(found.groups) == ["base", "mine"]
    assert found.baseline == "base"
    assert any(line.startswith("mine: seed 0 was given 2 times") for line in found.remarks)


def test_virtual_and_wall_seconds_have_columns_of_their_own(runs, tmp_path):
    found = compare([*runs[:2], live(runs[2], name="on dask")])
    table = found.table().set_index("strategy")
    assert "time_s" not in table
    assert "time_to_target_s" not in table
    assert table["virtual_time_s"].notna().tolist() == [True, False]
    assert table["wall_time_s"].notna().tolist() == [False, True]
    assert table["virtual_time_s_sd"].notna().tolist() == [True, False]
    assert table["speed_up"].isna().tolist() == [False, True]
    assert table["virtual_time_to_target_at_least_s"].isna().all()
    headings, _ = found.cells()
    assert {"virtual time (s)", "wall time (s)", "backend"} <= set(headings)
    assert "time (s)" not in headings
    assert not {"connection", "recovery"} & set(found.differences)  # which simulated runs do not have
    assert "not the same backend: simulated (all_reduce); dask (on dask)" in found.remarks
    assert any("virtual and wall-clock seconds cannot be compared" in line for line in found.remarks)
    page = found.report(tmp_path / "r.html").read_text().split("<script>")[0]
    assert "Validation accuracy, virtual time" in page
    assert "Validation accuracy, wall time" in page
    assert "wall-clock seconds: not compared with all_reduce, on another test bed" in page
    for backend in ("simulated", "dask"):
        assert repeatability(backend) in page


def test_a_comparison_of_live_runs_says_whose_seconds_it_shows(runs):
    found = compare([live(runs[0]), live(runs[2])])
    assert "times are wall-clock seconds" in found.remarks
    assert found.table()["speed_up"].notna().all()


def test_whatever_differs_has_a_column_and_a_remark(runs, tmp_path):
    base, rival = runs[0], runs[2]
    changes = {
        "cluster": {"workers": 3, "speed": [1, 1, 0.25]},
        "sharding": "random",
        "model": "logistic",
        "optimizer": {"name": "sgd", "lr": 0.5},
        "data": {"name": "mixture"},
    }
    found = compare([base, other(rival, **changes)])
    table = found.table()
    for name in changes:
        assert len(set(table[name])) == 2, name
        assert any(line.startswith(f"not the same {name}: ") for line in found.remarks), name
    assert set(changes) <= set(found.cells()[0])
    assert table["sharding"].tolist() == ["stratified", "random"]
    assert "speed" in table["cluster"][1]
    assert "threads" not in table
    assert table["speed_up"].isna().tolist() == [False, True]
    assert found.target is None  # an accuracy on other data is no target
    assert "not the same data and model: accuracies and losses are of different tasks" in found.warnings
    page = found.report(tmp_path / "r.html").read_text().split("<script>")[0]
    assert "stratified, random" in page  # the header is not that of the first run alone


def test_what_does_not_differ_is_not_said(comparison):
    assert comparison.differences == {}
    assert not any("not the same" in line for line in comparison.remarks)


def test_a_comparison_is_plain_data(comparison):
    plain = comparison.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_the_reports_headings_leave_no_level_out(page):
    levels = [int(level) for level in re.findall(r"<h(\d)", page)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_report_loads_nothing(page):
    elements = Elements()
    elements.feed(page)
    assert elements.open == []
    assert elements.loaded == []
    assert len(set(elements.ids)) == len(elements.ids)
    assert "default-src 'none'" in page
    assert "@import" not in page.split("</style>")[0]
    assert page.count("window.vegaEmbed=") == 1  # the library is there once


def test_a_single_live_run_is_promised_no_equal_digest(runs, tmp_path):
    page = write_report(tmp_path / "r.html", live(runs[2])).read_text().split("<script>")[0]
    assert "Live runs: " + repeatability("dask") in page
    assert repeatability("simulated") not in page


def test_the_report_says_what_was_run_and_why_it_switched(page, comparison):
    (switch,) = comparison.groups["strategy_switch"][0].summary()["switches"]
    assert spaced(switch["reason"]).replace("&", "&amp;") in page
    assert "name: strategy_switch" in page  # the specification
    assert comparison.runs[0].log.digest() in page
    short, whole = re.findall(r"<thead>.*?</thead>", page)[:2]
    assert "staleness max" in whole
    assert "staleness max" not in short
    assert page.count(">Table</summary>") == page.count('class="chart"') > 20


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


def test_the_contents_of_a_report_lead_to_its_sections_which_fold(page):
    text = page.split("<script>")[0]
    contents = text.partition('<nav class="contents"')[2].partition("</nav>")[0]
    places = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', contents)
    assert [title for _, title in places][:3] == ["Results", "Waiting, staleness and traffic", "all_reduce"]
    heading = r"<summary><h2>([^<]+?)(?: <small>.*?)?</h2></summary>"
    folds = re.findall(rf'<details class="fold" open>{heading}\s*<div id="([^"]+)">', text)
    assert [(place, title) for title, place in folds] == places


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
    assert shown == table_html(*comparison.cells(), comparison.remarks)
    Elements().feed(shown)
    assert "strategy_switch" in shown


#: pixels by which something is wider than its place
OVER = "it => it.getBoundingClientRect().right - it.parentElement.getBoundingClientRect().right"
#: lines of text in each place of the first table
LINES = """(place) => [...document.querySelector('.fits > table').querySelectorAll(place)].map(it => {
  const text = document.createRange(); text.selectNodeContents(it);
  const boxes = [...text.getClientRects()].filter(box => box.height > 9);  // not the line of a chart
  return new Set(boxes.map(box => Math.round(box.top))).size; })"""
NAMES = ["All-Reduce with a momentum of 0.9", "delay_compensated_asp_with_lambda_0.04", "ASP", "ssp_of_3"]


@pytest.fixture(scope="module")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api")
    if (path := browser_path()) is None:
        pytest.skip("no Chromium")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.browser
def test_the_first_table_of_eight_long_names_fits_on_a_screen(runs, tmp_path, chromium):
    costs = {"busy_watts": 100.0, "idle_watts": 40.0, "price_per_hour": 3.6}
    cluster = {"workers": 3, "speed": [1, 1, 0.5], "costs": costs}
    priced = [execute(run.experiment.but(cluster=cluster, stop={"epochs": 1})) for run in runs[:2]]
    named = [other(run, name=name, meta={"name": name}) for name in NAMES for run in priced]
    found = compare([*named, *(live(run, f"{run.meta['name']}, live") for run in named)])
    assert len(found.groups) == 8
    path = found.report(tmp_path / "r.html")
    context = chromium.new_context(java_script_enabled=False)  # no chart is needed here
    page = context.new_page()
    for width in (1366, 1024):
        page.set_viewport_size({"width": width, "height": 768})
        page.goto(path.as_uri())
        assert page.locator(".fits > table").evaluate(OVER) <= 1
        assert page.evaluate("() => document.documentElement.scrollWidth") == width
        if width == 1366:
            assert {*page.evaluate(LINES, "tbody td")} == {1}
            assert max(page.evaluate(LINES, "th")) == 2
    shown = page.locator(".fits thead th").all_text_contents()
    assert {"virtual time (s)", "wall time (s)", "val. accuracy", "waiting", "energy (J)"} <= {*shown}
    assert {*shown} < {*found.cells()[0]}
    context.close()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_every_chart_is_drawn_in_a_browser_without_internet(comparison, tmp_path, chromium, scheme):
    path = comparison.report(tmp_path / "r.html")
    context = chromium.new_context(color_scheme=scheme, offline=True)
    page = seldom_asking(context.new_page())
    page.set_default_timeout(240_000)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-state=drawn]")
    assert violations(page, "body") == []
    assert page.locator(".chart svg").count() == page.locator(".chart").count() > 20
    page.locator("select[data-chart]").first.select_option("epoch")
    page.wait_for_function("document.querySelector('#chart-0 svg').textContent.includes('epochs (samples')")
    page.set_viewport_size({"width": 1366, "height": 768})
    assert {*page.evaluate(LINES, "tbody td")} == {1}  # a value stands beside its interval
    over = f"Math.max(...[...document.querySelectorAll('.chart svg, .fits > table')].map({OVER}))"
    page.wait_for_function(f"{over} <= 1")
    page.set_viewport_size({"width": 1024, "height": 800})
    page.wait_for_function(f"{over} <= 1")  # no table and no chart is cut off on a screen
    page.set_viewport_size({"width": 640, "height": 800})  # where a legend needs another row
    cut = (
        "[...document.querySelectorAll('.role-legend-label text')].filter((it) => "
        "it.getBoundingClientRect().top < it.closest('svg').getBoundingClientRect().top - 1).length"
    )
    page.wait_for_function(f"{cut} === 0")
    page.emulate_media(media="print")
    page.add_style_tag(content="main { width: 688px }")  # A4 with its margins; the window has its size
    page.wait_for_function(f"{over} <= 1")  # nor on paper
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # where no chart is shrunk
    shrunk = "it => it.getBoundingClientRect().width / it.viewBox.baseVal.width"
    assert page.evaluate(f"Math.min(...[...document.querySelectorAll('.chart svg')].map({shrunk}))") > 0.99
    page.wait_for_function(f"{over} <= 1")
    legends = "[...document.querySelectorAll('.role-legend-label text')]"
    assert page.evaluate(f"{legends}.filter(it => it.textContent.includes('…')).length") == 0
    context.close()
    assert said == []
