"""The cells of a grid: which, in which order, what they are called, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import psbench as ps
from psbench.errors import SpecError
from psbench.runs.sweeps.grid import cells_of, changed, check
from psbench.testing import toy_experiment

TOY = toy_experiment(stop={"updates": 2})


def test_every_combination_once_the_last_path_and_the_seed_vary_fastest():
    cells = cells_of(TOY, {"strategy": ["bsp", "asp"], "optimizer.lr": [0.1, 0.2]}, 2)
    assert [cell.label for cell in cells][:3] == [
        "strategy=bsp, optimizer.lr=0.1, seed 0",
        "strategy=bsp, optimizer.lr=0.1, seed 1",
        "strategy=bsp, optimizer.lr=0.2, seed 0",
    ]
    assert len({cell.digest for cell in cells}) == len(cells) == 8
    last = cells[-1].experiment
    assert (last.strategy.name, last.optimizer.lr, last.seed) == ("asp", 0.2, 1)


def test_the_rest_of_the_experiment_is_kept():
    (cell,) = cells_of(TOY.but(batch_size=24), {"optimizer.lr": [0.5]}, 1)
    assert cell.experiment == TOY.but(batch_size=24, optimizer={"name": "sgd", "lr": 0.5})


def test_a_path_that_is_not_touched_keeps_its_very_object():
    assert changed(TOY, {"optimizer.lr": 0.5}).model is TOY.model


def test_a_parameter_of_a_strategy_is_set_in_the_strategy_of_the_cell():
    cells = cells_of(TOY, {"strategy": ["ssp", "con_sgd"], "strategy.staleness_bound": [2]}, 1)
    assert [cell.experiment.strategy.consistency.staleness_bound for cell in cells] == [2, 2]


def test_a_parameter_of_a_strategy_that_was_named_is_set_without_its_part():
    for path in ("strategy.staleness_bound", "strategy.consistency.staleness_bound"):
        cells = cells_of(ps.Experiment(strategy="ssp"), {path: [0, 4]}, 1)
        assert [cell.experiment.strategy.consistency.staleness_bound for cell in cells] == [0, 4]
    switched = ps.Experiment(strategy={"name": "strategy_switch", "rule": "noise_adaptive"})
    (cell,) = cells_of(switched, {"strategy.cost_s": [0.5]}, 1)
    assert cell.experiment.strategy.spec() == switched.strategy.spec() | {"cost_s": 0.5}


def test_strategies_are_swept_timing_only():
    cells = cells_of(ps.Experiment(timing_only=True), {"strategy": ["bsp", "asp"]}, 1)
    assert [cell.experiment.strategy.name for cell in cells] == ["bsp", "asp"]


def test_several_grids_are_joined_and_a_shared_cell_is_there_once():
    grids = [{"strategy": ["bsp", "asp"]}, {"strategy": ["asp", "ssp"]}]
    assert [cell.parameters["strategy"] for cell in cells_of(TOY, grids, 1)] == ["bsp", "asp", "ssp"]


def test_seeds_are_counted_from_the_experiment_s_own_or_listed():
    grid = {"strategy": ["bsp"]}
    assert [cell.experiment.seed for cell in cells_of(TOY.but(seed=7), grid, 2)] == [7, 8]
    assert [cell.experiment.seed for cell in cells_of(TOY, grid, [3, 0])] == [3, 0]


def test_values_are_called_by_their_names_and_numbers_stay_numbers():
    bounded = {"name": "ssp", "staleness_bound": 3}
    linear = TOY.model
    cells = cells_of(
        TOY, {"strategy": ["bsp", bounded], "model": [linear], "batch_size": np.array([12, 24])}, 1
    )
    assert [list(cell.parameters.values()) for cell in cells] == [
        ["bsp", "linear", 12],
        ["bsp", "linear", 24],
        ["ssp (staleness_bound 3)", "linear", 12],
        ["ssp (staleness_bound 3)", "linear", 24],
    ]


def test_values_of_the_same_name_are_numbered():
    switch = {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}}
    other = {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.2}}
    cells = cells_of(TOY.but(stop={"epochs": 1}), {"strategy": [switch, other]}, 1)
    assert [cell.parameters["strategy"] for cell in cells] == ["strategy_switch #1", "strategy_switch #2"]


def test_the_identity_is_the_specification_and_nothing_else():
    one, same = (cells_of(TOY, {"optimizer.lr": [lr]}, 1)[0] for lr in (0.1, 0.1))
    other, named = (cells_of(TOY.but(**change), {"optimizer.lr": [0.1]}, 1)[0] for change in CHANGES)
    assert one.digest == same.digest
    assert len({one.digest, other.digest, named.digest}) == 3


CHANGES = ({"batch_size": 24}, {"stop": {"updates": 3}})

MISTAKES = {
    "no experiment": ("ssp", {"strategy": ["bsp"]}, 1, "expected an Experiment, got 'ssp'"),
    "no grid": (TOY, "strategy", 1, "expected a mapping of paths to lists of values"),
    "an empty grid": (TOY, {}, 1, "the grid is empty"),
    "no grids": (TOY, [], 1, "expected a mapping"),
    "a grid that is none": (TOY, [["bsp"]], 1, "expected a mapping"),
    "a value for a list": (TOY, {"strategy": "bsp"}, 1, "strategy: expected a list of values, got 'bsp'"),
    "a number for a list": (TOY, {"optimizer.lr": 0.1}, 1, "optimizer.lr: expected a list of values"),
    "no values": (TOY, {"strategy": []}, 1, "strategy: expected a list of values"),
    "a value twice": (TOY, {"strategy": ["bsp", "asp", "bsp"]}, 1, "strategy: bsp is given twice"),
    "a mapping twice": (TOY, {"strategy": [{"name": "ssp"}, {"name": "ssp"}]}, 1, "ssp is given twice"),
    "an unknown field": (TOY, {"optimiser": ["sgd"]}, 1, "did you mean 'optimizer'?"),
    "an unknown parameter": (TOY, {"optimizer.lrr": [0.1]}, 1, "optimizer.lrr=0.1.*did you mean 'lr'?"),
    "an unknown strategy": (TOY, {"strategy": ["bsp", "aspp"]}, 1, "strategy=aspp.*did you mean 'asp'?"),
    "a parameter that one strategy lacks": (
        *(TOY, {"strategy": ["ssp", "bsp"], "strategy.staleness_bound": [1]}, 1),
        "strategy=bsp, strategy.staleness_bound=1: unknown parameter",
    ),
    "out of range": (TOY, {"optimizer.lr": [0.1, -1]}, 1, "optimizer.lr=-1.*greater than 0"),
    "not a number": (TOY, {"optimizer.lr": [float("nan")]}, 1, "finite"),
    "what does not fit": (TOY, {"strategy": [{"name": "k_bsp", "k": 9}]}, 1, "k = 9"),
    "a path with a hole": (TOY, {"optimizer..lr": [1]}, 1, "'optimizer..lr' is not a path"),
    "a path that is no text": (TOY, {3: [1]}, 1, "3 is not a path"),
    "the seed as a value": (TOY, {"seed": [1, 2]}, 1, "give seeds"),
    "no seeds": (TOY, {"strategy": ["bsp"]}, 0, "seeds: give a number, at least 1"),
    "half a seed": (TOY, {"strategy": ["bsp"]}, 1.5, "seeds: give a number"),
    "seeds that are none": (TOY, {"strategy": ["bsp"]}, ["a"], "seeds: give a number"),
    "a seed below 0": (TOY, {"strategy": ["bsp"]}, [0, -1], "seeds: give a number"),
    "a seed twice": (TOY, {"strategy": ["bsp"]}, [1, 1], "a seed is given twice"),
    "too many": (TOY, {"batch_size": range(3, 50_000), "strategy": ["bsp", "asp", "ssp"]}, 1, "149991 runs"),
}


@pytest.mark.parametrize(("experiment", "grid", "seeds", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(experiment, grid, seeds, says):
    with pytest.raises(SpecError, match=says) as refused:
        cells_of(experiment, grid, seeds)
    line = str(refused.value)
    assert line.startswith("sweep: ")
    assert "\n" not in line


def test_as_many_cells_as_allowed_are_made(monkeypatch):
    monkeypatch.setattr("psbench.runs.sweeps.grid.MOST_CELLS", 4)
    assert len(cells_of(TOY, {"strategy": ["bsp", "asp"]}, 2)) == 4


def test_what_only_the_data_show_is_refused_before_any_run(monkeypatch):
    monkeypatch.setattr("psbench.runs.sweeps.execution.run_cells", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(SpecError, match=r"sweep: batch_size=5000, seed 0: batch_size: 5000 samples"):
        ps.sweep(TOY, {"batch_size": [12, 5000]})


def test_cells_that_need_the_same_data_and_model_are_checked_once(monkeypatch):
    from psbench.training.build import Workload

    built = []
    monkeypatch.setattr(Workload, "build", built.append)
    check(cells_of(TOY, {"strategy": ["bsp", "asp"], "optimizer.lr": [0.1, 0.2, 0.3]}, 5))
    assert [one.strategy.name for one in built] == ["bsp", "asp"]
