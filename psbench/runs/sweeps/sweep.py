"""A sweep: many runs of one experiment, their outcomes, and the best of each strategy."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psbench.core.target import Aim, plain_target, target_of
from psbench.errors import BackendError, UnknownName
from psbench.results import remarks
from psbench.results.text import ShownTable, table_text
from psbench.runs.sweeps import table
from psbench.runs.sweeps.cells import Cell, CellOutcome
from psbench.runs.sweeps.grid import Grid, cells_of, check

if TYPE_CHECKING:
    import pandas as pd

    from psbench.charts import Sheet
    from psbench.experiment import Experiment
    from psbench.results.comparison import Comparison
    from psbench.results.run import Run

#: failures, and warnings of runs, that the remarks list; a table of all is `frame()`
_LISTED = 3


@dataclass(frozen=True, repr=False)
class Sweep(ShownTable):
    """Outcomes of the cells of a sweep.

    Attributes
    ----------
    outcomes : sequence of CellOutcome
        In the order of the grid, seeds varying fastest.
    target : float, mapping, text or None
        What times to target refer to (`core.target`); if None, see `frame`.
    """

    outcomes: Sequence[CellOutcome]
    target: Aim = None

    @property
    def runs(self) -> list[Run]:
        """The runs, without the cells that failed or were not run."""
        return [outcome.run for outcome in self.outcomes if not outcome.error]

    @property
    def failed(self) -> list[CellOutcome]:
        """The cells that have no run; each has its `error`, and a `traceback` if it is not psbench's own."""
        return [outcome for outcome in self.outcomes if outcome.error]

    @property
    def interrupted(self) -> bool:
        """Return True if the sweep was stopped before all cells were run."""
        return any(not outcome.was_run for outcome in self.outcomes)

    @cached_property
    def parameters(self) -> list[str]:
        """The paths of the grid."""
        return list(dict.fromkeys(path for outcome in self.outcomes for path in outcome.cell.parameters))

    def frame(self, target: Aim = None) -> pd.DataFrame:
        """Return a row for each cell.

        Parameters
        ----------
        target : float, 0 to 1, or what else means one, optional
            Validation accuracy, or a bound of another metric, for the time to target. By default that of the
            sweep or of the experiment's stop rule, else what half of the runs reached.

        Returns
        -------
        DataFrame
            The parameters (numbers as they are, all else by name), `seed`, `status` ("finished", "diverged",
            "failed", "not run"), `error`, and the results: `val_accuracy`, `train_accuracy`, `val_loss`,
            `train_loss` at the end (missing if the run diverged), own metrics, `best_val_accuracy`, `time_s`,
            `time_to_target_s` (infinite if never), `epochs`, `updates`, `staleness_mean`, `idle_fraction`,
            `megabytes` sent (1e6 bytes: up, down, data), and `wall_s`, the seconds that the run took here.
        """
        return table.frame_of(self.outcomes, target_of(self.target if target is None else target))

    def table(self, target: Aim = None) -> pd.DataFrame:
        """Return a row for each setting, with means over seeds.

        `n` seeds, of which some `diverged`, `failed` or were `not_run`; for each result of `frame` its mean,
        `{result}_ci`, the half-width of the 95 % interval, and `{result}_sd`, the standard deviation. A mean
        is missing unless every seed has the value, and infinite if one never reached the target;
        `time_to_target_reached` then says how many did, and `time_to_target_at_least_s` the least it can be.
        """
        return table.table_of(self.frame(target), self._paths)

    @property
    def _paths(self) -> list[str]:
        return self.parameters or ["seed"]

    def result(self, value: str) -> str:
        """Return the name of a result; "f1" stands for "val_f1".

        Raises
        ------
        UnknownName
        """
        known = [*table.RESULTS, *table.own_results(self.frame(), self._paths)]
        if f"val_{value}" in known:
            return f"val_{value}"
        if value not in known:
            raise UnknownName("result", value, known)
        return value

    def parameter(self, path: str) -> str:
        """Return the path of a parameter; "lr" stands for "optimizer.lr" if that is unambiguous.

        Raises
        ------
        UnknownName
        """
        ends = [own for own in self.parameters if own.endswith(f".{path}")]
        if path not in self.parameters and len(ends) != 1:
            raise UnknownName("parameter of the sweep", path, self.parameters)
        return path if path in self.parameters else ends[0]

    def heatmap(
        self,
        x: str,
        y: str,
        value: str = "val_accuracy",
        *,
        where: Mapping[str, Any] | None = None,
        width: int = 640,
    ) -> Sheet:
        """Return a chart of the mean of a result over two parameters; see `pictures.heatmap`."""
        from psbench.charts import with_warnings
        from psbench.runs.sweeps.pictures import heatmap

        chosen = self._where(where or {})
        sheet = heatmap(chosen, self._paths, self.parameter(x), self.parameter(y), self.result(value), width)
        return with_warnings(sheet, self.warnings, width)

    def lines(
        self,
        x: str,
        value: str = "val_accuracy",
        by: str | None = None,
        *,
        where: Mapping[str, Any] | None = None,
        width: int = 640,
    ) -> Sheet:
        """Return a chart of a result against a parameter, with intervals; see `pictures.lines`."""
        from psbench.charts import with_warnings
        from psbench.runs.sweeps.pictures import lines

        chosen = self._where(where or {})
        own = None if by is None else self.parameter(by)
        sheet = lines(chosen, self._paths, self.parameter(x), self.result(value), own, width)
        return with_warnings(sheet, self.warnings, width)

    def _where(self, values: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows of the table in which parameters have these values."""
        rows = self.table()
        for path, value in values.items():
            own = self.parameter(path)
            if value not in (known := list(dict.fromkeys(rows[own]))):
                raise UnknownName(f"value of {own}", str(value), map(str, known))
            rows = rows[rows[own] == value]
        return rows

    def best(
        self,
        by: str = "strategy",
        value: str = "val_accuracy",
        *,
        largest: bool | None = None,
        unequal: bool = False,
    ) -> pd.DataFrame:
        """Return the best setting for each value of a parameter, such as each strategy.

        Parameters
        ----------
        by : str
            A parameter of the sweep.
        value : str
            The result that is best where its mean over seeds is the largest (accuracies) or the smallest
            (all else); a metric of your own as it was declared (`better`).
        largest : bool, optional
            Which of the two, where it was not declared.
        unequal : bool
            Whether the numbers of settings that were tried may differ. A longer search finds a better best,
            whatever it is that is compared.

        Returns
        -------
        DataFrame
            A row for each: its setting, the result with `_ci` and `_sd`, `n` seeds, and `trials`, how many
            settings were tried.

        Raises
        ------
        ParameterError
            If the numbers of trials differ, or settings are missing.
        """
        from psbench.runs.sweeps.best import best_of

        path, own = self.parameter(by), self.result(value)
        smaller = table.smaller_is_better(own, self.outcomes) if largest is None else not largest
        return best_of(self.table(), self._paths, path, own, smaller, unequal=unequal)

    def comparison(
        self,
        by: str = "strategy",
        value: str = "val_accuracy",
        *,
        largest: bool | None = None,
        unequal: bool = False,
        target: Aim = None,
    ) -> Comparison:
        """Return the comparison of the best settings; see `best` for the parameters."""
        from psbench.results.comparison import comparison_of
        from psbench.runs.sweeps.best import outcomes_of

        found = self.best(by, value, largest=largest, unequal=unequal)
        runs = [
            outcome.run for outcome in outcomes_of(self.outcomes, found, self._paths) if not outcome.error
        ]
        return comparison_of(runs, target=self.target if target is None else target)

    @property
    def warnings(self) -> list[str]:
        """The first few warnings of the runs."""
        return remarks.of_runs(
            (
                (each.cell.setting, each.cell.experiment.seed, each.summary["warnings"])
                for each in self.outcomes
                if not each.error
            ),
            most=_LISTED,
        )

    @property
    def remarks(self) -> list[str]:
        """The meaning of the table's numbers, and the errors."""
        target, source = table.aim_of(self.outcomes, target_of(self.target))
        means = self.table().to_dict("records")
        lines = [] if target is None else remarks.of_target(target, source, means)
        if any(row["n"] > 1 for row in means):
            lines.append(remarks.of_interval())
        lines += [f"warning: {text}" for text in self.warnings]
        failed = [outcome for outcome in self.failed if outcome.was_run]
        lines += [f"failed: {each.cell.label}: {each.error}" for each in failed[:_LISTED]]
        if len(failed) > _LISTED:
            lines.append(f"failed: and {len(failed) - _LISTED} more")
        missing = sum(not outcome.was_run for outcome in self.outcomes)
        return lines + (
            [f"stopped: {missing} of {len(self.outcomes)} runs were not executed"] if missing else []
        )

    def cells(self, width: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows as text; with a width, in characters, without the columns beyond it."""
        return table.cells_as_text(self.table(), self._paths, width)

    def text(self, width: int | None = None) -> str:
        """Return the table for a terminal, with the remarks below it."""
        width = width or shutil.get_terminal_size().columns
        return table_text(*self.cells(width), self.remarks, width)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome of every cell as plain data; unreached times are None."""
        frame = self.frame().astype(object)
        known = frame.notna() & (frame != float("inf"))
        aim, _ = table.aim_of(self.outcomes, target_of(self.target))
        return {
            "parameters": self.parameters,
            "target": None if aim is None else plain_target(aim),
            "runs": frame.where(known, None).to_dict("records"),
        }

    def __repr__(self) -> str:
        return f"<Sweep over {', '.join(self._paths)}: {len(self.outcomes)} runs, {len(self.failed)} failed>"


def sweep(
    experiment: Experiment,
    grid: Grid | Sequence[Grid],
    *,
    seeds: int | Sequence[int] = 1,
    folder: str | Path | None = None,
    processes: int | None = None,
    client: Any = None,
    target: Aim = None,
    progress: bool = True,
) -> Sweep:
    """Run an experiment with every combination of some values, side by side on all cores.

    Parameters
    ----------
    experiment : Experiment
        What all runs have in common.
    grid : mapping of dotted path to list of values, or a list of such
        Such as `{"strategy": ["bsp", "asp"], "optimizer.lr": [0.05, 0.1]}`. A value may be whatever the
        experiment takes there: a name, a mapping, a number, a model or data of your own. Several grids are
        run one after another, for parameters that only some strategies have.
    seeds : int or sequence of int
        How many seeds of each setting, from the experiment's own on; or which.
    folder : path, optional
        Each run is saved in a folder of its own there. A second call with the same folder runs what is
        missing or has failed; which cell a folder belongs to is the digest of its whole specification.
    processes : int, optional
        How many runs at a time; by default one a core. 1 runs them in this process.
    client : distributed.Client, optional
        Of a Dask cluster that runs them as tasks.
    target : float, 0 to 1, or mapping, optional
        Validation accuracy, or `{"metric": "f1", "at_least": 0.9}`, for times to target; see `Sweep.frame`.
    progress : bool
        Whether progress is shown: in a terminal or a notebook, else as lines on standard error.

    Returns
    -------
    Sweep
        A run that fails ends no other: its error is in the table. After Ctrl-C it holds what was done.

    Raises
    ------
    SpecError, DataError
        If any cell cannot be, before the first is run.

    Examples
    --------
    >>> from psbench.testing import toy_experiment
    >>> found = sweep(toy_experiment(), {"strategy": ["bsp", "asp"]}, processes=1)
    >>> found.frame()[["strategy", "seed", "status"]].values.tolist()
    [['bsp', 0, 'finished'], ['asp', 0, 'finished']]
    """
    from psbench.runs.sweeps.display import Display
    from psbench.runs.sweeps.execution import run_cells
    from psbench.system.files import check_writable

    aim = target_of(target)  # refuses what is none
    cells = cells_of(experiment, grid, seeds)
    if aim is not None:
        for cell in cells:
            cell.experiment.check_target(aim, "sweep's target")
    own = None if folder is None else Path(folder)
    if own is not None:
        check_writable(own)
    check(cell for cell in cells if own is None or cell.find(own) is None)
    options: dict[str, Any] = {"processes": processes, "client": client, "folder": own}
    if not progress:
        return Sweep(run_cells(cells, **options), target)
    with Display() as shown:
        return Sweep(run_cells(cells, on_progress=shown, **options), target)


def runs_of(cells: Sequence[Cell], *, progress: bool = False, **options: Any) -> list[Run]:
    """Run cells, all of which must succeed, and return their runs; `options` are passed to `run_cells`.

    Raises
    ------
    BackendError
        If a cell failed.
    KeyboardInterrupt
        If not all were run; with a folder, those that were are there.
    """
    from psbench.runs.sweeps.display import Display
    from psbench.runs.sweeps.execution import run_cells

    with Display() if progress else nullcontext() as shown:
        outcomes = run_cells(cells, on_progress=shown, **options)
    for outcome in outcomes:
        if not outcome.was_run:
            raise KeyboardInterrupt
        if outcome.error:
            raise BackendError(f"{outcome.cell.label}: {outcome.error}")
    return [outcome.run for outcome in outcomes]
