"""LB-BSP: the global batch cut in proportion to speed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import psbench as ps
from psbench import strategies
from psbench.core.arithmetic import weighted_sum
from psbench.core.events import Push
from psbench.core.log import Kind
from psbench.core.view import ClusterView, Status, WorkerView
from psbench.errors import ParameterError
from psbench.strategies.aggregation import Mean
from psbench.strategies.stragglers import LBBSP
from psbench.strategies.stragglers.lb_bsp import cut


def experiment(strategy, speed=(4, 3, 2, 1), cluster=None, **values):
    machines = {"workers": len(speed), "speed": list(speed), "step_time": "constant", "seconds_per_step": 0}
    machines |= cluster or {}
    given = {"batch_size": 256, "data": {"name": "digits"}, "model": "logistic", "stop": {"epochs": 4}}
    given |= {"optimizer": {"name": "sgd", "lr": 0.1}, "evaluate_every": 100.0, "cluster": machines}
    return ps.Experiment(strategy=strategy, **given | values)


def rounds(done):
    """Return the samples of each worker's pushes, round by round."""
    applied, sizes = done.log.of_kind(Kind.APPLY), {}
    for version, worker, samples in zip(
        applied["version"], applied["worker"], applied["samples"], strict=True
    ):
        sizes.setdefault(int(version), {})[int(worker)] = int(samples)
    return [sizes[version] for version in sorted(sizes)]


def test_the_example():
    assert cut(256, [4, 3, 2, 1]) == [102, 77, 51, 26]
    assert cut(4, [1000, 1, 1, 1]) == [1, 1, 1, 1]
    assert cut(6, [1000, 1, 1]) == [4, 1, 1]


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8), st.integers(8, 500))
def test_shares_sum_to_the_batch_and_nobody_is_idle(speeds, total):
    sizes = cut(total, speeds)
    assert sum(sizes) == total
    assert min(sizes) >= 1


@pytest.mark.parametrize("predictor", ["last", "mean", "ewma"])
def test_batches_settle_in_proportion_to_speed(predictor):
    done = ps.run(experiment(strategies.lb_bsp(predictor=predictor)))
    assert list(rounds(done)[0].values()) == [64] * 4
    assert [list(sizes.values()) for sizes in rounds(done)[1:]] == [[102, 77, 51, 26]] * (
        len(rounds(done)) - 1
    )
    bsp = ps.run(experiment("bsp"))
    assert done.meta["time_s"] < 0.5 * bsp.meta["time_s"]
    assert ps.replay(done) == len(done.log)


def test_the_predictors():
    def predicted(**values):
        part = LBBSP(**values)
        view = ClusterView(2, 1, 100)
        for seconds in (1.0, 0.5, 0.25):  # speeds 8, 16, 32
            part.on_push(Push(0, 0, 1, 0, samples=8, stats={"compute_s": seconds}), view)
        return part.state_dict()["_speeds"]["0"]

    assert predicted(predictor="last") == [32]
    assert predicted(predictor="mean", window=2) == [16, 32]
    assert predicted(predictor="ewma", smoothing=0.5) == [0.5 * 32 + 0.5 * (0.5 * 16 + 0.5 * 8)]


@pytest.mark.parametrize("seed", range(5))
def test_the_update_is_the_gradient_of_the_whole_batch_however_it_is_cut(seed):
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(rng.standard_normal((64, 6)))
    labels = torch.from_numpy(rng.integers(0, 3, 64))
    weights = torch.from_numpy(rng.standard_normal((6, 3))).requires_grad_()

    def gradient(x, y):
        return torch.autograd.grad(functional.cross_entropy(x @ weights, y), weights)[0]

    sizes = cut(64, list(rng.random(5) + 0.05))
    parts = [gradient(x, y) for x, y in zip(inputs.split(sizes), labels.split(sizes), strict=True)]
    pushes = [Push(i, i, 1, 0, samples=size) for i, size in enumerate(sizes)]
    apply = Mean().on_commit(pushes, ClusterView(5, 64, 64))[0]
    assert torch.allclose(weighted_sum(parts, apply.weights), gradient(inputs, labels), atol=1e-12)
    plain = weighted_sum(parts, [1 / 5] * 5)
    assert not torch.allclose(plain, gradient(inputs, labels), atol=1e-3)


def test_equal_workers_are_bsp():
    lb, bsp = (ps.run(experiment(name, speed=(1, 1, 1, 1))) for name in ("lb_bsp", "bsp"))
    assert torch.equal(lb.parameters, bsp.parameters)


def test_the_batch_is_cut_for_those_that_are_there():
    comings = {
        "failures": [{"worker": 0, "at_s": 0.3, "rejoin_s": 0.8}],
        "joins": [{"worker": 3, "at_s": 0.5}],
    }
    done = ps.run(experiment("lb_bsp", cluster=comings, stop={"epochs": 15}))
    seen = rounds(done)
    assert {len(sizes) for sizes in seen} >= {2, 3, 4}
    # a round that somebody left or joined half-way is the only one that may differ
    assert sum(sum(sizes.values()) != 256 for sizes in seen) <= 3
    assert list(seen[-1].values()) == [102, 77, 51, 26]


def test_a_newcomer_has_the_mean_speed_of_those_that_are_there():
    """Speeds 10 and 30 samples a second, and 80 of a worker that has left: a newcomer counts as 20."""
    part, view = LBBSP(predictor="last"), ClusterView(4, 1000, 120)
    for worker in range(4):
        view.workers[worker] = WorkerView(worker, batch_size=30)
    for worker, speed in ((0, 10), (1, 30), (2, 80)):
        part.on_push(Push(worker, worker, 1, 0, samples=speed, stats={"compute_s": 1.0}), view)
    view.workers[2].status = Status.GONE
    part.on_applied(view)
    assert [part.on_release(worker, view) for worker in (0, 1, 3)] == [
        {"batch_size": 20},
        {"batch_size": 60},
        {"batch_size": 40},
    ]


def test_under_all_reduce_the_ring_adds_unequal_shares():
    ring = ps.run(experiment(strategies.lb_bsp(placement="all_reduce")))
    served = ps.run(experiment("lb_bsp"))
    assert torch.allclose(ring.parameters, served.parameters, atol=1e-6)


@pytest.mark.parametrize("name", ["asp", "k_bsp", "ssp"])
def test_without_a_barrier_there_is_no_moment_to_cut(name):
    with pytest.raises(ParameterError, match=f"lb_bsp changes batch sizes at barriers, but {name} has none"):
        getattr(strategies, name)(stragglers="lb_bsp")


def test_a_switch_to_a_strategy_of_equal_work_restores_the_batches():
    rule = {"name": "after", "fraction": 0.5}
    done = ps.run(experiment(strategies.strategy_switch(first="lb_bsp", second="asp", rule=rule)))
    pushes, switch = done.log.of_kind(Kind.PUSH), done.log.of_kind(Kind.HANDOVER)["row"][0]
    assert set(pushes["samples"][pushes["row"] > switch].tolist()) == {64}
    assert len(set(pushes["samples"][pushes["row"] < switch].tolist())) > 1
