"""Ours beside theirs: every published row with our estimate, the verdict, and what to know about it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from psbench.papers.cells import experiment_of, rows_of, runs_at
from psbench.papers.closed_forms import evaluate
from psbench.papers.measures import TARGETS, measured
from psbench.papers.records import Record, is_number
from psbench.papers.schema import UNITS, Paper, Published, Scale
from psbench.papers.verdict import (
    VERDICTS,
    Estimate,
    Verdict,
    estimate,
    holds_no_effect,
    judge,
    suspicious,
)

#: strategies that are plain synchronous training
_SYNCHRONOUS = ("bsp", "all_reduce")
#: what says how much was learnt from a sample, and whether less is better
_LEARNT = {"epochs_to_target": True, "val_accuracy": False, "train_accuracy": False, "train_loss": True}


@dataclass(frozen=True)
class Outcome:
    """A published row and what became of it.

    Attributes
    ----------
    ours, best : Estimate or None
        At the common rate, and with each experiment at its best rate (None where rates were not tried).
    theory : float or None
        The closed form, where there is one.
    flags : tuple of str
        What a reader has to know before believing the verdict.
    """

    paper: str
    published: Published
    verdict: Verdict
    ours: Estimate | None = None
    best: Estimate | None = None
    best_verdict: Verdict | None = None
    theory: float | None = None
    flags: tuple[str, ...] = ()
    note: str = ""

    @property
    def factor(self) -> float:
        """What our numbers are multiplied by to have the unit of theirs."""
        ratio = self.published.form in ("speed_up", "ratio", "sd_ratio")
        return 1.0 if ratio else UNITS[self.published.unit]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, in the unit of the published number."""
        theirs = {"value": float(self.published.value), "relation": self.published.relation}
        return {
            **{"paper": self.paper, "table": self.published.exhibit, "row": self.published.row},
            "place": self.published.place,
            "unit": self.published.unit,
            "theirs": theirs | {"error": self.published.rounding + self.published.reading_error},
            "ours": self._plain(self.ours),
            "verdict": self.verdict,
            "ours_at_best_rates": self._plain(self.best),
            "verdict_at_best_rates": self.best_verdict,
            "closed_form": self.theory,
            "flags": list(self.flags),
            "note": self.note or self.published.reason,
        }

    def _plain(self, found: Estimate | None) -> dict[str, float | int | None] | None:
        if found is None:
            return None
        numbers = {"mean": found.mean, "low": found.low, "high": found.high}
        plain = {name: self.factor * v if math.isfinite(v) else None for name, v in numbers.items()}
        return plain | {"seeds": found.seeds, "never": found.never, "lower_bounds": found.bounds}


@dataclass(frozen=True)
class Sensitivity:
    """How a row's number moves when a guess is halved and doubled."""

    row: str
    guess: str
    value: float
    source: str
    theirs: float
    half: float | None
    ours: float
    double: float | None


@dataclass(frozen=True)
class Reproduction:
    """A paper at a scale: records, and what follows from them.

    Attributes
    ----------
    records : mapping of key to Record
    missing : mapping of experiment to str
        Why some could not be run.
    seeds : int or None
        How many were asked for; None leaves it to the scale and the set-ups.
    """

    paper: Paper
    scale: Scale
    seeds: int | None
    records: Mapping[str, Record]
    table: str | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def rates(self) -> dict[str, float]:
        """The best of the tried factors of each experiment's rate, by its final validation accuracy."""
        return best_rates(self.records.values())

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """One for each row, in the order of the paper."""
        return [self._outcome(row) for row in rows_of(self.paper, self.scale, self.table)]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many rows have each verdict."""
        found = Counter(outcome.verdict for outcome in self.outcomes)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def runs(self, experiment: str, role: str = "result") -> list[Record]:
        """Return the runs of an experiment, by seed; at its best rate, the common one may be that."""
        if role == "best" and self.rates.get(experiment, 1.0) == 1.0:
            role = "result"
        found = [r for r in self.records.values() if r.experiment == experiment and r.role == role]
        return sorted(found, key=lambda record: record.seed)

    def number(self, row: Published, role: str = "result") -> Estimate | None:
        """Return our estimate for a row; None if a run is missing."""
        names = [row.experiment, *filter(None, [row.baseline])]
        groups = [self.runs(name, role) for name in names]
        if not all(groups) or len({len(group) for group in groups}) > 1:
            return None
        values = [[measured(record.measures, row.measure) for record in group] for group in groups]
        return estimate(row.form, *values)

    def _outcome(self, row: Published) -> Outcome:
        note = self.paper.notes.get(row.row, self.paper.notes.get(row.exhibit, ""))
        if row.reason:
            return Outcome(self.paper.name, row, "not run", note=note)
        if not runs_at(self.paper, row, self.scale):
            return Outcome(
                self.paper.name, row, "not run", flags=(f"not run at scale {self.scale}",), note=note
            )
        ours = self.number(row)
        if ours is None:
            why = next((self.missing[n] for n in (row.experiment, row.baseline) if n in self.missing), "")
            return Outcome(self.paper.name, row, "not run", flags=(why or "not run yet",), note=note)
        verdict = judge(row, ours)
        tuned = any(name in self.rates for name in (row.experiment, row.baseline))
        best = self.number(row, "best") if tuned else None
        return Outcome(
            *(self.paper.name, row, verdict, ours, best),
            best_verdict=judge(row, best) if best is not None else None,
            theory=self._theory(row),
            flags=tuple(self._flags(row, ours)),
            note=note if verdict != "reproduced" else "",
        )

    def _theory(self, row: Published) -> float | None:
        for theory in self.paper.theories:
            if row.row in theory.rows:
                return self.closed_form(theory.formula, theory.arguments)
        return None

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
        experiment, baseline, name = value
        groups = [[measured(r.measures, name) for r in self.runs(each)] for each in (experiment, baseline)]
        return estimate("speed_up", *groups).mean if all(groups) else None

    def _flags(self, row: Published, ours: Estimate) -> Iterable[str]:
        """Yield what a reader has to know about a row."""
        runs = self.runs(row.experiment) + (self.runs(row.baseline) if row.baseline else [])
        if diverged := sum(record.status == "diverged" for record in runs):
            yield f"{diverged} of {len(runs)} runs diverged"
        if ours.never:
            yield f"never reached its target in {ours.never} of {ours.seeds} seeds"
        if ours.bounds:
            yield f"the baseline never reached its target in {ours.bounds} seeds: a lower bound"
        if ours.seeds < 2:
            yield "one seed: no interval"
        if holds_no_effect(row, ours) and row.relation == "=":
            yield "our interval also holds 'no effect'"
        yield from self._suspicions(row)

    def _suspicions(self, row: Published) -> Iterable[str]:
        """Yield a flag if a row's runs learn more from a sample than plain synchronous training."""
        name = "epochs_to_target" if row.measure in TARGETS else row.measure
        if name not in _LEARNT or not row.baseline or not self._is_synchronous(row.baseline):
            return
        values = [
            [float(r.measures[name]) for r in self.runs(each) if is_number(r.measures.get(name))]
            for each in (row.experiment, row.baseline)
        ]
        p = suspicious(*values, less_is_better=_LEARNT[name])
        if p is not None:
            yield f"learns more from a sample than synchronous training (t-test, p = {p:.2g}): look twice"

    def _is_synchronous(self, experiment: str) -> bool:
        found = self.runs(experiment)
        return bool(found) and json.loads(found[0].spec)["strategy"]["name"] in _SYNCHRONOUS

    @cached_property
    def sensitivities(self) -> list[Sensitivity]:
        """How the sensitive rows move with each guess."""
        rows = {row.row: row for row in self.paper.rows}
        found = []
        for name in self.paper.sensitive:
            row = rows[name]
            if runs_at(self.paper, row, self.scale) and self.runs(row.experiment):
                setup = self.paper.experiments[row.experiment].setup
                guesses = [guess for guess in self.paper.guesses if setup in guess.setups]
                found += [s for guess in guesses if (s := self._moved(row, guess)) is not None]
        return found

    def _moved(self, row: Published, guess: Any) -> Sensitivity | None:
        labels = ["", *(f"{guess.name} {factor:g}" for factor in (0.5, 2.0))]
        ours, half, double = (self._single(row, label) for label in labels)
        if ours is None or half is double is None:
            return None
        return Sensitivity(
            row.row, guess.name, guess.value, guess.source, float(row.value), half, ours, double
        )

    def _single(self, row: Published, label: str) -> float | None:
        """Return a row's number with seed 0 and one guess changed."""
        names = [row.experiment, *filter(None, [row.baseline])]
        role = "sensitivity" if label else "result"
        groups = [[r for r in self.runs(name, role) if r.label == label and r.seed == 0] for name in names]
        if not all(groups):
            return None
        return estimate(row.form, *([measured(r.measures, row.measure) for r in g] for g in groups)).mean

    def lr_of(self, experiment: str) -> float:
        """Return the common rate of an experiment."""
        return experiment_of(self.paper, experiment, self.scale, 0).optimizer.lr


def best_rates(records: Iterable[Record]) -> dict[str, float]:
    """Return each tuned experiment's best factor of the rate: highest final accuracy, else lowest loss.

    A run that diverged is never best; of equal ones the rate nearest to the common one is taken.
    """
    trials: dict[str, list[tuple[float, float, float]]] = {}
    for record in records:
        if record.role == "tuning":
            factor = float(record.label)
            trials.setdefault(record.experiment, []).append((_merit(record), -abs(math.log(factor)), factor))
    return {experiment: max(found)[2] for experiment, found in trials.items()}


def _merit(record: Record) -> float:
    if record.status == "diverged":
        return -math.inf
    accuracy, loss = record.measures.get("val_accuracy"), record.measures.get("train_loss")
    if is_number(accuracy):
        return accuracy
    return -loss if is_number(loss) else -math.inf
