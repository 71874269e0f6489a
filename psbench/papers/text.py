"""Ours beside theirs as a table of texts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from psbench.papers.outcome import Outcome, Reproduction
from psbench.papers.verdict import Estimate

HEADINGS = ("row", "theirs", "ours", "verdict", "at best rates", "closed form")

#: how a unit is printed
_UNITS = {"x": " x", "%": " %", "points": " pt", "s": " s", "min": " min", "1": "", "loss": ""}


def cells(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return a row of texts for each outcome."""
    return [
        [
            f"{outcome.published.exhibit}: {outcome.published.row}",
            theirs(outcome),
            ours(outcome, outcome.ours),
            outcome.verdict,
            _best(outcome),
            "" if outcome.theory is None else _number(outcome.factor * outcome.theory, outcome),
        ]
        for outcome in outcomes
    ]


def theirs(outcome: Outcome) -> str:
    """Return what was printed, with its reading error.

    A statement keeps its sign, such as "> 1 x".
    """
    published = outcome.published
    relation = "" if published.relation == "=" else f"{published.relation} "
    error = f" ± {published.reading_error:g}" if published.reading_error else ""
    return f"{relation}{published.value}{error}{_unit(outcome)}"


def ours(outcome: Outcome, found: Estimate | None) -> str:
    """Return our mean and the half-width of its interval (its ends for a ratio of deviations)."""
    if found is None:
        return ""
    if found.never == found.seeds:
        return "never"
    if not math.isfinite(found.mean):
        return f"never in {found.never} of {found.seeds} runs"
    text = f"{_plain(outcome.factor * found.mean):.4g}"
    if found.seeds > 1 and outcome.published.form == "sd_ratio":
        text += f" ({found.low:.3g} to {found.high:.3g})"
    elif found.seeds > 1:
        text += f" ± {_plain(outcome.factor * (found.high - found.mean)):.2g}"
    return f"{'at least ' if found.bounds else ''}{text}{_unit(outcome)}"


def headline(found: Reproduction) -> list[str]:
    """Return the row that stands for the paper: name, what it says, theirs, ours, verdict; and the counts."""
    (outcome,) = [each for each in found.outcomes if each.published.row == found.paper.headline]
    counts = found.counts
    verdicts = f"{counts['reproduced']} / {counts['direction only']} / {counts['not reproduced']}"
    said = [found.paper.name, f"{outcome.published.exhibit}: {outcome.published.row}", theirs(outcome)]
    return [*said, ours(outcome, outcome.ours), outcome.verdict, f"{verdicts} / {counts['not run']}"]


def _best(outcome: Outcome) -> str:
    if outcome.best is None:
        return ""
    same = "" if outcome.best_verdict == outcome.verdict else f" ({outcome.best_verdict})"
    return ours(outcome, outcome.best) + same


def _plain(value: float) -> float:
    """Return 0 for what rounding left of it."""
    return 0.0 if abs(value) < 1e-12 else value


def _number(value: float, outcome: Outcome) -> str:
    return f"{value:.4g}{_unit(outcome)}"


def _unit(outcome: Outcome) -> str:
    ratio = outcome.published.form in ("speed_up", "ratio", "sd_ratio")
    return " x" if ratio else _UNITS.get(outcome.published.unit, f" {outcome.published.unit}")


def summary(found: Reproduction) -> str:
    """Return in one line how many rows have each verdict."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items() if count)
    return f"{found.paper.name}: {len(found.outcomes)} rows: {counts}"


def remarks(found: Reproduction) -> list[str]:
    """Return what differs from the paper, and each thing to be known about rows with the rows it is about."""
    setups = dict.fromkeys(found.paper.experiments[r.experiment].setup for r in found.records.values())
    differs = [f"{name}: {found.paper.setups[name].differs[found.scale]}" for name in setups]
    about: dict[str, list[str]] = {}
    for outcome in found.outcomes:
        for flag in (*outcome.flags, *filter(None, [outcome.published.reason])):
            about.setdefault(flag, []).append(outcome.published.row)
    everywhere = len(found.outcomes) // 2
    lines = [
        f"{flag}: {'; '.join(rows) if len(rows) <= everywhere else f'{len(rows)} rows'}"
        for flag, rows in about.items()
    ]
    only = (
        ["scale smoke shows that everything runs; its verdicts say nothing"] if found.scale == "smoke" else []
    )
    return only + differs + lines
