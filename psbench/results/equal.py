"""Runs cut at an equal amount of bytes, time, samples or updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import pandas as pd

from psbench.core.log import Kind
from psbench.errors import ParameterError, UnknownName
from psbench.experiment import Experiment
from psbench.metrics import clock_of, evaluations
from psbench.metrics.rows import positions
from psbench.results.run import Run

#: by quantity: the column of `evaluations`, its unit for a reader, and what one of that unit is
_COLUMNS: Mapping[str, tuple[str, str, float]] = {
    "bytes": ("bytes", "MB", 1e6),
    "time": ("time_s", "s", 1.0),
    "samples": ("epoch", "epochs", 1.0),
    "updates": ("updates", "updates", 1.0),
}
#: what may be equal
QUANTITIES = tuple(_COLUMNS)
#: a run whose last evaluation comes before this share of the amount is measured too early
_NEAR = 0.9


def cut_equal(runs: Sequence[Run], equal: str) -> tuple[list[Run], str, list[str]]:
    """Return the runs, each cut after its last evaluation within the amount that all runs reached.

    Parameters
    ----------
    runs : sequence of Run
    equal : "bytes", "time", "samples" or "updates"
        Bytes are up and down until the evaluated version was made, without the data that workers are sent.

    Returns
    -------
    tuple of list of Run, str, list of str
        The runs, the amount in words, and a warning for each run that was evaluated long before it.

    Raises
    ------
    UnknownName, ParameterError
        If the quantity is not known, runs are on different clocks and time is to be equal, the data differ
        and samples are, or a run has no evaluation.
    """
    if equal not in QUANTITIES:
        raise UnknownName("quantity to compare at", equal, QUANTITIES)
    _check(runs, equal)
    column, unit, one = _COLUMNS[equal]
    tables = [evaluations(run.log) for run in runs]
    amount = min(float(table[column].iloc[-1]) for table in tables)
    cut, warnings = [], []
    for run, table in zip(runs, tables, strict=True):
        within = int((table[column] <= amount).sum()) - 1
        cut.append(_cut(run, table, within))
        used = float(table[column].iloc[within])
        if used < _NEAR * amount:
            warnings.append(
                f"{run.experiment.title}, seed {run.experiment.seed}: its last evaluation within "
                f"{amount / one:.4g} {unit} is at {used / one:.4g}; evaluate more often (evaluate_every)"
            )
    return cut, f"equal {equal}: {amount / one:.4g} {unit}", warnings


def check_equal(experiments: Sequence[Experiment], equal: str) -> None:
    """Check, before anything is run, that `cut_equal` will accept the runs.

    Raises
    ------
    UnknownName, ParameterError
    """
    if equal not in QUANTITIES:
        raise UnknownName("quantity to compare at", equal, QUANTITIES)
    if equal == "time":
        _check_clocks({experiment.backend for experiment in experiments})
    _check_data(experiments, equal)
    for experiment in experiments:
        if experiment.timing_only:
            raise ParameterError(
                f"compare: equal = {equal!r}: {experiment.title} is timing-only, so it is never evaluated"
            )


def _check_clocks(clocks: Set[str]) -> None:
    if len(clocks) > 1:
        raise ParameterError(
            "compare: equal = 'time': virtual and wall-clock seconds cannot be compared; compare by samples, "
            "updates or bytes"
        )


def _check_data(experiments: Sequence[Experiment], equal: str) -> None:
    data = {experiment.spec()["data"]["name"] for experiment in experiments}
    if len(data) > 1:
        raise ParameterError(
            f"compare: equal = {equal!r}: the runs are on different data ({', '.join(sorted(data))})"
        )


def _check(runs: Sequence[Run], equal: str) -> None:
    if equal == "time":
        _check_clocks({clock_of(run.meta) for run in runs})
    _check_data([run.experiment for run in runs], equal)
    for run in runs:
        if not len(positions(run.log.rows(), Kind.EVALUATED)):
            raise ParameterError(
                f"compare: equal = {equal!r}: {run.experiment.title}, seed {run.experiment.seed}, was never "
                "evaluated"
            )


def _cut(run: Run, table: pd.DataFrame, last: int) -> Run:
    """Return a run as it was after one of its evaluations; whole, if that is its last."""
    if last == len(table) - 1:
        return run
    rows = run.log.rows()
    end = int(positions(rows, Kind.EVALUATED)[last]) + 1
    gone = ("time_s", "wall_s", "params_digest", "usage", "server_usage", "lost_updates")
    meta = {name: value for name, value in run.meta.items() if name not in gone} | {"unanswered": True}
    return replace(run, log=run.log.excerpt(rows[:end]), meta=meta, parameters=None, buffers=None)
