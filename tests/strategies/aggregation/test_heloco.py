"""HeLoCo: against its authors' formulas, stale differences that it is given, and what it equals.

`Theirs` restates PanocularAI/torchft, commit 0b0bae4, torchft/heloco.py.
"""

from collections import deque

import pytest
import torch
from threaded_run import ThreadedRun
from torch.nn import functional
from vectors import how, pushed

import psbench as ps
from psbench import metrics
from psbench.optimization.optimizer import SGD
from psbench.strategies.aggregation import HeLoCo
from psbench.testing import check_strategy, toy_experiment
from psbench.training.build import Workload
from psbench.training.server import Server

NONE = torch.zeros(0)
SHAPES = [(2, 3), (4,)]


class Theirs:
    """HeLoCoOptimizer and HeLoCoServer, of tensors in float64."""

    def __init__(self, params, lr, momentum, rho):
        self.params, self.lr, self.mu, self.rho = params, lr, momentum, rho
        self.m = [torch.zeros_like(p) for p in params]

    def block_correct(self, delta, m):  # lines 125-160, defaults of lines 98-103
        norm_d, norm_m = delta.norm(), m.norm()
        if norm_d < 1e-8 or norm_m < 1e-8:
            return self.rho * delta
        cos, conf = (delta * m).sum() / (norm_d * norm_m), norm_d / (norm_d + 3.0 * norm_m + 1e-8)
        beta = torch.clamp(0.5 * (-cos) * conf, max=0.5)
        anti = delta - beta * cos * norm_d * m / norm_m
        turn = torch.clamp(1.0 * (1.0 - cos) * conf, max=1.0)
        mix = (1.0 - turn) * delta / norm_d + turn * m / norm_m
        weak = norm_d * mix / mix.norm()
        return self.rho * (delta if cos >= 0.2 else anti if cos < 0.0 else weak)

    def push(self, deltas):  # _heloco_apply
        for p, m, delta in zip(self.params, self.m, deltas, strict=True):
            g = self.block_correct(delta, m)
            m.mul_(self.mu).add_(g, alpha=1.0 - self.mu)  # eq. 18, line 89
            p.add_(-(g + self.mu * m), alpha=self.lr)  # eq. 19, line 90

    def lookahead(self):  # _lookahead_snapshot, eq. 5
        return [p - self.lr * self.mu * m for p, m in zip(self.params, self.m, strict=True)]


def flat(tensors):
    return torch.cat([each.reshape(-1) for each in tensors]).to(torch.float32)


@pytest.mark.parametrize(
    "values", [{}, {"outer_momentum": 0.5, "arrival_weight": 0.5}, {"outer_momentum": 0.0}]
)
def test_stale_differences_are_corrected_as_in_the_authors_code(values):
    """Three workers find the minimum of (p - goal)^2/2 from models that are two answers old."""
    part, rng = HeLoCo(**values), torch.Generator().manual_seed(3)
    start, goal = (
        [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in SHAPES] for _ in range(2)
    )
    theirs = Theirs([each.clone() for each in start], part.outer_lr, part.outer_momentum, part.arrival_weight)
    own = Server(flat(start), NONE, SGD(lr=9.0), 8, part, shapes=SHAPES)
    held, kinds = deque([start] * 3), set()
    for _ in range(40):
        model = held.popleft()
        deltas = [
            0.6 * (p - g) + 0.3 * torch.randn(p.shape, generator=rng)
            for p, g in zip(model, goal, strict=True)
        ]
        for m, delta in zip(theirs.m, deltas, strict=True):
            cosine = float((m * delta).sum() / (m.norm() * delta.norm()).clamp(min=1e-9))
            kinds.add("with" if cosine >= 0.2 else "across" if cosine >= 0 else "against")
        theirs.push(deltas)
        held.append(theirs.lookahead())
        own.apply(pushed([flat(deltas)], [part.arrival_weight]), how())
        torch.testing.assert_close(own.parameters, flat(theirs.params), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(own.aggregate, flat(held[-1]), rtol=1e-4, atol=1e-5)
    assert kinds == {"with", "across", "against"}


def test_a_constant_difference_moves_the_model_at_the_effective_rate():
    part, difference = HeLoCo(outer_momentum=0.5, arrival_weight=0.5), torch.tensor([1.0, 2.0])
    own = Server(torch.zeros(2), NONE, SGD(lr=9.0), 8, part, shapes=[(2,)])
    for _ in range(30):
        before = own.parameters.clone()
        own.apply(pushed([difference], [part.arrival_weight]), how())
    torch.testing.assert_close(before - own.parameters, part.effective_outer_rate * difference)


def test_a_worker_goes_on_from_the_model_ahead():
    """A whole run in plain torch: one worker, three steps a push, all samples in each batch."""
    answered = {"name": "answered_sgd", "local_steps": 3}
    heloco = {"consistency": "asp", "aggregation": "heloco", "communication": answered}
    one = {"cluster": {"workers": 1, "step_time": "constant"}, "batch_size": 96, "stop": {"updates": 6}}
    done = ps.run(toy_experiment(heloco, seed=4, **one))
    workload = Workload.build(done.experiment)
    data = workload.data
    module = done.experiment.model.build(data.input_shape, data.num_classes, workload.streams)
    params = [each.detach().double() for each in module.parameters()]
    theirs = Theirs([each.clone() for each in params], 0.7, 0.9, 1.0)
    inputs, labels = data.train_x.double(), data.train_y
    for _ in range(6):
        ahead = theirs.lookahead()
        weight, bias = (each.clone().requires_grad_() for each in ahead)
        for _ in range(3):
            loss = functional.cross_entropy(inputs @ weight.T + bias, labels)
            for each, gradient in zip((weight, bias), torch.autograd.grad(loss, (weight, bias)), strict=True):
                each.data.sub_(gradient, alpha=0.1)
        theirs.push([start - own.detach() for start, own in zip(ahead, (weight, bias), strict=True)])
    torch.testing.assert_close(done.parameters, flat(theirs.params), rtol=1e-4, atol=1e-5)
    live = ThreadedRun(done.experiment.model_copy(update={"backend": "dask"})).run()
    assert torch.equal(live.parameters, done.parameters)


def test_pushes_that_are_late_are_applied():
    heloco = {"consistency": "asp", "aggregation": "heloco", "communication": "answered_sgd"}
    cluster = {"workers": 3, "speed": [1.0, 0.6, 0.3], "step_time": "constant"}
    done = ps.run(toy_experiment(heloco, stop={"updates": 20}, seed=1, cluster=cluster))
    pushes = metrics.pushes(done.log)
    assert (pushes["fate"] == "committed").all()
    assert pushes["staleness"].max() >= 2
    assert len(set(pushes["steps"])) == 1
    ps.replay(done)


def test_without_momentum_it_is_a_plain_step_along_differences_that_agree():
    plain = {"name": "delayed_nesterov", "outer_momentum": 0.0, "outer_lr": 0.35, "momentum_every": 1}
    heloco = {"name": "heloco", "outer_momentum": 0.0, "outer_lr": 0.7, "arrival_weight": 0.5}
    spec = {"batch_size": 96, "optimizer": {"name": "sgd", "lr": 0.01}, "stop": {"updates": 9}, "seed": 1}
    one, other = (
        ps.run(toy_experiment({"consistency": "asp", "aggregation": part, "communication": worker}, **spec))
        for part, worker in ((heloco, "answered_sgd"), (plain, "local_sgd"))
    )
    torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_it_keeps_the_contract():
    check_strategy(HeLoCo(), clusters=1)
