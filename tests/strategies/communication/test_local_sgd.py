"""PASGD: local steps and averages, against BSP, plain torch and the theory of its run time."""

import pytest
import torch
from local_runs import MOMENTUM, Watched, alone, close, trained
from toybox import at_night

from psbench import strategies
from psbench.core.log import Kind
from psbench.errors import ParameterError
from psbench.runs.execution import run
from psbench.testing import check_strategy, toy_experiment
from psbench.testing.toys import toy_cluster
from psbench_papers.theory import local_sgd_step_seconds


def pasgd(steps, **values):
    return strategies.local_sgd(local_steps=steps, **values)


def test_a_period_of_one_step_is_bsp():
    close(trained(pasgd(1)).parameters, trained("bsp").parameters)
    rows = [trained(s).log.of_kind(Kind.APPLY) for s in (pasgd(1), "bsp")]
    for name in ("time_s", "worker", "version", "samples"):
        assert rows[0][name].tolist() == rows[1][name].tolist(), name


@pytest.mark.slow
def test_the_first_average_is_that_of_independent_workers():
    done = trained(pasgd(5), stop={"updates": 1})
    assert done.log.of_kind(Kind.PUSH)["steps"].tolist() == [5, 5, 5]
    close(done.parameters, sum(alone(worker, 5) for worker in range(3)) / 3)


@pytest.mark.slow
def test_an_endless_period_leaves_the_workers_to_themselves():
    watched = Watched(pasgd(10**6), stop={"seconds": 1000.0})
    steps = [81, 40, 20]  # of 5, 10 and 20 ms, and the first that ends after 0.4 s
    for worker, model in enumerate(watched.until(lambda view: watched._simulation.now > 0.4001)):
        close(model, alone(worker, steps[worker]))
    assert not len(watched.log.of_kind(Kind.PUSH)["id"])


def test_after_an_averaging_all_workers_have_the_mean():
    watched = Watched(pasgd(3))
    first, *others = watched.until(lambda view: view.version == 2)
    assert all(torch.equal(first, other) for other in others)
    apart, *others = watched.until(lambda view: view.num_computing == 1)
    assert not any(torch.equal(apart, other) for other in others)


@pytest.mark.slow
def test_with_one_worker_any_period_is_plain_sgd():
    one = {"cluster": toy_cluster([1.0]), "batch_size": 8, "stop": {"updates": 4}}
    close(trained(pasgd(6), **one).parameters, alone(0, 24, cluster=toy_cluster([1.0]), batch_size=8))


@pytest.mark.slow
def test_momentum_of_the_workers_is_cleared_with_each_average_or_kept():
    cleared = trained(pasgd(1), optimizer=MOMENTUM)
    close(cleared.parameters, trained("bsp").parameters)  # no momentum at all
    kept = trained(pasgd(1, local_momentum="kept"), optimizer=MOMENTUM)
    close(kept.parameters, trained("bsp", optimizer=MOMENTUM).parameters)
    after_five = trained(pasgd(5), optimizer=MOMENTUM, stop={"updates": 1})
    close(after_five.parameters, sum(alone(worker, 5, optimizer=MOMENTUM) for worker in range(3)) / 3)


@pytest.mark.slow
def test_progress_and_bytes():
    often, seldom = (trained(pasgd(steps), stop={"epochs": 2}) for steps in (1, 4))
    assert often.summary()["epochs"] == seldom.summary()["epochs"] == 2.0
    assert often.summary()["steps"] == seldom.summary()["steps"] == 48
    assert often.summary()["bytes"]["up"] == 4 * seldom.summary()["bytes"]["up"]


@pytest.mark.by_day(1)
@pytest.mark.slow
@pytest.mark.parametrize(("steps", "expected"), [(1, 4.3807), (10, 1.7337)])
def test_a_local_step_takes_as_long_as_theorem_1_says(steps, expected):
    """16 workers, exponential times of mean 1 s, and a second for the exchange."""
    assert local_sgd_step_seconds(16, steps, 1.0) == pytest.approx(expected, abs=1e-4)
    cluster = {
        **{
            "workers": 16,
            "step_time": {"name": "shifted_exponential", "spread": 1.0},
            "seconds_per_sample": 0.25,
        },
        **{"seconds_per_step": 0.0, "latency_s": 0.5, "server_latency_s": 0.0},
        **{"bandwidth_mbit_s": 1e12, "server_bandwidth_mbit_s": 1e12},
    }
    experiment = toy_experiment(
        pasgd(steps), cluster=cluster, batch_size=64, stop={"updates": 600}, timing_only=True
    )
    done = run(experiment)
    assert done.meta["time_s"] / (600 * steps) == pytest.approx(expected, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    "consistency", ["asp", "k_bsp", *at_night("ssp", "k_asp", "k_batch_asp", "elastic_bsp")]
)
def test_it_also_goes_without_a_barrier(consistency):
    strategy = pasgd(3, consistency=consistency)
    check_strategy(strategy, clusters=1)
    first, last = (trained(s, stop=stop) for s, stop in (("bsp", {"updates": 1}), (strategy, {"epochs": 6})))
    assert last.summary()["final"]["train_loss"] < 0.6 * first.summary()["final"]["train_loss"]


def test_a_cancelled_worker_counts_its_steps_anew():
    strategy = pasgd(4, consistency={"name": "k_bsp", "k": 2})
    pushes = trained(strategy, stop={"updates": 20}).log.of_kind(Kind.PUSH)
    assert set(pushes["steps"].tolist()) == {4}


def test_gradients_of_local_steps_would_be_lost():
    with pytest.raises(ParameterError, match="takes local steps, which would be lost"):
        pasgd(2, aggregation="mean")
    with pytest.raises(ParameterError, match="local_steps"):
        pasgd(0)
