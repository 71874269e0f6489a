"""The staleness-bounded step: numbers, and what it comes to when nothing is stale."""

import json
import math

import pytest
import torch
from toybox import at_night

import psbench as ps
from psbench import strategies
from psbench.core.actions import Apply, Measure
from psbench.core.events import Push
from psbench.core.log import Kind
from psbench.core.view import ClusterView
from psbench.errors import ParameterError
from psbench.strategies.aggregation import BoundedStep, BoundedStepByMean
from psbench.testing import check_strategy, toy_experiment


@pytest.mark.parametrize(
    ("distance_sq", "factor"),
    [(0.0, 2.0), (0.1, 2.0), (0.25, 2.0), (0.5, 1.0), (1.0, 0.5), (5.0, 0.1), (50.0, 0.1), (math.inf, 0.1)],
)
def test_the_rate_is_clipped_on_both_sides(distance_sq, factor):
    assert BoundedStep(near=0.5, least=0.1, most=2.0).factor(distance_sq) == pytest.approx(factor)


def commit(part, distances, version=3):
    """Let a part commit pushes of 3, 1, ... samples that started so far away; None is fresh."""
    view = ClusterView(4, 1, 1, version=version)
    pushes = [
        Push(10 + i, i, 1, version if far is None else i, samples=3 if i == 0 else 1)
        for i, far in enumerate(distances)
    ]
    view.pending = {push.id: push for push in pushes}
    (action,) = part.on_commit(pushes, view)
    if isinstance(action, Measure):
        stale = {f"distance_sq:{10 + i}": 10 + i for i, far in enumerate(distances) if far is not None}
        assert action.needs == stale
        measured = {name: distances[push - 10] for name, push in stale.items()}
        (action,) = part.on_measured(measured, view)
    assert isinstance(action, Apply)
    return action.weights


def test_each_push_has_its_own_factor_on_its_share_of_the_samples():
    assert commit(BoundedStep(near=0.5, least=0.1), [2.0, 0.5]) == [0.75 * 0.25, 0.25 * 1.0]


def test_fresh_pushes_are_not_measured():
    assert commit(BoundedStep(near=0.5), [None, None]) == [0.75, 0.25]
    assert commit(BoundedStep(near=0.5, least=0.0), [None, 5.0]) == [0.75, pytest.approx(0.025)]


def test_the_default_constant_is_one_and_far_pushes_are_corrected():
    """The default was the running mean, by which the first push and every one below the mean count whole."""
    part = BoundedStep()
    assert commit(part, [0.4]) == [pytest.approx(part.near / 0.4)]
    for far in (0.2, 0.3, 0.2):
        assert commit(part, [far]) == [pytest.approx(part.near / far)]


@pytest.mark.parametrize("part", [BoundedStepByMean(), BoundedStep(near=0)], ids=["now", "old default"])
def test_the_variant_takes_the_mean_so_far(part):
    assert commit(part, [4.0]) == [1.0]  # as usual as can be
    assert commit(part, [12.0]) == [pytest.approx(8 / 12)]  # the mean of 4 and 12
    assert commit(part, [2.0]) == [1.0]
    assert commit(part, [600.0]) == [pytest.approx((618 / 4) / 600)]


@pytest.mark.parametrize("values", [{"consistency": "bsp"}, {"consistency": {"name": "k_asp", "k": 3}}])
def test_where_nothing_is_stale_it_is_the_mean_and_measures_nothing(values):
    ours, theirs = (
        ps.run(toy_experiment(strategies.asp(**values, aggregation=a), stop={"epochs": 3}))
        for a in ("bounded_step", "mean")
    )
    assert torch.equal(ours.parameters, theirs.parameters)
    assert not len(ours.log.of_kind(Kind.MEASURE)["time_s"])


@pytest.mark.parametrize("consistency", ["asp", {"name": "k_asp", "k": 2}])
def test_without_room_for_the_factor_it_is_the_mean(consistency):
    ours, theirs = (
        ps.run(toy_experiment(strategies.asp(consistency=consistency, aggregation=a), stop={"epochs": 3}))
        for a in ({"name": "bounded_step", "least": 1, "most": 1}, "mean")
    )
    assert torch.equal(ours.parameters, theirs.parameters)


def test_weights_are_those_of_the_distances_that_were_measured():
    done = ps.run(toy_experiment(strategies.bounded_step(near=1e-3, least=0.25), stop={"epochs": 3}))
    facts = {}
    for text in done.log.of_kind(Kind.MEASURED)["text"]:
        facts |= json.loads(done.log.text(text))
    applied = done.log.of_kind(Kind.APPLY)
    weights = dict(zip(applied["id"].tolist(), applied["loss"].tolist(), strict=True))
    assert len(facts) > 10
    for name, distance_sq in facts.items():
        push = int(name.partition(":")[2])
        assert weights[push] == pytest.approx(min(1.0, max(0.25, 1e-3 / distance_sq)), rel=1e-6)
    assert len({round(weight, 3) for weight in weights.values()}) > 5
    assert ps.replay(done) == len(done.log)


def test_its_range_must_be_one():
    with pytest.raises(ParameterError, match=r"bounded_step: least = 2.0 must not exceed most = 1.0"):
        BoundedStep(least=2)


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["k_asp", "ssp", *at_night("k_batch_asp", "k_bsp", "dssp")])
def test_it_goes_with_other_consistency(consistency):
    check_strategy(strategies.asp(consistency=consistency, aggregation="bounded_step"), clusters=1)
