"""A recorded run is decided anew from its log, and the first row that differs is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psbench import Run, replay
from psbench.core.log import EventLog, Kind
from psbench.errors import ParameterError, ReplayMismatch
from psbench.runs.execution import run
from psbench.testing import toy_experiment


@pytest.fixture(scope="module")
def recorded() -> Run:
    return run(toy_experiment("ssp", stop={"updates": 12}))


def test_the_folder_of_a_saved_run_is_replayed(recorded: Run, tmp_path: Path) -> None:
    folder = recorded.save(tmp_path / "run")
    assert replay(folder) == replay(str(folder)) == replay(recorded) == len(recorded.log)
    with pytest.raises(ParameterError, match="expected a run or the folder of a saved one, got 3"):
        replay(3)  # type: ignore[arg-type]


def with_log(recorded: Run, rows: np.ndarray[Any, Any], texts: list[str] | None = None) -> Run:
    log = EventLog()
    log.extend(rows, list(recorded.log.texts) if texts is None else texts)
    return Run(recorded.experiment, log, recorded.meta, parameters=recorded.parameters)


def first(recorded: Run, kind: Kind) -> int:
    return int(np.flatnonzero(recorded.log.rows()["kind"] == kind)[1])


@pytest.mark.parametrize(("column", "value"), [("version", 99), ("worker", 7), ("compute_s", 0.5)])
def test_a_row_that_would_be_decided_otherwise_is_named(recorded: Run, column: str, value: float) -> None:
    """Also if the difference is in a column that the words for a row leave out."""
    rows, at = recorded.log.rows().copy(), first(recorded, Kind.RELEASE)
    rows[column][at] = value
    with pytest.raises(ReplayMismatch, match=rf"row {at}: recorded release at .*; decided now: release at"):
        replay(with_log(recorded, rows))


def test_a_text_that_would_be_another_is_named(recorded: Run) -> None:
    texts = [text.replace("staleness", "haste") for text in recorded.log.texts]
    assert texts != list(recorded.log.texts)
    with pytest.raises(ReplayMismatch, match=r"recorded hold .*haste.*; decided now: hold .*staleness"):
        replay(with_log(recorded, recorded.log.rows().copy(), texts))


def test_a_log_of_which_rows_are_missing_or_too_many(recorded: Run) -> None:
    rows, at = recorded.log.rows(), first(recorded, Kind.RELEASE)
    with pytest.raises(ReplayMismatch, match="decided now"):
        replay(with_log(recorded, np.delete(rows, at)))
    more = np.concatenate([rows, rows[at : at + 1]])
    with pytest.raises(ReplayMismatch, match="decided now: nothing more"):
        replay(with_log(recorded, more))


def test_a_run_whose_strategy_was_another_differs_where_it_first_matters(recorded: Run) -> None:
    other = recorded.experiment.but(strategy={"name": "ssp", "staleness_bound": 0})
    with pytest.raises(ReplayMismatch, match=r"recorded release .*; decided now: hold"):
        replay(Run(other, recorded.log, recorded.meta, parameters=recorded.parameters))
