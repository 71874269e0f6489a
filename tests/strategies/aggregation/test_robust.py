"""Robust aggregation: worked numbers, what each withstands, the same decision on any number of servers."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from vectors import pushed

import psbench as ps
from psbench.core import ClusterView, Push
from psbench.errors import ParameterError
from psbench.optimization.optimizer import SGD
from psbench.strategies.aggregation import ClippedMean, GeometricMedian, Krum, Median, TrimmedMean
from psbench.testing import check_strategy, toy_experiment
from psbench.training.server import Server

GOOD = np.array([[1.0, 0.0], [0.9, 0.1], [1.1, -0.1], [1.0, 0.1]])


def weights(part, rows):
    rows = np.asarray(rows, dtype=float)
    pushes = [Push(i, worker=i, ticket=1, base_version=0, samples=8) for i in range(len(rows))]
    return np.array(part.weights(pushes, (rows @ rows.T).tolist()))


def test_krum_is_its_definition():
    rows = np.vstack([GOOD, [[-50.0, 3.0]]])
    distances = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    scores = [np.sort(np.delete(row, i))[: len(rows) - 1 - 2].sum() for i, row in enumerate(distances)]
    assert weights(Krum(faulty=1), rows).argmax() == int(np.argmin(scores))


def test_multi_krum_of_all_is_the_mean():
    np.testing.assert_allclose(weights(Krum(chosen=4), GOOD), 0.25)


def test_a_geometric_median_has_the_smallest_sum_of_distances():
    rows = np.vstack([GOOD, [[-50.0, 3.0]]])
    found = weights(GeometricMedian(iterations=500), rows) @ rows

    def total(point):
        return np.linalg.norm(rows - point, axis=1).sum()

    near = [found + 0.01 * np.array([np.cos(a), np.sin(a)]) for a in np.linspace(0, 6.28, 30)]
    assert all(total(found) < total(point) for point in near)


def weiszfeld(rows, smoothing, iterations):
    """Return Alg. 2 of Pillutla et al. (2022) in 80 digits, on the vectors themselves, of equal samples.

    v <- sum_k alpha_k w_k / sum_k alpha_k; then beta_k = alpha_k / max(nu, |v - w_k|), and
    v <- sum_k beta_k w_k / sum_k beta_k.
    """
    with localcontext(prec=80):
        vectors = [[Decimal(each) for each in row] for row in rows]
        betas = [Decimal(1)] * len(vectors)
        for _ in range(iterations):
            point = [
                sum(b * x for b, x in zip(betas, axis, strict=True)) / sum(betas)
                for axis in zip(*vectors, strict=True)
            ]
            away = [sum((x - y) ** 2 for x, y in zip(row, point, strict=True)).sqrt() for row in vectors]
            betas = [1 / max(Decimal(smoothing), each) for each in away]
        return [float(beta / sum(betas)) for beta in betas]


@pytest.mark.parametrize(
    "rows",
    [
        [[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]],  # the mean is a push
        [[0.5, 0.25], [0.5, 0.25], [0.5, 0.25], [1.0, 0.0], [-7.0, 0.0]],  # three coincide
        [[0.5, 0.25], [0.5 + 2**-20, 0.25], [0.5, 0.25 + 2**-20], [1.0, 0.0], [-7.0, 0.0]],  # almost so
        [[4096.0 + x, 4096.0] for x in (-1.0, -1.0, 0.0, 1.0, 2**-20)],  # far from 0, and near one another
        [[2**20, 1.0], [2**20, 2.0], [2**20, 2.5]],
    ],
    ids=["a push", "three", "almost three", "far away", "far away, in a line"],
)
@pytest.mark.parametrize("smoothing", [2e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("iterations", [2, 10])
def test_a_geometric_median_next_to_a_push_keeps_its_digits(rows, smoothing, iterations):
    """The distance from a push that is nearly reached is what cancels last in sums of larger products."""
    part = GeometricMedian(smoothing=smoothing, iterations=iterations)
    assert weights(part, rows) == pytest.approx(weiszfeld(rows, smoothing, iterations), rel=1e-6, abs=1e-15)


def test_a_clipped_mean_shortens_to_the_median_norm():
    np.testing.assert_allclose(weights(ClippedMean(), [[1, 0], [0, 2], [0, 8]]), [1 / 3, 1 / 3, 1 / 12])


@pytest.mark.parametrize("part", [Krum(faulty=1), GeometricMedian()])
@pytest.mark.parametrize("wrong", [(-1.0, 0.0), (1e3, 0.0), (-50.0, 3.0)], ids=str)
def test_one_wrong_push_in_five_takes_the_model_nowhere(part, wrong):
    rows = np.vstack([GOOD, [wrong]])
    np.testing.assert_allclose(weights(part, rows) @ rows, [1.0, 0.0], atol=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("part", [Krum, GeometricMedian, ClippedMean])
def test_they_keep_the_contract(part):
    check_strategy(part, clusters=1)


def test_too_few_workers_for_krum_are_refused():
    with pytest.raises(ParameterError, match="at least 5 workers, but there are 4"):
        ps.Experiment(
            strategy={"consistency": "bsp", "aggregation": {"name": "krum", "faulty": 1}},
            cluster={"workers": 4},
        )


TINY = {"data": "digits", "stop": {"epochs": 1}, "batch_size": 100, "cluster": {"workers": 5}}


@pytest.mark.parametrize("name", ["krum", "geometric_median", "clipped_mean"])
def test_three_servers_decide_as_one(name):
    one, three = (
        ps.run(
            ps.Experiment(
                strategy={
                    "consistency": "bsp",
                    "aggregation": name,
                    "placement": {"name": "parameter_server", "servers": servers},
                },
                **TINY,
            )
        )
        for servers in (1, 3)
    )
    for left, right in zip(one.model().parameters(), three.model().parameters(), strict=True):
        assert left.equal(right)


def test_a_push_of_nan_is_left_out():
    part = ClippedMean()
    own = Server(torch.zeros(2), torch.zeros(0), SGD(lr=1.0), 8, part)
    own.apply(pushed([torch.tensor([2.0, 0.0]), torch.tensor([float("nan"), 0.0])], [1.0, 0.0]))
    assert own.parameters.tolist() == [-2.0, 0.0]
    pushes = [Push(i, worker=i, ticket=1, base_version=0, samples=8) for i in range(2)]
    view = ClusterView(2, 1, 1, pending={push.id: push for push in pushes})
    part.on_commit(pushes, view)
    (apply,) = part.on_measured({"dot:0:0": 4.0, "dot:0:1": float("nan"), "dot:1:1": float("nan")}, view)
    assert apply.weights == [1.0, 0.0]


def updated(part, *rows):
    """Return what a model of zeros becomes by pushes of equal weight at rate 1."""
    own = Server(torch.zeros(2), torch.zeros(0), SGD(lr=1.0, momentum=0.0), 8, part)
    own.apply(pushed([torch.tensor(row) for row in rows], [1 / len(rows)] * len(rows)))
    return own.parameters.tolist()


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    assert updated(Median(), *([v, -v] for v in (1.0, 2.0, 10.0, 4.0))) == [-3.0, 3.0]


def test_a_trimmed_mean_leaves_out_either_end():
    assert updated(TrimmedMean(trim=0.25), *([v, v] for v in (1.0, 2.0, 100.0, 4.0))) == [-3.0, -3.0]


@pytest.mark.parametrize("part", [Median(), TrimmedMean(trim=0.34)])
def test_one_push_of_nan_in_three_does_no_harm(part):
    assert np.isfinite(updated(part, [1.0, -2.0], [float("nan")] * 2, [1.0, -2.0])).all()


def test_a_trimmed_mean_of_nothing_left_out_is_bsp():
    mean = {"name": "bsp", "aggregation": {"name": "trimmed_mean", "trim": 0.0}}
    one, other = (ps.run(toy_experiment(strategy, stop={"epochs": 2})) for strategy in (mean, "bsp"))
    torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-5, atol=1e-6)
