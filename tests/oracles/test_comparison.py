"""Every number of a comparison, and of a sweep, is the one that plain loops over the logs give."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from oracles import comparisons, drawings
from oracles.small_runs import DIVERGING, FOUR

import psbench as ps
from psbench.results.comparison import Comparison
from psbench.results.run import Run
from psbench.runs.sweeps.cells import CellOutcome
from psbench.testing import toy_experiment

#: named by their strategies, so that labels are known
CHOSEN = ("barrier", "bounded", "no barrier", "switch", "votes", "overlap", "ring", "local steps", "chunks")


@pytest.fixture(scope="session")
def compared(runs: dict[str, list[Run]]) -> Comparison:
    return ps.compare([run for name in CHOSEN for run in runs[name]])


def check(found: Any, expected: float | None, what: object) -> None:
    found = None if found is None or found != found else found
    if expected is None or math.isinf(expected):
        assert found == expected, what
    else:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), what


def check_table(compared: Comparison) -> None:
    expected = comparisons.table_of(compared.groups, compared.baseline, compared.target)
    found = {row["strategy"]: row for row in compared.table().to_dict("records")}
    assert {*found} == {*expected} == {*compared.groups}
    for label, row in expected.items():
        for name, value in row.items():
            check(found[label][name], value, (label, name))


def test_the_table_of_a_comparison(compared: Comparison, runs: dict[str, list[Run]]) -> None:
    of_each = [[run.meta["run_id"] for run in own] for own in compared.groups.values()]
    assert of_each == [[run.meta["run_id"] for run in runs[name]] for name in CHOSEN]
    assert compared.target == comparisons.common_target(compared.runs)
    assert compared.baseline == comparisons.slowest(compared.groups, ("bsp", "all_reduce"))
    check_table(compared)
    against = replace(compared, baseline="ssp")  # whose work more of them have done
    check_table(against)
    table = against.table()
    assert 2 < table["speed_up"].notna().sum() < len(table)
    assert table["switch_epoch_ci"].notna().sum() == 1
    assert table["n"].max() == 3


def test_the_target_is_what_all_of_them_reached(runs: dict[str, list[Run]]) -> None:
    every = [own[0] for name, own in runs.items() if name not in ("timing", "target")]
    found = []
    for pair in pairwise(every):
        one_task = len({str(run.experiment.spec()["data"]) for run in pair}) == 1
        found.append(ps.compare(pair).target)
        assert found[-1] == (comparisons.common_target(pair) if one_task else None), pair
    assert len({*found}) > 3


@pytest.mark.parametrize("target", [0.0, 0.85, 0.97, 1.0])
def test_times_to_a_target_are_of_all_seeds_or_none(runs: dict[str, list[Run]], target: float) -> None:
    check_table(ps.compare(runs["target"] + runs["votes"] + runs["losses"], target=target))


def test_seconds_of_two_clocks_have_columns_of_their_own(runs: dict[str, list[Run]]) -> None:
    simulated = runs["barrier"]
    live = [
        replace(run, experiment=run.experiment.but(backend="dask"), meta=run.meta | {"backend": "dask"})
        for run in runs["ring"]
    ]
    compared = ps.compare([*simulated, *live], baseline="bsp", target=0.8)
    expected = comparisons.table_of(compared.groups, "bsp", 0.8)
    found = {row["strategy"]: row for row in compared.table().to_dict("records")}
    for label, own, other in (("bsp", "virtual", "wall"), ("all_reduce", "wall", "virtual")):
        for name in ("time_s", "time_s_ci", "time_s_sd", "time_to_target_s"):
            check(found[label][f"{own}_{name}"], expected[label][name], (label, name))
            check(found[label][f"{other}_{name}"], None, (label, name))
        check(found[label]["speed_up"], expected[label]["speed_up"], label)


def test_figures_of_a_comparison_are_of_its_groups(compared: Comparison) -> None:
    from psbench import charts

    for figure in charts.comparison_figures(compared.groups):
        if figure.name == "idle":
            rows = drawings.idles(compared.groups)
            drawings.same(figure.table.to_dict("records"), rows, 1e-9)


# -------------------------------------------------------------------- sweeps

RATES = [0.01, 0.1, 0.5]


@pytest.fixture(scope="session")
def swept() -> ps.Sweep:
    """Two strategies at three rates and a fourth at which the runs diverge, two seeds each."""
    grid = {"strategy": ["bsp", "asp"], "optimizer.lr": [*RATES, DIVERGING["optimizer"]["lr"]]}
    experiment = toy_experiment(model=DIVERGING["model"], cluster=FOUR)
    return ps.sweep(experiment, grid, seeds=2, processes=1, progress=False)


@pytest.fixture(scope="session")
def damaged(swept: ps.Sweep) -> ps.Sweep:
    """The same, where one seed of the best rate has failed, and of the next only one diverged."""
    outcomes = list(swept.outcomes)
    outcomes[4] = CellOutcome(outcomes[4].cell, error="RuntimeError: mine")
    run = outcomes[10].run
    outcomes[10] = CellOutcome(outcomes[10].cell, _run=replace(run, meta=run.meta | {"status": "diverged"}))
    return ps.Sweep(outcomes)


def settings(swept: ps.Sweep) -> dict[tuple[str, float], list[Run | None]]:
    found: dict[tuple[str, float], list[Run | None]] = {}
    for outcome in swept.outcomes:
        own = outcome.cell.parameters
        run = None if outcome.error else outcome.run
        found.setdefault((own["strategy"], own["optimizer.lr"]), []).append(run)
    return found


def target_of(swept: ps.Sweep) -> float:
    return comparisons.half_reached([outcome.run for outcome in swept.outcomes if not outcome.error])


@pytest.mark.parametrize("which", ["swept", "damaged"])
def test_frame_and_table_of_a_sweep(which: str, request: pytest.FixtureRequest) -> None:
    sweep = request.getfixturevalue(which)
    target = target_of(sweep)
    frame = sweep.frame().to_dict("records")
    for outcome, row in zip(sweep.outcomes, frame, strict=True):
        if outcome.error:
            assert (row["status"], row["error"]) == ("failed", outcome.error)
            continue
        assert row["status"] == outcome.run.meta["status"]
        expected = comparisons.sweep_numbers(outcome.run, target)
        for name in set(row) & set(expected):
            check(row[name], expected[name], (outcome.cell.label, name))
    table = {(row["strategy"], row["optimizer.lr"]): row for row in sweep.table().to_dict("records")}
    assert table.keys() == settings(sweep).keys()
    for setting, seeds in settings(sweep).items():
        row = table[setting]
        ended = ["failed" if run is None else run.meta["status"] for run in seeds]
        assert [row[name] for name in ("n", "diverged", "failed", "not_run")] == [
            *(2, ended.count("diverged"), ended.count("failed"), 0)
        ]
        numbers = [comparisons.sweep_numbers(run, target) if run else {} for run in seeds]
        for name in (*comparisons.QUALITY, "time_s", "epochs", "updates", "staleness_mean", "megabytes"):
            values = comparisons.mean([each.get(name) for each in numbers])
            for number, column in zip(values, (name, f"{name}_ci", f"{name}_sd"), strict=True):
                check(row[column], number, (setting, column))
        times = [each.get("time_to_target_s") for each in numbers]
        if None not in times:
            never = math.inf in times
            check(row["time_to_target_s"], math.inf if never else sum(times) / len(times), setting)


@pytest.mark.by_day(4)
@pytest.mark.parametrize("which", ["swept", "damaged"])
@pytest.mark.parametrize(
    ("value", "better"),
    [
        *(("val_accuracy", max), ("val_loss", min), ("train_loss", min), ("best_val_accuracy", max)),
        *(("time_s", min), ("time_to_target_s", min), ("updates", min)),
    ],
)
def test_the_best_setting_is_one_that_worked(
    which: str, value: str, better: Any, request: pytest.FixtureRequest
) -> None:
    """A run that diverges is soon over, and would otherwise be the fastest."""
    sweep = request.getfixturevalue(which)
    found = sweep.best(value=value).to_dict("records")
    assert [row["strategy"] for row in found] == ["bsp", "asp"]
    for row in found:
        own = {s: seeds for s, seeds in settings(sweep).items() if s[0] == row["strategy"]}
        means = comparisons.means_of(own, value, target_of(sweep))
        check(row[value], better(means.values()), (row["strategy"], value))
        check(means[row["strategy"], row["optimizer.lr"]], row[value], "of equal ones the first")
        assert (row["trials"], row["n"]) == (4, 2)


def test_the_runs_of_the_best_settings_are_compared(damaged: ps.Sweep) -> None:
    compared = damaged.comparison(value="val_loss")
    for label, runs in compared.groups.items():
        own = {s: seeds for s, seeds in settings(damaged).items() if s[0] == label}
        means = comparisons.means_of(own, "val_loss", None)
        _, rate = min(means, key=means.__getitem__)
        assert [(run.experiment.optimizer.lr, run.experiment.seed) for run in runs] == [(rate, 0), (rate, 1)]
    check_table(compared)


def test_a_target_that_all_reached_is_not_rounded_up() -> None:
    """13 of 24 samples are .541666: a target of .542 was reached by none."""
    runs = [ps.run(toy_experiment(each, stop={"updates": 4}, evaluate_every=0.05)) for each in ("bsp", "asp")]
    compared = ps.compare(runs)
    assert min(run.summary()["best_val_accuracy"] for run in runs) == pytest.approx(13 / 24)
    assert compared.target == comparisons.common_target(runs) == 0.541
    assert compared.table()["time_to_target_reached"].tolist() == [1, 1]
