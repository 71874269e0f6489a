"""The report of the reproductions as one HTML page, which opens with no internet."""

from __future__ import annotations

import html
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from psbench.papers.figures import figures
from psbench.papers.outcome import ClaimOutcome, Reproduction, RowOutcome
from psbench.papers.text import (
    CLAIM_HEADINGS,
    COUNTED,
    HEADINGS,
    cells,
    claim_cells,
    counts_line,
    how_to_run,
    ours,
    remarks,
    sentence,
    summary,
    theirs,
    verdict_words,
)
from psbench.results.html import FigureList, cells_table, document
from psbench.system.files import atomic_write

_RULES = (
    "Confirmed: the effect has the printed direction, significantly, and the printed size, to the "
    "factor that is said. Confirmed in direction: the direction is significant, the size is not, or "
    "none was printed. Exceeds: the effect is significantly larger than printed, or better than "
    "'the same'.",
    "Inconclusive: our interval holds both. Contradicted: in at least one row the effect is significantly "
    "the other way round, whatever the others say; or it is not found, and significantly smaller than the "
    "printed size allows. Underpowered there: the deviations that the paper prints do not separate the "
    "two (p > 0.05), and neither do our runs.",
    "Ratios are tested as logarithms, run by run with the same seed (Student's t); of deviations "
    "with the F test. 'The same' takes an equivalence test: the whole interval lies within the "
    "margin. Each side is tested at 2.5 %, with Holm's correction over the claims of a paper, so a "
    "claim may be inconclusive although its 95 % interval excludes 'no effect'. All rows of a claim "
    "have to hold.",
    "A run that ended before its target is censored: its ratio is that of the mean times up to the "
    "end of the shortest such run, and a direction takes the log-rank test as well. Such a ratio "
    "has no size to confirm.",
    "Power is the chance to find the printed direction if the printed size is true (or equality if "
    "there is no difference) with as many seeds and this noise, at the strictest level of Holm's "
    "correction.",
    "Counted apart are conditional claims, which suppose a printed number or one of two readings; "
    "checks of our own (identities and closed forms, which say that the simulator works and nothing "
    "about the paper); inputs, from which runs were set up; and evidence, which is shown and not "
    "judged.",
)
_RATES = (
    "Rates were tried with a seed that no result uses, equally often for every strategy; 'at best "
    "rates' is each strategy at its best one, 'ours' all at the common rate."
)
_SUSPICION = (
    "What learns more from a sample than plain synchronous training (Welch's t-test, p < 0.05) is "
    "flagged: it is to be looked at twice."
)


def write_page(path: Path, found: Sequence[Reproduction]) -> Path:
    """Write the report, whole or not at all, and return its path."""
    placed = FigureList()
    body = [_abstract(found), _claims(found), _rules(found), *(_paper(each, placed) for each in found)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(document("Published results, and ours", body, placed).encode())
    return path


def machine() -> str:
    """Return the machine and the versions that make the numbers, in words."""
    names = ("psbench", "numpy", "torch")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def _abstract(found: Sequence[Reproduction]) -> str:
    papers = "one paper" if len(found) == 1 else f"{len(found)} papers"
    claims = [each for one in found for each in one.claims if each.claim.kind == "claim"]
    lines = [
        f"Of {papers}, {len(claims)} claims are put to the test: {counts_line(found)}.",
        f"Given something that the papers leave open: {counts_line(found, 'conditional')}. "
        f"Checks of our own: {counts_line(found, 'check')}.",
        "Time is simulated on machines like those of the papers, and gradients are real; but most numbers "
        "about accuracy are of small data and small networks in the place of CIFAR, so they show whether an "
        "effect appears there, and not how large it is in the paper.",
        f"Made with {sum(len(one.records) for one in found)} runs, at scale {found[0].scale}. "
        f"This page: {machine()}.",
    ]
    text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    return f"<header><h1>Published results, and ours</h1>{text}</header>"


def _claims(found: Sequence[Reproduction]) -> str:
    headings = ["paper", "claims", *COUNTED]
    counts = [
        [one.paper.title, str(sum(one.counts().values())), *map(str, one.counts().values())] for one in found
    ]
    rows = [row for one in found for row in claim_cells(_of(one, "claim", "conditional"))]
    return (
        f"<section><h2>The claims</h2>{_wide(cells_table(headings, counts))}"
        f"<details open><summary>All claims and their verdicts</summary>"
        f"{_wide(cells_table(CLAIM_HEADINGS, rows))}</details></section>"
    )


def _rules(found: Sequence[Reproduction]) -> str:
    tuned = [_RATES] if any(one.rates for one in found) else []
    return f"<section><h2>What a verdict means</h2>{_list([*_RULES, *tuned, _SUSPICION])}</section>"


def _paper(found: Reproduction, placed: FigureList) -> str:
    paper = found.paper
    return (
        f"<section><h2>{html.escape(paper.title)}</h2><p>{html.escape(paper.source)}</p>"
        f"<p>{html.escape(summary(found))}</p>"
        + _list(how_to_run(found))
        + "".join(_claim(each) for each in _of(found, "claim", "conditional"))
        + _apart(found)
        + placed.grid(figures(found))
        + _titled("How the paper was read", paper.reading)
        + _assumed(found)
        + "<details><summary>Appendix: every row, and what differs</summary>"
        + _wide(cells_table(HEADINGS, cells(found.outcomes)))
        + _titled("What differs, and what to know", remarks(found))
        + _rates(found)
        + "<h3>Where each number is printed</h3>"
        + _wide(cells_table(["row", "where"], [[o.published.row, o.published.place] for o in found.outcomes]))
        + "</details></section>"
    )


def _claim(found: ClaimOutcome) -> str:
    """Return the section of a claim: the sentence, the verdict, theirs and ours in words."""
    lines = [f"{_named(row)} They: {theirs(row)}. {_mine(found, row)}" for row in found.rows[:12]]
    if len(found.rows) > 12:
        lines.append(f"and {len(found.rows) - 12} more, in the appendix.")
    flags = dict.fromkeys(flag for row in found.rows for flag in row.flags)
    return (
        f"<h3>{html.escape(sentence(found))}</h3>"
        f"<p><strong>{html.escape(verdict_words(found).capitalize())}.</strong> {html.escape(_why(found))} "
        f"{html.escape(found.claim.found)}</p>" + _list([*lines, *(f"{_first_up(flag)}." for flag in flags)])
    )


def _why(found: ClaimOutcome) -> str:
    """Return the tests behind a verdict, in words."""
    if found.test is None:
        return "None of its rows was run."
    said = [f"p {_p(found.test.agrees)} for it and {_p(found.test.opposes)} against it.", _margin(found)]
    if found.verdict == "contradicted" and found.test.short < found.test.opposes:
        said.append(f"That it is smaller than that: p {_p(found.test.short)}.")
    if found.test.there is not None:
        said.append(f"The deviations that are printed give p {_p(found.test.there)}.")
    if found.power is not None:
        said.append(f"Power here: {_percent(found.power)}{_seeds(found)}.")
    if found.left_out:
        said.append(f"Without {len(found.left_out)} of {len(found.rows)} rows, which were not run.")
    return " ".join(filter(None, said))


def _margin(found: ClaimOutcome) -> str:
    """Return what counts as the same size; nothing where no size was printed."""
    margin, rows = found.claim.margin, [row.published for row in found.rows]
    if found.claim.test == "same":
        unit = rows[0].unit if rows[0].form == "difference" else "times"
        return f"The same: to {margin:g} {unit}."
    if all(row.relation != "=" for row in rows):
        return "No size was printed."
    if found.claim.test == "number":
        return f"The same number: to a factor of {margin:g}."
    if all(row.form == "difference" for row in rows):
        return "The same size: from half of the printed effect to half as much again."
    return f"The same size: to a factor of {margin:g}, and from half of the effect to half as much again."


def _seeds(found: ClaimOutcome) -> str:
    if found.power is None or found.power >= 0.8:
        return ""
    return f"; 80 % would take {found.seeds} seeds" if found.seeds else "; 80 % would take over 2,000 seeds"


def _mine(found: ClaimOutcome, row: RowOutcome) -> str:
    estimate = row.at(found.claim.rates)
    if estimate is None:
        return f"Not run: {row.published.reason or '; '.join(row.flags) or 'no runs'}."
    rates = ", each strategy at its best rate" if estimate is row.best and row.best is not None else ""
    return f"Ours: {ours(row, estimate)}, {estimate.seeds} seeds{rates}."


def _named(row: RowOutcome) -> str:
    return f"{row.published.row} ({row.published.exhibit})."


def _apart(found: Reproduction) -> str:
    """Return what is no claim: checks of our own, inputs, evidence."""
    shown = [each for each in found.claims if each.claim.kind not in ("claim", "conditional")]
    rows = [[each.claim.kind, each.claim.says, verdict_words(each), each.claim.found] for each in shown]
    table = _wide(cells_table(["kind", "what", "verdict", "found"], rows))
    return f"<h3>Checks, inputs and evidence</h3>{table}" if rows else ""


def _assumed(found: Reproduction) -> str:
    rows = [
        [g.name, f"{g.value:g}", f"{g.factors[0]:g} to {g.factors[1]:g}", g.source]
        for g in found.paper.guesses
    ]
    headings = ["what the paper does not say", "assumed", "drawn between factors", "where it is from"]
    table = _wide(cells_table(headings, rows))
    moved = [
        [s.row, f"{s.theirs:g}", f"{s.ours:.3g}", f"{s.low:.3g} to {s.high:.3g}", str(s.draws)]
        for s in found.sensitivities
    ]
    if moved:
        headings = ["row", "theirs", "ours", "middle 90 % of the draws", "draws"]
        table += "<h4>All assumed numbers drawn together (seed 0)</h4>" + _wide(cells_table(headings, moved))
    return f"<h3>Assumed numbers</h3>{table}" if rows else ""


def _rates(found: Reproduction) -> str:
    rows = [
        [_experiment(found, name), f"{found.lr_of(name):g}", f"{factor:g}"]
        for name, factor in found.rates.items()
    ]
    if not rows:
        return ""
    table = cells_table(["experiment", "common rate", "best factor"], rows)
    return f"<h3>Rates, {len(found.paper.rates)} trials each</h3>{_wide(table)}"


def _experiment(found: Reproduction, name: str) -> str:
    setup = found.paper.experiments[name].setup
    return f"{name.replace('_', ' ')} ({found.paper.setups[setup].called or setup})"


def _of(found: Reproduction, *kinds: str) -> list[ClaimOutcome]:
    return [each for each in found.claims if each.claim.kind in kinds]


def _p(value: float) -> str:
    return f"= {value:.2g}" if value >= 1e-4 else "< 0.0001"


def _percent(share: float) -> str:
    return "over 99 %" if share > 0.99 else f"{100 * share:.0f} %"


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]


def _titled(title: str, lines: Iterable[str]) -> str:
    listed = _list(lines)
    return f"<h3>{title}</h3>{listed}" if listed else ""


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<ul class="note">{items}</ul>' if items else ""


def _wide(table: str) -> str:
    return f'<div class="wide whole">{table}</div>'
