"""The report of the reproductions as one HTML page, which opens with no internet."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from psbench.papers.figures import figures
from psbench.papers.outcome import Reproduction
from psbench.papers.schema import Published
from psbench.papers.text import HEADINGS, cells, remarks, summary
from psbench.results.html import FigureList, cells_table, document
from psbench.system.files import atomic_write

_RULES = (
    "A row is reproduced if the printed number, with what it was rounded by or may have been misread by, "
    "lies in our 95 % interval over seeds, or if ours is better; a statement such as 'faster than' if the "
    "whole interval agrees with it. An interval wider than three times the published effect on either side "
    "agrees with nothing. If only our mean is on the same side of 'no effect', the direction is reproduced. "
    "Everything else is not.",
    "Seeds are 0, 1, 2, ...; all runs are kept, also those that diverged. A run that never reached its "
    "target has a speed-up of 0; a baseline that never did makes a lower bound of the time it was given.",
    "Rates were tried with a seed that no result uses, equally often for every strategy; 'at best rates' is "
    "each strategy at its best one, 'ours' all at the common rate.",
    "What learns more from a sample than plain synchronous training (Welch's t-test, p < 0.05) is flagged: "
    "it is to be looked at twice.",
)


def write_page(path: Path, found: Sequence[Reproduction]) -> Path:
    """Write the report, whole or not at all, and return its path."""
    placed = FigureList()
    body = [_header(found), *(_paper(each, placed) for each in found)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(document("Published results, and ours", body, placed).encode())
    return path


def _header(found: Sequence[Reproduction]) -> str:
    headings = ["paper", "scale", "runs", "rows", *found[0].counts]
    rows = [
        [
            each.paper.title,
            each.scale,
            str(len(each.records)),
            str(len(each.outcomes)),
            *map(str, each.counts.values()),
        ]
        for each in found
    ]
    return (
        "<header><h1>Published results, and ours</h1></header><section><h2>Verdicts</h2>"
        f"{_wide(cells_table(headings, rows))}{_list(_RULES)}</section>"
    )


def _paper(found: Reproduction, placed: FigureList) -> str:
    paper = found.paper
    return (
        f"<section><h2>{html.escape(paper.title)}</h2><p>{html.escape(paper.source)}</p>"
        f"<p>{html.escape(summary(found))}</p>"
        + _wide(cells_table(HEADINGS, cells(found.outcomes)))
        + placed.grid(figures(found))
        + _titled("Why rows fall short", _shortfalls(found))
        + _titled("What differs, and what to know", remarks(found))
        + _titled("How the paper was read", paper.reading)
        + _guesses(found)
        + _rates(found)
        + _places(found)
        + "</section>"
    )


def _shortfalls(found: Reproduction) -> list[str]:
    """Return each note once, with the rows, or the table of rows, that it is about."""
    about: dict[str, list[Published]] = {}
    for outcome in found.outcomes:
        if outcome.note and outcome.verdict in ("direction only", "not reproduced"):
            about.setdefault(outcome.note, []).append(outcome.published)
    return [f"{_named(rows)}: {note}" for note, rows in about.items()]


def _named(rows: Sequence[Published]) -> str:
    if len(rows) <= 2:
        return "; ".join(f"{row.exhibit}, {row.row}" for row in rows)
    return ", ".join(dict.fromkeys(row.exhibit for row in rows))


def _guesses(found: Reproduction) -> str:
    rows = [[g.name, g.path, f"{g.value:g}", ", ".join(g.setups), g.source] for g in found.paper.guesses]
    table = _wide(cells_table(["guess", "field", "value", "set-ups", "where it is from"], rows))
    moved = [
        [s.row, s.guess, f"{s.theirs:g}", _short(s.half), _short(s.ours), _short(s.double)]
        for s in found.sensitivities
    ]
    if moved:
        headings = ["row", "guess", "theirs", "halved", "ours", "doubled"]
        table += "<h4>Each guess halved and doubled (seed 0)</h4>" + _wide(cells_table(headings, moved))
    return f"<h3>What the paper does not say</h3>{table}" if rows else ""


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _rates(found: Reproduction) -> str:
    rows = [[name, f"{found.lr_of(name):g}", f"{factor:g}"] for name, factor in found.rates.items()]
    if not rows:
        return ""
    table = cells_table(["experiment", "common rate", "best factor"], rows)
    return f"<details><summary>Rates, {len(found.paper.rates)} trials each</summary>{_wide(table)}</details>"


def _places(found: Reproduction) -> str:
    rows = [[o.published.row, o.published.place] for o in found.outcomes]
    table = _wide(cells_table(["row", "where it is printed"], rows))
    return f"<details><summary>Where each number is printed</summary>{table}</details>"


def _titled(title: str, lines: Iterable[str]) -> str:
    listed = _list(lines)
    return f"<h3>{title}</h3>{listed}" if listed else ""


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<ul class="note">{items}</ul>' if items else ""


def _wide(table: str) -> str:
    return f'<div class="wide whole">{table}</div>'
