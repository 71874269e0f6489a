"""Every number that a report shows, in tables, sentences and charts, is the one that plain loops give."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from oracles import comparisons, drawings
from oracles.summaries import data_of, digest_of, switches_of

import psbench as ps
from psbench.results.comparison import Comparison
from psbench.results.comparison_table import COLUMNS
from psbench.results.run import Run

#: two strategies with seeds, one of them switching; one that loses workers; one that evaluates in batches
CHOSEN = ("ring", "switch", "losses", "local steps", "moving")
#: rows of a figure's table that are shown
MOST = 60
#: elements without an end
EMPTY = ("meta", "line")


@dataclass
class Table:
    headings: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


@dataclass
class Figure:
    title: str = ""
    table: Table = field(default_factory=Table)


@dataclass
class Section:
    title: str = ""
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """What a reader of a report sees: facts, sections, tables, figures; and the charts' specifications."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.facts: dict[str, str] = {}
        self.sections: list[Section] = []
        self._open: list[str] = []
        self._text = self._term = ""
        self._table: Table | None = None
        self._in_findings = False
        self.feed(text)
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
        assert found
        self.specs: list[dict[str, Any]] = json.loads(found[1])["specs"]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._text = "" if tag in ("h2", "h3", "th", "td", "dt", "dd", "li") else self._text
        if tag == "section":
            self.sections.append(Section())
        elif tag == "figure":
            self.sections[-1].figures.append(Figure())
        elif tag == "table":
            self._table = Table()
            inside = "figure" in self._open
            if inside:
                self.sections[-1].figures[-1].table = self._table
            else:
                self.sections[-1].tables.append(self._table)
        elif tag == "tr" and "tbody" in self._open and self._table is not None:
            self._table.rows.append([])
        elif tag == "ul":
            self._in_findings = ("class", "findings") in attrs
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in EMPTY:
            return
        while self._open and self._open.pop() != tag:
            pass
        text = self._text.strip()
        if tag == "dt":
            self._term = text
        elif tag == "dd":
            self.facts[self._term] = text
        elif tag == "h2":
            self.sections[-1].title = text
        elif tag == "h3" and "figcaption" in self._open:
            self.sections[-1].figures[-1].title = text
        elif tag == "li" and self._in_findings:
            self.sections[-1].findings.append(text)
        elif tag in ("th", "td") and self._table is not None:
            row = self._table.rows[-1] if "tbody" in self._open else self._table.headings
            row.append(text)

    def handle_data(self, data: str) -> None:
        self._text += data


@pytest.fixture(scope="session")
def compared(runs: dict[str, list[Run]]) -> Comparison:
    return ps.compare([run for name in CHOSEN for run in runs[name]]).renamed({"asp": "losing workers"})


@pytest.fixture(scope="session")
def page(compared: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Page:
    path: Path = compared.report(tmp_path_factory.mktemp("report") / "report.html")
    return Page(path.read_text())


def printed(text: str, value: float, what: object) -> None:
    """Check that a text is this number, rounded to the digits that it has."""
    digits, _, power = text.partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    if "." not in digits and value:  # such as "12" of two digits
        unit = max(unit, 10.0 ** (len(digits.lstrip("-")) - 2)) if len(digits) > 2 else unit
    assert abs(float(text) - value) <= 0.5 * unit * (1 + 1e-9), (what, text, value)


def test_facts_of_the_data_the_model_and_the_cluster(page: Page, compared: Comparison) -> None:
    first = compared.runs[0]
    sizes = dict.fromkeys(len(data_of(run).train_y) for run in compared.runs)
    assert page.facts["data"] == ", ".join(f"mixture ({size:,} training samples)" for size in sizes)
    parameters = dict.fromkeys(
        f"{run.experiment.model.name} ({sum(p.numel() for p in run.model().parameters()):,} parameters)"
        for run in compared.runs
    )
    assert page.facts["model"] == ", ".join(parameters)
    workers = dict.fromkeys(f"custom ({run.experiment.num_workers} workers)" for run in compared.runs)
    assert page.facts["cluster"] == ", ".join(workers)
    assert page.facts["seeds"] == "0, 1"
    assert page.facts["backend"] == "simulated (virtual time)"
    assert page.facts["sharding"] == first.experiment.sharding.name


def test_numbers_of_the_table(page: Page, compared: Comparison) -> None:
    table = page.sections[0].tables[-1]  # that of all columns, below the short one
    expected = comparisons.table_of(compared.groups, compared.baseline, compared.target)
    titles = {title: name for name, (title, _, _, _) in COLUMNS.items()}
    seen = set()
    for label, cells in zip(expected, table.rows, strict=True):
        assert cells[0] == label
        for heading, cell in zip(table.headings, cells, strict=True):
            name = titles.get(heading)
            if name is None or name == "strategy":
                continue
            seen.add(name)
            value, factor = expected[label][name], COLUMNS[name][2]
            if value is None:
                assert cell == "–", (label, heading)
                continue
            numbers = re.findall(r"-?[\d.]+(?:e[-+]\d+)?", cell)
            printed(numbers[0], value * factor, (label, heading))
            if len(numbers) > 1:
                printed(numbers[1], expected[label][f"{name}_ci"] * factor, (label, heading, "interval"))
                printed(numbers[2], expected[label][f"{name}_sd"] * factor, (label, heading, "deviation"))
    assert {"n", "time_s", "speed_up", "switch_epoch", "idle_fraction", "bytes", "staleness_max"} <= seen


def test_sentences_on_times_and_switches(page: Page, compared: Comparison) -> None:
    expected = comparisons.table_of(compared.groups, compared.baseline, compared.target)
    found = list(page.sections[0].findings)
    for label in expected:
        if label == compared.baseline:
            continue
        text = found.pop(0)
        assert text.startswith(f"{label} took ")
        without_interval = re.sub("\u00a0±\u00a0[\\d.]+(?=\u00a0s)", "", text.removeprefix(label), count=1)
        numbers = re.findall(r"[\d.]+", without_interval.replace("s.", "s"))
        printed(numbers[0], expected[label]["time_s"], text)
        ratio = expected[label]["speed_up"]
        if ratio is None:
            assert "not compared" in text
            continue
        word = "fast" if ratio >= 1 else "long"
        assert f" times as {word} as {compared.baseline}, with an accuracy of " in text
        printed(numbers[1], max(ratio, 1 / ratio), text)
        own, other = re.search(r"of ([\d.]+)[^a-z]* against ([\d.]+)", text).groups()
        for number, row in ((own, label), (other, compared.baseline)):
            printed(number, 100 * expected[row]["val_accuracy"], text)
    for label, runs in compared.groups.items():
        for run in runs:
            names = [c.name for c in run.experiment.strategy.compositions]
            for switch in switches_of(drawings.rows_of(run.log), run.meta["dataset_size"], names)[:1]:
                epoch, time_s = f"{switch['epoch']:.1f}", f"{switch['time_s']:.4g}"
                ways = f"from {switch['from']} to {switch['to']} at epoch {epoch} ({time_s} s)"
                text = f"{label}, seed {run.experiment.seed}: switched {ways}, because {switch['reason']}."
                assert found.pop(0) == re.sub("([0-9])%", "\\1\u00a0%", text)
    assert found == []


def figures_of(compared: Comparison) -> dict[str, list[drawings.Table]]:
    """Return the tables of the figures of each section, in the order of the page."""
    groups = compared.groups
    found = {
        "Results": [
            [row for label, own in groups.items() for row in drawings.evaluated(label, own, value)]
            for value in ("val_accuracy", "train_accuracy", "val_loss", "train_loss")
        ],
        "Waiting, staleness and traffic": [
            [row for label, own in groups.items() for row in drawings.time_use(label, own)],
            drawings.idles(groups),
            [row for label, own in groups.items() for row in drawings.fates(label, own)],
            *(
                [
                    row
                    for label, own in groups.items()
                    for row in drawings.spread(label, [value for run in own for value in values(run)])
                ]
                for values in (drawings.staleness, drawings.leads)
            ),
            [row for label, own in groups.items() for row in drawings.traffic(label, own)],
            drawings.pareto(groups),
            drawings.pareto(groups),
        ],
    }
    for label, own in groups.items():
        found[label] = [table for tables in drawings.of_run(own[0], label).values() for table in tables]
    return found


def test_tables_and_charts_of_all_figures(page: Page, compared: Comparison) -> None:
    specs = iter(page.specs)
    expected = figures_of(compared)
    for section in page.sections:
        drawn = [next(specs) for _ in section.figures]
        known = expected.get(section.title.removesuffix(" seed 0"))
        if known is None:
            continue
        figures = zip(section.figures, drawn, strict=True)
        of_logs = [pair for pair in figures if not pair[0].title.startswith("What each server holds")]
        del expected[section.title.removesuffix(" seed 0")]
        for (figure, spec), table in zip(of_logs, known, strict=True):
            check(figure, spec, table)
    assert expected == {}
    assert next(specs, None) is None


def check(figure: Figure, spec: dict[str, Any], expected: drawings.Table) -> None:
    (values,) = spec["datasets"].values()
    if not expected and figure.title == "Waiting, by reason":
        assert values == [{"words": "No worker waited."}]
        return
    rows = [row for row in values if "event" not in row or row["event"] is None or "relative" in row]
    known = {name for row in rows for name in row}
    drawings.same(rows, [{n: v for n, v in row.items() if n in known} for row in expected], 1e-5)
    every = max(1, -(-len(expected) // MOST))
    shown = figure.table
    assert len(shown.rows) == -(-len(expected) // every), figure.title
    for cells in shown.rows if every == 1 else ():
        row = dict(zip(shown.headings, cells, strict=True))
        assert any(_is(row, each) for each in expected), (figure.title, row)


def _is(row: dict[str, str], expected: dict[str, Any]) -> bool:
    """Whether the texts of a row are these values, to four digits."""
    for name, text in row.items():
        value = expected.get(name)
        if isinstance(value, (str, bool)) or value is None or not text:
            if text != ("" if value is None else str(value)):
                return False
        elif abs(float(text) - value) > 6e-4 * abs(value) + 1e-12:
            return False
    return True


def test_digests_and_how_each_run_ended(page: Page, compared: Comparison) -> None:
    (table,) = page.sections[-1].tables
    rows = iter(table.rows)
    for label, runs in compared.groups.items():
        for run in runs:
            assert run.parameters is not None
            assert run.buffers is not None
            model = hashlib.sha256(run.parameters.numpy().tobytes() + run.buffers.numpy().tobytes())
            facts = [run.meta["status"], run.meta["reason"], digest_of(run.log), model.hexdigest()]
            assert next(rows) == [label, str(run.experiment.seed), *facts]
    assert next(rows, None) is None
