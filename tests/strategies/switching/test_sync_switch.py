"""Sync-Switch's checks: its ends, its accounting of steps, its rates."""

from __future__ import annotations

import pytest
import torch

from psbench import strategies
from psbench.core.actions import Apply
from psbench.core.log import Kind
from psbench.errors import SpecError
from psbench.runs.execution import resume, run
from psbench.strategies.switching import After
from psbench.testing import ScriptedCluster, toy_experiment
from psbench.testing.toys import toy_cluster

MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def timed(workers, percent, mini_batches, classes=2):
    """Return versions at the switch and at the end, of a budget in mini-batches of 128 of 50,000 samples."""
    done = run(
        toy_experiment(
            strategies.sync_switch(fraction=percent / 100),
            data={"name": "mixture", "num_samples": 62_500, "num_features": 2, "num_classes": classes},
            cluster=toy_cluster([1.0] * workers),
            batch_size=128 * workers,
            stop={"epochs": mini_batches * 128 / 50_000},
            evaluate_every=1e9,
            timing_only=True,
        )
    )
    assert done.meta["dataset_size"] == 50_000
    handed = done.log.of_kind(Kind.HANDOVER)["version"].tolist()
    applied = done.log.of_kind(Kind.APPLY)
    assert len(applied["id"]) == mini_batches  # whatever the share
    return handed, int(applied["version"][-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "percent", "budget", "bsp", "total"),
    [
        pytest.param(8, 10, 64_000, 800, 58_400, marks=pytest.mark.nightly),
        pytest.param(8, 6.25, 64_000, 500, 60_500, marks=pytest.mark.nightly),
        pytest.param(8, 12.5, 128_000, 2000, 114_000, marks=pytest.mark.nightly),
        pytest.param(16, 50, 64_000, 2000, 34_000, marks=pytest.mark.nightly),
        (16, 50, 6_400, 200, 3_400),
    ],
)
def test_the_budget_is_in_mini_batches(workers, percent, budget, bsp, total):
    assert timed(workers, percent, budget) == ([bsp], total)


def test_all_of_it_is_bsp_and_takes_an_eighth_of_the_steps():
    assert timed(8, 100, 6_400) == ([], 800)


WORK = (Kind.PUSH, Kind.APPLY, Kind.RELEASE)


@pytest.mark.parametrize(
    "rule", [{"name": "after", "whole_epochs": False}, {"name": "stragglers", "policy": "elastic"}]
)
@pytest.mark.parametrize(("fraction", "plain"), [(1, "bsp"), (0, "asp")])
def test_its_ends_are_bsp_and_asp(rule, fraction, plain):
    """With momentum, which it keeps; on equal workers, so that the online rule finds nobody."""
    same = {"cluster": toy_cluster([1.0] * 3), "optimizer": MOMENTUM}
    left = run(toy_experiment(strategies.sync_switch(rule=rule | {"fraction": fraction}), **same))
    right = run(toy_experiment(plain, **same))
    assert torch.equal(left.parameters, right.parameters)
    for kind in WORK:
        one, other = left.log.of_kind(kind), right.log.of_kind(kind)
        assert all(
            (one[name] == other[name]).all() for name in ("time_s", "worker", "id", "version", "steps")
        )


@pytest.mark.parametrize(("fraction", "plain"), [(1, "all_reduce"), (0, "asp")])
def test_the_ends_of_strategy_switch_are_all_reduce_and_asp(fraction, plain):
    left = run(toy_experiment(strategies.strategy_switch(fraction=fraction), optimizer=MOMENTUM))
    right = run(toy_experiment(plain, optimizer=MOMENTUM))
    assert torch.equal(left.parameters, right.parameters)


def test_rates_and_batches_are_those_of_the_configuration_policy():
    """n eta under BSP, eta under ASP, 128 samples a worker in both."""
    cluster = ScriptedCluster(strategies.sync_switch(fraction=0.5), [1.0] * 8, samples=128, epochs=1)
    cluster.run(until=9.5)
    applied = [a for _, _, actions in cluster.history for a in actions if isinstance(a, Apply)]
    assert [a.lr_scale for a in applied] == [1.0] * 5 + [1 / 8] * (len(applied) - 5)
    assert {push.samples for a in applied for push in a.pushes} == {128}


def test_the_entry_says_rule_and_policy_by_their_parameters():
    assert strategies.sync_switch().rule == After(fraction=0.0625, whole_epochs=False)
    assert strategies.sync_switch(fraction=0.5).rule == After(fraction=0.5, whole_epochs=False)
    online = strategies.sync_switch(policy="elastic").rule
    assert (online.name, online.policy, online.fraction) == ("stragglers", "elastic", 0.0625)
    assert strategies.strategy_switch(fraction=0.5).rule == After(fraction=0.5)
    assert strategies.strategy_switch(window=3).rule.name == "empirical"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"fractoin": 0.5}, "did you mean 'fraction'"),
        ({"whole_epochs": True, "policy": "greedy"}, "no rule has all of whole_epochs, policy"),
        ({"rule": "manual", "fraction": 0.5}, "give fraction inside the rule"),
    ],
)
def test_parameters_that_no_rule_takes_are_refused(values, words):
    with pytest.raises(SpecError, match=words):
        strategies.sync_switch(**values)


@pytest.mark.parametrize(
    ("fraction", "epochs", "expected"), [(0.1, 3, 0.3), (0.0625, 8, 0.5), (0.5, 5, 2.5), (0.3, 0.9, 0.27)]
)
def test_a_cut_within_an_epoch(fraction, epochs, expected):
    cluster = ScriptedCluster(strategies.sync_switch(fraction=fraction), [1, 1], epochs=epochs)
    cluster.run(until=60)
    at = cluster.log.of_kind(Kind.HANDOVER)["version"][0] / 10  # ten rounds an epoch
    assert expected <= at < expected + 0.1


@pytest.mark.parametrize(
    ("first", "second"), [("local_sgd", "selsync"), ("bsp", "all_reduce"), ("osp", "fsdp")]
)
def test_a_run_that_finishes_as_it_switches_can_be_made_longer(first, second, tmp_path):
    """The checkpoint of its last version is of the second strategy, with what was handed over to it."""
    rule = {"name": "after", "fraction": 0.25, "whole_epochs": False}
    strategy = strategies.strategy_switch(first=first, second=second, rule=rule, momentum="keep")
    same = {"optimizer": MOMENTUM, "cluster": toy_cluster([1.0] * 2)}
    whole = run(toy_experiment(strategy, **same, stop={"epochs": 2}))
    (at,) = whole.log.of_kind(Kind.HANDOVER)["version"]
    run(toy_experiment(strategy, **same, stop={"epochs": 2, "updates": int(at)}), folder=tmp_path / "cut")
    longer = resume(tmp_path / "cut", {"stop.updates": None}, folder=tmp_path / "longer")
    assert longer.log.digest() == whole.log.digest()
    assert torch.equal(longer.parameters, whole.parameters)
