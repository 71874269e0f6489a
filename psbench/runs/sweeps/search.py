"""Search for the shortest use of the first strategy: Sync-Switch's offline bisection over runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from psbench.core.switching_strategy import SwitchingStrategy
from psbench.core.target import Target
from psbench.errors import DataError, Diverged, ParameterError
from psbench.metrics import interval
from psbench.percents import UNIT
from psbench.results.text import ShownTable, two_digits

if TYPE_CHECKING:
    from psbench.experiment import Experiment
    from psbench.results.run import Run

#: published search settings: runs of each point, and halvings
RUNS, HALVINGS, TOLERANCE = 5, 4, 0.01


@dataclass(frozen=True)
class Point:
    """The runs of one share of the epochs.

    Attributes
    ----------
    fraction : float, 0 to 1
        Share of the epochs under the first strategy.
    values : tuple of float
        The metric at the end of each run; accuracies are from 0 to 1.
    keeps : bool
        Whether their mean is worse than the target by the tolerance at most.
    """

    fraction: float
    values: tuple[float, ...]
    keeps: bool

    @property
    def mean(self) -> float:
        """The mean over the runs."""
        return sum(self.values) / len(self.values)


@dataclass(frozen=True, repr=False)
class Search(ShownTable):
    """Result of a search, in the order of its runs; the first point is the whole run.

    Attributes
    ----------
    points : tuple of Point
    tolerance : float, in the metric's unit
    metric : str
        What was compared: "accuracy", "f1", ...
    lower : bool
        Whether the lower value of it is the better.
    runs : dict of fraction to list of Run
        Empty where values came from elsewhere.
    interrupted : bool
        Whether it was stopped before all shares had their turn.
    """

    points: tuple[Point, ...]
    tolerance: float
    metric: str = "accuracy"
    lower: bool = False
    runs: dict[float, list[Run]] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def target(self) -> float:
        """The mean of whole runs under the first strategy."""
        return self.points[0].mean

    @property
    def fraction(self) -> float:
        """The smallest share that kept the metric."""
        return min(point.fraction for point in self.points if point.keeps)

    def table(self) -> pd.DataFrame:
        """Return a row for each share, as it was looked at.

        `fraction`, `n` (runs), the metric and its `_ci` (as `accuracy` and `accuracy_ci`, half-width of the
        95 % interval), `lost` (how much worse than the target), `keeps`, and of runs `time_s` and `speed_up`
        over the whole run.
        """
        rows = []
        for point in self.points:
            mean, half = interval(point.values)
            row: dict[str, Any] = {"fraction": point.fraction, "n": len(point.values), self.metric: mean}
            lost = point.mean - self.target if self.lower else self.target - point.mean
            row |= {f"{self.metric}_ci": half, "lost": lost, "keeps": point.keeps}
            if self.runs:
                row["time_s"] = self._seconds(point.fraction)
                row["speed_up"] = self._seconds(1.0) / row["time_s"]
            rows.append(row)
        return pd.DataFrame(rows)

    @cached_property
    def _times(self) -> dict[float, list[float]]:
        """The seconds of each run, by share."""
        return {share: [run.summary()["time_s"] for run in runs] for share, runs in self.runs.items()}

    def _seconds(self, fraction: float) -> float:
        times = self._times[fraction]
        return sum(times) / len(times)

    @property
    def remarks(self) -> list[str]:
        """The target of the search, its result and its cost."""
        called = self.metric.replace("_", " ")
        target, tolerance = map(self._in_text, (self.target, self.tolerance))
        lines = [
            f"target: {called} {target}, the mean of whole runs; tolerance {tolerance}",
            f"found: {_share(self.fraction)} of the epochs under the first strategy",
        ]
        if self.runs:
            spent = sum(seconds for times in self._times.values() for seconds in times)
            lines.append(f"all runs together took as long as {spent / self._seconds(1.0):.3g} whole runs")
        if any(len(point.values) < 3 for point in self.points):
            lines.append("warning: fewer than three runs of each: differences may be chance")
        if self.interrupted:
            lines.append("stopped before the search was over")
        return lines

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows as text."""
        headings = ["first strategy", "runs", self.metric.replace("_", " ")]
        headings += ["lost", "kept", "time (s)", "speed-up"]
        rows = []
        for row in self.table().to_dict("records"):
            half = row[f"{self.metric}_ci"]
            cells = [_share(row["fraction"]), str(row["n"])]
            cells += [self._in_text(row[self.metric], half), self._in_text(row["lost"])]
            cells.append("yes" if row["keeps"] else "no")
            cells += [f"{row['time_s']:.4g}", f"{row['speed_up']:.2f}\u00a0×"] if self.runs else []
            rows.append(cells)
        return headings[: len(rows[0])], rows

    def _in_text(self, value: float, half: float | None = None) -> str:
        """Return a value of the metric, accuracies in percent, with its half-width if that is known."""
        percent = self.metric.endswith("accuracy")
        scale = 100 if percent else 1
        shown = f"{scale * value:.2f}" if percent else f"{value:.4g}"
        shown += f" ± {two_digits(scale * half)}" if half is not None and half == half else ""
        return f"{shown}{UNIT}" if percent else shown

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        frame = self.table().astype(object)
        return {
            "fraction": self.fraction,
            "target": self.target,
            "tolerance": self.tolerance,
            "metric": self.metric,
            "points": frame.where(frame.notna(), None).to_dict("records"),
        }

    def __repr__(self) -> str:
        return f"<Search: {self.fraction:g} of the epochs, {len(self.points)} points>"


def bisect(
    measure: Callable[[float, int], float],
    *,
    runs: int = RUNS,
    halvings: int = HALVINGS,
    tolerance: float = TOLERANCE,
    metric: str = "accuracy",
    lower: bool = False,
    seed: int = 0,
    watch: Callable[[Search], None] | None = None,
) -> Search:
    """Find the smallest share of the epochs under the first strategy that costs no accuracy.

    The target is the mean of `runs` whole runs under the first strategy. Between lo = 0 and hi = 1,
    `halvings` times: run the middle `runs` times; if its mean is worse than the target by at most `tolerance`
    it becomes hi, else lo. The result is hi.

    Parameters
    ----------
    measure : callable (fraction, seed) -> float
        The metric of one run, as an accuracy from 0 to 1.
    runs, halvings : int, >= 1 and >= 0
        R and M of the paper.
    tolerance : float, >= 0, in the metric's unit
        beta: accuracy that may be lost, or how much worse another metric may be.
    metric : str
        What it is called in tables.
    lower : bool
        Whether the lower value is the better one.
    seed : int
        Of the first run of each share; the others follow.
    watch : callable, optional
        Called with the search so far, after each share.

    Raises
    ------
    ParameterError
    Diverged
        If a whole run under the first strategy has no value to compare with.

    Notes
    -----
    Our reading: the published beta could not be verified; 0.01 is what their results suggest.

    Source
    ------
    Li et al. (2021), "Sync-Switch", ICDCS, timing policy.

    Examples
    --------
    >>> found = bisect(lambda fraction, seed: 0.9 if fraction >= 0.08 else 0.5, runs=1)
    >>> [point.fraction for point in found.points], found.fraction
    ([1.0, 0.5, 0.25, 0.125, 0.0625], 0.125)
    """
    if runs < 1 or halvings < 0 or not 0 <= tolerance < math.inf:
        raise ParameterError(
            f"search: runs = {runs}, halvings = {halvings}, tolerance = {tolerance}; give runs from 1, "
            "halvings from 0, and a finite tolerance from 0"
        )

    def look(fraction: float, target: float | None) -> Point:
        found = tuple(measure(fraction, seed + extra) for extra in range(runs))
        mean = sum(found) / runs
        if target is None and mean != mean:
            raise Diverged("search: a whole run under the first strategy diverged: lower the learning rate")
        return Point(
            fraction, found, target is None or (mean - target if lower else target - mean) <= tolerance
        )

    whole = look(1.0, None)
    points, lo, hi = [whole], 0.0, 1.0
    for left in range(halvings, -1, -1):
        if watch is not None:
            watch(Search(tuple(points), tolerance, metric, lower))
        if left:
            points.append(look((lo + hi) / 2, whole.mean))
            lo, hi = (lo, points[-1].fraction) if points[-1].keeps else (points[-1].fraction, hi)
    return Search(tuple(points), tolerance, metric, lower)


def at_fraction(experiment: Experiment, fraction: float) -> Experiment:
    """Return the experiment with that share of the epochs under the first strategy.

    Raises
    ------
    ParameterError
        If its strategy does not switch after a share of the epochs.
    """
    strategy = experiment.strategy
    if not isinstance(strategy, SwitchingStrategy) or "fraction" not in type(strategy.rule).model_fields:
        raise ParameterError(
            f"search: strategy {strategy.name!r} does not switch after a share of the epochs; "
            "use sync_switch, or strategy_switch with the rule 'after'"
        )
    spec = strategy.spec()
    return experiment.but(strategy=spec | {"rule": spec["rule"] | {"fraction": fraction}})


def find_fraction(
    experiment: Experiment,
    *,
    runs: int = RUNS,
    halvings: int = HALVINGS,
    tolerance: float = TOLERANCE,
    metric: str = "accuracy",
    **options: Any,
) -> Search:
    """Search for the shortest use of the first strategy by running other shares of the epochs.

    Parameters
    ----------
    experiment : Experiment
        Its strategy switches after a share of the epochs, as `sync_switch` does. A share of which a run
        diverges does not keep the metric.
    runs, halvings, tolerance
        See `bisect`. The runs of a share are made side by side.
    metric : str
        What may not get worse, as last evaluated: "accuracy" or "loss" of the validation set, "train_loss",
        or one of the experiment's `metrics` that says which way is better.
    **options
        `processes`, `client`, `folder` as of `psbench.sweep`, and `progress`, off by default. With a folder,
        a second call makes only the runs that are missing there.

    Returns
    -------
    Search
        After Ctrl-C with the shares that were complete.

    Raises
    ------
    SpecError, DataError
        Before the first run.

    Examples
    --------
    >>> from psbench.testing import toy_experiment
    >>> found = find_fraction(toy_experiment("sync_switch"), runs=1, halvings=2)
    >>> len(found.points)
    3
    """
    from psbench.runs.sweeps.cells import Cell
    from psbench.runs.sweeps.sweep import runs_of

    at_fraction(experiment, 1.0)
    lower = experiment.is_lower_better(metric, "search")
    column = Target.model_construct(metric=metric).column
    _check_evaluated(experiment, column)
    done: dict[float, list[Run]] = {}

    def measured(fraction: float, seed: int) -> float:
        if fraction not in done:
            planned = at_fraction(experiment, fraction)
            seeds = range(experiment.seed, experiment.seed + runs)
            cells = [Cell(planned.but(seed=each), {"share": _share(fraction)}) for each in seeds]
            done[fraction] = runs_of(cells, **options)
        return value_of(done[fraction][seed - experiment.seed], column)

    seen: list[Search] = []
    sizes: dict[str, Any] = {"runs": runs, "halvings": halvings, "tolerance": tolerance}
    sizes |= {"metric": metric, "lower": lower}
    try:
        found = bisect(measured, seed=experiment.seed, watch=seen.append, **sizes)
    except KeyboardInterrupt:
        if not seen:
            raise
        found = replace(seen[-1], interrupted=True)
    return replace(found, runs=done)


def _check_evaluated(experiment: Experiment, column: str) -> None:
    from psbench.training.build import Workload

    values: dict[str, Any] = {}
    if not experiment.timing_only:
        workload = Workload.build(experiment)
        values = workload.evaluator().evaluate(workload.parameters, workload.buffers)
    if column not in values:
        of, _, bare = column.partition("_")
        known = ", ".join(values) or "nothing"
        raise DataError(
            f"search: compares {bare.replace('_', ' ')} of the "
            f"{'validation' if of == 'val' else 'training'} set, but these runs evaluate {known}; choose "
            "with `metric`"
        )


def _share(fraction: float) -> str:
    """Return a share of the epochs as text."""
    return f"{100 * fraction:.4g}{UNIT}"


def value_of(run: Run, column: str) -> float:
    """Return the last evaluated value, such as `val_f1`; NaN if the run diverged or it is missing."""
    rows = run.log.evaluations()
    found = rows[-1].get(column) if rows and run.meta["status"] != "diverged" else None
    return float("nan") if found is None else float(found)
