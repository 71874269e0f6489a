"""One self-contained HTML file about a run or a comparison; it opens with no internet.

Vega, Vega-Lite and vega-embed are written into the file once, the charts as specifications. A content
security policy in the file forbids it to load anything from anywhere.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from psbench import charts
from psbench.charts import Figure
from psbench.errors import ParameterError, SpecError
from psbench.results.comparison import Comparison, compare
from psbench.system.files import atomic_write, check_writable

if TYPE_CHECKING:
    from psbench.results.run import Run
    from psbench.results.search import Search

#: rows of a chart's table that are shown; more is no help to a reader
TABLE_ROWS = 60

#: what the page may load: nothing; Vega makes functions of its expressions, hence 'unsafe-eval'
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'"


def write_report(path: str | Path, what: Comparison | Run | Sequence[Run]) -> Path:
    """Write a report and return its path.

    Parameters
    ----------
    path : path
        The HTML file; it is written whole or not at all.
    what : Comparison, Run, or sequence of Run

    Raises
    ------
    SpecError
        If the file cannot be written there.
    ParameterError
        If there is no run to report.
    """
    path = Path(path)
    comparison = _comparison(what)
    _check_target(path)
    return _write(path, _page(comparison))


def table_html(what: Comparison | Search) -> str:
    """Return a table and the remarks below it as a piece of HTML, for a notebook."""
    remarks = "".join(f"<div><small>{html.escape(line)}</small></div>" for line in what.remarks)
    return _cells_table(*what.cells()) + remarks


def _comparison(what: Comparison | Run | Sequence[Run]) -> Comparison:
    if isinstance(what, Comparison):
        return what
    runs = list(what) if isinstance(what, Sequence) else [what]
    if not runs:
        raise ParameterError("report: there is no run to report")
    return compare(runs)


# ---------------------------------------------------------------- writing


def _check_target(path: Path) -> None:
    """Refuse a file that cannot be written, before any work."""
    if path.is_dir():
        raise SpecError(f"{path}: is a folder; name a file in it, such as {path / 'report.html'}")
    check_writable(path.absolute().parent)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode())
    return path


# ---------------------------------------------------------------- the page


def _page(comparison: Comparison) -> str:
    several = len(comparison.groups) > 1
    figures = _Figures()
    body = [_header(comparison), _overview(comparison, figures)]
    if several:
        body.append(_between(comparison, figures))
    body += [_strategy(label, runs, comparison, figures) for label, runs in comparison.groups.items()]
    body += [_data(comparison, figures), _provenance(comparison)]
    title = html.escape(_title(comparison))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>\n{_asset('report.css')}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n"
        + figures.scripts()
        + "</body>\n</html>\n"
    )


class _Figures:
    """The charts of a page: their places in it, and at its end their specifications and what draws them."""

    def __init__(self) -> None:
        self.specs: list[dict[str, Any]] = []

    def place(self, figure: Figure) -> str:
        """Return the HTML of a figure: title, place of the chart, note, and its table."""
        spec = figure.spec
        title = spec.pop("title", "")
        subtitle = ""
        if isinstance(title, dict):
            title, subtitle = title["text"], title.get("subtitle", "")
        number = len(self.specs)
        self.specs.append(spec)
        note = " ".join(
            text for text in (subtitle and f"{subtitle[0].upper()}{subtitle[1:]}.", figure.note) if text
        )
        described = html.escape(spec.get("description", title), quote=True)
        return (
            f"<figure><figcaption><h4>{html.escape(title)}</h4>{_axis_choice(spec, number)}</figcaption>"
            f'<div class="chart" id="chart-{number}" role="img" aria-label="{described}"></div>'
            + (f'<p class="note">{html.escape(note)}</p>' if note else "")
            + f"<details><summary>Table</summary>{_frame_table(figure.table)}</details></figure>"
        )

    def grid(self, figures: Iterable[Figure]) -> str:
        """Return figures side by side where there is room."""
        return '<div class="grid">' + "".join(self.place(figure) for figure in figures) + "</div>"

    def scripts(self) -> str:
        """Return Vega (once), the specifications, and what draws them."""
        import vl_convert

        data = {"light": charts.theme(), "dark": charts.theme(dark=True), "specs": self.specs}
        return (
            f"<script>{_in_script(vl_convert.javascript_bundle())}</script>\n"  # type: ignore[call-arg]
            f'<script type="application/json" id="data">{_json_in_script(data)}</script>\n'
            f"<script>\n{_asset('report.js')}</script>\n"
        )


def _axis_choice(spec: dict[str, Any], number: int) -> str:
    """Return a choice of what a curve is drawn against, if it has one."""
    axes = spec.get("usermeta", {}).get("axes", {})
    if not axes:
        return ""
    short = {"time_s": "time", "epoch": "epochs", "updates": "updates", "bytes": "bytes"}
    options = "".join(
        f'<option value="{name}"{" selected" if name == spec["usermeta"]["x"] else ""}>{short[name]}</option>'
        for name in axes
    )
    return f'<label class="axis">against <select data-chart="{number}">{options}</select></label>'


def _in_script(code: str) -> str:
    """Return code that may stand inside a script element: no text in it can end the element."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", code, flags=re.IGNORECASE)


def _json_in_script(data: Any) -> str:
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return resources.files("psbench.charts").joinpath(name).read_text(encoding="utf-8")


# ---------------------------------------------------------------- sections


def _title(comparison: Comparison) -> str:
    labels = list(comparison.groups)
    if len(labels) == 1:
        name = comparison.runs[0].meta.get("name") or labels[0]
        return str(name) if name == labels[0] else f"{name}: {labels[0]}"
    return f"{', '.join(labels[:-1])} and {labels[-1]} compared"


def _header(comparison: Comparison) -> str:
    run = comparison.runs[0]
    spec, meta = run.experiment.spec(), run.meta
    seeds = sorted({str(run.meta.get("seed")) for run in comparison.runs})
    backends = sorted({str(run.meta.get("backend")) for run in comparison.runs})
    facts = {
        "data": f"{spec['data']['name']} ({meta['dataset_size']:,} training samples)",
        "model": f"{spec['model']['name']} ({meta.get('num_parameters', 0):,} parameters)",
        "cluster": f"{spec['cluster']['name']} ({meta.get('num_workers')} workers)",
        "sharding": spec["sharding"]["name"],
        "budget": comparison.budget,
        "seeds": ", ".join(seeds),
        "backend": ", ".join(backends) + (" (virtual time)" if backends == ["simulated"] else ""),
    }
    items = "".join(
        f"<div><dt>{name}</dt><dd>{html.escape(str(value))}</dd></div>" for name, value in facts.items()
    )
    return f"<header><h1>{html.escape(_title(comparison))}</h1><dl class='facts'>{items}</dl></header>"


def _overview(comparison: Comparison, figures: _Figures) -> str:
    labels = [label for label, runs in comparison.groups.items() for _ in runs]
    curves = charts.curves(comparison.runs, labels, comparison.strategies)
    return (
        "<section><h2>Results</h2>"
        + _findings(comparison)
        + f'<div class="wide">{_cells_table(*comparison.cells(), look=_swatches(comparison))}</div>'
        + f'<p class="note">{html.escape(" ".join(_plain_remarks(comparison)))}</p>'
        + _warnings(comparison.warnings)
        + figures.grid(curves)
        + "</section>"
    )


def _findings(comparison: Comparison) -> str:
    """Return in sentences what the table says, each with its numbers."""
    said = [
        _speed_sentence(record, comparison.baseline)
        for record in comparison.table().to_dict("records")
        if record["strategy"] != comparison.baseline
    ]
    for label, summaries in comparison.summaries.items():
        said += [_switch_sentence(label, summary) for summary in summaries if summary["switches"]]
    return f"<ul class='findings'>{''.join(f'<li>{text}</li>' for text in said)}</ul>" if said else ""


def _speed_sentence(record: dict[Any, Any], baseline: str) -> str:
    ratio, other = record["speed_up"], html.escape(baseline)
    if ratio != ratio:
        than = f"on another test bed than {other}"
    elif ratio >= 1:
        than = f"{ratio:.2f} times faster than {other}"
    else:
        than = f"{1 / ratio:.2f} times slower than {other}"
    return f"<b>{html.escape(record['strategy'])}</b> took {record['time_s']:.4g} s: {than}."


def _switch_sentence(label: str, summary: dict[str, Any]) -> str:
    switch = summary["switches"][0]
    return (
        f"<b>{html.escape(label)}</b>, seed {summary['seed']}: switched from {html.escape(switch['from'])} "
        f"to {html.escape(switch['to'])} at epoch {switch['epoch']:.1f} ({switch['time_s']:.4g} s), because "
        f"{html.escape(switch['reason'])}."
    )


def _plain_remarks(comparison: Comparison) -> list[str]:
    return [f"{line[0].upper()}{line[1:]}." for line in comparison.remarks if not line.startswith("warning")]


def _warnings(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f'<aside class="warnings"><strong>Warnings</strong><ul>{items}</ul></aside>'


def _between(comparison: Comparison, figures: _Figures) -> str:
    between = charts.comparison_figures(comparison.groups, comparison.strategies)
    return f"<section><h2>Waiting, staleness and traffic</h2>{figures.grid(between)}</section>"


def _strategy(label: str, runs: Sequence[Run], comparison: Comparison, figures: _Figures) -> str:
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


def _data(comparison: Comparison, figures: _Figures) -> str:
    found = charts.label_figures(comparison.runs[0])
    return f"<section><h2>Data</h2>{''.join(figures.place(f) for f in found)}</section>" if found else ""


def _provenance(comparison: Comparison) -> str:
    specs = "".join(
        f"<details><summary>Specification of {html.escape(label)}</summary>"
        f"<pre>{html.escape(runs[0].experiment.to_yaml())}</pre></details>"
        for label, runs in comparison.groups.items()
    )
    rows = [
        [label, *(str(summary.get(name)) for name in ("seed", "status", "reason", "digest", "params_digest"))]
        for label, summaries in comparison.summaries.items()
        for summary in summaries
    ]
    headings = [
        "strategy",
        "seed",
        "status",
        "ended because",
        "digest of the log",
        "digest of the parameters",
    ]
    versions = comparison.runs[0].meta.get("versions", {})
    line = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"<section><h2>Specification and provenance</h2>{specs}"
        "<details><summary>Digests</summary>"
        f'<div class="wide digests">{_cells_table(headings, rows)}</div></details>'
        f'<p class="note">{html.escape(line)}</p></section>'
    )


# ---------------------------------------------------------------- tables


def _swatches(comparison: Comparison) -> list[str]:
    """Return a drawn sample of each strategy's line."""
    found = charts.looks(comparison.groups, comparison.strategies.values())
    return [_swatch(look.colour, look.dash) for look in found.values()]


def _swatch(colour: str, dash: Sequence[int]) -> str:
    pattern = " ".join(map(str, dash)) if dash[1] else "none"
    return (
        '<svg width="26" height="8" aria-hidden="true"><line x1="0" y1="4" x2="26" y2="4" stroke-width="3" '
        f'stroke="{colour}" stroke-dasharray="{pattern}"/></svg> '
    )


def _cells_table(headings: Sequence[str], rows: Sequence[Sequence[str]], look: Sequence[str] = ()) -> str:
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in headings)
    body = []
    for place, (first, *cells) in enumerate(rows):
        mark = look[place] if look else ""
        body.append(f'<tr><th scope="row">{mark}{html.escape(first)}</th>')
        body += [f"<td>{html.escape(cell)}</td>" for cell in cells]
        body.append("</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _frame_table(table: pd.DataFrame) -> str:
    """Return a chart's table; of a long one evenly picked rows."""
    step = max(1, -(-len(table) // TABLE_ROWS))
    shown = table.iloc[::step]
    kept = [name for name in shown if shown[name].notna().any()]
    rows = [[_short(value) for value in row] for row in shown[kept].astype(object).to_numpy().tolist()]
    said = f"<p class='note'>Every {step}th of {len(table):,} rows.</p>" if step > 1 else ""
    return (
        f'{said}<div class="wide">{_cells_table([str(name) for name in kept], rows)}</div>'
        if rows
        else "<p>Empty.</p>"
    )


def _short(value: Any) -> str:
    if value is None or value is pd.NA or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
