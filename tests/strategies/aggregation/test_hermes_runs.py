"""Whole runs under Hermes: repeated, replayed, with failures and switches, and what is sent."""

import pytest
import torch
from toybox import at_night

import psbench as ps
from psbench import strategies
from psbench.core.log import Kind
from psbench.errors import ParameterError
from psbench.metrics import chunks
from psbench.strategies.communication import HermesGUP

HERMES = {"name": "hermes", "chunk_samples": 60, "passes": 2}
#: 32-bit numbers, both ways
WHOLE = {name: "none" for name in HermesGUP.model_fields if name.startswith("codec")}
FAILING = {
    "workers": 4,
    "speed": [1, 0.5, 0.25, 1],
    "failures": [{"worker": 1, "at_s": 3.0, "rejoin_s": 9.0}],
    "joins": [{"worker": 3, "at_s": 4.0}],
}


def experiment(strategy=HERMES, **values):
    given = {"data": {"name": "digits"}, "model": "logistic", "batch_size": 64, "cluster": {"workers": 4}}
    given |= {"optimizer": {"name": "sgd", "lr": 0.1}, "stop": {"epochs": 10}, "evaluate_every": 100.0}
    return ps.Experiment(strategy=strategy, **given | values)


@pytest.mark.slow
@pytest.mark.parametrize("pair", [["all_reduce", HERMES], *at_night([HERMES], [HERMES, "asp"])])
def test_it_repeats_and_replays_with_failures_joins_and_switches(pair):
    first, *then = pair
    rule = {"name": "after", "fraction": 0.3}
    switch = {"name": "strategy_switch", "first": first, "second": pair[-1], "rule": rule}
    given = experiment(switch if then else HERMES, cluster=FAILING, stop={"epochs": 6})
    run, again = ps.run(given), ps.run(given)
    assert run.log.digest() == again.log.digest()
    assert torch.equal(run.parameters, again.parameters)
    assert ps.replay(run) == len(run.log)
    assert len(run.summary()["switches"]) == len(then)
    assert not chunks(run.log).empty


@pytest.mark.slow
def test_numbers_travel_at_half_length_both_ways():
    half, whole = (ps.run(experiment(HERMES | codec, stop={"epochs": 3})) for codec in ({}, WHOLE))
    for run, size in ((half, 2), (whole, 4)):
        numbers = run.meta["num_parameters"]
        assert set(run.log.of_kind(Kind.PUSH)["bytes"].tolist()) == {size * numbers}
        assert set(run.log.of_kind(Kind.RELEASE)["bytes"].tolist()) == {size * numbers}


def test_the_only_worker_s_first_push_is_the_model():
    one = experiment(HERMES | WHOLE, cluster={"workers": 1})
    run = ps.run(one.but(stop={"updates": 1}, evaluate_every=0.1))
    loss = run.log.evaluations()[-1]["val_loss"]
    assert loss == pytest.approx(chunks(run.log)["test_loss"].iloc[-1], rel=1e-6)


@pytest.mark.slow
def test_the_model_gets_better_than_any_worker_was_at_first():
    run = ps.run(experiment(stop={"epochs": 30}))
    assert run.summary()["final"]["val_accuracy"] > 0.92


@pytest.mark.nightly
@pytest.mark.slow
def test_a_lenient_threshold_pushes_more_often():
    counts = [
        len(ps.run(experiment(HERMES | {"alpha": alpha}, stop={"seconds": 15})).log.of_kind(Kind.PUSH)["id"])
        for alpha in (-0.9, -2.5)
    ]
    assert counts[0] > counts[1] > 0


def test_without_gradients_no_loss_can_be_tested():
    with pytest.raises(ParameterError, match="needs"):
        ps.run(experiment(timing_only=True))


def test_its_own_name_for_its_parameters():
    made = strategies.hermes(alpha=-1.6, beta=0.15, patience=15, window=12, passes=3, fences="others")
    assert (made.communication.alpha, made.communication.beta) == (-1.6, 0.15)
    assert (made.communication.patience, made.communication.window) == (15, 12)
    assert (made.stragglers.passes, made.stragglers.fences) == (3, "others")
    assert made.lr_scaling == "none"
