"""Every number of a run's summary is the one that plain loops over the log give."""

from __future__ import annotations

import re
from typing import Any

import pytest
from oracles.small_runs import NAMES
from oracles.story import NAMES as KINDS
from oracles.story import lost_with_their_workers, rows_of
from oracles.summaries import lost_workers, quality_of, summary_of, warnings_of

from psbench.metrics.summary import summarise
from psbench.results.run import Run

#: what a summary says and no log, by where it is from
OF_THE_BACKEND = {"name", "status", "reason", "wall_s", "lr_convention", "params_digest", "versions", "usage"}
OF_THE_BACKEND |= {"servers", "incidents", "lost_workers", "warnings"}


def near(value: Any) -> Any:
    """Compare numbers at any depth to twelve digits."""
    if isinstance(value, dict):
        return {name: near(each) for name, each in value.items()}
    if isinstance(value, list):
        return [near(each) for each in value]
    return pytest.approx(value, rel=1e-12, abs=1e-15) if isinstance(value, float) else value


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_what_the_log_says(runs: dict[str, list[Run]], name: str) -> None:
    for run in runs[name]:
        expected, found = summary_of(run), run.summary()
        assert {*found} - OF_THE_BACKEND == {*expected}
        for field, value in expected.items():
            assert found[field] == near(value), field


def test_every_key_of_a_summary_is_described(runs: dict[str, list[Run]]) -> None:
    """In the docstring of `summarise`, under Returns."""
    described = {*re.findall(r"`(\w+)`", (summarise.__doc__ or "").partition("Returns\n")[2])}
    found = {key for each in runs.values() for run in each for key in run.summary()}
    missing = ", ".join(sorted(found - described))
    assert not missing, f"describe {missing} in the docstring of psbench.metrics.summary.summarise"


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_is_warned_of_what_the_log_shows(runs: dict[str, list[Run]], name: str) -> None:
    for run in runs[name]:
        assert run.summary()["warnings"] == warnings_of(run)
        assert run.summary()["lost_workers"] == lost_workers(rows_of(run.log))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("divergence", "timing")])
def test_final_values_are_the_model_s_own(runs: dict[str, list[Run]], name: str) -> None:
    for run in runs[name][:1]:
        assert run.summary()["final"] == pytest.approx(quality_of(run), rel=1e-5)


def test_a_mini_batch_takes_what_the_cluster_says(runs: dict[str, list[Run]]) -> None:
    (run,) = runs["reading"]  # 6 samples of 1 ms to read and 1 to compute, 1 ms a step
    used = run.summary()["usage"]
    assert [each["read_ms"] for each in used] == pytest.approx([6.0, 12.0])
    assert [each["compute_ms"] for each in used] == pytest.approx([7.0, 14.0])
    pushed = [row for row in rows_of(run.log) if row.kind == "PUSH"]
    for each in used:
        own = sum(row.steps for row in pushed if row.worker == each["worker"])
        assert own <= each["steps"] <= own + 1  # the last has begun, and is not over


def test_the_runs_have_everything_that_numbers_depend_on(runs: dict[str, list[Run]]) -> None:
    """Otherwise a number could be wrong and no run would tell."""
    rows = {name: [rows_of(run.log) for run in each] for name, each in runs.items()}
    kinds = {row.kind for each in rows.values() for own in each for row in own}
    # rows of live runs; rows of exchanges without a server, which tests/strategies/test_gossip_runs.py counts
    assert {*KINDS.values()} - kinds == {"VOID", "MIX"}
    summaries = {name: [run.summary() for run in each] for name, each in runs.items()}
    assert summaries["divergence"][0]["status"] == "diverged"
    assert all(each["updates"] for name in NAMES for each in summaries[name])
    assert any(each["pushes"]["buffered"] for own in summaries.values() for each in own)
    assert any(lost_with_their_workers(own) for own in rows["losses"])
    assert summaries["lost votes"][0]["cancelled"] == 0
    assert lost_workers(rows["lost votes"][0])
    assert [each["time_to_target_s"] is None for each in summaries["target"]] == [False, True]
    for number in ("local_steps", "independence", "reassignments", "switches", "usage", "servers"):
        assert any(each.get(number) for own in summaries.values() for each in own), number
