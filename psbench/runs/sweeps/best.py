"""The best setting of each strategy with equal numbers of trials, read from a sweep's table."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from psbench.errors import ParameterError
from psbench.runs.sweeps.cells import CellOutcome


def best_of(
    table: pd.DataFrame,
    paths: Sequence[str],
    by: str,
    value: str,
    smaller: bool | None,
    *,
    unequal: bool,
) -> pd.DataFrame:
    """Return the row with the best result for each value of `by`; see `Sweep.best`.

    A setting of which a seed diverged or failed was tried and is worse than any other, whatever the value: a
    run that diverges is soon over.

    Raises
    ------
    ParameterError
    """
    if smaller is None:
        raise ParameterError(
            f"best: is a large {value!r} good or bad? Give `better` with the metric, or largest=True or "
            "largest=False"
        )
    if table["not_run"].any():
        raise ParameterError("best: the sweep was stopped before all settings were tried; finish it first")
    trials = table.groupby(by, sort=False, dropna=False).size()
    if trials.nunique() > 1 and not unequal:
        counted = ", ".join(f"{name} {count}" for name, count in trials.items())
        raise ParameterError(
            f"best: different numbers of settings were tried ({counted}), which favours the longer search; "
            "try equally many of each, or set unequal=True"
        )
    table = table.reset_index(drop=True)
    worked = (table["diverged"] == 0) & (table["failed"] == 0)
    values = table[value].where(worked).groupby(table[by], sort=False, dropna=False)
    places = [_place(own, smaller) for _, own in values]
    chosen = table.loc[places, [by, *(path for path in paths if path != by)]]
    measured = table.loc[places, [value, f"{value}_ci", f"{value}_sd", "n"]]
    return chosen.join(measured).assign(trials=trials.to_numpy()).reset_index(drop=True)


def _place(values: pd.Series[float], smaller: bool) -> int:
    known = values.fillna(float("inf") if smaller else float("-inf")).to_numpy()
    return int(values.index.to_numpy()[known.argmin() if smaller else known.argmax()])


def outcomes_of(
    outcomes: Sequence[CellOutcome], chosen: pd.DataFrame, paths: Sequence[str]
) -> list[CellOutcome]:
    wanted = [{path: row[path] for path in paths} for row in chosen.to_dict("records")]
    return [outcome for outcome in outcomes if any(_is(outcome, row, paths) for row in wanted)]


def _is(outcome: CellOutcome, row: dict[str, object], paths: Sequence[str]) -> bool:
    own = outcome.cell.parameters
    return all(own.get(path) == row[path] or (path not in own and row[path] != row[path]) for path in paths)
