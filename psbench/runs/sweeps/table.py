"""The tables of a sweep: a row for each run, and means over seeds with their intervals."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from psbench.core.target import Target, target_of
from psbench.metrics import interval, standard_deviation
from psbench.results.comparison_table import SHOWN, as_text, censored
from psbench.results.remarks import HALF, STOPPED_AT
from psbench.runs.sweeps.cells import CellOutcome

#: numbers of one run, in the order of the table; own metrics come after the losses
RESULTS = (
    *("val_accuracy", "best_val_accuracy", "train_accuracy", "val_loss", "train_loss"),
    *("time_s", "time_to_target_s", "epochs", "updates", "staleness_mean", "idle_fraction", "megabytes"),
    "wall_s",
)
#: of the table as text; a data frame has all
_TEXT = ("val_accuracy", "val_loss", "time_s", "time_to_target_s", "updates", "megabytes", "wall_s")
_FACTS = ("seed", "status", "error")


def aim_of(outcomes: Sequence[CellOutcome], target: Target | None) -> tuple[Target | None, str]:
    """Return the target that times to target refer to, and where it comes from in words (given: "").

    It is the given one; or the experiments' own, if they agree on one; or what half of the runs reached, cut
    to three digits. None where nothing has an accuracy.
    """
    if target is not None:
        return target, ""
    first = outcomes[0].cell.experiment.stop.aim if outcomes else None
    if first is not None and all(outcome.cell.experiment.stop.aim == first for outcome in outcomes):
        return first, STOPPED_AT
    best = [outcome.summary["best_val_accuracy"] for outcome in outcomes if not outcome.error]
    reached = [value for value in best if value is not None]
    if not reached:
        return None, ""
    return target_of(int(statistics.median_low(reached) * 1000) / 1000), HALF


def frame_of(outcomes: Sequence[CellOutcome], target: Target | None) -> pd.DataFrame:
    """Return a row for each cell; see `Sweep.frame`."""
    paths = dict.fromkeys(path for outcome in outcomes for path in outcome.cell.parameters)
    aim, _ = aim_of(outcomes, target)
    rows = [_row(outcome, paths, aim) for outcome in outcomes]
    frame = pd.DataFrame(rows)
    numbers = [str(name) for name in frame if name not in (*paths, *_FACTS)]
    own = [name for name in numbers if name not in RESULTS]
    order = [*RESULTS[:5], *own, *RESULTS[5:]]
    frame = frame[[*paths, *_FACTS, *(name for name in order if name in numbers)]]
    return frame.astype(dict.fromkeys(numbers, float))


def _row(outcome: CellOutcome, paths: Mapping[str, None], target: Target | None) -> dict[str, Any]:
    parameters = outcome.cell.parameters
    row: dict[str, Any] = {path: parameters.get(path) for path in paths}
    row |= {"seed": outcome.cell.experiment.seed, "status": outcome.status, "error": outcome.error}
    if outcome.error:
        return row | dict.fromkeys(RESULTS)
    summary = outcome.summary
    final, idle = summary["final"], summary["idle_fraction"]
    learnt = {name: final[name] for name in ("val_accuracy", "train_accuracy", "val_loss", "train_loss")}
    learnt |= {"best_val_accuracy": summary["best_val_accuracy"], **_own(outcome)}
    row |= dict.fromkeys(learnt) if summary["status"] == "diverged" else learnt
    return row | {
        **{name: summary[name] for name in ("time_s", "epochs", "updates", "wall_s")},
        "time_to_target_s": None if target is None else _time_to(outcome, target),
        "staleness_mean": summary["staleness"]["mean"],
        "idle_fraction": sum(idle) / len(idle) if idle else None,
        "megabytes": sum(summary["bytes"].values()) / 1e6,
    }


def _own(outcome: CellOutcome) -> dict[str, Any]:
    """Return the last values of the experiment's own metrics."""
    names = outcome.cell.experiment.metric_columns
    rows = outcome.run.log.evaluations() if names else []
    return {name: rows[-1].get(name) if rows else None for name in names}


def _time_to(outcome: CellOutcome, target: Target) -> float:
    """Return the time of the first evaluation that reaches the target; infinite if none does."""
    found = outcome.evaluated(target.column)
    return next((time_s for time_s, value in found if target.reached(value)), float("inf"))


def settings_of(frame: pd.DataFrame, paths: Sequence[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield each setting of the parameters with the rows of its seeds."""
    for values, rows in frame.groupby(list(paths), sort=False, dropna=False):
        yield dict(zip(paths, values, strict=True)), rows


def table_of(frame: pd.DataFrame, paths: Sequence[str]) -> pd.DataFrame:
    """Return a row for each setting, with means over its seeds; see `Sweep.table`."""
    numbers = [str(name) for name in frame if name not in (*paths, *_FACTS)]
    found = []
    for setting, rows in settings_of(frame, paths):
        ended = rows["status"].value_counts()
        row = setting | {"n": len(rows)}
        row |= {name: int(ended.get(name, 0)) for name in ("diverged", "failed")}
        row["not_run"] = int(ended.get("not run", 0))
        for name in numbers:
            row |= _mean(name, rows[name].tolist())
        found.append(row | _reached(rows))
    return pd.DataFrame(found)


def _mean(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Return mean, half-width and deviation over all seeds; infinite if any value is.

    >>> _mean("t", [1.0, float("nan")])["t"], _mean("t", [1.0, float("inf")])["t"]
    (nan, inf)
    """
    if any(value != value for value in values):
        return {name: float("nan"), f"{name}_ci": None, f"{name}_sd": None}
    if float("inf") in values:
        return {name: float("inf"), f"{name}_ci": None, f"{name}_sd": None}
    mean, half = interval(values)
    return {name: mean, f"{name}_ci": half, f"{name}_sd": standard_deviation(values)}


def _reached(rows: pd.DataFrame) -> dict[str, float | int | None]:
    """Return the number of seeds whose run reached the target."""
    known = rows[rows["time_to_target_s"].notna()]
    times = [None if value == float("inf") else value for value in known["time_to_target_s"]]
    return censored("time_to_target", times, known["time_s"].tolist())


def cells_as_text(
    table: pd.DataFrame, paths: Sequence[str], width: int | None = None
) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows as text, without columns that are empty everywhere.

    With a width, in characters, the last results are left out until the rest fits; at least one stays.
    """
    known = [*_TEXT, *own_results(table, paths)]
    records = table.to_dict("records")
    names = [name for name in known if any(as_text(record, name) != "–" for record in records)]
    if "val_accuracy" in names:  # the loss is for what has no accuracy
        names = [name for name in names if name != "val_loss"]
    columns = [[path, *map(parameter_in_words, table[path])] for path in paths]
    columns.append(["seeds", *map(_seeds, records)])
    columns += [
        [title_of(name), *(as_text(record, name, deviation=False) for record in records)] for name in names
    ]
    while width is not None and len(columns) > len(paths) + 2 and _wide(columns) > width:
        columns.pop()
    headings, *rows = zip(*columns, strict=True)
    return list(headings), [list(row) for row in rows]


def _wide(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in columns)


def own_results(table: pd.DataFrame, paths: Sequence[str]) -> list[str]:
    """Return the columns that are own metrics of the experiment."""
    known = {*RESULTS, *paths, *_FACTS, "n", "diverged", "failed", "not_run"}
    derived = ("_ci", "_sd", "_reached", "_at_least_s")
    return [str(name) for name in table if name not in known and not str(name).endswith(derived)]


def parameter_in_words(value: Any) -> str:
    """Return a parameter's value for charts and tables; a dash if a setting lacks it."""
    if value is None or value != value:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _seeds(record: Mapping[Any, Any]) -> str:
    lost = [f"{record[name]} {name.replace('_', ' ')}" for name in ("diverged", "failed", "not_run")]
    return ", ".join([str(record["n"]), *(text for text in lost if not text.startswith("0 "))])


def title_of(name: str) -> str:
    """Return the title of a result in charts and tables."""
    return SHOWN.get(name, (name.replace("_", " "),))[0]


def smaller_is_better(name: str, outcomes: Sequence[CellOutcome] = ()) -> bool | None:
    """Return whether smaller values of a result are better; None if unknown."""
    metrics = outcomes[0].cell.experiment.metrics if outcomes else {}
    if (own := metrics.get(name.removeprefix("val_"))) is not None:
        return own.lower_is_better
    if name.endswith("accuracy"):
        return False
    return True if name in RESULTS else None
