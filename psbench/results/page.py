"""The report of a comparison, section by section, as one HTML file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from psbench import charts
from psbench.errors import SpecError
from psbench.metrics import repeatability
from psbench.percents import spaced
from psbench.results.compared import Compared
from psbench.results.comparison_table import COLUMNS, FOLDED, FOLDED_NEXT, as_text
from psbench.results.explained import Explained
from psbench.results.html import page, swatch
from psbench.results.run import Run
from psbench.system.files import check_writable, write_text


def write_page(path: Path, comparison: Compared, why: Explained | None = None) -> Path:
    """Write the report of a comparison, whole or not at all, and return its path.

    Raises
    ------
    SpecError
        If the file cannot be written there.
    """
    if path.is_dir():
        raise SpecError(f"{path}: is a folder; name a file in it, such as {path / 'report.html'}")
    check_writable(path.absolute().parent)
    return write_text(path, _page(comparison, why))


def _page(comparison: Compared, why: Explained | None) -> str:
    groups = comparison.groups
    labels = [label for label, runs in groups.items() for _ in runs]
    looks = charts.looks(groups)
    headings, rows = comparison.cells()
    rows = [[name, *map(_with_its_unit, cells)] for name, *cells in rows]
    return page(
        "report.html",
        title=_title(comparison),
        facts=_facts(comparison),
        findings=_findings(comparison),
        why=None if why is None else _why(why),
        short=_without_folded(headings, rows),
        cells=(headings, rows),
        swatches=[swatch(look.colour, look.dash) for look in looks.values()],
        remarks=[line for line in comparison.remarks if not line.startswith("warning: ")],
        warnings=comparison.warnings,
        curves=charts.curves(comparison.runs, labels, comparison.axis),
        between=charts.comparison_figures(groups) if len(groups) > 1 else [],
        strategies=[_strategy(label, runs, list(groups)) for label, runs in groups.items()],
        shards=_shards(comparison),
        specifications={label: runs[0].experiment.to_yaml() for label, runs in groups.items()},
        digests=_digests(comparison),
        provenance=_provenance(comparison.runs),
    )


def _why(answer: Explained) -> dict[str, Any]:
    """Return the section that explains the difference of two runs."""
    return {
        "title": answer.question,
        "sentence": answer.sentence,
        "figures": [answer.figure()] if answer.explains else [],
        "causes": answer.cells(),
        "joint": answer.joint_cells(),
        "remarks": answer.remarks,
        "runs": answer.computed_cells(),
    }


def _with_its_unit(cell: str) -> str:
    """Return a table's number as HTML that may wrap before ± and brackets, but not before its unit."""
    return re.sub(r" (?=[%×])|(?<=±) ", "\u00a0", cell)


def _title(comparison: Compared) -> str:
    labels = list(comparison.groups)
    if len(labels) == 1:
        name = comparison.runs[0].experiment.title
        return name if name == labels[0] else f"{name}: {labels[0]}"
    return f"{', '.join(labels[:-1])} and {labels[-1]} compared"


def _facts(comparison: Compared) -> dict[str, str]:
    """Return facts about the runs: a single value, or all that occur."""
    of_each = [_facts_of(runs[0]) for runs in comparison.groups.values()]
    facts = {name: _joined(facts[name] for facts in of_each) for name in of_each[0]}
    return facts | {
        "budget": comparison.budget,
        "seeds": _joined(run.meta.get("seed") for run in comparison.runs),
    }


def _facts_of(run: Run) -> dict[str, str]:
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


#: after an interval, in brackets; the unit of both may follow
_DEVIATION = re.compile(r"(?<=\d) \([^)]*\)(?=$|\s)")


#: what a screen 1366 px wide has room for, and the space between two columns, in digits of a table
_ROOM, _GAP = 150, 2
#: the same, of the line that stands for a strategy in every chart
_SWATCH = 4


def _without_folded(
    headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Return the columns that matter most, with their intervals but without standard deviations."""
    names, *columns = zip(headings, *rows, strict=True)
    folded = {COLUMNS[name][0] for name in FOLDED}
    kept = [[column[0], *(_DEVIATION.sub("", cell) for cell in column[1:])] for column in columns]
    kept = [column for column in kept if column[0] not in folded]
    room = _ROOM - _SWATCH - _GAP - max(map(_width_in_two, names))
    for name in FOLDED_NEXT:
        if sum(_GAP + max(_width_in_two(column[0]), *map(len, column[1:])) for column in kept) > room:
            kept = [column for column in kept if column[0] != COLUMNS[name][0]]
    heads = [_over(*column) for column in kept]
    return [names[0], *heads], [
        [Markup("_<wbr>").join(name.split("_")), *(column[1 + i] for column in kept)]
        for i, name in enumerate(names[1:])
    ]


def _in_two(text: str) -> tuple[str, str]:
    """Return the two lines that a text takes in the narrowest column in which it takes no more."""
    words = re.split(r"(?<=[\s_])", text)
    lines = [("".join(words[:i]).rstrip(), "".join(words[i:])) for i in range(1, len(words) + 1)]
    return min(lines, key=lambda both: max(map(len, both)))


def _width_in_two(text: str) -> int:
    return max(map(len, _in_two(text)))


def _over(heading: str, *values: str) -> str:
    """Return a heading as HTML: in two lines if the values below it are shorter."""
    first, second = _in_two(heading)
    if not second or len(heading) <= max(map(len, values)):
        return heading
    return Markup("{} <br>{}").format(first, second)


def _findings(comparison: Compared) -> list[Markup]:
    """Return the table's findings as sentences with numbers."""
    records = {record["strategy"]: record for record in comparison.table().to_dict("records")}
    baseline = records.pop(comparison.baseline)
    found = [
        _speed_sentence(record, baseline, comparison.no_speed_up.get(label, ""))
        for label, record in records.items()
    ]
    for label, summaries in comparison.summaries.items():
        found += [_switch_sentence(label, summary) for summary in summaries if summary["switches"]]
    return found


def _speed_sentence(record: dict[Any, Any], other: dict[Any, Any], missing: str) -> Markup:
    """Return a sentence about a strategy's time and the result it reached in that time."""
    ratio, baseline = record["speed_up"], other["strategy"]
    if missing:
        than = f"not compared with {baseline}, {missing}"
    elif f"{max(ratio, 1 / ratio):.2f}" == "1.00":
        than = f"as long as {baseline}"
    elif ratio >= 1:
        than = f"{ratio:.2f} times as fast as {baseline}"
    else:
        than = f"{1 / ratio:.2f} times as long as {baseline}"
    # a line does not end inside an interval
    took, reached = (
        text.replace(" ± ", "\u00a0±\u00a0") for text in (_seconds(record), _reached(record, other))
    )
    values = (record["strategy"], took, than, reached)
    return Markup("<b>{}</b> took {}: {}{}.").format(*values)


def _reached(record: dict[Any, Any], other: dict[Any, Any]) -> str:
    """Return a phrase with both rows' accuracy, or else loss; empty if they were not evaluated."""
    for name, what in (("val_accuracy", "an accuracy"), ("val_loss", "a validation loss")):
        if all(row.get(name) is not None and row[name] == row[name] for row in (record, other)):
            own, others = (as_text(row, name, deviation=False) for row in (record, other))
            return f", with {what} of {own} against {others}"
    return ""


def _seconds(record: dict[Any, Any]) -> str:
    """Return the time of a row, with the clock if the rows have several."""
    for name, clock in (("time_s", ""), ("virtual_time_s", "virtual "), ("wall_time_s", "wall-clock ")):
        value = record.get(name)
        if value is not None and value == value:
            unit = f" {clock}seconds" if clock else "\u00a0s"
            return as_text(record, name, deviation=False) + unit
    raise ValueError("a row of a comparison has no time")


def _switch_sentence(label: str, summary: dict[str, Any]) -> Markup:
    switch = summary["switches"][0]
    what = f"switched from {switch['from']} to {switch['to']} at epoch {switch['epoch']:.1f}"
    said = f"{what} ({switch['time_s']:.4g} s), because {spaced(switch['reason'])}."
    return Markup("<b>{}</b>, seed {}: {}").format(label, summary["seed"], said)


def _strategy(label: str, runs: Sequence[Run], among: Sequence[str]) -> dict[str, Any]:
    """Return the section of a label: its first run's figures, those along time at full width."""
    first, *others = charts.worker_figures(runs[0], label, among)
    along = ["start_s" in figure.table for figure in others]
    return {
        "label": label,
        "seed": runs[0].meta.get("seed") if len(runs) > 1 else None,
        "wide": [first, *itertools.compress(others, along)],
        "rest": [figure for figure, wide in zip(others, along, strict=True) if not wide],
    }


def _shards(comparison: Compared) -> list[tuple[str, Sequence[charts.Figure]]]:
    """Return titles and figures of the labels of each worker: one set for all groups that have the same."""
    found = {label: charts.label_figures(runs[0]) for label, runs in comparison.groups.items()}
    tables = {label: each[0].table for label, each in found.items() if each}
    alike = {label: [other for other in tables if tables[other].equals(tables[label])] for label in tables}
    return [
        (", ".join(alike[label]) if len(alike[label]) < len(tables) else "", found[label])
        for label in tables
        if alike[label][0] == label
    ]


def _digests(comparison: Compared) -> tuple[list[str], list[list[str]]]:
    names = ("seed", "status", "reason", "digest", "params_digest")
    rows = [
        [label, *(str(summary.get(name)) for name in names)]
        for label, summaries in comparison.summaries.items()
        for summary in summaries
    ]
    headings = ["strategy", "seed", "status", "ended because"]
    return [*headings, "digest of the log", "digest of the parameters"], rows


def _provenance(runs: Sequence[Run]) -> list[str]:
    """Return the repeatability of each backend, and the sets of library versions, one line each."""
    backends = dict.fromkeys(run.experiment.backend for run in runs)
    versions = (
        ", ".join(f"{name} {version}" for name, version in run.meta.get("versions", {}).items())
        for run in runs
    )
    return [*map(_repeats, backends), *dict.fromkeys(versions)]


def _repeats(backend: str) -> str:
    name = {"simulated": "Simulated runs", "dask": "Live runs"}.get(backend, f"Runs of {backend}")
    return f"{name}: {repeatability(backend)}"
