"""Hermes' aggregation: weights from losses, and that it is what the paper writes with sums of gradients."""

from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vectors import how, pushed

from psbench import strategies
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.engine import Engine
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView
from psbench.errors import ParameterError
from psbench.optimization.optimizer import SGD
from psbench.strategies.aggregation import LossWeighted
from psbench.strategies.aggregation.loss_weighted import worker_share
from psbench.training.server import Server


class Paper:
    """Alg. 2 as printed: w0, the sum of gradients of the model, and a worker's."""

    def __init__(self, w0, lr):
        self.w0, self.lr, self.sigma = w0, lr, None

    @property
    def model(self):
        return self.w0 - self.lr * self.sigma

    def take(self, gradients, model_loss, worker_loss):
        if self.sigma is None:
            self.sigma = gradients
        else:
            w1, w2 = 1 / model_loss, 1 / worker_loss
            self.sigma = (w1 * self.sigma + w2 * gradients) / (w1 + w2)


def test_the_worked_example_in_both_forms():
    paper = Paper(w0=Fraction(1), lr=Fraction(1, 10))
    paper.take(Fraction(2), None, None)
    model, worker = paper.model, paper.w0 - paper.lr * 4
    paper.take(Fraction(4), Fraction(1, 2), Fraction(1, 4))
    assert (paper.sigma, paper.model) == (Fraction(10, 3), Fraction(2, 3))
    share = worker_share(0.5, 0.25)
    assert share == pytest.approx(4 / (2 + 4))
    assert float(model) * (1 - share) + float(worker) * share == pytest.approx(2 / 3)


def test_as_parameters_it_is_what_the_paper_writes_with_sums_of_gradients():
    rng = np.random.default_rng(0)
    w0, lr, workers = rng.normal(size=5), 0.1, 3
    paper, model = Paper(w0, lr), None
    sums, own = [np.zeros(5)] * workers, [w0] * workers
    for worker in rng.integers(workers, size=40):
        for _ in range(rng.integers(1, 6)):
            gradient = rng.normal(size=5)
            sums[worker] = sums[worker] + gradient
            own[worker] = own[worker] - lr * gradient
        # the worker's model is what its sum leads to from the first model
        np.testing.assert_allclose(w0 - lr * sums[worker], own[worker], atol=1e-12)
        losses = rng.uniform(0.1, 2, size=2)
        share = 1.0 if model is None else worker_share(*losses)
        model = share * own[worker] + (0 if model is None else (1 - share) * model)
        paper.take(sums[worker], *losses)
        np.testing.assert_allclose(model, paper.model, atol=1e-12)
        # on receipt the sum becomes what leads to the model that was received
        sums[worker], own[worker] = paper.sigma, model


def test_equal_losses_are_the_plain_mean():
    assert worker_share(0.7, 0.7) == 0.5


@pytest.mark.parametrize(
    ("model_loss", "worker_loss", "share"),
    [
        (0.0, 0.3, 0.0),
        (0.3, 0.0, 1.0),
        (0.0, 0.0, 0.5),
        (0.3, inf, 0.0),
        (0.3, nan, 0.0),
        (inf, 0.3, 1.0),
        (nan, 0.3, 1.0),
        (nan, nan, 0.0),
    ],
)
def test_losses_that_cannot_be_divided_by(model_loss, worker_loss, share):
    assert worker_share(model_loss, worker_loss) == share


def test_a_hopeless_worker_leaves_the_model_nearly_as_it_is():
    assert 0 < worker_share(0.5, 1e9) < 1e-9


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_model_stays_between_itself_and_the_worker(model_loss, worker_loss):
    assert 0.0 <= worker_share(model_loss, worker_loss) <= 1.0


class Run:
    """An engine under Hermes whose workers push at once."""

    def __init__(self, workers=2):
        self.engine = Engine(
            strategies.hermes(), ClusterView(num_workers=workers, dataset_size=100, global_batch=8)
        )
        self.tickets = {}
        self._see(self.engine.begin(range(workers)))

    def push(self, number, worker):
        stats = {"compute_s": 1.0, "test_loss": 0.5}
        push = ev.Push(number, worker, self.tickets[worker], 0, 4, stats=stats)
        return self._see(self.engine.handle(push, float(number)))

    def measured(self, **facts):
        return self._see(self.engine.handle(ev.Measured(facts), self.engine.view.now))

    def _see(self, actions):
        self.tickets |= {a.worker: a.ticket for a in actions if isinstance(a, act.Release)}
        return actions


def test_the_first_push_becomes_the_model():
    apply, release = Run().push(0, worker=1)
    assert (apply.numbers, apply.weights) == ({"keep": 0.0}, [1.0])
    assert (release.worker, release.load, release.send) == (1, 1, True)


def test_later_ones_are_weighed_by_both_losses_and_the_pusher_answered():
    run = Run()
    run.push(0, worker=0)
    (measure,) = run.push(1, worker=1)
    assert measure.needs == {"model_loss": None, "candidate_loss": 1}
    apply, release = run.measured(model_loss=0.5, candidate_loss=0.25)
    assert apply.weights == pytest.approx([2 / 3])
    assert apply.numbers["keep"] == pytest.approx(1 / 3)
    assert release.worker == 1


def test_a_push_that_arrives_during_the_measurement_is_weighed_after_it():
    run = Run(workers=3)
    run.push(0, worker=0)
    run.push(1, worker=1)
    assert run.push(2, worker=2) == []
    first, _, measure = run.measured(model_loss=0.5, candidate_loss=0.5)
    assert (first.pushes[0].worker, measure.needs["candidate_loss"]) == (1, 2)
    second, _ = run.measured(model_loss=0.3, candidate_loss=0.1)
    assert (second.pushes[0].worker, second.weights) == (2, [pytest.approx(0.75)])


def test_a_server_takes_the_worker_wholly_and_then_the_mixture():
    server = Server(torch.tensor([1.0]), torch.zeros(0), SGD(lr=0.1), 1, LossWeighted())
    server.apply(pushed([torch.tensor([0.8])]), how(numbers={"keep": 0.0}))
    assert server.parameters.item() == pytest.approx(0.8)
    share = worker_share(0.5, 0.25)
    server.apply(pushed([torch.tensor([0.6])], [share]), how(numbers={"keep": 1 - share}))
    assert server.parameters.item() == pytest.approx(2 / 3)


def test_it_weighs_one_push_at_a_time():
    with pytest.raises(ParameterError, match="weights one push against its own state"):
        Strategy(consistency="k_asp", aggregation=LossWeighted(), communication="local_sgd")
    with pytest.raises(ParameterError, match="have no models of their own"):
        Strategy(consistency="asp", aggregation=LossWeighted())
