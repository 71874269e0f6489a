"""Ours beside theirs: every row with our estimate, every claim with its verdict, and what to know of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from psbench_papers.cells import DRAWS, PaperCell, experiment_of, results, rows_of, runs_at, seeds_of
from psbench_papers.claim import JUDGED, Claim, ClaimKind
from psbench_papers.closed_forms import evaluate
from psbench_papers.estimates import Estimate, estimate
from psbench_papers.measures import TARGETS, measured
from psbench_papers.records import PaperRecord, is_number
from psbench_papers.schema import Form, Paper, PublishedNumber, Scale
from psbench_papers.verdict import (
    VERDICTS,
    ClaimTest,
    Verdict,
    controlled,
    examine,
    judge,
    power,
    separated_there,
    suspicious,
    together,
)

#: strategies that are plain synchronous training
_SYNCHRONOUS = ("bsp", "all_reduce")
#: what says how much was learnt from a sample, and whether less is better
_LEARNT = {"epochs_to_target": True, "val_accuracy": False, "train_accuracy": False, "train_loss": True}


@dataclass(frozen=True)
class RowOutcome:
    """A published row and our number for it.

    Attributes
    ----------
    ours, best : Estimate or None
        At the common rate, and with each experiment at its best rate (None where rates were not tried).
    theory : float or None
        The closed form, where there is one.
    there : float or None
        The p-value of the paper's own deviations.
    flags : tuple of str
        What a reader has to know before believing the number.
    """

    paper: str
    published: PublishedNumber
    ours: Estimate | None = None
    best: Estimate | None = None
    theory: float | None = None
    there: float | None = None
    flags: tuple[str, ...] = ()

    def at(self, rates: str) -> Estimate | None:
        """Return our number at the common rate, or at best rates where they were tried."""
        return self.best if rates == "best" and self.best is not None else self.ours

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, in the unit of the published number."""
        theirs = {"value": float(self.published.value), "relation": self.published.relation}
        return {
            **{"paper": self.paper, "table": self.published.exhibit, "row": self.published.row},
            "place": self.published.place,
            "unit": self.published.unit,
            "theirs": theirs | {"error": self.published.rounding + self.published.reading_error},
            "p_of_their_deviations": self.there,
            "ours": self._plain(self.ours),
            "ours_at_best_rates": self._plain(self.best),
            "closed_form": self.theory,
            "flags": list(self.flags),
            "not_run": self.published.reason or None,
        }

    def _plain(self, found: Estimate | None) -> dict[str, float | int | None] | None:
        if found is None:
            return None
        numbers = {"mean": found.mean, "low": found.low, "high": found.high}
        factor = self.published.factor
        plain = {name: factor * v if math.isfinite(v) else None for name, v in numbers.items()}
        return plain | {"seeds": found.seeds, "never": found.never, "baseline_never": found.bounds}


@dataclass(frozen=True)
class ClaimOutcome:
    """A claim and what became of it.

    Attributes
    ----------
    verdict : Verdict
        For inputs and evidence, which are not judged, "not run" or "inconclusive" mean nothing.
    power : float or None
        The chance that its weakest row had, see `verdict.power`.
    seeds : int or None
        How many seeds would give that row a chance of 80 %.
    insensitive : bool
        Whether equality was shown and counts for nothing, as the effect of its control was not found.
    """

    paper: str
    claim: Claim
    verdict: Verdict
    rows: tuple[RowOutcome, ...]
    test: ClaimTest | None = None
    power: float | None = None
    seeds: int | None = None
    insensitive: bool = False

    @property
    def left_out(self) -> list[str]:
        """Its rows that were not run."""
        return [row.published.row for row in self.rows if row.at(self.claim.rates) is None]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        p = None if self.test is None else {"agrees": self.test.agrees, "opposes": self.test.opposes}
        return {
            **{"paper": self.paper, "claim": self.claim.name, "says": self.claim.says},
            **{"kind": self.claim.kind, "given": self.claim.given or None, "test": self.claim.test},
            **{"verdict": self.verdict if self.claim.kind in JUDGED else None, "p": p, "power": self.power},
            **{"seeds_for_80_percent": self.seeds, "rows": list(self.claim.rows)},
            **{"rows_not_run": self.left_out, "found": self.claim.found or None},
        }


@dataclass(frozen=True)
class Sensitivity:
    """A row's number when all assumed numbers are drawn together.

    Attributes
    ----------
    theirs, ours : float
        Ours with the assumed numbers as they are.
    low, high : float
        The middle 90 % of the draws.
    draws : int
    """

    row: str
    theirs: float
    ours: float
    low: float
    high: float
    draws: int


@dataclass(frozen=True)
class Reproduction:
    """A paper at a scale: records, and what follows from them.

    Attributes
    ----------
    records : mapping of key to PaperRecord
    missing : mapping of experiment to str
        Why some could not be run.
    seeds : int or None
        How many were asked for; None leaves it to the scale and the set-ups.
    """

    paper: Paper
    scale: Scale
    seeds: int | None
    records: Mapping[str, PaperRecord]
    table: str | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def rates(self) -> dict[str, float]:
        """The best of the tried factors of each experiment's rate, by its final validation accuracy."""
        return best_rates(self.records.values())

    @cached_property
    def outcomes(self) -> list[RowOutcome]:
        """One for each row, in the order of the paper."""
        return [self._outcome(row) for row in rows_of(self.paper, self.scale, self.table)]

    @cached_property
    def claims(self) -> list[ClaimOutcome]:
        """One for each claim whose rows were asked for.

        Holm's correction is over the claims of the paper; our own checks are no part of them.
        """
        rows = {outcome.published.row: outcome for outcome in self.outcomes}
        groups = [(claim, tuple(rows[n] for n in claim.rows if n in rows)) for claim in self.paper.claims]
        asked = [
            ClaimOutcome(self.paper.name, claim, "not run", group, _tested(claim, group))
            for claim, group in groups
            if group
        ]
        families = ([each for each in asked if (each.claim.kind == "check") == own] for own in (False, True))
        judged = {each.claim.name: each for family in families for each in _judged(family)}
        return [_controlled(judged[each.claim.name], judged) for each in asked]

    def counts(self, kind: ClaimKind = "claim") -> dict[Verdict, int]:
        """Return how many claims of a kind have each verdict."""
        found = Counter(each.verdict for each in self.claims if each.claim.kind == kind)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def runs(self, experiment: str, role: str = "result") -> list[PaperRecord]:
        """Return the runs of an experiment, by seed; at its best rate, the common one may be that."""
        if role == "best" and self.rates.get(experiment, 1.0) == 1.0:
            role = "result"
        found = [r for r in self.records.values() if r.experiment == experiment and r.role == role]
        return sorted(found, key=lambda record: record.seed)

    def number(self, row: PublishedNumber, role: str = "result") -> Estimate | None:
        """Return our estimate for a row; None if there is none."""
        return self.estimate(row.form, row.measure, row.experiments, role)

    def estimate(
        self,
        form: Form,
        measure: str,
        experiments: Sequence[str],
        role: str = "result",
        seed: int | None = None,
        label: str | None = None,
    ) -> Estimate | None:
        """Return our number of an experiment and its baseline, if any, from the seeds that all have.

        With `seed` or `label` only of runs that have it. None if no seed is left, or the runs give no number.
        """
        groups = [
            [run for run in self.runs(name, role) if seed in (None, run.seed) and label in (None, run.label)]
            for name in experiments
        ]
        seeds = set.intersection(*({run.seed for run in group} for group in groups))
        kept = ([measured(run.measures, measure) for run in group if run.seed in seeds] for group in groups)
        return estimate(form, *kept) if seeds else None

    def _outcome(self, row: PublishedNumber) -> RowOutcome:
        there = separated_there(row)
        if row.reason:
            return RowOutcome(self.paper.name, row, there=there)
        if not runs_at(self.paper, row, self.scale):
            return RowOutcome(self.paper.name, row, there=there, flags=(f"not run at scale {self.scale}",))
        ours = self.number(row)
        if ours is None:
            return RowOutcome(self.paper.name, row, there=there, flags=(self._why_none(row),))
        tuned = any(name in self.rates for name in row.experiments)
        return RowOutcome(
            self.paper.name,
            row,
            ours,
            self.number(row, "best") if tuned else None,
            theory=self._theory(row),
            there=there,
            flags=tuple(self._flags(row, ours)),
        )

    def unfinished(self) -> list[PaperCell]:
        """Return the results that are planned and have no record."""
        done = {
            (record.experiment, record.seed) for record in self.records.values() if record.role == "result"
        }
        planned = results(self.paper, self.scale, self.seeds, self.table)
        return [cell for cell in planned if (cell.experiment, cell.seed) not in done]

    def _why_none(self, row: PublishedNumber) -> str:
        names = row.experiments
        if why := next((self.missing[name] for name in names if name in self.missing), ""):
            return why
        if not set.intersection(*({run.seed for run in self.runs(name)} for name in names)):
            return "not run yet, or not with the same seeds"
        if row.measure in TARGETS:
            return "no run reached the target, so nothing can be said"
        return "our runs give no number for it"

    def _theory(self, row: PublishedNumber) -> float | None:
        found = (each for each in self.paper.theories if row.row in each.rows)
        return next((self.closed_form(each.formula, each.arguments) for each in found), None)

    def closed_form(
        self, formula: str, arguments: Mapping[str, float | tuple[str, str, str]]
    ) -> float | None:
        """Return a closed form; None if a measured argument is missing."""
        values = {name: self._argument(value) for name, value in arguments.items()}
        known = {name: value for name, value in values.items() if value is not None}
        return evaluate(formula, known) if len(known) == len(values) else None

    def _argument(self, value: float | tuple[str, str, str]) -> float | None:
        if not isinstance(value, tuple):
            return value
        *experiments, measure = value
        found = self.estimate("speed_up", measure, experiments)
        return None if found is None else found.mean

    def _flags(self, row: PublishedNumber, ours: Estimate) -> Iterable[str]:
        """Yield what a reader has to know about a row."""
        runs = [run for name in row.experiments for run in self.runs(name)]
        if diverged := sum(record.status == "diverged" for record in runs):
            yield f"{diverged} of {len(runs)} runs diverged"
        if ours.never:
            yield f"never reached its target in {ours.never} of {ours.seeds} seeds"
        if ours.bounds:
            side = "at least" if row.form == "speed_up" else "at most"
            yield f"the baseline never reached its target in {ours.bounds} of {ours.seeds} seeds: {side} this"
        if ours.seeds < 2:
            yield "one seed: no interval"
        planned = min(seeds_of(self.paper, name, self.scale, self.seeds) for name in row.experiments)
        if ours.seeds < planned:
            yield f"{ours.seeds} of {planned} seeds were run"
        if row.baseline and self._are_the_same(row):
            yield "the two gave the same models, bit by bit: here they do not differ"
        yield from self._suspicions(row)

    def _are_the_same(self, row: PublishedNumber) -> bool:
        models = [[r.params_digest for r in self.runs(name)] for name in row.experiments]
        return None not in models[0] and models[0] == models[1]

    def _suspicions(self, row: PublishedNumber) -> Iterable[str]:
        """Yield a flag if a row's runs learn more from a sample than plain synchronous training."""
        name = "epochs_to_target" if row.measure in TARGETS else row.measure
        if name not in _LEARNT or not row.baseline or not self._is_synchronous(row.baseline):
            return
        values = [
            [float(r.measures[name]) for r in self.runs(each) if is_number(r.measures.get(name))]
            for each in row.experiments
        ]
        p = suspicious(*values, less_is_better=_LEARNT[name])
        if p is not None:
            yield f"learns more from a sample than synchronous training (t-test, p = {p:.2g}): look twice"

    def _is_synchronous(self, experiment: str) -> bool:
        found = self.runs(experiment)
        return bool(found) and json.loads(found[0].spec)["strategy"]["name"] in _SYNCHRONOUS

    @cached_property
    def sensitivities(self) -> list[Sensitivity]:
        """How the sensitive rows move when all assumed numbers are drawn together."""
        rows = {row.row: row for row in self.paper.rows}
        found = [self._moved(rows[name]) for name in self.paper.sensitive]
        return [each for each in found if each is not None]

    def _moved(self, row: PublishedNumber) -> Sensitivity | None:
        asked = (row.form, row.measure, row.experiments)
        ours = self.estimate(*asked, seed=0)
        moved = [
            found.mean
            for label in DRAWS
            if (found := self.estimate(*asked, "sensitivity", label=label)) is not None
        ]
        if ours is None or len(moved) < len(DRAWS):
            return None
        low, high = np.quantile(moved, [0.05, 0.95])
        return Sensitivity(row.row, float(row.value), ours.mean, float(low), float(high), len(moved))

    def lr_of(self, experiment: str) -> float:
        """Return the common rate of an experiment."""
        return experiment_of(self.paper, experiment, self.scale, 0).optimizer.lr


def _pairs(claim: Claim, rows: Sequence[RowOutcome]) -> list[tuple[PublishedNumber, Estimate]]:
    """Return theirs and ours of the rows that were run."""
    return [(row.published, ours) for row in rows if (ours := row.at(claim.rates)) is not None]


def _tested(claim: Claim, rows: Sequence[RowOutcome]) -> ClaimTest | None:
    """Return the test of a claim; None where it is not judged, or none of its rows was run."""
    pairs = _pairs(claim, rows) if claim.kind in JUDGED else []
    if not pairs:
        return None
    return together([examine(claim, *pair) for pair in pairs], [separated_there(row) for row, _ in pairs])


def _judged(family: Sequence[ClaimOutcome]) -> list[ClaimOutcome]:
    """Return claims with verdict and power, Holm's correction being over those of them that were tested."""
    tests = [each.test for each in family if each.test is not None]
    verdicts = iter(judge(tests))
    return [
        each if each.test is None else _with_power(replace(each, verdict=next(verdicts)), len(tests))
        for each in family
    ]


def _with_power(found: ClaimOutcome, claims: int) -> ClaimOutcome:
    """Return a claim with the power of its weakest row."""
    powers = [power(found.claim, *pair, claims) for pair in _pairs(found.claim, found.rows)]
    chances = [chance for chance, _ in powers if chance is not None]
    seeds = [needed for _, needed in powers if needed is not None]
    return replace(
        found,
        power=min(chances, default=None),
        seeds=max(seeds) if len(seeds) == len(powers) else None,
    )


def _controlled(found: ClaimOutcome, judged: Mapping[str, ClaimOutcome]) -> ClaimOutcome:
    """Return a claim beside its control, which counts as not found where it was not run."""
    control = judged.get(found.claim.control)
    verdict = controlled(found.verdict, control.verdict if control else "not run")
    if not found.claim.control or verdict == found.verdict:
        return found
    return replace(found, verdict=verdict, insensitive=True)


def best_rates(records: Iterable[PaperRecord]) -> dict[str, float]:
    """Return each tuned experiment's best factor of the rate: highest final accuracy, else lowest loss.

    A run that diverged is never best; of equal ones the rate nearest to the common one is taken.
    """
    trials: dict[str, list[tuple[float, float, float]]] = {}
    for record in records:
        if record.role == "tuning":
            factor = float(record.label)
            trials.setdefault(record.experiment, []).append((_merit(record), -abs(math.log(factor)), factor))
    return {experiment: max(found)[2] for experiment, found in trials.items()}


def _merit(record: PaperRecord) -> float:
    if record.status == "diverged":
        return -math.inf
    accuracy, loss = record.measures.get("val_accuracy"), record.measures.get("train_loss")
    if is_number(accuracy):
        return accuracy
    return -loss if is_number(loss) else -math.inf
