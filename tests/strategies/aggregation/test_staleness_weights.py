"""Staleness weights: n-softsync's three rates, ConSGD and DynSGD."""

import json
from itertools import pairwise

import pytest
import torch
from vectors import how, pushed

import psbench as ps
from psbench import strategies
from psbench.core.events import Push
from psbench.core.log import Kind
from psbench.core.part import make_part
from psbench.core.view import ClusterView
from psbench.strategies import make_strategy
from psbench.strategies.aggregation import DynSGD, DynSGDVersioned, StalenessWeighted
from psbench.testing import check_strategy, toy_experiment
from psbench.training.server import Server

FREE_NETWORK = {
    "bandwidth_mbit_s": 1e12,
    "server_bandwidth_mbit_s": 1e12,
    "latency_s": 0,
    "server_latency_s": 0,
}


def weights(part, staleness, samples=None):
    view = ClusterView(4, 1, 1, version=10)
    sizes = samples or [8] * len(staleness)
    pushes = [Push(i, i, 1, 10 - s, samples=b) for i, (s, b) in enumerate(zip(staleness, sizes, strict=True))]
    return part.on_commit(pushes, view)[0].weights


def run(strategy, workers=4, together=False, **values):
    """Run on workers of equal speed that begin one after the other: a strict rotation."""
    speed = {
        "workers": workers,
        "step_time": "constant",
        "seconds_per_step": 0,
        "seconds_per_sample": 0.4 * workers / 64,
    }
    late = {"joins": [{"worker": w, "at_s": 0.1 * w} for w in range(1, workers) if not together]}
    given = {"batch_size": 64, "data": {"name": "digits"}, "model": "logistic", "evaluate_every": 100.0}
    given |= {"stop": {"updates": 60}, "optimizer": {"name": "sgd", "lr": 0.1}}
    return ps.run(ps.Experiment(strategy=strategy, cluster=speed | FREE_NETWORK | late, **given | values))


def applied(done):
    return done.log.of_kind(Kind.APPLY)["loss"].tolist()


def test_a_push_counts_for_less_the_staler_it_is():
    assert [weights(StalenessWeighted(), [s])[0] for s in (0, 1, 2, 4)] == [1, 1, 1 / 2, 1 / 4]
    assert weights(StalenessWeighted(), [0, 4]) == [1 / 2, 1 / 8]
    assert weights(StalenessWeighted(rate="fixed"), [0, 4]) == [1 / 2, 1 / 2]
    assert weights(DynSGD(), [0, 1, 3]) == pytest.approx([1 / 3, 1 / 6, 1 / 12])


def test_shares_follow_the_samples():
    assert weights(DynSGD(), [0, 1], samples=[12, 4]) == [3 / 4, 1 / 8]


def test_the_mean_rate_averages_over_everything_seen():
    part = StalenessWeighted(rate="mean")
    assert weights(part, [0, 0]) == [1 / 2, 1 / 2]  # never a division by less than 1
    assert weights(part, [6, 6]) == [1 / 6, 1 / 6]  # (0 + 0 + 6 + 6) / 4 = 3
    again = StalenessWeighted(rate="mean")
    again.load_state_dict(json.loads(json.dumps(part.state_dict())))
    assert weights(again, [8]) == weights(part, [8]) == [1 / 4]  # 20 / 5


def test_in_strict_rotation_dyn_sgd_is_con_sgd():
    dyn = run("dyn_sgd")
    # the first round meets a fresh model; from then on each push is 3 versions stale, so its divisor is 4
    assert applied(dyn) == pytest.approx([1, 1 / 2, 1 / 3] + [1 / 4] * 57)
    con = run("con_sgd")
    assert set(applied(con)) == {1.0}
    assert con.meta["lr_convention"] == "con_sgd: lr k/n = 0.1 k/4 for an update of k pushes"


def test_con_sgd_without_slack_is_bsp():
    con = run(strategies.con_sgd(staleness_bound=0), together=True, stop={"updates": 60})
    bsp = run("bsp", together=True, stop={"updates": 15})
    assert torch.allclose(con.parameters, bsp.parameters, atol=1e-6)


@pytest.mark.parametrize("name", ["n_softsync", "con_sgd", "dyn_sgd"])
def test_one_worker_is_plain_sgd(name):
    values = {"n": 1} if name == "n_softsync" else {}
    alone = run(getattr(strategies, name)(**values), workers=1)
    assert torch.equal(alone.parameters, run("bsp", workers=1).parameters)


@pytest.mark.parametrize("rate", ["per_gradient", "mean", "fixed"])
def test_rates_differ_only_in_their_weights(rate):
    done = run(strategies.n_softsync(n=4, rate=rate))
    seen = applied(done)
    steady = {"per_gradient": 1 / 3, "mean": 1 / 3, "fixed": 1.0}[rate]
    assert seen[-1] == pytest.approx(steady, rel=0.1)
    assert rate != "mean" or all(later <= before for before, later in pairwise(seen))


def versioned(**values):
    spec = {"consistency": {"name": "ssp", "staleness_bound": 0} | values, "aggregation": "dyn_sgd_versioned"}
    return make_strategy(spec)


def test_the_versions_of_a_stage_come_to_the_mean_of_its_pushes():
    spec, part = make_part("optimizer", {"name": "sgd", "lr": 1.0}), DynSGDVersioned()
    server = Server(torch.zeros(2), torch.zeros(0), spec, 1, part)
    first, second, third = (torch.tensor(g) for g in ([3.0, 0.0], [0.0, 3.0], [9.0, 9.0]))
    server.apply(pushed([first]), how(numbers={"stage": 0.0, "closes": 0.0}))
    assert server.parameters.tolist() == [-3.0, 0.0]  # alone it counts wholly
    server.apply(pushed([second], [0.5]), how(numbers={"stage": 0.0, "closes": 0.0}))
    assert server.parameters.tolist() == [-1.5, -1.5]
    server.apply(pushed([third]), how(numbers={"stage": 1.0, "closes": 0.0}))  # of the next stage
    assert set(server.state) == {"stage_0", "stage_1"}
    server.apply(pushed([third], [1 / 3]), how(numbers={"stage": 0.0, "closes": 1.0}))
    assert server.parameters.tolist() == pytest.approx([-4.0 - 9.0, -4.0 - 9.0])
    assert set(server.state) == {"stage_1"}
    again = Server(torch.zeros(2), torch.zeros(0), spec, 1, part)
    again.load(server.tensors())
    for one in (server, again):
        one.apply(pushed([first], [0.5]), how(numbers={"stage": 1.0, "closes": 1.0}))
    assert torch.equal(server.parameters, again.parameters)


@pytest.mark.slow
def test_versioned_with_a_bound_of_0_is_bsp_on_the_mean():
    ours, bsp = (ps.run(toy_experiment(strategy, stop={"epochs": 1})) for strategy in (versioned(), "bsp"))
    torch.testing.assert_close(ours.parameters, bsp.parameters, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_versioned_keeps_the_contract():
    check_strategy(versioned(staleness_bound=2), clusters=1)
