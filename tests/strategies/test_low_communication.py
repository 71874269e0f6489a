"""Outer optimizers and asynchronous local SGD: the formulas of the papers by hand, and what equals what."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from threaded_run import ThreadedRun
from vectors import how, pushed

import psbench as ps
from psbench.core import ClusterView, Commit, Engine, Hold, Push, Release, SetTimer, Strategy
from psbench.core.events import Timer
from psbench.core.view import Status, WorkerView
from psbench.optimization.optimizer import SGD
from psbench.strategies.aggregation import (
    DelayCompensated,
    DelayedNesterov,
    FedAsync,
    FedBuff,
    LookAheadOuter,
    Outer,
)
from psbench.strategies.aggregation.nesterov import first_step, steady_step
from psbench.strategies.communication import DynamicLocalSGD
from psbench.strategies.consistency import Grace
from psbench.testing import toy_experiment
from psbench.training.local_model import LocalModel
from psbench.training.server import Server
from psbench.training.trainer import StepResult

TWO = torch.tensor([1.0, -2.0])


def server(part, start=(0.0, 0.0), lr=0.1):
    return Server(torch.tensor(start), torch.zeros(0), SGD(lr=lr, momentum=0.0), 8, part)


def moved(part, *differences, weights=(1.0,), **values):
    """Return where commits of one difference each take a model that begins at 0."""
    own = server(part)
    for difference in differences:
        own.apply(pushed([difference], list(weights)), how(**values))
    return own.parameters


# -------------------------------------------------------------------- outer optimizers


def test_a_first_nesterov_step_is_one_plus_beta_times_the_plain_one():
    plain = moved(Outer(outer_optimizer="plain", outer_lr=0.7), TWO)
    nesterov = moved(Outer(outer_lr=0.7, outer_momentum=0.9), TWO)
    torch.testing.assert_close(plain, -0.7 * TWO)
    torch.testing.assert_close(nesterov, 1.9 * plain)


@pytest.mark.parametrize("optimizer", ["nesterov", "heavy_ball"])
def test_constant_differences_make_steps_of_lr_over_one_minus_beta(optimizer):
    part = Outer(outer_optimizer=optimizer, outer_lr=0.7, outer_momentum=0.9)
    own = server(part)
    for _ in range(300):
        before = own.parameters.clone()
        own.apply(pushed([TWO], [1.0]))
    torch.testing.assert_close(own.parameters - before, -7 * TWO, rtol=1e-3, atol=1e-3)


def test_nesterov_is_that_of_torch():
    x = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.7, momentum=0.9, nesterov=True)
    directions = [TWO, -0.5 * TWO, torch.tensor([0.3, 0.1])]
    for direction in directions:
        x.grad = direction.clone()
        optimizer.step()
    torch.testing.assert_close(moved(Outer(), *directions), x.detach())


#: at beta = .9 and a constant difference of 1, in units of the rate: the first step, and one of the long run
THREE_FORMS = {"sum": (1.9, 10.0), "average": (1.09, 1.9), "blend": (1.0, 9.1)}


@pytest.mark.parametrize("form", THREE_FORMS)
def test_three_outer_momenta_are_called_nesterovs(form):
    part = Outer(nesterov_form=form, outer_lr=0.5, outer_momentum=0.9)
    own, steps = server(part), []
    for _ in range(300):
        before = own.parameters.clone()
        own.apply(pushed([TWO], [1.0]))
        steps.append(((before - own.parameters) / (0.5 * TWO)).tolist())
    first, steady = THREE_FORMS[form]
    assert steps[0] == pytest.approx([first] * 2, rel=1e-5)
    assert steps[-1] == pytest.approx([steady] * 2, rel=1e-3)
    assert (first_step(0.9, form), steady_step(0.9, form)) == pytest.approx(THREE_FORMS[form])
    assert part.effective_outer_rate == pytest.approx(0.5 * steady)
    alone = {"outer_lr": 0.7, "outer_momentum": 0.0}
    torch.testing.assert_close(moved(Outer(nesterov_form=form, **alone), TWO, TWO), -1.4 * TWO)


def test_a_papers_rate_with_another_form_is_doubted():
    given = {"strategy": {"name": "diloco", "nesterov_form": "average"}}
    with pytest.warns(UserWarning, match=r"Douillard et al\. 2023 for nesterov_form 'sum'.*outer_lr = 3\.68"):
        ps.Experiment(**given)
    matched = ps.strategies.diloco(nesterov_form="average", outer_lr=3.684)
    assert matched.aggregation.effective_outer_rate == pytest.approx(7, rel=1e-3)
    for fine in (matched, ps.strategies.diloco(), ps.strategies.mla()):
        assert not fine.aggregation.doubt_of_rates(0.1)


def test_adam_and_yogi_are_the_formulas_of_the_paper():
    for name in ("adam", "yogi"):
        x = m = s = np.zeros(2)
        for d in (np.array([1.0, -2.0]), np.array([0.5, 1.0])):
            m = 0.9 * m + 0.1 * d
            s = 0.99 * s + 0.01 * d**2 if name == "adam" else s - 0.01 * d**2 * np.sign(s - d**2)
            x = x - 0.1 * m / (np.sqrt(s) + 1e-3)
        part = Outer(outer_optimizer=name, outer_lr=0.1)
        found = moved(part, TWO, torch.tensor([0.5, 1.0]))
        np.testing.assert_allclose(found.numpy(), x, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["plain", "heavy_ball", "nesterov"])
def test_the_effective_outer_rate_is_what_a_constant_difference_moves_by(optimizer):
    part = Outer(outer_optimizer=optimizer, outer_lr=0.7, outer_momentum=0.5)
    own = server(part)
    for _ in range(60):
        before = own.parameters.clone()
        own.apply(pushed([TWO], [1.0]))
    torch.testing.assert_close(before - own.parameters, part.effective_outer_rate * TWO, rtol=1e-4, atol=1e-4)


def test_a_comparison_says_the_effective_outer_rate():
    run = ps.run(ps.Experiment(strategy="diloco", stop={"updates": 1}))
    assert "effective outer rate 7" in run.summary()["lr_convention"]
    assert "outer rate 0.1 of adam" in ps.strategies.fedadam().aggregation.outer_rate_in_words


TINY = {"data": "digits", "cluster": {"workers": 3}, "stop": {"epochs": 2}, "batch_size": 96, "seed": 3}


def trained(**changes):
    run = ps.run(ps.Experiment(**TINY | {"optimizer": {"name": "sgd", "lr": 0.1}} | changes))
    return run.model(), run


def vector(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def equal(left, right, **tolerance):
    one, other = (vector(trained(strategy=strategy)[0]) for strategy in (left, right))
    torch.testing.assert_close(one, other, **tolerance)


ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


def test_diloco_with_a_plain_outer_step_of_rate_1_is_local_sgd():
    plain = {"outer_optimizer": "plain", "outer_lr": 1.0, "local_steps": 4, "local_momentum": "cleared"}
    equal({"name": "diloco"} | plain, {"name": "local_sgd", "local_steps": 4}, **ROUNDING)


def test_momentum_look_ahead_without_momentum_is_plain_averaging():
    together = {"name": "mla", "consistency": "bsp", "local_steps": 4, "outer_lr": 1.0}
    averages = together | {"outer_momentum": 0.0, "local_momentum": "cleared"}
    equal(averages, {"name": "local_sgd", "local_steps": 4}, **ROUNDING)
    form = {"nesterov_form": "average", "local_steps": 4, "outer_lr": 1.0}
    equal(together, {"name": "diloco"} | form, rtol=0, atol=0)


def test_look_ahead_steps_along_the_mean_of_what_came_before_too():
    part, m, x = LookAheadOuter(outer_lr=0.5, outer_momentum=0.8), np.zeros(2), np.zeros(2)
    for d in (np.array([1.0, -2.0]), np.array([0.5, 1.0])):
        m = 0.8 * m + 0.2 * d
        x = x - 0.5 * (0.8 * m + d)
    np.testing.assert_allclose(moved(part, TWO, torch.tensor([0.5, 1.0])), x, rtol=1e-6)
    run = ps.run(ps.Experiment(strategy="mla", stop={"updates": 2}))
    assert "effective outer rate 1.33" in run.summary()["lr_convention"]


def test_momentum_look_ahead_live_has_the_bits_of_virtual_time():
    alone = {"cluster": {"workers": 1, "step_time": "constant"}, "stop": {"updates": 5}}
    done = ps.run(toy_experiment({"name": "mla", "local_steps": 3}, **alone))  # alone: its order is a clock's
    live = ThreadedRun(done.experiment.model_copy(update={"backend": "dask"})).run()
    assert torch.equal(live.parameters, done.parameters)
    assert ps.replay(replace(done, log=live.log)) == len(live.log)
    three = ps.run(toy_experiment({"name": "mla", "local_steps": 3}, stop={"updates": 9}))
    assert ps.replay(three) == len(three.log)


def test_diloco_of_one_plain_step_is_bsp():
    plain = {"outer_optimizer": "plain", "outer_lr": 1.0, "local_steps": 1}
    equal({"name": "diloco"} | plain, "bsp", **ROUNDING)


def test_heavy_ball_of_rate_1_is_block_momentum():
    equal(
        {"name": "fedavgm", "outer_momentum": 0.3, "local_steps": 4},
        {"name": "slowmo", "block_momentum": 0.3, "local_steps": 4},
        **ROUNDING,
    )


def test_diloco_learns_digits():
    _, run = trained(strategy="diloco", stop={"epochs": 12})
    assert run.frame()["val_accuracy"].iloc[-1] > 0.9


# -------------------------------------------------------------------- asynchronous


def test_over_n_pushes_the_delayed_momentum_moves_by_mean_and_momentum():
    """Sum over N pushes with c = 0: -lr (mean D + beta m), m the momentum after them."""
    part = DelayedNesterov(momentum_every=2, outer_lr=0.7, outer_momentum=0.9)
    first, second = TWO, torch.tensor([3.0, 0.0])
    found = moved(part, first, second, numbers={"every": 2.0})
    momentum = (first + second) / 2
    torch.testing.assert_close(found, -0.7 * ((first + second) / 2 + 0.9 * momentum))


def test_a_delayed_momentum_of_every_push_is_nesterovs():
    directions = [TWO, torch.tensor([0.3, 0.1]), -TWO]
    delayed = moved(DelayedNesterov(), *directions, numbers={"every": 1.0})
    torch.testing.assert_close(delayed, moved(Outer(), *directions))


@pytest.mark.parametrize("between", [0.0, 0.5, 1.0])
def test_delayed_steps_are_those_of_an_implementation_of_others(between):
    """DelayedNesterovOptimizer.step: utnslab/halos 4b5bf73, src/halos/opt.py, lines 93-112."""
    part = DelayedNesterov(momentum_between=between, outer_lr=0.7, outer_momentum=0.9)
    own, rng = server(part), torch.Generator().manual_seed(1)
    x, m, delta = own.parameters.double(), torch.zeros(2).double(), torch.zeros(2).double()
    lr, beta, size, c = 0.7, 0.9, 3, between / 3
    for t in range(8):
        grad = torch.randn(2, generator=rng)
        own.apply(pushed([grad], [1.0]), how(numbers={"every": 3.0}))
        delta += grad
        if (t + 1) % size == 0:
            m = beta * m + delta / size
            x = x - lr * ((1 - c * size + c) * beta * m + grad / size)
            delta.zero_()
        else:
            x = x - lr * (c * beta * m + grad / size)
        torch.testing.assert_close(own.parameters.double(), x, rtol=1e-4, atol=1e-5)


def test_momentum_between_pushes_is_shared_out_evenly():
    """c = 1/N: every push gets the same share of a momentum that does not change."""
    part = DelayedNesterov(momentum_between=1.0, outer_lr=1.0, outer_momentum=0.5)
    own = server(part)
    own.state["momentum"] = TWO.clone()
    zero = torch.zeros(2)
    steps = []
    for _ in range(2):
        before = own.parameters.clone()
        own.apply(pushed([zero], [1.0]), how(numbers={"every": 2.0}))
        steps.append(own.parameters - before)
    # m falls to beta m at the second push, whose share is c beta m as well
    torch.testing.assert_close(steps[0], -0.25 * TWO)
    torch.testing.assert_close(steps[1], -0.125 * TWO)


def test_asynchronous_local_sgd_of_one_plain_step_is_asp():
    plain = {"outer_lr": 1.0, "outer_momentum": 0.0, "momentum_every": 1, "local_steps": 1}
    with pytest.warns(ps.errors.DoubtfulComposition):  # ASP at the whole rate is what the identity is about
        asp = ps.strategies.asp(lr_scaling="none")
    equal({"name": "async_local_sgd"} | plain, asp, **ROUNDING)


def test_fedasync_takes_a_stale_model_by_less():
    view = ClusterView(2, 1, 1, version=8)
    commit = FedAsync(mixing=0.8).on_commit([Push(0, 0, 1, base_version=5, samples=4)], view)[0]
    assert commit.weights == pytest.approx([0.4])
    assert commit.numbers["keep"] == pytest.approx(0.6)


def test_fedasync_with_one_worker_that_counts_wholly_is_sgd():
    one = {"cluster": {"workers": 1}}
    found, _ = trained(strategy={"name": "fedasync", "mixing": 1.0, "local_steps": 1}, **one)
    expected, _ = trained(strategy="asp", **one)
    torch.testing.assert_close(vector(found), vector(expected), **ROUNDING)


def test_fedbuff_divides_by_count_or_by_weights():
    pushes = [Push(0, 0, 1, base_version=3, samples=8), Push(1, 1, 1, base_version=0, samples=8)]
    view = ClusterView(2, 1, 1, version=3)
    assert FedBuff().on_commit(pushes, view)[0].weights == [0.5, 0.25]
    assert FedBuff(normalise=True).on_commit(pushes, view)[0].weights == pytest.approx([2 / 3, 1 / 3])


def test_dc_asgd_without_compensation_is_asp():
    equal({"name": "dc_asgd", "compensation": 0.0}, "asp", rtol=0, atol=0)


FOUR = {"name": "local_sgd", "local_steps": 4}
KEPT = FOUR | {"local_momentum": "kept"}
PLAIN_PUSHES = {"outer_momentum": 0.0, "outer_lr": 1.0, "momentum_every": 1, "communication": FOUR}


@pytest.mark.parametrize(
    ("left", "right", "workers"),
    [
        ({"name": "lookahead"}, {"name": "diloco", "outer_optimizer": "plain", "outer_lr": 0.5}, 1),
        ({"name": "async_local_sgd", "communication": KEPT}, {"name": "diloco"}, 1),
        (
            {"name": "sparse_loco", "combine": "mean"},
            {"name": "sparse_loco", "combine": "mean_of_senders"},
            1,
        ),
        ({"name": "dc_asgd", "compensation": 0.9}, {"name": "asp"}, 1),
        (
            {"name": "fedbuff", "k": 1, "staleness_exponent": 0.0, "communication": FOUR},
            {"name": "async_local_sgd"} | PLAIN_PUSHES,
            3,
        ),
        (
            {"name": "fedbuff", "consistency": "bsp", "staleness_exponent": 0.0, "communication": FOUR},
            {"name": "local_sgd", "local_steps": 4},
            3,
        ),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else str(value),
)
def test_what_equals_what(left, right, workers):
    """One worker, or buffers of one push or of all: identities of the papers' special cases."""
    cluster = {"workers": workers, "speed": [1.0, 0.7, 0.45][:workers], "step_time": "constant"}
    found = []
    for strategy in (left, right):
        if strategy["name"] in ("diloco", "lookahead"):
            strategy = {"local_steps": 4, "local_momentum": "kept"} | strategy
        found.append(
            ps.run(toy_experiment(strategy, cluster=cluster, stop={"updates": 6}, model="mlp")).parameters
        )
    torch.testing.assert_close(*found, **ROUNDING)


def test_springs_of_no_strength_leave_the_centre_where_it_is():
    one, other = (
        ps.run(toy_experiment({"name": "easgd", "elastic_rate": rate}, stop={"updates": updates})).parameters
        for rate, updates in ((0.0, 1), (0.0, 6))
    )
    assert torch.equal(one, other)
    moved_one = ps.run(toy_experiment({"name": "easgd", "elastic_rate": 0.3}, stop={"updates": 6})).parameters
    assert not torch.equal(one, moved_one)


def test_dc_asgd_corrects_by_the_way_from_the_base():
    own = server(DelayCompensated(compensation=0.5), start=(1.0, 1.0), lr=1.0)
    push = pushed([torch.tensor([2.0, -1.0])], [1.0])
    push[0].base = torch.tensor([0.0, 1.0])
    own.apply(push)
    # g + .5 g^2 (x - b) = (2 + .5 * 4 * 1, -1 + .5 * 1 * 0)
    torch.testing.assert_close(own.parameters, torch.tensor([-3.0, 2.0]))


def test_an_adaptive_compensation_follows_the_gradients():
    own = server(DelayCompensated(compensation=2.0, form="adaptive"), start=(1.0, 1.0), lr=1.0)
    push = pushed([torch.tensor([2.0, -1.0])], [1.0])
    push[0].base = torch.zeros(2)
    own.apply(push)
    g = np.array([2.0, -1.0])
    expected = 1 - (g + 2.0 / np.sqrt(0.05 * g**2 + 1e-7) * g * g)
    np.testing.assert_allclose(own.parameters.numpy(), expected, rtol=1e-5)


def exchanged(alpha, centre, *models):
    """Let workers with these models exchange one after the other; return the centre and their models."""
    strategy = ps.strategies.easgd(elastic_rate=alpha)
    own, after = server(strategy.aggregation, start=centre), []
    for model in models:
        worker = LocalModel(strategy, SGD(lr=0.1))
        worker.load(torch.tensor(model), torch.zeros(0))  # of its own, as if it had stepped there
        sent = worker.payload()
        own.apply(pushed([sent], [alpha]), how(numbers={"keep": 1 - alpha}))
        worker.load(own.parameters.clone(), torch.zeros(0))
        after.append(worker.parameters)
    return own.parameters, after


def test_an_elastic_move_is_the_papers():
    centre, (worker,) = exchanged(0.25, (0.0, 8.0), (4.0, 0.0))
    torch.testing.assert_close(centre, torch.tensor([1.0, 6.0]))  # x + alpha (w - x)
    torch.testing.assert_close(worker, torch.tensor([3.0, 2.0]))  # w - alpha (w - x)


def test_eamsgd_keeps_nesterovs_momentum_over_elastic_moves():
    worker = LocalModel(ps.strategies.easgd(elastic_rate=0.25), SGD(lr=0.1, momentum=0.9, nesterov=True))
    worker.load(torch.tensor([8.0]), torch.zeros(0))
    for gradient in (1.0, 2.0):
        worker.stepped(StepResult(torch.tensor([gradient]), torch.zeros(0), 0.0), 4, 0.0)
        worker.payload()
        worker.load(worker.parameters.clone(), torch.zeros(0))  # of a centre that is where it is
    # v = 1, then .9 + 2; w <- w - .1 (g + .9 v)
    torch.testing.assert_close(worker.parameters, torch.tensor([8 - 0.1 * 1.9 - 0.1 * (2 + 0.9 * 2.9)]))


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9])
def test_elastic_moves_keep_the_sum_of_models_and_centre(alpha):
    models = [(4.0, 0.0), (-1.0, 3.0), (2.5, 2.5)]
    centre, after = exchanged(alpha, (1.0, -2.0), *models)
    before = torch.tensor([(1.0, -2.0), *models]).sum(0)
    torch.testing.assert_close(centre + sum(after), before)


def test_easgd_gives_a_rate_to_both_halves():
    made = ps.strategies.easgd(elastic_rate=0.3)
    assert made.aggregation.elastic_rate == made.communication.elastic_rate == 0.3


def test_easgd_learns_digits():
    _, run = trained(strategy={"name": "easgd", "local_steps": 4}, stop={"epochs": 12})
    assert run.frame()["val_accuracy"].iloc[-1] > 0.9


# -------------------------------------------------------------------- decisions


def push_of(worker, ticket, **values):
    return Push(worker, worker=worker, ticket=ticket, base_version=0, samples=8, **values)


def test_a_grace_period_collects_pushes_and_applies_them_in_order():
    engine = Engine(Strategy(consistency=Grace(grace_s=0.5)), ClusterView(num_workers=3))
    engine.begin([0, 1, 2])
    first = engine.handle(push_of(1, 1), now=1.0)
    assert first[:2] == [SetTimer(1.5, "grace"), Hold(1, "grace period")]
    assert engine.handle(push_of(0, 1), now=1.2) == [Hold(0, "grace period")]
    answer = engine.handle(Timer("grace"), now=1.5)
    applied = [action.pushes[0].worker for action in answer if hasattr(action, "weights")]
    assert applied == [1, 0]
    assert [a.worker for a in answer if isinstance(a, Release)] == [0, 1]
    assert engine.view.version == 2


def test_a_grace_in_which_all_arrive_ends_where_rounds_do():
    """The last answer holds an update of each worker: the run ends, and evaluates, after the last of them."""
    cluster = {"name": "custom", "workers": 4, "speed": [1.0, 0.8, 0.5, 0.4], "step_time": "constant"}
    rounds = {"name": "diloco", "outer_momentum": 0.0, "local_steps": 10}
    waiting = {"name": "async_local_sgd", "grace_s": 5.0, "outer_momentum": 0.0, "communication": "local_sgd"}
    (_, one), (_, other) = (
        trained(strategy=strategy, cluster=cluster, stop={"updates": updates})
        for strategy, updates in ((waiting, 8), (rounds, 2))
    )
    torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-4, atol=1e-6)
    assert one.frame()["val_loss"].iloc[-1] == pytest.approx(other.frame()["val_loss"].iloc[-1], rel=1e-4)


def test_no_grace_is_asp():
    part = Grace()
    assert part.on_push(push := push_of(0, 1), ClusterView(1, 1, 1)) == [Commit([push]), Release(0)]


def test_a_worker_of_half_the_speed_takes_half_the_steps():
    part = DynamicLocalSGD(local_steps=20)
    workers = {w: WorkerView(w, status=Status.PUSHED) for w in (0, 1)}
    view = ClusterView(2, 1, 1, workers=workers)
    assert part.on_release(0, view) == {"local_steps": 20}
    part.on_push(push_of(0, 1, steps=20, stats={"compute_s": 2.0}), view)
    part.on_push(push_of(1, 1, steps=20, stats={"compute_s": 4.2}), view)
    assert [part.on_release(worker, view)["local_steps"] for worker in (0, 1)] == [20, 9]
    part.on_leave(0, view)
    assert part.on_release(1, view) == {"local_steps": 20}
