"""Claims and rows as tables of texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from psbench_papers.cells import duration, forecast, runs_at
from psbench_papers.claim import JUDGED, SCALES, ClaimKind
from psbench_papers.estimates import Estimate
from psbench_papers.outcome import ClaimOutcome, Reproduction, RowOutcome
from psbench_papers.verdict import VERDICTS

CLAIM_HEADINGS = ("claim", "theirs", "ours, with its 95 % interval", "verdict")
HEADINGS = ("row", "theirs", "ours (95 % interval)", "at best rates", "closed form")
#: the verdicts on checks of our own, in other words
_CHECKED: dict[str, str] = {
    "confirmed": "held",
    "confirmed in direction": "held",
    "contradicted": "did not hold",
}

#: how a unit is printed
_UNITS = {"x": " x", "%": " %", "points": " pt", "s": " s", "min": " min", "1": "", "loss": ""}


def claim_cells(claims: Sequence[ClaimOutcome]) -> list[list[str]]:
    """Return a row of texts for each claim."""
    return [
        [sentence(each), _joined(each, theirs), _joined(each, ours_of(each)), verdict_words(each)]
        for each in claims
    ]


def claim_lines(claims: Sequence[ClaimOutcome]) -> list[str]:
    """Return lines for each claim: verdict and claim, both results, and caveats."""
    return [
        line
        for each, (says, printed, here, verdict) in zip(claims, claim_cells(claims), strict=True)
        for line in (
            f"{verdict}: {says}",
            f"    theirs: {printed} | ours: {here}",
            *(f"    {reason}" for reason in each.because),
        )
    ]


def sentence(found: ClaimOutcome) -> str:
    """Return a claim's sentence with its condition."""
    return f"Given {found.claim.given}: {found.claim.says}" if found.claim.given else found.claim.says


def verdict_words(found: ClaimOutcome) -> str:
    """Return the displayed verdict: our own checks hold or do not, and evidence has none."""
    if found.claim.kind not in JUDGED:
        return "input" if found.claim.kind == "input" else "not judged"
    if found.claim.kind == "check":
        return _CHECKED.get(found.verdict, found.verdict)
    return found.verdict


def cells(outcomes: Sequence[RowOutcome]) -> list[list[str]]:
    """Return a row of texts for each published row."""
    return [
        [
            f"{outcome.published.exhibit}: {outcome.published.row}",
            theirs(outcome),
            ours(outcome, outcome.ours),
            ours(outcome, outcome.best),
            _theory(outcome),
        ]
        for outcome in outcomes
    ]


def _theory(outcome: RowOutcome) -> str:
    if outcome.theory is None:
        return ""
    return f"{number(outcome.published.factor * outcome.theory, 4)}{_unit(outcome)}"


def theirs(outcome: RowOutcome) -> str:
    """Return the printed number; for a statement in words, a text such as "more than 1 x".

    What a number from a figure may have been misread by is said in words, so that it is no interval.
    """
    published = outcome.published
    if published.value is None:
        return "not printed"
    relation = {"=": "", ">": "more than ", "<": "less than "}[published.relation]
    about = "about " if published.reading_error else ""
    return f"{relation}{about}{number(published.printed, 4)}{_unit(outcome)}"


def ours(outcome: RowOutcome, found: Estimate | None) -> str:
    """Return our number with its 95 % interval, as its two ends."""
    if found is None:
        return ""
    factor = outcome.published.factor
    text = number(factor * found.mean)
    if math.isfinite(found.low):  # one seed has no interval
        text += f" ({number(factor * found.low)} to {number(factor * found.high)})"
    return f"{text}{_unit(outcome)}"


def ours_of(claim: ClaimOutcome) -> Callable[[RowOutcome], str]:
    """Return our number for a row of a claim in words, at the rates that the claim is about."""

    def say(outcome: RowOutcome) -> str:
        return ours(outcome, outcome.at(claim.claim.rates)) or "not run"

    return say


def counts_line(found: Sequence[Reproduction], kind: ClaimKind = "claim") -> str:
    """Return the number of claims of a kind with each verdict, as text.

    Those without any are left out.
    """
    said: dict[str, int] = {}
    for verdict in VERDICTS:
        name = _CHECKED.get(verdict, verdict) if kind == "check" else verdict
        said[name] = said.get(name, 0) + sum(each.counts(kind)[verdict] for each in found)
    return ", ".join(f"{count} {verdict}" for verdict, count in said.items() if count) or "none"


def summary(found: Reproduction) -> str:
    """Return one line with the verdicts of a paper's claims, and of other rows."""
    kinds: tuple[tuple[ClaimKind, str], ...] = (
        ("conditional", "conditional"),
        ("check", "checks of our own"),
    )
    apart = [
        f"{name}: {counts_line([found], kind)}" for kind, name in kinds if any(found.counts(kind).values())
    ]
    return "; ".join([f"claims: {counts_line([found])}", *apart])


def remarks(found: Reproduction) -> list[str]:
    """Return the differences from the paper, and the caveats with their rows."""
    setups = dict.fromkeys(found.paper.experiments[r.experiment].setup for r in found.records.values())
    differs = [
        f"{found.paper.setups[name].called or name}: {found.paper.setups[name].differs[found.scale]}"
        for name in setups
    ]
    about: dict[str, list[str]] = {}
    for outcome in found.outcomes:
        for flag in (*outcome.flags, *filter(None, [outcome.published.reason])):
            about.setdefault(flag, []).append(outcome.published.row)
    everywhere = max(1, len(found.outcomes) // 2)
    lines = [
        f"{flag}: {'; '.join(rows) if len(rows) <= everywhere else f'{len(rows)} rows'}"
        for flag, rows in about.items()
    ]
    only = (
        ["scale smoke shows that everything runs; its verdicts say nothing"] if found.scale == "smoke" else []
    )
    return only + differs + lines


def how_to_run(found: Reproduction) -> list[str]:
    """Return instructions for running the missing rows."""
    paper, lines = found.paper, []
    again = f"psbench reproduce {paper.name} --scale {found.scale} --data DIR"
    if found.missing:
        reasons = "; ".join(dict.fromkeys(found.missing.values()))
        lines = [
            f"{len(found.missing)} experiments of {paper.name} were not run: {reasons}",
            f"to run them: `{again}`, where DIR holds the data sets; what is stored is not run again",
        ]
    elif left := found.unfinished():
        least, _ = forecast(left, 1)
        lines = [
            f"{len(left)} runs of {paper.name} were not made: `{again}` makes them, where DIR holds the data "
            f"sets; expected: {duration(least)} on one core"
        ]
    elsewhere: dict[str, list[str]] = {}
    for row in (outcome.published for outcome in found.outcomes):
        scales = [scale for scale in SCALES[1:] if runs_at(paper, row, scale)]
        if scales and not runs_at(paper, row, found.scale):
            elsewhere.setdefault(" or ".join(scales), []).append(row.row)
    return lines + [
        f"not run at scale {found.scale} but at {scales} (`psbench reproduce {paper.name} --scale "
        f"{scales.split()[0]} --data DIR`): {'; '.join(rows)}"
        for scales, rows in elsewhere.items()
    ]


def _joined(found: ClaimOutcome, say: Callable[[RowOutcome], str]) -> str:
    """Return the texts of a claim's rows, each once; of many the first and the last."""
    texts = list(dict.fromkeys(say(row) for row in found.rows))
    if len(texts) > 4:
        return f"{texts[0]}; ...; {texts[-1]} ({len(found.rows)} rows)"
    return "; ".join(texts)


def number(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits and no exponent; rounding errors become 0.

    >>> number(0.1234), number(1.9864e6), number(-3.5e-05), number(1e-12), number(9e-13)
    ('0.123', '1,990,000', '-0.000035', '0.000000000001', '0')
    """
    kept = 0.0 if abs(value) < 1e-12 else float(f"{value:.{digits}g}")
    return f"{kept:,.0f}" if 1e4 <= abs(kept) < math.inf else np.format_float_positional(kept, trim="-")


def _unit(outcome: RowOutcome) -> str:
    ratio = outcome.published.form in ("speed_up", "ratio", "sd_ratio")
    return " x" if ratio else _UNITS.get(outcome.published.unit, f" {outcome.published.unit}")


def readme_row(found: Reproduction) -> list[str]:
    """Return a paper's row for measurements.md: counts, and conditional claims that hold."""
    counts, given = found.counts(), found.counts("conditional")
    run = sum(given.values()) - given["not run"]
    held = given["confirmed"] + given["confirmed in direction"] + given["exceeds"]
    return [
        found.paper.name,
        *(str(counts[verdict]) for verdict in VERDICTS),
        f"{held} of {run}" if run else "",
    ]
