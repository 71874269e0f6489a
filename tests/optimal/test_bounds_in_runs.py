"""Runs beside the bounds: none below the lower one on its hard function, methods within the upper one."""

import math

import numpy as np
import pytest
import torch
from known_problems import EPS, HARD, STEP_S, hard, quadratic

import psbench as ps
from psbench.errors import ParameterError
from psbench.optimal import Bound, HardFunction, hard_problem
from psbench.optimal.bounds import GAP, LARGEST, SMOOTHNESS
from psbench.optimal.hard import chain, chain_gradient, progress

FAMILY = [
    "asp",
    "bsp",
    {"name": "m_sync", "k": 2},
    {"name": "rennala", "k": 1},
    {"name": "rennala", "k": 4},
    {"name": "ringmaster", "max_delay": 8},
    {"name": "malenia", "total": 4},
    "ringleader",
]

# ------------------------------------------------------------------ the hard function


def test_the_hard_function_has_the_constants_of_its_lemma():
    rng = np.random.default_rng(0)
    assert chain(np.zeros(9)) - min(chain(np.full(9, x)) for x in (-9.0, 0.8, 9.0)) <= GAP * 9
    for _ in range(300):
        x = rng.normal(size=9) * rng.choice([0.3, 1.0, 3.0])
        x[int(rng.integers(0, 10)) :] = 0
        gradient, step = chain_gradient(x), 1e-5 * rng.normal(size=9)
        slope = (chain(x + step) - chain(x - step)) / 2
        assert gradient @ step == pytest.approx(slope, rel=1e-4, abs=1e-9)
        assert abs(gradient).max() <= LARGEST
        assert chain(np.zeros(9)) - chain(x) <= GAP * 9
        assert np.linalg.norm(chain_gradient(x + step) - gradient) <= SMOOTHNESS * np.linalg.norm(step)
        assert progress(gradient) <= progress(x) + 1
        assert progress(x) == 9 or gradient @ gradient > 2 * EPS


@pytest.mark.parametrize("target", [0.5, 0.05])
def test_the_oracle_is_unbiased_and_has_the_variance_of_the_bound(target):
    """Both of its answers are counted, at points of every progress."""
    bound = Bound((1.0,), smoothness=3.0, variance=1058 * target * 8, gap=3648 * target * 5 / 3.0)
    model, rng = HardFunction(bound, target), np.random.default_rng(2)
    assert (len(model.x), model.chance) == (5, pytest.approx(1 / 8))
    for reached in range(6):
        x = np.append(rng.normal(size=reached), np.zeros(5 - reached)) * model.scale
        with torch.no_grad():
            model.x.copy_(torch.from_numpy(x))
        found = model.x.detach().double().numpy()
        each = []
        for seen in (0.0, 1.0):
            value = model(torch.tensor([seen])).sum()
            each.append(torch.autograd.grad(value, model.x)[0].double().numpy())
            assert float(value.detach()) == pytest.approx(model.height * chain(found / model.scale), rel=1e-5)
        mean = each[0] * 7 / 8 + each[1] / 8
        exact = model.height / model.scale * chain_gradient(found / model.scale)
        np.testing.assert_allclose(mean, exact, rtol=1e-4, atol=1e-6)
        spread = [((answer - exact) ** 2).sum() for answer in each]
        assert spread[0] * 7 / 8 + spread[1] / 8 <= bound.variance
        assert reached == 5 or exact @ exact > 2 * target * (1 - 1e-6)


def test_a_target_without_a_hard_function_is_refused():
    with pytest.raises(ParameterError, match="below L Delta / 3648 = 0\\.5"):
        hard_problem(Bound((1.0,), 152.0, 1.0, 12.0), 0.6)
    with pytest.raises(ParameterError, match=r"is 2\.5"):
        hard_problem(Bound((1.0,), 152.0, 2.5 * 529, 12.0), 0.5)


def lowest(strategy, seeds, times, **changes):
    """The mean over seeds of the smallest squared gradient norm up to a multiple of the bound."""
    found = []
    for seed in range(seeds):
        curve = ps.run(hard(strategy, seed, **changes)).metrics
        early = curve[curve["time_s"] <= times * HARD.unavoidable(EPS)]
        found.append(early["train_gradient_norm_sq"].min())
    return np.mean(found)


@pytest.mark.by_day(4)
@pytest.mark.parametrize("strategy", FAMILY, ids=str)
def test_no_strategy_is_below_the_lower_bound_on_its_hard_function(strategy):
    assert lowest(strategy, 1, 1) > EPS


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", FAMILY, ids=str)
def test_no_strategy_is_below_the_lower_bound_with_many_seeds(strategy):
    assert lowest(strategy, 30, 1) > EPS


def test_twice_the_lower_bound_is_none_and_its_oracle_needs_its_chance():
    assert lowest("asp", 1, 2) <= EPS
    assert lowest("asp", 1, 1, is_shown=True) <= EPS
    assert lowest({"name": "rennala", "k": 1}, 1, 1, is_shown=True) <= EPS


# ------------------------------------------------------------------ quadratics


def run_of_theorem(strategy, lr, updates, like_data=True):
    """The mean squared gradient norm of the first iterates, and the time of the last update."""
    experiment, bound = quadratic(strategy, lr, updates, like_data)
    curve = ps.run(experiment).metrics
    assert curve["updates"].tolist() == list(range(updates + 1))
    return curve["train_gradient_norm_sq"].iloc[:-1].mean(), curve["time_s"].iloc[-1], bound


TARGET = 0.5
BOUND = quadratic("asp", 1.0, 1)[1]
#: L Delta / eps and sigma^2 / eps
ROUNDS, NOISE = BOUND.smoothness * BOUND.gap / TARGET, BOUND.variance / TARGET


@pytest.mark.parametrize(("like_data", "name"), [(True, "rennala"), (False, "malenia")])
def test_rennala_and_malenia_keep_what_their_theorems_guarantee(like_data, name):
    """Tyurin and Richtarik 2024, Theorems 4 and 8: rate 1/(2L), ceil(16 L Delta / eps) iterations."""
    batch = max(math.ceil(NOISE), 1 if like_data else len(STEP_S))
    strategy = {"name": name, "k" if like_data else "total": batch}
    updates = math.ceil(16 * ROUNDS)
    mean, time_s, bound = run_of_theorem(strategy, 1 / (2 * BOUND.smoothness), updates, like_data)
    assert mean <= TARGET
    assert time_s <= bound.guaranteed(TARGET)
    assert time_s > (0.5 if like_data else 0.2) * bound.guaranteed(TARGET)  # a line, not a sky


def test_ringmaster_keeps_what_the_theorem_of_its_tree_guarantees():
    """Tyurin and Sivtsov 2026, Theorem 2.4, with R one less than the delay at which gradients are dropped.

    Gradients that workers begin in a stretch of G updates are too young to be dropped, so that the
    m fastest workers make G updates in (2m + G) / sum 1/tau_i.
    """
    smoothness, limit = BOUND.smoothness, max(math.ceil(NOISE), 1)
    radius = limit - 1
    bounds = [1 / (2 * smoothness), 1 / (2 * radius * smoothness), 1 / (4 * NOISE * smoothness)]
    updates = math.ceil(4 * (radius + 1) * ROUNDS + 8 * NOISE * ROUNDS)
    strategy = {"name": "ringmaster", "max_delay": limit}
    # of n workers each push is applied with a share of 1/n of the rate
    mean, time_s, _ = run_of_theorem(strategy, len(STEP_S) * min(bounds), updates)
    fastest = np.arange(1, len(STEP_S) + 1)
    stretch = ((2 * fastest + limit) / np.cumsum(1 / np.array(STEP_S))).min()
    assert mean <= TARGET
    assert 0.3 * math.ceil(updates / limit) * stretch < time_s <= math.ceil(updates / limit) * stretch
