"""The answer to `optimal_time`: runs beside the worst-case optimal time of their cluster and problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.arrays import Doubles
from psbench.errors import ParameterError
from psbench.optimal.bounds import ITERATIONS, Bound
from psbench.optimal.measured import Problem, measure
from psbench.results.groups import group
from psbench.results.run import Run

if TYPE_CHECKING:
    import pandas as pd

    from psbench.charts import Figure, Sheet

#: the evaluated value of the metric
GRADIENT = "train_gradient_norm_sq"
#: points of the lines in a chart
GRID = 60


def optimal_time(
    runs: Run | Sequence[Run], *, like_data: bool | None = None, bound: Bound | None = None
) -> OptimalTime:
    """Compare runs with the worst-case optimal time of their cluster, for their own problem.

    Parameters
    ----------
    runs : Run or sequence of Run
        Of one problem: the same data, model, batch and cluster. With `metrics=["gradient_norm_sq"]` among
        those of the experiment, gradient norms are compared, else training losses.
    like_data : bool, optional
        Whether all workers draw from the same distribution; by default as measured.
    bound : Bound, optional
        The numbers of the problem, where they are known; by default they are measured on the first run, see
        `measure`.

    Returns
    -------
    OptimalTime
        With a `sentence` for each strategy, a table (`frame`) and a `chart`.

    Raises
    ------
    ParameterError
        If the runs are of several problems, or have no model or no evaluations.

    Examples
    --------
    >>> from psbench import optimal_time, run
    >>> from psbench.testing import toy_experiment
    >>> done = run(toy_experiment("asp", metrics=["gradient_norm_sq"]))
    >>> answer = optimal_time(done)
    >>> answer.ratios()["asp"] < 1
    True
    """
    given = [runs] if isinstance(runs, Run) else list(runs)
    if not given:
        raise ParameterError("optimal time: there is no run; give at least one")
    first = given[0].experiment
    for other in given[1:]:
        for name in _OF_A_PROBLEM:
            if getattr(other.experiment, name) != getattr(first, name):
                raise ParameterError(
                    f"optimal time: the runs differ in {name}, so they have no common worst case; give runs "
                    "of one data set, model, batch and cluster"
                )
    if bound is None:
        problem = measure(given[0], like_data)
    elif like_data is None:
        problem = Problem(bound, "L, sigma^2, Delta and the times of workers are those given.")
    else:
        raise ParameterError("optimal time: like_data is said by the bound; leave it out")
    answer = OptimalTime(problem.bound, problem.how, group(given).runs)
    if not any(len(curve) for curves in answer.curves.values() for curve in curves):
        raise ParameterError(
            "optimal time: the runs have neither gradient norms nor training losses; evaluate them with "
            "metrics: [gradient_norm_sq]"
        )
    return answer


#: fields of an experiment that make its problem
_OF_A_PROBLEM = ("data", "model", "loss", "batch_size", "sharding", "cluster", "backend")


@dataclass(frozen=True)
class OptimalTime:
    """Runs beside the worst-case optimal time.

    Attributes
    ----------
    bound : Bound
    how : str
        How its numbers were found.
    runs : mapping of label to runs that differ in their seed only
    """

    bound: Bound
    how: str
    runs: Mapping[str, Sequence[Run]]

    @property
    def value(self) -> str:
        """The compared value: "gradient_norm_sq", or "loss" where some run has no gradient norms."""
        every = [row for runs in self.runs.values() for run in runs for row in run.log.evaluations()]
        return "gradient_norm_sq" if all(GRADIENT in row for row in every) else "loss"

    @cached_property
    def curves(self) -> Mapping[str, list[Doubles]]:
        """For each label and seed the times and the smallest values so far, (2, evaluations)."""
        column = GRADIENT if self.value == "gradient_norm_sq" else "train_loss"
        found: dict[str, list[Doubles]] = {}
        for label, runs in self.runs.items():
            rows = [[(r["time_s"], r[column]) for r in run.log.evaluations() if column in r] for run in runs]
            each = [np.asarray(row, dtype=np.float64).reshape(-1, 2).T for row in rows]
            found[label] = [
                np.stack([t, np.fmin.accumulate(v)]) if len(t) else np.empty((2, 0)) for t, v in each
            ]
        return found

    def target_of(self, value: float) -> float:
        """Return the eps that a value stands for.

        A loss F stands for eps = 2 L F, which the squared gradient norm of an L-smooth loss that is not below
        0 cannot exceed.
        """
        return value if self.value == "gradient_norm_sq" else 2 * self.bound.smoothness * value

    @property
    def target(self) -> float:
        """The smallest value that every run has reached."""
        ends = [curve[1, -1] for curves in self.curves.values() for curve in curves if curve.size]
        return float(max(ends))

    def times(self, value: float) -> dict[str, float]:
        """Return the mean time of each label to a value; infinite if a seed never reaches it."""
        return {
            label: float(np.mean([_first(curve, value) for curve in curves]))
            for label, curves in self.curves.items()
        }

    def ratios(self, value: float | None = None) -> dict[str, float]:
        """Return each label's time to a value, in units of the time that is guaranteed."""
        aim = self.target if value is None else value
        guaranteed = self.bound.guaranteed(self.target_of(aim))
        return {label: time / guaranteed for label, time in self.times(aim).items()}

    def frame(self, value: float | None = None) -> pd.DataFrame:
        """Return a row for each label.

        Returns
        -------
        DataFrame
            `label`, `time_s` to the value (by default the smallest that all runs reached), `ratio` to the
            guaranteed time; `attrs` has `value`, `guaranteed_s` and `unavoidable_s`.
        """
        import pandas as pd

        aim = self.target if value is None else value
        times, ratios = self.times(aim), self.ratios(aim)
        table = pd.DataFrame({"label": list(times), "time_s": times.values(), "ratio": ratios.values()})
        eps = self.target_of(aim)
        table.attrs = {
            "value": aim,
            "guaranteed_s": self.bound.guaranteed(eps),
            "unavoidable_s": self.bound.unavoidable(eps),
        }
        return table

    @property
    def _has_floor(self) -> bool:
        """Return True if the hard function has a coordinate at the smallest value that a run has reached."""
        least = min(curve[1, -1] for curves in self.curves.values() for curve in curves if curve.size)
        return least > 0 and self.bound.unavoidable(self.target_of(float(least))) > 0

    # ---------------------------------------------------------------- words

    @property
    def question(self) -> str:
        """The question that is answered."""
        return "How fast could it be?"

    @property
    def caption(self) -> str:
        """How to read the lines, with the constant."""
        method = "Rennala SGD" if self.bound.like_data else "Malenia SGD"
        others = "" if self.bound.like_data else ", where the workers' data are unlike"
        floor = (
            " Short dashes: the time that every method needs on the hardest loss with these L, sigma^2 and "
            "Delta, a chain of L Delta / (3648 eps) coordinates."
            if self._has_floor
            else " No time is drawn that every method needs: the hardest loss of the proof, a chain of "
            "L Delta / (3648 eps) coordinates, has none at so large an eps."
        )
        loss = (
            ""
            if self.value == "gradient_norm_sq"
            else " A loss F stands for eps = 2 L F, which the squared gradient norm does not exceed."
        )
        several = any(len(runs) > 1 for runs in self.runs.values())
        seeds = " Curves are of the first seed of each strategy." if several else ""
        return (
            f"Long dashes: the worst-case optimal time for this L, sigma^2 and Delta{others}: {method} "
            f"guarantees it with {ITERATIONS} L Delta / eps iterations (Tyurin and Richtarik). A run on a "
            f"problem that is easier than the worst may lie below it.{floor}{loss}{seeds}"
        )

    @property
    def sentence(self) -> str:
        """The answer in words."""
        aim = self.target
        what = "a squared gradient norm" if self.value == "gradient_norm_sq" else "a training loss"
        eps = self.target_of(aim)
        guaranteed, never = self.bound.guaranteed(eps), self.bound.unavoidable(eps)
        parts = [
            f"{label} {_at(ratio)} ({time:.3g} s)"
            for (label, ratio), time in zip(self.ratios(aim).items(), self.times(aim).values(), strict=True)
        ]
        hardest = f"; on the hardest one every method needs more than {never:.3g} s" if never else ""
        return (
            f"{what.capitalize()} of {aim:.3g} is guaranteed within {guaranteed:.4g} s on any loss with "
            f"these L, sigma^2 and Delta{hardest}. Here: {'; '.join(parts)}."
        )

    @property
    def remarks(self) -> list[str]:
        """How the numbers were found."""
        return [self.how, self.caption]

    def text(self, width: int | None = None) -> str:
        """Return the sentence, the table and how the numbers were found, for a terminal."""
        import textwrap

        from psbench.results.text import table_text

        sentence = textwrap.fill(self.sentence, width or 100)
        return f"{sentence}\n\n{table_text(*self.cells(), self.remarks, width)}"

    def __repr__(self) -> str:
        return f"<OptimalTime: {self.sentence}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        frame, bound = self.frame(), self.bound
        return {
            "value": self.value,
            "at": frame.attrs["value"],
            "guaranteed_s": frame.attrs["guaranteed_s"],
            "unavoidable_s": frame.attrs["unavoidable_s"],
            "smoothness": bound.smoothness,
            "variance": bound.variance,
            "gap": bound.gap,
            "like_data": bound.like_data,
            "step_s": list(bound.step_s),
            "runs": frame.to_dict("records"),
            "sentence": self.sentence,
            "how": self.how,
        }

    # ---------------------------------------------------------------- a section of a report

    @property
    def explains(self) -> bool:
        """Return True: the section always has a figure."""
        return True

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and the rows of the table of strategies, as text."""
        frame = self.frame()
        guaranteed = frame.attrs["guaranteed_s"]
        rows = [
            [str(row["label"]), f"{row['time_s']:.4g}", f"{row['ratio']:.3g}"]
            for row in frame.to_dict("records")
        ]
        rows.append(["guaranteed", f"{guaranteed:.4g}", "1"])
        never = frame.attrs["unavoidable_s"]
        if never:
            rows.append(["no method guarantees less than", f"{never:.4g}", f"{never / guaranteed:.3g}"])
        return [f"to {self.value} {frame.attrs['value']:.3g}", "time (s)", "of the guaranteed time"], rows

    def joint_cells(self) -> tuple[list[str], list[list[str]]]:
        """Return an empty table: nothing interacts."""
        return [], []

    def computed_cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and the rows of the table of runs, with their digests, as text."""
        rows = [
            [f"{label}, seed {run.experiment.seed}", str(run.meta["params_digest"])[:16]]
            for label, runs in self.runs.items()
            for run in runs
        ]
        return ["run", "digest of the parameters"], rows

    def report(self, path: str | Path) -> Path:
        """Write a report of the runs that begins with this answer; see `Comparison`."""
        from psbench.results.comparison import comparison_of

        return comparison_of([run for runs in self.runs.values() for run in runs]).report(path, self)

    def chart(self, width: int = 640) -> Sheet:
        """Return the curves of the runs with the lines of the worst case."""
        from psbench.charts import stack

        return stack([self.figure().chart], width)

    def figure(self) -> Figure:
        """Return the chart as a figure of a page."""
        import pandas as pd

        from psbench.charts import Figure
        from psbench.charts.optimal import optimal_chart

        table = pd.concat(
            [
                pd.DataFrame({"label": label, "time_s": curve[0], self.value: curve[1]})
                for label, curves in self.curves.items()
                for curve in curves[:1]
            ],
            ignore_index=True,
        )
        known = table[self.value][table[self.value] > 0]
        grid = np.geomspace(known.min(), known.max(), GRID)
        bounds = pd.DataFrame(
            {
                self.value: grid,
                "guaranteed": [self.bound.guaranteed(self.target_of(each)) for each in grid],
                "unavoidable": [self.bound.unavoidable(self.target_of(each)) for each in grid],
            }
        )
        return Figure(
            optimal_chart(table, bounds, self.value, list(self.runs)), table, self.caption, "optimal"
        )


def _first(curve: Doubles, value: float) -> float:
    """Return the first time at which a curve is at most `value`; infinite without one."""
    reached = np.flatnonzero(curve[1] <= value)
    return float(curve[0, reached[0]]) if len(reached) else float("inf")


def _at(ratio: float) -> str:
    """Say how a time compares with the guaranteed one."""
    if ratio <= 1:
        return f"took {ratio:.2g} of the guaranteed time"
    return f"is within {ratio:.2g} x of the guaranteed time" if np.isfinite(ratio) else "did not get there"
