"""The report of the reproductions as one HTML page, which opens with no internet."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from psbench.results.html import page
from psbench.system.files import write_text
from psbench_papers.estimates import Estimate
from psbench_papers.figures import figures
from psbench_papers.outcome import ClaimOutcome, Reproduction, RowOutcome
from psbench_papers.text import (
    CLAIM_HEADINGS,
    HEADINGS,
    cells,
    claim_cells,
    counts_line,
    how_to_run,
    number,
    ours,
    remarks,
    sentence,
    summary,
    theirs,
    verdict_words,
)
from psbench_papers.verdict import VERDICTS

#: headings, and rows of text
_Table: TypeAlias = tuple[Sequence[str], Sequence[Sequence[str]]]

_RULES = (
    "Confirmed: the effect has the printed direction, significantly, and the printed size, to the "
    "factor that is said. Confirmed in direction: the direction is significant, the size is not, or "
    "none was printed. Exceeds: the effect is significantly larger than printed, or better than "
    "'the same'.",
    "Contradicted: in at least one row the effect is significantly the other way round, whatever the "
    "others say. Not found: in at least one row it is significantly smaller than the printed size allows, "
    "our interval holds 'no effect', and the power was 80 % or more. Inconclusive: none of these. "
    "Underpowered there: the deviations that the paper prints do not separate the two (p > 0.05), and "
    "neither do our runs. Not testable here: the set-up at this size cannot show it, for the reason that "
    "is said, whatever its runs come to.",
    "Ratios are tested as logarithms, run by run with the same seed (Student's t); of deviations "
    "with the F test. 'The same' takes an equivalence test: the whole interval lies within the "
    "margin. That accuracies or losses are the same, or an effect on them not found, counts only beside a "
    "control, an effect on them that is found. Each side is tested at 2.5 %, with Holm's correction over "
    "the claims of the paper (when one table is judged, too), so a claim may be inconclusive although its "
    "95 % interval excludes 'no effect'. All rows of a claim have to hold.",
    "Numbers that had to be assumed are drawn together: a finding has to be made with nine of ten draws. "
    "Where they affect a row and were not drawn, no size counts.",
    "A run that ended before its target is censored: its ratio is that of the mean times up to the "
    "end of the shortest such run, and a direction takes the log-rank test as well. Such a ratio "
    "has no size to confirm.",
    "Power is the chance of the verdict if the paper is right, with as many seeds and this noise, at the "
    "level at which the claim was tested: for 'confirmed' that all rows have the printed size (or are the "
    "same), for the others that they have the printed direction.",
    "Counted apart are conditional claims, which suppose a printed number or one of two readings; "
    "checks of our own (identities and closed forms, which say that the simulator works and nothing "
    "about the paper); inputs, from which runs were set up; and evidence, which is shown and not "
    "judged.",
)
_RATES = (
    "Rates were tried with a seed that no result uses, equally often for every strategy; 'at best "
    "rates' is each strategy at its best one, 'ours' all at the common rate. Where the best is the least "
    "or the greatest that was tried, a claim about best rates is inconclusive."
)
_SUSPICION = (
    "What learns more from a sample than plain synchronous training (Welch's t-test, p < 0.05) is "
    "flagged: it is to be looked at twice."
)


#: what numbers about accuracy are of, by scale
_SIZES: dict[str, str] = {
    "smoke": "all numbers about accuracy are of runs of a second",
    "quick": "most numbers about accuracy are of small data and small networks in the place of CIFAR",
    "medium": "numbers about accuracy are of a part of CIFAR-10, small networks and few epochs",
    "full": "some numbers about accuracy are of other data or networks than the paper's, where that is said",
}


def write_page(path: Path, found: Sequence[Reproduction], beside: Sequence[Reproduction] = ()) -> Path:
    """Write the report, whole or not at all, and return its path.

    `beside` are the same papers at another scale, whose verdicts are shown with those of `found`.
    """
    text = page(
        "papers.html",
        title="Published results, and ours",
        abstract=_abstract(found),
        counts=_counts(found),
        claim_headings=CLAIM_HEADINGS,
        claims=[(one.paper.title, _in_lines(claim_cells(_of(one, "claim", "conditional")))) for one in found],
        rules=[*_RULES, *([_RATES] if any(one.rates for one in found) else []), _SUSPICION],
        papers=[
            _paper(each, next((b for b in beside if b.paper.name == each.paper.name), None)) for each in found
        ],
    )
    return write_text(path, text)


def machine() -> str:
    """Return the machine and the versions that make the numbers, in words."""
    names = ("psbench", "numpy", "torch")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def _abstract(found: Sequence[Reproduction]) -> list[str]:
    papers = "one paper" if len(found) == 1 else f"{len(found)} papers"
    claims = [each for one in found for each in one.claims if each.claim.kind == "claim"]
    return [
        f"Of {papers}, {len(claims)} claims are put to the test: {counts_line(found)}.",
        f"Given something that the papers leave open: {counts_line(found, 'conditional')}. "
        f"Checks of our own: {counts_line(found, 'check')}.",
        "Time is simulated on machines like those of the papers, and gradients are real; but "
        f"{_SIZES[found[0].scale]}, so they show whether an effect appears there, and not how large it is in "
        "the paper.",
        f"Made with {sum(len(one.records) for one in found)} runs, at scale {found[0].scale}. "
        f"This page: {machine()}.",
    ]


def _in_lines(rows: list[list[str]]) -> list[list[str]]:
    """Return a claim's cells with one row's number per line."""
    return [[says, *(cell.replace("; ", ";\n") for cell in rest)] for says, *rest in rows]


def _counts(found: Sequence[Reproduction]) -> _Table:
    counts = [
        [one.paper.title, str(sum(one.counts().values())), *map(str, one.counts().values())] for one in found
    ]
    return ["paper", "claims", *VERDICTS], counts


def _paper(found: Reproduction, beside: Reproduction | None = None) -> dict[str, Any]:
    """Return a paper's data for the template."""
    paper = found.paper
    other = {} if beside is None else {each.claim.name: each for each in beside.claims}
    unfinished = [] if beside is None else how_to_run(beside)
    return {
        "title": paper.title,
        "about": paper.about,
        "source": paper.source,
        "summary": summary(found),
        "how_to_run": [*how_to_run(found), *unfinished],
        "claims": [_claim(each, other.get(each.claim.name)) for each in _of(found, "claim", "conditional")],
        "apart": _apart(found),
        "figures": figures(found),
        "reading": list(paper.reading),
        "assumed": _assumed(found),
        "moved": _moved(found),
        "rows": (HEADINGS, cells(found.outcomes)),
        "remarks": list(remarks(found)),
        "trials": len(paper.rates),
        "rates": _rates(found),
        "places": (["row", "where"], [[o.published.row, o.published.place] for o in found.outcomes]),
    }


def _claim(found: ClaimOutcome, other: ClaimOutcome | None) -> dict[str, Any]:
    """Return a claim's data for the template: the verdict, and both results as text."""
    flags = dict.fromkeys(flag for row in found.rows for flag in row.flags)
    return {
        "sentence": sentence(found),
        "verdict": verdict_words(found).capitalize(),
        "why": _why(found),
        "found": found.claim.found,
        "lines": [
            *_compared(found),
            *(f"{_first_up(flag)}." for flag in flags),
            *(["On a part of CIFAR-10: " + _beside(other)] if other is not None else []),
        ],
    }


def _beside(other: ClaimOutcome) -> str:
    """Return a claim's verdict at another scale, with the rows that were run there, in a line."""
    run = [row for row in other.rows if row.at(other.claim.rates) is not None]
    said = [
        f"{row.published.row}: {ours(row, row.at(other.claim.rates))}, {_number_of_seeds(row.ours)}"
        for row in run
        if row.ours
    ]
    without = (
        f" Not run: {len(other.rows) - len(run)} of {len(other.rows)} rows."
        if len(run) < len(other.rows)
        else ""
    )
    return f"{verdict_words(other)}. {'; '.join(said) or 'Nothing was run'}.{without}"


def _compared(found: ClaimOutcome) -> list[str]:
    """Return the printed and the measured number as text, one line per row."""
    lines = [f"{_named(row)} Printed: {theirs(row)}. {_mine(found, row)}" for row in found.rows[:12]]
    if len(found.rows) > 12:
        lines.append(f"and {len(found.rows) - 12} more, in the appendix.")
    return lines


def _why(found: ClaimOutcome) -> str:
    """Return the tests behind a verdict, in words."""
    if found.test is None:
        return "None of its rows was run."
    said = [
        *found.because,
        f"The evidence for it has p {_p(found.test.agrees)}, that against it p {_p(found.test.opposes)}.",
        _margin(found),
    ]
    if found.verdict == "not found":
        said.append(f"That an effect, if there is one, is smaller than that has p {_p(found.test.short)}.")
    if found.test.there is not None:
        said.append(f"The deviations that are printed give p {_p(found.test.there)}.")
    if found.power is not None:
        said.append(f"Power here: {_percent(found.power)}{_seeds(found)}.")
    if found.left_out:
        said.append(f"Without {len(found.left_out)} of {len(found.rows)} rows, which were not run.")
    return " ".join(filter(None, said))


def _margin(found: ClaimOutcome) -> str:
    """Return the margin within which sizes count as equal; empty if no size was printed."""
    margin, rows = found.claim.margin, [row.published for row in found.rows]
    if found.claim.test == "same":
        unit = rows[0].unit if rows[0].form == "difference" else "times"
        return f"The same: to {margin:g} {unit.removesuffix('s') if margin == 1 else unit}."
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
    rates = ", each strategy at its best rate" if estimate is row.best else ""
    return f"Ours: {ours(row, estimate)}, {_number_of_seeds(estimate)}{rates}."


def _number_of_seeds(found: Estimate) -> str:
    return f"{found.seeds} seed{'s' if found.seeds > 1 else ''}"


def _named(row: RowOutcome) -> str:
    return f"{row.published.row} ({row.published.exhibit})."


def _apart(found: Reproduction) -> _Table:
    """Return a table of our own checks, inputs and evidence, which are not claims."""
    shown = [each for each in found.claims if each.claim.kind not in ("claim", "conditional")]
    rows = [[each.claim.kind, each.claim.says, verdict_words(each), each.claim.found] for each in shown]
    return ["kind", "what", "verdict", "found"], rows


def _assumed(found: Reproduction) -> _Table:
    drawn = bool(found.sensitivities)
    rows = [
        [
            g.name,
            f"{number(g.value, 6)} {g.unit}".rstrip(),
            f"{g.factors[0]:g} to {g.factors[1]:g}" if drawn else "not drawn",
            g.source,
        ]
        for g in found.paper.guesses
    ]
    return ["what the paper does not say", "assumed", "drawn between factors", "where it is from"], rows


def _moved(found: Reproduction) -> _Table:
    rows = [
        [s.row, number(s.theirs, 4), number(s.ours), f"{number(s.low)} to {number(s.high)}", str(s.draws)]
        for s in found.sensitivities
    ]
    return ["row", "theirs", "ours", "middle 90 % of the draws", "draws"], rows


def _rates(found: Reproduction) -> _Table:
    rows = [
        [_experiment(found, name), f"{found.lr_of(name):g}", f"{factor:g}"]
        for name, factor in found.rates.items()
    ]
    return ["experiment", "common rate", "best factor"], rows


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
