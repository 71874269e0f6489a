"""Comparison with a paper: every row with our estimate, every claim with its verdict and caveats."""

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
from psbench_papers.claim import JUDGED, Claim, ClaimKind, Scale
from psbench_papers.closed_forms import evaluate
from psbench_papers.estimates import Estimate, estimate
from psbench_papers.measures import QUALITY, TARGETS, measured
from psbench_papers.records import PaperRecord, is_number
from psbench_papers.schema import Form, Paper, PublishedNumber
from psbench_papers.verdict import (
    ALPHA,
    VERDICTS,
    ClaimTest,
    RowTest,
    Verdict,
    at_edge,
    controlled,
    drawn,
    examine,
    judge,
    levels,
    power,
    separated_there,
    suspicious,
    together,
    undrawn,
    was_missed,
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
    assumes : bool
        Whether assumed numbers affect it.
    draws : tuple of Estimate or None
        Ours moved by what each draw of the assumed numbers changes; None where a draw gives no number.
    edges : tuple of str
        Experiments whose best rate is the least or the greatest of those tried.
    """

    paper: str
    published: PublishedNumber
    ours: Estimate | None = None
    best: Estimate | None = None
    theory: float | None = None
    there: float | None = None
    flags: tuple[str, ...] = ()
    assumes: bool = False
    draws: tuple[Estimate | None, ...] = ()
    edges: tuple[str, ...] = ()

    def at(self, rates: str) -> Estimate | None:
        """Return our number at the common rate, or at the best rates if they were tried."""
        return self.best if rates == "best" and self.best is not None else self.ours

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, in the unit of the published number."""
        printed = self.published.value
        theirs = {
            "value": None if printed is None else float(printed),
            "relation": self.published.relation,
        }
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
    """A claim with its verdict.

    Attributes
    ----------
    verdict : Verdict
        For inputs and evidence, which are not judged, "not run" or "inconclusive" mean nothing.
    power : float or None
        The chance that this verdict had, see `verdict.power`.
    seeds : int or None
        How many seeds would give a chance of 80 %.
    because : tuple of str
        Sentences that say why the tests alone do not make the verdict.
    """

    paper: str
    claim: Claim
    verdict: Verdict
    rows: tuple[RowOutcome, ...]
    test: ClaimTest | None = None
    power: float | None = None
    seeds: int | None = None
    because: tuple[str, ...] = ()

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
            **{
                "rows_not_run": self.left_out,
                "because": list(self.because),
                "found": self.claim.found or None,
            },
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
    """A paper at a scale: its records and results.

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
        """One outcome for each claim with a requested row; its other rows were not run.

        Holm's correction is over all claims of the paper that have a row at this scale, whatever was asked
        for or could be run; our own checks are no part of them.
        """
        rows = {outcome.published.row: outcome for outcome in self.outcomes}
        asked = [self._asked(claim, rows) for claim in self.paper.claims if rows.keys() & {*claim.rows}]
        judged = {
            each.claim.name: _settled(each, self.scale)
            for own in (False, True)
            for each in _judged([c for c in asked if (c.claim.kind == "check") == own], self._family(own))
        }
        return [_controlled(judged[each.claim.name], judged) for each in asked]

    def _family(self, own: bool) -> int:
        """Return the number of the paper's claims, or of our own checks, with a row at this scale."""
        rows = {row.row for row in self.paper.rows if runs_at(self.paper, row, self.scale)}
        judged = [claim for claim in self.paper.claims if claim.kind in JUDGED and rows & {*claim.rows}]
        return sum((claim.kind == "check") == own for claim in judged)

    def _asked(self, claim: Claim, rows: Mapping[str, RowOutcome]) -> ClaimOutcome:
        printed = {row.row: row for row in self.paper.rows}
        group = tuple(
            rows.get(name) or RowOutcome(self.paper.name, printed[name], flags=("of another table",))
            for name in claim.rows
        )
        return ClaimOutcome(self.paper.name, claim, "not run", group, _tested(claim, group))

    def counts(self, kind: ClaimKind = "claim") -> dict[Verdict, int]:
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
            assumes=self.paper.assumes(row),
            draws=tuple(self._draws(row, ours)),
            edges=tuple(name for name in row.experiments if name in self.edges),
        )

    @cached_property
    def edges(self) -> frozenset[str]:
        """The tuned experiments whose best rate factor is the smallest or largest tried."""
        tried: dict[str, list[float]] = {}
        for record in self.records.values():
            if record.role == "tuning":
                tried.setdefault(record.experiment, []).append(float(record.label))
        return frozenset(
            name for name, grid in tried.items() if self.rates.get(name) in (min(grid), max(grid))
        )

    def _draws(self, row: PublishedNumber, ours: Estimate) -> Iterable[Estimate | None]:
        """Yield our estimate for each draw of the assumed numbers; empty without draws."""
        drawn_for = [{r.label for r in self.runs(name, "sensitivity")} for name in row.experiments]
        if not self.paper.assumes(row) or not set.intersection(*drawn_for):
            return
        asked = (row.form, row.measure, row.experiments)
        start = self.estimate(*asked, seed=0)
        for label in DRAWS:
            end = self.estimate(*asked, "sensitivity", label=label)
            yield ours.moved(start, end) if start is not None and end is not None else None

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
        """Yield the caveats of a row."""
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
        """Yield a flag if a row's runs learn more from a sample than plain synchronous training.

        A selection of samples is made to do so, and a difference of differences says nothing about it.
        """
        name = "epochs_to_target" if row.measure in TARGETS else row.measure
        if name not in _LEARNT or not row.baseline or row.minus:
            return
        strategies = [self._strategy(each) for each in row.experiments]
        if strategies[1].get("name") not in _SYNCHRONOUS:
            return
        if strategies[0].get("selection") != strategies[1].get("selection"):
            return
        values = [
            [float(r.measures[name]) for r in self.runs(each) if is_number(r.measures.get(name))]
            for each in row.experiments
        ]
        p = suspicious(*values, less_is_better=_LEARNT[name])
        if p is not None:
            yield f"learns more from a sample than synchronous training (t-test, p = {p:.2g}): look twice"

    def _strategy(self, experiment: str) -> dict[str, Any]:
        """Return the strategy of an experiment's runs; empty if there are none."""
        found: dict[str, Any] = next((json.loads(r.spec)["strategy"] for r in self.runs(experiment)), {})
        return found

    @cached_property
    def sensitivities(self) -> list[Sensitivity]:
        """Sensitivity of rows to all assumed numbers, if every draw has a result."""
        return [
            _moved(outcome.published, outcome.ours, [each.mean for each in outcome.draws if each is not None])
            for outcome in self.outcomes
            if outcome.ours is not None and outcome.draws and None not in outcome.draws
        ]

    def lr_of(self, experiment: str) -> float:
        """Return the common rate of an experiment."""
        return experiment_of(self.paper, experiment, self.scale, 0).optimizer.lr


def _pairs(claim: Claim, rows: Sequence[RowOutcome]) -> list[tuple[PublishedNumber, Estimate]]:
    """Return theirs and ours of the rows that were run."""
    return [(row.published, ours) for row in rows if (ours := row.at(claim.rates)) is not None]


def _moved(row: PublishedNumber, ours: Estimate, draws: Sequence[float]) -> Sensitivity:
    low, high = np.quantile(draws, [0.05, 0.95])
    return Sensitivity(row.row, row.printed, ours.mean, float(low), float(high), len(draws))


def _tested(claim: Claim, rows: Sequence[RowOutcome]) -> ClaimTest | None:
    """Return the test of a claim; None if it is not judged, or none of its rows was run."""
    run = [row for row in rows if row.at(claim.rates) is not None]
    if claim.kind not in JUDGED or not run:
        return None
    return together([_row_test(claim, row) for row in run], [separated_there(row.published) for row in run])


def _row_test(claim: Claim, row: RowOutcome) -> RowTest:
    """Return a row's tests, with the assumed numbers that affect it drawn; a check of ours is of no paper."""
    ((theirs, ours),) = _pairs(claim, [row])
    test = examine(claim, theirs, ours)
    if not row.assumes or claim.kind == "check":
        return test
    if not row.draws:
        return undrawn(claim, test)
    return drawn(test, [None if each is None else examine(claim, theirs, each) for each in row.draws])


def _judged(family: Sequence[ClaimOutcome], size: int) -> list[ClaimOutcome]:
    tests = [each.test for each in family if each.test is not None]
    found = iter(zip(judge(tests, size), levels([t.agrees for t in tests], ALPHA, size), strict=True))
    return [each if each.test is None else _with_power(each, each.test, *next(found)) for each in family]


def _with_power(found: ClaimOutcome, test: ClaimTest, verdict: Verdict, level: float) -> ClaimOutcome:
    """Return a claim with its verdict and power; "not found" requires enough power."""
    pairs = _pairs(found.claim, found.rows)
    if verdict == "not found" and not was_missed(found.claim, pairs, test, level):
        verdict = "inconclusive"
    chance, seeds = power(found.claim, pairs, level, verdict)
    return replace(found, verdict=verdict, power=chance, seeds=seeds)


def _settled(found: ClaimOutcome, scale: Scale) -> ClaimOutcome:
    """Return a claim, marked undecidable if its set-up or a rate at the grid's edge prevents a test."""
    if found.test is None:
        return found
    verdict, said = found.verdict, []
    if scale in found.claim.untestable:
        verdict = "not testable here"
        said.append(found.claim.untestable[scale])
    if found.claim.kind != "check" and any(row.assumes and row.ours and not row.draws for row in found.rows):
        said.append("Assumed numbers affect it and were not drawn: no size counts.")
    edges = ", ".join(dict.fromkeys(name for row in found.rows for name in row.edges))
    if edges and found.claim.rates == "best":
        verdict = at_edge(verdict)
        said.append(f"The best rate lies at the edge of those tried, a better one may lie beyond: {edges}.")
    return replace(found, verdict=verdict, because=tuple(said))


def _controlled(found: ClaimOutcome, judged: Mapping[str, ClaimOutcome]) -> ClaimOutcome:
    """Return a claim with its control, which counts as not found if it was not run."""
    of_models = any(row.published.measure in QUALITY for row in found.rows)
    if not found.claim.control and (found.claim.kind == "check" or not of_models):
        return found  # an identity of ours, or a time, which no data can saturate
    control = judged.get(found.claim.control)
    verdict = controlled(found.claim, found.verdict, control.verdict if control else "not run")
    if verdict == found.verdict:
        return found
    said = (
        f"No difference was found, nor was the loss that shows that there can be one: {control.claim.name}."
        if control
        else "No difference was found, and there is no claim of a loss that shows that there can be one."
    )
    return replace(found, verdict=verdict, because=(*found.because, said))


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
