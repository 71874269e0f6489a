"""The report of a comparison, section by section, as one HTML file."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from psbench import charts
from psbench.errors import SpecError
from psbench.metrics import repeatability
from psbench.results.comparison_table import COLUMNS, FOLDED
from psbench.results.html import FigureList, cells_table, document, swatch
from psbench.results.run import Run
from psbench.system.files import atomic_write, check_writable


class Compared(Protocol):
    """What a report reads of a comparison (`Comparison`), which writes reports itself."""

    @property
    def groups(self) -> Mapping[str, Sequence[Run]]:
        """Runs by label."""

    @property
    def baseline(self) -> str:
        """The label that speed-ups refer to."""

    @property
    def runs(self) -> list[Run]:
        """All runs."""

    @property
    def strategies(self) -> dict[str, str]:
        """The strategy that each label stands for."""

    @property
    def summaries(self) -> dict[str, list[dict[str, Any]]]:
        """The summary of each run."""

    @property
    def budget(self) -> str:
        """What every run was given."""

    @property
    def no_speed_up(self) -> dict[str, str]:
        """Why there is no speed-up of a group."""

    @property
    def remarks(self) -> list[str]:
        """What the numbers mean, and the warnings."""

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before believing a difference."""

    def table(self) -> pd.DataFrame:
        """Return one row per label."""

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the table as headings and rows of text."""


def write_page(path: Path, comparison: Compared) -> Path:
    """Write the report of a comparison, whole or not at all, and return its path.

    Raises
    ------
    SpecError
        If the file cannot be written there.
    """
    if path.is_dir():
        raise SpecError(f"{path}: is a folder; name a file in it, such as {path / 'report.html'}")
    folder = path.absolute().parent
    check_writable(folder)
    text = _page(comparison)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode())
    return path


def _page(comparison: Compared) -> str:
    figures = FigureList()
    body = [_header(comparison), _overview(comparison, figures)]
    if len(comparison.groups) > 1:
        body.append(_between(comparison, figures))
    body += [_strategy(label, runs, comparison, figures) for label, runs in comparison.groups.items()]
    body += [_data(comparison, figures), _provenance(comparison)]
    return document(_title(comparison), body, figures)


def _title(comparison: Compared) -> str:
    labels = list(comparison.groups)
    if len(labels) == 1:
        name = comparison.runs[0].meta.get("name") or labels[0]
        return str(name) if name == labels[0] else f"{name}: {labels[0]}"
    return f"{', '.join(labels[:-1])} and {labels[-1]} compared"


def _header(comparison: Compared) -> str:
    of_each = [_facts(runs[0]) for runs in comparison.groups.values()]
    facts = {name: _joined(facts[name] for facts in of_each) for name in of_each[0]}
    facts |= {"budget": comparison.budget, "seeds": _joined(run.meta.get("seed") for run in comparison.runs)}
    items = "".join(
        f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts.items()
    )
    return f"<header><h1>{html.escape(_title(comparison))}</h1><dl class='facts'>{items}</dl></header>"


def _facts(run: Run) -> dict[str, str]:
    spec, meta = run.experiment.spec(), run.meta
    backend = str(meta.get("backend"))
    return {
        "data": f"{spec['data']['name']} ({meta['dataset_size']:,} training samples)",
        "model": f"{spec['model']['name']} ({meta.get('num_parameters', 0):,} parameters)",
        "cluster": f"{spec['cluster']['name']} ({meta.get('num_workers')} workers)",
        "sharding": str(spec["sharding"]["name"]),
        "backend": backend + {"simulated": " (virtual time)", "dask": " (wall-clock time)"}.get(backend, ""),
    }


def _joined(values: Iterable[Any]) -> str:
    """Return the different values, in the order in which they first occur."""
    return ", ".join(dict.fromkeys(str(value) for value in values))


def _overview(comparison: Compared, figures: FigureList) -> str:
    labels = [label for label, runs in comparison.groups.items() for _ in runs]
    curves = charts.curves(comparison.runs, labels, comparison.strategies)
    looks = charts.looks(comparison.groups, comparison.strategies.values())
    swatches = [swatch(look.colour, look.dash) for look in looks.values()]
    return (
        "<section><h2>Results</h2>"
        + _findings(comparison)
        + _results(*comparison.cells(), swatches)
        + _notes(line for line in comparison.remarks if not line.startswith("warning: "))
        + _warnings(comparison.warnings)
        + figures.grid(curves)
        + "</section>"
    )


def _results(headings: Sequence[str], rows: Sequence[Sequence[str]], swatches: Sequence[str]) -> str:
    """Return the table with the columns that matter most, and all columns folded below it."""
    folded = {COLUMNS[name][0] for name in FOLDED}
    kept = [place for place, heading in enumerate(headings) if heading not in folded]
    short = cells_table([headings[i] for i in kept], [[row[i] for i in kept] for row in rows], swatches)
    if len(kept) == len(headings):
        return f'<div class="wide fits">{short}</div>'
    whole = cells_table(headings, rows, swatches)
    return (
        f'<div class="wide fits">{short}</div>'
        f'<details><summary>All columns</summary><div class="wide">{whole}</div></details>'
    )


def _findings(comparison: Compared) -> str:
    """Return in sentences what the table says, each with its numbers."""
    found = [
        _speed_sentence(record, comparison.baseline, comparison.no_speed_up.get(record["strategy"], ""))
        for record in comparison.table().to_dict("records")
        if record["strategy"] != comparison.baseline
    ]
    for label, summaries in comparison.summaries.items():
        found += [_switch_sentence(label, summary) for summary in summaries if summary["switches"]]
    return f"<ul class='findings'>{''.join(f'<li>{text}</li>' for text in found)}</ul>" if found else ""


def _speed_sentence(record: dict[Any, Any], baseline: str, missing: str) -> str:
    ratio, other = record["speed_up"], html.escape(baseline)
    if missing:
        than = f"not compared with {other}, {missing}"
    elif ratio >= 1:
        than = f"{ratio:.2f} times faster than {other}"
    else:
        than = f"{1 / ratio:.2f} times slower than {other}"
    return f"<b>{html.escape(record['strategy'])}</b> took {_seconds(record)}: {than}."


def _seconds(record: dict[Any, Any]) -> str:
    """Return the time of a row, with the clock where the rows are on several."""
    for name, clock in (("time_s", ""), ("virtual_time_s", "virtual "), ("wall_time_s", "wall-clock ")):
        value = record.get(name)
        if value is not None and value == value:
            return f"{value:.4g} {clock}s" if not clock else f"{value:.4g} {clock}seconds"
    raise ValueError("a row of a comparison has no time")


def _switch_sentence(label: str, summary: dict[str, Any]) -> str:
    switch = summary["switches"][0]
    return (
        f"<b>{html.escape(label)}</b>, seed {summary['seed']}: switched from {html.escape(switch['from'])} "
        f"to {html.escape(switch['to'])} at epoch {switch['epoch']:.1f} ({switch['time_s']:.4g} s), because "
        f"{html.escape(switch['reason'])}."
    )


def _notes(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<ul class="note">{items}</ul>'


def _warnings(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f'<aside class="warnings"><strong>Warnings</strong><ul>{items}</ul></aside>'


def _between(comparison: Compared, figures: FigureList) -> str:
    between = charts.comparison_figures(comparison.groups, comparison.strategies)
    return f"<section><h2>Waiting, staleness and traffic</h2>{figures.grid(between)}</section>"


def _strategy(label: str, runs: Sequence[Run], comparison: Compared, figures: FigureList) -> str:
    run = runs[0]
    seed = f" <small>seed {run.meta.get('seed')}</small>" if len(runs) > 1 else ""
    first, *others = charts.worker_figures(run, label, comparison.strategies[label])
    wide = [first, *(f for f in others if "start_s" in f.table)]
    rest = [f for f in others if "start_s" not in f.table]
    return (
        f"<section><h2>{html.escape(label)}{seed}</h2>"
        + "".join(figures.place(figure) for figure in wide)
        + figures.grid(rest)
        + "</section>"
    )


def _data(comparison: Compared, figures: FigureList) -> str:
    """Return the labels of each worker: one figure for all groups that have the same."""
    found = {label: charts.label_figures(runs[0]) for label, runs in comparison.groups.items()}
    tables = {label: each[0].table for label, each in found.items() if each}
    parts = []
    for label, table in tables.items():
        alike = [other for other, its in tables.items() if its.equals(table)]
        if label == alike[0]:
            named = f"<h3>{html.escape(', '.join(alike))}</h3>" if len(alike) < len(tables) else ""
            parts.append(named + "".join(figures.place(figure) for figure in found[label]))
    return f"<section><h2>Data</h2>{''.join(parts)}</section>" if parts else ""


def _provenance(comparison: Compared) -> str:
    specs = "".join(
        f"<details><summary>Specification of {html.escape(label)}</summary>"
        f"<pre>{html.escape(runs[0].experiment.to_yaml())}</pre></details>"
        for label, runs in comparison.groups.items()
    )
    names = ("seed", "status", "reason", "digest", "params_digest")
    rows = [
        [label, *(str(summary.get(name)) for name in names)]
        for label, summaries in comparison.summaries.items()
        for summary in summaries
    ]
    headings = ["strategy", "seed", "status", "ended because"]
    headings += ["digest of the log", "digest of the parameters"]
    backends = dict.fromkeys(run.experiment.backend for run in comparison.runs)
    return (
        f"<section><h2>Specification and provenance</h2>{specs}"
        "<details><summary>Digests</summary>"
        f'<div class="wide digests">{cells_table(headings, rows)}</div></details>'
        + "".join(f'<p class="note">{html.escape(_repeats(backend))}</p>' for backend in backends)
        + "".join(f'<p class="note">{html.escape(line)}</p>' for line in _versions(comparison.runs))
        + "</section>"
    )


def _repeats(backend: str) -> str:
    name = {"simulated": "Simulated runs", "dask": "Live runs"}[backend]
    return f"{name}: {repeatability(backend)}"


def _versions(runs: Sequence[Run]) -> list[str]:
    """Return the versions of the libraries, a line for each set of them."""
    lines = (
        ", ".join(f"{name} {version}" for name, version in run.meta.get("versions", {}).items())
        for run in runs
    )
    return list(dict.fromkeys(lines))
