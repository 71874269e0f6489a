"""The rules of selections: identities, probabilities that were worked out, and what each takes more often."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core import Evaluated, EventLog, SampleGroups
from psbench.core.selection import KnownOfData
from psbench.errors import ProtocolError
from psbench.optimization.losses import CROSS_ENTROPY
from psbench.runs.execution import run
from psbench.seeds import Streams
from psbench.strategies.selection import (
    Curriculum,
    DataAware,
    Importance,
    InstanceHardness,
    OnlineBatch,
    RecencyBias,
    WithReplacement,
)
from psbench.strategies.selection.ranks import drawn_ranks
from psbench.strategies.selection.recency_bias import entropies
from psbench.testing import toy_experiment
from psbench.training.build import Workload
from psbench.training.chooser import Chooser
from psbench.training.each_sample import weighted_mean

GROUPS = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 2])


def chooser(selection, size=10, groups=GROUPS, classes=2, column=None):
    known = KnownOfData(
        SampleGroups(np.resize(groups, size), groups, ("a", "b", "c")),
        classes,
        lambda samples: samples % classes,
        lambda name: np.arange(100.0) if column is None else column,
    )
    return Chooser(selection, np.arange(size), Streams(0), 0, known)


def choices(made, steps, batch, numbers=lambda positions: {}, orders=None):
    """The positions of so many mini-batches, of which `numbers` says what is found."""
    found = []
    for _ in range(steps):
        chosen = made.choose(batch, orders or {}, lambda samples: numbers(samples))
        made.learn(chosen.positions, numbers(chosen.positions))
        found.append(chosen)
    return found


def log_of(selection, strategy="asp", **changes):
    composed = {"name": strategy} | ({} if selection is None else {"selection": selection})
    return run(toy_experiment(composed, stop={"epochs": 4}, **changes)).log.digest()


# -------------------------------------------------------------------- identities


@pytest.mark.parametrize("strategy", ["bsp", "asp", "local_sgd"])
@pytest.mark.parametrize(
    "selection", ["reshuffle", {"name": "curriculum", "share": 1}, {"name": "instance_hardness", "decay": 1}]
)
def test_what_is_reshuffle(selection, strategy):
    assert log_of(selection, strategy) == log_of(None, strategy)


@pytest.mark.parametrize(
    "selection",
    [
        {"name": "importance", "candidates": 1e3},  # never pays
        {"name": "importance", "candidates": 0, "floor": 1e15},  # equal norms
    ],
)
def test_what_is_with_replacement(selection):
    """With the same draws, and so the same log."""
    assert log_of(selection) == log_of("with_replacement") != log_of(None)


def test_without_pressure_ranks_are_uniform():
    rng = np.random.default_rng(0)
    ranks = drawn_ranks(60_000, 6, 1.0, rng)
    assert np.allclose(np.bincount(ranks, minlength=6) / 60_000, 1 / 6, atol=0.01)


def test_ranks_under_pressure_have_the_published_probabilities():
    count, pressure = 8, 50.0
    expected = np.exp(-np.arange(1, count + 1) * math.log(pressure) / count)
    drawn = np.bincount(drawn_ranks(200_000, count, pressure, np.random.default_rng(1)), minlength=count)
    assert np.allclose(drawn / drawn.sum(), expected / expected.sum(), atol=0.005)


def test_with_one_neighbourhood_or_no_focus_data_aware_draws_uniformly():
    one = chooser(DataAware(focus=1.0), groups=np.zeros(10, np.int64))
    orders = {"focus": [1.0, 0.0, 0.0]}
    for made, given in ((one, orders), (chooser(DataAware(focus=0.0)), {"focus": [0.0, 0.0, 1.0]})):
        drawn = np.concatenate([each.positions for each in choices(made, 200, 100, orders=given)])
        assert np.allclose(np.bincount(drawn, minlength=10) / len(drawn), 0.1, atol=0.01)


# -------------------------------------------------------------------- unbiased, exactly


def test_unbiased_weights_give_the_whole_gradient_in_expectation():
    """The sum over all samples of probability times weight times gradient; p is known in closed form."""
    part = DataAware(weights="unbiased", focus=0.8)
    made, orders = chooser(part), {"focus": [0.1, 0.2, 0.7]}
    shares = part.shares(made.memory, orders)
    assert shares == pytest.approx([0.2 * 0.7 + 0.08, 0.2 * 0.2 + 0.16, 0.2 * 0.1 + 0.56])
    sizes = np.array([7, 2, 1])
    p = (shares / sizes)[GROUPS]
    weight = {}
    for each in choices(made, 60, 20, orders=orders):
        weight |= dict(zip(each.positions.tolist(), each.weights.tolist(), strict=True))
    gradients = np.random.default_rng(3).normal(size=10)
    expected = sum(p[i] * weight[i] * gradients[i] for i in range(10))
    assert expected == pytest.approx(gradients.mean())


def test_weighted_gradients_of_all_mini_batches_average_to_the_whole():
    """Every mini-batch of two of a tiny set, with its probability, through the loss that workers compute."""
    groups, orders = np.array([0, 0, 1]), {"focus": [0.1, 0.9, 0.0]}
    part = DataAware(weights="unbiased", focus=0.8)
    made = chooser(part, size=3, groups=groups)
    p = (part.shares(made.memory, orders)[:2] / [2, 1])[groups]
    weight = {}
    for each in choices(made, 20, 5, orders=orders):
        weight |= dict(zip(each.positions.tolist(), each.weights.tolist(), strict=True))
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 4, generator=rng, dtype=torch.float64), torch.tensor([0, 1, 1])
    model = torch.nn.Linear(4, 2, dtype=torch.float64)

    def gradient(where, weights):
        loss = weighted_mean(model(x[where]), y[where], CROSS_ENTROPY, np.array(weights))
        return torch.autograd.grad(loss, model.weight)[0]

    expected = sum(p[i] * p[j] * gradient([i, j], [weight[i], weight[j]]) for i in range(3) for j in range(3))
    assert p.sum() == pytest.approx(1)
    assert not np.allclose(p, 1 / 3)
    assert torch.allclose(expected, gradient([0, 1, 2], [1.0, 1.0, 1.0]), rtol=1e-12)


def test_importance_is_unbiased_and_takes_large_gradients_more_often():
    norms = np.array([1.0] * 9 + [9.0])
    made = chooser(Importance(candidates=0, floor=0.0, smoothing=0.0))
    made.memory.norm[:] = norms
    made.memory.state["tau"] = 2.0
    counts, weighted, steps = np.zeros(10), np.zeros(10), 400
    for each in choices(made, steps, 50, lambda positions: {"norm": norms[positions]}):
        assert each.weights is not None
        counts += np.bincount(each.positions, minlength=10)
        weighted += np.bincount(each.positions, each.weights, minlength=10)
    assert counts / counts.sum() == pytest.approx(norms / 18, abs=0.01)
    assert weighted / counts == pytest.approx(18 / (10 * norms)), "1 / (N p), exactly"
    assert weighted / counts.sum() == pytest.approx(np.full(10, 0.1), abs=0.01)


def test_importance_is_on_where_it_pays_and_looks_at_candidates_then():
    norms = np.array([1e-3] * 9 + [9.0])
    looked = []

    def numbers(positions):
        return {"norm": norms[positions]}

    made = chooser(Importance(candidates=3, smoothing=0.5, floor=0.0))
    for _ in range(12):
        chosen = made.choose(40, {}, numbers)
        made.learn(chosen.positions, numbers(chosen.positions))
        looked.append(chosen.looked)
    assert looked[0] == 0
    assert looked[-1] == 120


# -------------------------------------------------------------------- what each rule takes


def test_online_batch_keeps_its_order_as_a_sort_would():
    rng, made = np.random.default_rng(5), chooser(OnlineBatch(), size=60)
    losses = rng.random(1000)
    for number in range(40):
        chosen = made.choose(7, {}, lambda samples: {})
        made.learn(chosen.positions, {"loss": losses[number + np.arange(7)]})
        known = np.nan_to_num(made.memory.loss, nan=9.0)
        order = made.memory.state["order"]
        assert sorted(order.tolist()) == list(range(60))
        assert (np.diff(known[order]) <= 0).all()


def test_online_batch_computes_all_losses_when_that_is_due():
    made = chooser(OnlineBatch(refresh=1.0))
    looked = [
        each.looked for each in choices(made, 6, 5, lambda positions: {"loss": np.ones(len(positions))})
    ]
    assert looked == [0, 0, 10, 0, 10, 0]


def test_a_curriculum_grows_by_its_pacing():
    part = Curriculum(share=0.2, growth=2.0, every=3, column="difficulty")
    made = chooser(part, column=np.arange(10)[::-1].astype(float))
    seen = [
        set(each.positions.tolist()) for each in choices(made, 12, 4, lambda p: {"loss": np.zeros(len(p))})
    ]
    assert set().union(*seen[:3]) == {8, 9}
    assert set().union(*seen[3:6]) == {6, 7, 8, 9}
    assert set().union(*seen[6:9]) <= set(range(2, 10))
    assert set().union(*seen[9:]) <= set(range(10))


def test_entropy_is_that_of_the_labels_over_an_even_distribution():
    """Worked example: 3 of one label and 1 of another among four classes."""
    found = entropies(np.array([[1, 1, 1, 2], [0, 1, 2, 3], [3, 3, 3, 3]]), 4)
    assert found == pytest.approx([(0.75 * math.log(4 / 3) + 0.25 * math.log(4)) / math.log(4), 1.0, 0.0])


def test_recency_bias_takes_the_samples_whose_predictions_change():
    rng = np.random.default_rng(2)

    def numbers(positions):  # sample 3 is predicted by chance, the others always alike
        return {"predicted": np.where(positions == 3, rng.integers(2, size=len(positions)), 0)}

    made = chooser(RecencyBias(warm_up=2.0, pressure=100.0, passes=1e6, window=5))
    drawn = np.concatenate([each.positions for each in choices(made, 300, 5, numbers)][8:])
    counts = np.bincount(drawn, minlength=10)
    assert counts[3] > 10 * np.delete(counts, 3).max()


@pytest.mark.parametrize("measure", ["loss", "change", "flip"])
def test_instance_hardness_keeps_what_is_hard(measure):
    rng = np.random.default_rng(4)

    def numbers(positions):  # samples 7 to 9 have a large loss that changes, and are predicted by chance
        hard = positions >= 7
        chance = rng.random(len(positions))
        return {
            "loss": np.where(hard, 5 + 3 * chance, 0.1),
            "predicted": np.where(hard, chance > 0.5, positions % 2),
        }

    made = chooser(InstanceHardness(measure=measure, warm_up=3.0, decay=0.5, least=0.3))
    seen = [set(each.positions.tolist()) for each in choices(made, 60, 5, numbers)]
    assert set().union(*seen[:6]) == set(range(10))
    assert set().union(*seen[-6:]) == {7, 8, 9}


def test_data_aware_orders_more_of_the_weak_neighbourhood():
    """Under ASP on a mixture with a cloud of few samples, workers draw it more often than it is there."""
    data = {"name": "mixture", "num_samples": 900, "num_classes": 2, "clouds_per_class": 3, "rare": 0.2}
    selection = {"name": "data_aware", "neighbourhoods": "column", "temperature": 0.1, "focus": 0.9}
    simulation = Simulation(
        Workload.build(
            toy_experiment({"name": "asp", "selection": selection}, data=data, stop={"epochs": 6})
        ),
        EventLog(),
        Control(),
    )
    simulation.run()
    last = simulation.log.evaluations()[-1]
    losses = [last[f"neighbourhood_loss:{cloud}"] for cloud in range(6)]
    assert "neighbourhood_error:5" in last
    memories = [simulation.cluster.trainer._chooser(worker).memory for worker in range(3)]
    recent = [memory.neighbourhood[memory.taken_at >= memory.step - 10] for memory in memories]
    counts = memories[0].counts
    assert counts[5] == counts.min()
    assert len(losses) == 6
    assert np.mean(np.concatenate(recent) == 5) > 2 * counts[5] / counts.sum()


def paired(strategy, measure, **data):
    """Return a measure at the end, data-aware minus uniform on equal samples, of ten seeds."""
    kept = {
        "name": "mixture",
        "num_samples": 3000,
        "num_classes": 2,
        "clouds_per_class": 3,
        "val_fraction": 0.8,
    }
    found = []
    for seed in range(10):
        ends = []
        for focus in (0.5, 0.0):
            rule = {"name": "data_aware", "neighbourhoods": "column", "focus": focus}
            spec = toy_experiment(
                {"name": strategy, "selection": rule},
                data=kept | {"separation": 5.0} | data,
                model={"name": "mlp", "hidden": [16]},
                stop={"epochs": 5},
                seed=seed,
            )
            ends.append(run(spec).log.evaluations()[-1][measure])
        found.append(ends[0] - ends[1])
    return np.array(found)


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["bsp", "asp"])
def test_a_planted_weak_cloud_is_learned_and_without_one_nothing_changes(strategy):
    """One cloud with a fifth of the samples: fewer errors there. Without it: within two points, tested."""
    fewer = paired(strategy, "neighbourhood_error:5", rare=0.2)
    assert stats.ttest_1samp(fewer, 0.0, alternative="less").pvalue < 0.01
    same = paired(strategy, "val_accuracy")
    sides = [
        stats.ttest_1samp(same, end, alternative=side) for end, side in ((-0.02, "greater"), (0.02, "less"))
    ]
    assert max(each.pvalue for each in sides) < 0.05


def test_the_control_deals_the_same_shares_by_chance():
    """At every evaluation anew, and from one to the next the same; their entropy stays."""
    made, aware = DataAware(by="random"), DataAware()
    view = SimpleNamespace(rng=np.random.default_rng(0))
    orders = []
    for number in range(8):
        event = Evaluated(number, 1, {f"neighbourhood_loss:{h}": float(h) for h in range(6)})
        made.on_evaluated(event, view)
        aware.on_evaluated(event, view)
        shares, dealt = aware.on_release(0, view)["focus"], made.on_release(0, view)["focus"]
        assert dealt == made.on_release(1, view)["focus"]
        assert sorted(dealt) == sorted(shares) == shares
        orders.append(tuple(dealt))
    assert len({*orders}) == 8


# -------------------------------------------------------------------- what is refused


class Chooses(WithReplacement):
    """Returns what a test wants."""

    registered = False
    name = "of a test"

    def choose(self, size, rng, memory, orders):
        return RETURNED[0](size)


RETURNED = [None]
WRONG = {
    "of another shard": (
        lambda n: np.full(n, 10),
        "returns 10, which is not a sample .* from 0 to 9",
    ),
    "negative": (lambda n: np.full(n, -1), "returns -1, which is not a sample"),
    "too few": (lambda n: np.arange(n - 1), "returns 3 samples for a mini-batch of 4"),
    "no numbers": (lambda n: np.full(n, 0.5), "return an array of whole numbers"),
    "weights of NaN": (lambda n: (np.arange(n), np.full(n, np.nan)), "returns the weight nan"),
    "negative weights": (lambda n: (np.arange(n), np.full(n, -1.0)), "returns the weight -1"),
    "no weight": (lambda n: (np.arange(n), np.zeros(n)), "weights that are all 0"),
    "too few weights": (lambda n: (np.arange(n), np.ones(n - 1)), "weights of shape"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_choice_is_refused_with_name_and_worker(what):
    RETURNED[0], said = WRONG[what]
    with pytest.raises(ProtocolError, match=f"selection 'of a test': choose.. of worker 0 .*{said}"):
        chooser(Chooses()).choose(4, {}, lambda samples: {})
