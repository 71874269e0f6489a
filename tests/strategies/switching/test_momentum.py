"""What becomes of the optimizer's momentum at a switch: the coefficient's schedule, and the arithmetic."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
import torch
from toybox import put_in, take_out
from vectors import how, pushed

from psbench import strategies
from psbench.core.actions import Apply, Handover
from psbench.core.events import SwitchRequested
from psbench.core.log import Kind
from psbench.core.own_steps import OwnSteps
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.optimization.optimizer import SGD, Adam
from psbench.runs.execution import run
from psbench.strategies import make_strategy
from psbench.strategies.communication import EveryStep
from psbench.testing import ScriptedCluster, toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.server import Server

MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


class Stepping(EveryStep, OwnSteps):
    """Toy: workers with optimizers of their own."""

    name: ClassVar[str] = "toy_stepping"


PARTS = take_out("toy_stepping")


@pytest.fixture
def stepping():
    put_in(PARTS)
    yield {
        "name": "mine",
        "consistency": "bsp",
        "communication": "toy_stepping",
        "aggregation": "model_average",
    }
    take_out("toy_stepping")


def scales(momentum, workers=8, ramp_updates=3, changes=None, until=20.0):
    """Return the momentum factors of all updates, in order."""
    strategy = strategies.strategy_switch(
        first="bsp", second="bsp", rule="manual", momentum=momentum, ramp_updates=ramp_updates
    )
    cluster = ScriptedCluster(strategy, [1.0] * workers, changes=changes or [(0.5, SwitchRequested())])
    cluster.run(until=until)
    return [a.momentum_scale for _, _, actions in cluster.history for a in actions if isinstance(a, Apply)]


@pytest.mark.parametrize(
    ("momentum", "expected"),
    [
        ("zero", [1.0] * 14),
        ("keep", [1.0] * 14),
        ("off", [0.0] * 14),
        ("scaled", [1 / 8] * 14),
        ("ramped", [1 / 8] * 3 + [1 / 4] * 3 + [1 / 2] * 3 + [1.0] * 5),
        ("ramped_additive", [1 / 8] * 3 + [2 / 8] * 3 + [3 / 8] * 3 + [4 / 8] * 3 + [5 / 8] * 2),
    ],
)
def test_the_coefficient_after_a_switch_among_eight_workers(momentum, expected):
    """0.9/8, 0.9/4, 0.9/2, 0.9, and steps of an eighth: the factors of Sync-Switch."""
    found = scales(momentum)
    assert found[0] == 1.0  # of the first strategy
    assert found[1:15] == expected


def test_a_ramp_ends_at_the_optimizers_own_and_never_passes_it():
    assert scales("ramped", workers=3, ramp_updates=1)[1:] == [1 / 3, 2 / 3] + [1.0] * 17
    assert scales("ramped_additive", workers=3, ramp_updates=1)[1:] == [1 / 3, 2 / 3] + [1.0] * 17


def test_a_worker_that_returns_has_the_optimizer_s_own_momentum():
    found = scales(
        "ramped",
        workers=2,
        ramp_updates=2,
        changes=[(0.5, SwitchRequested()), (2.5, SwitchRequested()), (4.5, SwitchRequested())],
    )
    assert found[:8] == [1.0, 0.5, 0.5, 1.0, 1.0, 0.5, 0.5, 1.0]


def test_a_ramp_goes_on_from_a_state():
    strategy = strategies.sync_switch(momentum="ramped", ramp_updates=2, rule="manual")
    cluster = ScriptedCluster(strategy, [1.0] * 4, changes=[(0.5, SwitchRequested())])
    cluster.run(until=2.5)
    resumed = cluster.new_engine()
    resumed.load_state_dict(json.loads(json.dumps(cluster.engine.state_dict())))
    at = len(cluster.history)
    cluster.run(until=6.5)
    for now, event, expected in cluster.history[at:]:
        assert resumed.handle(event, now) == expected


@pytest.mark.parametrize("momentum", ["zero", "keep", "off", "scaled", "ramped", "ramped_additive"])
def test_only_zero_forgets_the_optimizers_state(momentum):
    strategy = strategies.strategy_switch(first="bsp", rule="manual", momentum=momentum)
    cluster = ScriptedCluster(strategy, [1.0], changes=[(0.5, SwitchRequested())])
    cluster.run(until=2)
    (handover,) = [a for _, _, actions in cluster.history for a in actions if isinstance(a, Handover)]
    assert handover.forgets_momentum == (momentum == "zero")


# -------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_scaled_update_is_that_of_the_smaller_coefficient(nesterov):
    """v <- (scale mu) v + g, w <- w - lr v, by hand; the buffer lives on."""
    server = Server(
        torch.tensor([1.0]), torch.zeros(0), SGD(lr=0.5, momentum=0.8, nesterov=nesterov), global_batch=1
    )
    w, v = 1.0, 0.0
    for gradient, scale in [(1.0, 1.0), (2.0, 0.25), (-1.0, 0.25), (0.5, 0.5), (1.0, 1.0)]:
        server.apply(pushed([torch.tensor([gradient])]), how(momentum_scale=scale))
        v = 0.8 * scale * v + gradient
        w -= 0.5 * (gradient + 0.8 * scale * v if nesterov else v)
        assert server.parameters.item() == pytest.approx(w)


def test_a_new_optimizer_has_its_own_coefficient():
    server = Server(torch.ones(1), torch.zeros(0), SGD(lr=0.5, momentum=0.8), global_batch=1)
    server.apply(pushed([torch.ones(1)]), how(momentum_scale=0.5))
    server.load(server.tensors())
    before = server.parameters.item()
    server.apply(pushed([torch.zeros(1)]))
    assert before - server.parameters.item() == pytest.approx(0.5 * 0.8)


def trained(momentum, **changes):
    rule = {"name": "after", "fraction": 0.5}
    strategy = strategies.strategy_switch(
        first="bsp", second="asp", rule=rule, momentum=momentum, ramp_updates=4
    )
    return run(toy_experiment(strategy, optimizer=MOMENTUM, **changes))


@pytest.mark.slow
def test_each_policy_trains_another_model():
    names = ["zero", "keep", "off", "scaled", "ramped", "ramped_additive"]
    five = {"cluster": toy_cluster([1.0, 0.5, 0.25, 0.5, 1.0]), "batch_size": 10}
    found = {name: trained(name, **five).parameters for name in names}
    for at, name in enumerate(names):
        assert not any(torch.equal(found[name], found[other]) for other in names[at + 1 :]), name


def test_no_policy_changes_a_decision_or_a_time():
    reference = trained("keep")
    for momentum in ("zero", "off", "ramped"):
        one = trained(momentum)
        for kind in (Kind.RELEASE, Kind.APPLY, Kind.HANDOVER):
            left, right = reference.log.of_kind(kind), one.log.of_kind(kind)
            assert all((left[name] == right[name]).all() for name in left)


def test_off_is_plain_sgd_from_the_switch_on():
    """With a switch before the first step: SGD without momentum throughout."""
    rule = {"name": "after", "fraction": 0.0}
    strategy = strategies.strategy_switch(first="bsp", second="asp", rule=rule, momentum="off")
    off = run(toy_experiment(strategy, optimizer=MOMENTUM))
    plain = run(toy_experiment("asp", optimizer={"name": "sgd", "lr": 0.1}))
    assert torch.equal(off.parameters, plain.parameters)


# -------------------------------------------------------------------- what has no meaning


@pytest.mark.parametrize("momentum", ["off", "scaled", "ramped", "ramped_additive"])
@pytest.mark.parametrize(
    ("optimizer", "why"), [(Adam(), "which has none"), (SGD(lr=0.1), "whose momentum is 0")]
)
def test_there_must_be_momentum_to_reduce(momentum, optimizer, why):
    """Without the refusal all four would train the model of 'keep', and a comparison would say so of them."""
    strategy = strategies.sync_switch(momentum=momentum)
    with pytest.raises(ParameterError, match=f"momentum '{momentum}' .*{why}; use 'zero' or 'keep'"):
        Experiment(strategy=strategy, optimizer=optimizer)
    Experiment(strategy=strategies.sync_switch(), optimizer=optimizer)


def test_workers_with_optimizers_of_their_own_have_the_momentum(stepping):
    """Without the refusal the factor would reach a server that takes no step with it."""
    with pytest.raises(ParameterError, match="workers of 'mine' step with optimizers of their own"):
        strategies.strategy_switch(first="bsp", second=stepping, momentum="scaled")
    strategies.strategy_switch(first=stepping, second="bsp", momentum="scaled")


def test_the_policy_is_written_down():
    made = strategies.sync_switch(momentum="ramped", ramp_updates=7)
    assert make_strategy(json.loads(json.dumps(made.spec()))) == made
