"""The worst-case optimal time: its formulas, its measurement, and the answer about runs."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import psbench as ps
from psbench.errors import ParameterError
from psbench.optimal import Bound, measure, measured
from psbench.optimal.measured import step_seconds
from psbench.testing import toy_experiment

# ------------------------------------------------------------------ formulas


def rate_in_loops(tau, smoothness, variance, gap, eps, like):
    """The rates of Tyurin and Richtarik 2023, written from their abstract."""
    if not like:
        mean = sum(tau) / len(tau)
        return max(tau) * smoothness * gap / eps + mean * variance * smoothness * gap / (len(tau) * eps**2)
    found = []
    for m in range(1, len(tau) + 1):
        harmonic = 1 / (sum(1 / each for each in sorted(tau)[:m]) / m)
        found.append(harmonic * (smoothness * gap / eps + variance * smoothness * gap / (m * eps**2)))
    return min(found)


@pytest.mark.parametrize("like", [True, False])
@pytest.mark.parametrize("variance", [0.0, 3.0, 500.0])
def test_guarantees_follow_the_published_rate(like, variance):
    tau = (1.0, 7.0, 1.5, 30.0)
    bound = Bound(tau, smoothness=2.0, variance=variance, gap=5.0, like_data=like)
    for eps in (1e-3, 0.07, 1.0, 40.0):
        rate = rate_in_loops(tau, 2.0, variance, 5.0, eps, like)
        assert bound.rate(eps) == pytest.approx(rate)
        assert rate <= bound.guaranteed(eps) <= (64 if like else 128) * rate
        assert bound.unavoidable(eps) <= rate
    every = [bound.guaranteed(eps) for eps in np.geomspace(1e-3, 10, 50)]
    assert every == sorted(every, reverse=True)


def test_worked_numbers_of_the_guarantee():
    # S = ceil(3 / .5) = 6; the fastest alone (6 + 1) / 1, both (6 + 2) / 1.5; ceil(16 / .5) = 32 iterations
    assert Bound((2.0, 1.0), 1.0, 3.0, 1.0).guaranteed(0.5) == pytest.approx(32 * 8 / 1.5)
    # 2 (2 + 6/2 * 1.5)
    assert Bound((2.0, 1.0), 1.0, 3.0, 1.0, like_data=False).guaranteed(0.5) == pytest.approx(32 * 13)


def test_a_slow_worker_changes_the_guarantee_of_like_data_little():
    alone, slow = Bound((1.0,), 1.0, 9.0, 1.0), Bound((1.0, 1e9), 1.0, 9.0, 1.0)
    assert slow.guaranteed(0.1) == alone.guaranteed(0.1)
    unlike = Bound((1.0, 1e9), 1.0, 9.0, 1.0, like_data=False)
    assert unlike.guaranteed(0.1) > 1e9


@pytest.mark.parametrize("tau", [(1.0,), (1.0, 1.0, 1.0), (1.0, 1.3, 9.0)])
@pytest.mark.parametrize("chance", [1.0, 0.3, 0.02])
def test_no_method_is_faster_than_the_lower_bound_with_probability_half(tau, chance):
    coordinates = 25
    bound = Bound(tau, 152.0, 0.0 if chance == 1 else 529 / chance, 12.0 * coordinates)
    assert bound.hard(0.5) == (coordinates, pytest.approx(chance))
    rng = np.random.default_rng(1)
    first = (np.array(tau)[:, None, None] * rng.geometric(chance, (len(tau), coordinates, 4000))).min(0)
    total = first.sum(0)
    assert (total > bound.unavoidable(0.5) * (1 - 1e-12)).mean() >= 0.5  # as proved
    assert total.mean() < 1.6 * bound.unavoidable(0.5)  # and not by far: twice the bound is wrong


@pytest.mark.parametrize(
    ("numbers", "what"),
    [
        ({"step_s": ()}, "step_s"),
        ({"step_s": (1.0, 0.0)}, "step_s"),
        ({"smoothness": 0.0}, "smoothness"),
        ({"variance": -1.0}, "variance"),
        ({"gap": math.inf}, "gap"),
    ],
)
def test_impossible_numbers_are_refused(numbers, what):
    with pytest.raises(ParameterError, match=what):
        Bound(**{"step_s": (1.0,), "smoothness": 1.0, "variance": 1.0, "gap": 1.0} | numbers)
    with pytest.raises(ParameterError, match="target"):
        Bound((1.0,), 1.0, 1.0, 1.0).guaranteed(0.0)


# ------------------------------------------------------------------ measurement


def quadratic(strategy="asp", **changes):
    """1/2 |w x - y|^2 over the samples (x, y) of three columns, in plain numbers."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(96, 3)) * [2.0, 1.0, 0.5]
    y = x @ [1.0, -2.0, 3.0] + rng.normal(size=96)
    model = torch.nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    settings = {
        "data": (x, y, x + 1, y),
        "model": model,
        "loss": "mse",
        "batch_size": 12,
        "optimizer": {"name": "sgd", "lr": 0.02},
        "metrics": ["gradient_norm_sq"],
    }
    return toy_experiment(strategy, **settings | changes), x, y


def test_the_gradient_norm_is_that_of_the_training_loss():
    experiment, x, y = quadratic()
    done = ps.run(experiment)
    w = done.parameters.double().numpy()
    gradient = 2 / len(x) * x.T @ (x @ w - y)
    measured = done.metrics["train_gradient_norm_sq"]
    assert measured.iloc[-1] == pytest.approx(gradient @ gradient, rel=1e-3)
    assert measured.iloc[0] == pytest.approx((2 / len(x)) ** 2 * (x.T @ y) @ (x.T @ y), rel=1e-3)
    target = {"metric": "train_gradient_norm_sq", "at_most": measured.iloc[0] / 2}
    assert ps.run(experiment.but(stop={"epochs": 9, "target": target})).metrics["epoch"].iloc[-1] < 9
    with pytest.raises(ps.PsbenchError, match="train_gradient_norm_sq"):
        experiment.but(stop={"epochs": 9, "target": {"metric": "gradient_norm_sq", "at_most": 1}})


def test_the_problem_is_measured_on_the_runs_own_data():
    experiment, x, y = quadratic(cluster={"workers": 3, "speed": [1.0, 0.5, 0.25], "step_time": "lognormal"})
    bound = measure(ps.run(experiment)).bound
    assert bound.step_s == pytest.approx((5e-3, 1e-2, 2e-2))  # the mean, whatever the distribution
    hessian = 2 / len(x) * x.T @ x
    assert bound.smoothness == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=0.02)
    assert bound.gap == pytest.approx(float(np.mean(y**2)), rel=1e-3)
    each = -2 * x * y[:, None]  # at the first model, where the variance is largest
    variance = ((each - each.mean(0)) ** 2).sum(1).mean() / 4
    assert bound.variance == pytest.approx(variance, rel=0.5)
    assert bound.like_data


def test_a_live_step_takes_the_time_to_read_its_samples_too():
    done = ps.run(toy_experiment("asp", backend="simulated", cluster={"workers": 2}))
    live = done.experiment.model_copy(update={"backend": "dask"})
    usage = [{"worker": w, "steps": 4, "read_s": 1.0 + w, "compute_s": 3.0, "cpu_s": 0.0} for w in range(2)]
    found = dataclasses.replace(done, experiment=live, meta=done.meta | {"usage": usage})
    assert step_seconds(found)[0] == (1.0, 1.25)
    found.meta["usage"][1]["steps"] = 0
    with pytest.raises(ParameterError, match="worker 1 took no step"):
        step_seconds(found)


def test_the_variance_is_estimated_without_bias(monkeypatch):
    seen = []

    def gradient(_, where):
        seen.append(float(where[0]))
        return torch.tensor(seen[-1:], dtype=torch.float64)

    found = object.__new__(measured._Gradients)
    found.batch, found._rng, found.of = 1, np.random.default_rng(0), gradient
    monkeypatch.setattr(measured, "BATCHES", 4)
    assert found._variance(None, np.arange(100)) == pytest.approx(np.var(seen, ddof=1))


def test_workers_with_unlike_data_are_noticed():
    experiment, _, y = quadratic(sharding=lambda _, n, rng: np.argsort(y).reshape(n, -1))
    done = ps.run(experiment)
    problem = measure(done)
    assert not problem.bound.like_data
    assert "count as unlike, by the gradients of their shards" in problem.how
    assert measure(done, like_data=True).bound.like_data


# ------------------------------------------------------------------ the answer


def test_the_answer_says_how_far_runs_are_from_the_guarantee():
    runs = [ps.run(quadratic(strategy, evaluate_every=0.25)[0]) for strategy in ("asp", "bsp")]
    answer = ps.optimal_time(runs)
    frame = answer.frame()
    for run, row in zip(runs, frame.to_dict("records"), strict=True):
        curve = run.metrics
        reached = curve["time_s"][curve["train_gradient_norm_sq"] <= frame.attrs["value"]].min()
        assert row["time_s"] == reached
        assert row["ratio"] == pytest.approx(reached / answer.bound.guaranteed(frame.attrs["value"]))
    assert "of the guaranteed time" in answer.sentence
    assert "may lie below" in answer.caption
    assert "16 L Delta / eps" in answer.caption
    assert "no time is drawn" in answer.caption.lower()
    assert answer.ratios(1e-9) == {"asp": math.inf, "bsp": math.inf}
    (rows,) = answer.figure().chart.to_dict()["datasets"].values()
    assert {(row["label"], row["bound"]) for row in rows} == {
        ("asp", None),
        ("bsp", None),
        (None, "guaranteed"),
    }


def test_losses_stand_for_gradient_norms_where_those_are_missing():
    done = ps.run(quadratic(metrics=[])[0])
    answer = ps.optimal_time(done, bound=Bound((1e-9,), 1e-3, 0.0, 1e-3))
    assert answer.value == "loss"
    assert answer.target_of(3.0) == 2 * 1e-3 * 3.0
    assert "within" in answer.sentence  # so fast a cluster is not reached
    assert "eps = 2 L F" in answer.caption


def test_runs_of_several_problems_have_no_common_worst_case():
    one, other = (ps.run(quadratic(batch_size=size)[0]) for size in (12, 24))
    with pytest.raises(ParameterError, match="batch_size"):
        ps.optimal_time([one, other])
    with pytest.raises(ParameterError, match="no run"):
        ps.optimal_time([])
    with pytest.raises(ParameterError, match="without a model"):
        ps.optimal_time(ps.run(toy_experiment(timing_only=True)))
