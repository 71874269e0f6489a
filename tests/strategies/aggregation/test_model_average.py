"""Averages of models: with a barrier, without one, and with block momentum."""

import json

import pytest
import torch
from vectors import how, pushed

from psbench import strategies
from psbench.core.events import Push
from psbench.core.view import ClusterView, Status, WorkerView
from psbench.errors import ParameterError
from psbench.optimization.optimizer import SGD
from psbench.runs.execution import run
from psbench.strategies.aggregation import BlockMomentum, Exchange, ModelAverage
from psbench.testing import toy_experiment
from psbench.training.server import Server


def answer(part, pushers, statuses, samples=None):
    """Return what a part answers to a commit of these workers' pushes."""
    view = ClusterView(len(statuses), 1, 1)
    view.workers = {i: WorkerView(i, status) for i, status in enumerate(statuses)}
    view.num_active = sum(status != Status.GONE for status in statuses)
    view.num_computing = sum(status == Status.COMPUTING for status in statuses)
    sizes = samples or [8] * len(pushers)
    pushes = [
        Push(i, worker, 1, 0, samples=n) for i, (worker, n) in enumerate(zip(pushers, sizes, strict=True))
    ]
    return part.on_commit(pushes, view)[0]


NEW, COMPUTING, PUSHED, GONE = Status.NEW, Status.COMPUTING, Status.PUSHED, Status.GONE


def test_a_full_barrier_takes_the_mean_by_samples():
    apply = answer(ModelAverage(), [0, 1], [PUSHED, PUSHED], samples=[24, 8])
    assert (apply.numbers, apply.weights) == ({"keep": 0.0}, [0.75, 0.25])


@pytest.mark.parametrize(
    ("statuses", "pushers"),
    [
        ([PUSHED, NEW, PUSHED], [0, 2]),
        ([PUSHED, GONE], [0]),
        ([GONE, PUSHED], [0, 1]),
        ([GONE, GONE], [0, 1]),
    ],
    ids=["a newcomer waits", "one has gone", "one has gone after its push", "all have"],
)
def test_who_has_nothing_to_contribute_is_not_missed(statuses, pushers):
    assert answer(ModelAverage(), pushers, statuses).numbers == {"keep": 0.0}


@pytest.mark.parametrize(
    ("statuses", "pushers", "keep"),
    [
        ([PUSHED, COMPUTING, COMPUTING, COMPUTING], [0], 0.75),
        ([PUSHED, PUSHED, COMPUTING, COMPUTING], [0, 1], 0.5),
        ([PUSHED, PUSHED, PUSHED, PUSHED], [3], 0.75),  # the others are held, and their pushes are committed
        (
            [PUSHED, COMPUTING, GONE, GONE],
            [0, 0, 0],
            0.0,
        ),  # one worker's pushes count, but not for more than all
    ],
)
def test_without_a_barrier_pushes_count_as_the_share_of_their_workers(statuses, pushers, keep):
    apply = answer(ModelAverage(), pushers, statuses)
    assert apply.numbers == {"keep": keep}
    assert sum(apply.weights) == pytest.approx(1.0 - keep)


def test_an_exchange_of_gradients_is_their_mean():
    apply = answer(Exchange(aggregate="gradient"), [0, 1], [PUSHED, PUSHED], samples=[24, 8])
    assert (apply.numbers, apply.weights) == ({}, [0.75, 0.25])
    apply = answer(Exchange(), [0, 1], [PUSHED, PUSHED], samples=[24, 8])
    assert (apply.numbers, apply.weights) == ({"keep": 0.0}, [0.75, 0.25])


# -------------------------------------------------------------------- the server's arithmetic


def server(part, start=(1.0, 2.0), lr=0.5):
    return Server(torch.tensor(start), torch.zeros(0), SGD(lr=lr), 8, part)


def test_the_average_keeps_a_share_of_the_old_model():
    ours = server(ModelAverage())
    models = [torch.tensor([3.0, 0.0]), torch.tensor([5.0, 2.0])]
    ours.apply(pushed(models, [0.25, 0.25]), how(numbers={"keep": 0.5}))
    assert ours.parameters.tolist() == [2.5, 1.5]
    ours.apply(pushed(models, [0.5, 0.5]), how(numbers={"keep": 0.0}))
    assert ours.parameters.tolist() == [4.0, 1.0]
    ours.apply(pushed(models[:1]), how(numbers={"keep": 0.0}))
    assert ours.parameters.tolist() == models[0].tolist() == [3.0, 0.0]
    ours.parameters.add_(1.0)
    assert models[0].tolist() == [3.0, 0.0]  # it is a copy


@pytest.mark.slow
def test_block_momentum_follows_eqs_7_and_8():
    generator = torch.Generator().manual_seed(0)
    lr, beta = 0.5, 0.3
    ours = server(BlockMomentum(), start=torch.randn(5, generator=generator).tolist())
    x, u = ours.parameters.clone(), torch.zeros(5)
    for _ in range(4):
        models = [x + torch.randn(5, generator=generator) for _ in range(3)]
        u = beta * u + (x - sum(models) / 3) / lr
        x = x - lr * u
        ours.apply(pushed(models, [1 / 3] * 3))
        torch.testing.assert_close(ours.parameters, x)
    torch.testing.assert_close(ours.state["momentum"], u)


def test_block_momentum_0_is_the_average_exactly():
    ours, theirs = server(BlockMomentum(block_momentum=0.0)), server(ModelAverage())
    for shift in (0.1, 0.7, -0.3):
        models = [ours.parameters + shift, ours.parameters * shift]
        ours.apply(pushed(models, [0.5, 0.5]))
        theirs.apply(pushed(models, [0.5, 0.5]), how(numbers={"keep": 0.0}))
        assert torch.equal(ours.parameters, theirs.parameters)


def test_a_lower_rate_counts_the_momentum_so_far_for_less():
    rates, part = SGD(lr=1.0, milestones=(1.0,), gamma=0.1), BlockMomentum(block_momentum=0.5)
    ours = Server(torch.zeros(1), torch.zeros(0), rates, 8, part)
    ours.apply(pushed([torch.ones(1)]))  # u = -1
    ours.apply(pushed([torch.ones(1)]), how(epoch=1.0))  # u = -1/2, all of lr 0.1
    assert ours.parameters.tolist() == pytest.approx([1.05])


def test_block_momentum_survives_a_checkpoint_in_slices():
    models = [torch.tensor([3.0, 1.0]), torch.tensor([0.5, -1.0])]
    whole = server(BlockMomentum())
    parts = [server(BlockMomentum(), start=(value,)) for value in (1.0, 2.0)]
    for target, cut in ((whole, slice(None)), (parts[0], slice(0, 1)), (parts[1], slice(1, 2))):
        for model in models:
            target.apply(pushed([model[cut]]))
    assert torch.equal(torch.cat([part.parameters for part in parts]), whole.parameters)
    copy, forgetful = server(BlockMomentum()), server(BlockMomentum())
    copy.load(whole.tensors())
    forgetful.load(whole.tensors())
    forgetful.forget_momentum()
    for target in (whole, copy, forgetful):
        target.apply(pushed(models[:1]))
    assert torch.equal(copy.parameters, whole.parameters)
    assert forgetful.parameters.tolist() == models[0].tolist()


# -------------------------------------------------------------------- runs


def trained(strategy, **values):
    return run(toy_experiment(strategy, **values)).parameters


def test_block_momentum_0_is_local_sgd():
    plain = strategies.local_sgd(local_steps=3)
    block = strategies.local_sgd(local_steps=3, aggregation=BlockMomentum(block_momentum=0.0))
    assert torch.equal(trained(plain), trained(block))
    moved = strategies.local_sgd(local_steps=3, aggregation="block_momentum")
    assert not torch.equal(trained(plain), trained(moved))


@pytest.mark.slow
def test_the_block_momentum_of_single_steps_is_the_servers_momentum():
    blocks = strategies.local_sgd(local_steps=1, aggregation=BlockMomentum(block_momentum=0.9))
    momentum = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
    torch.testing.assert_close(trained(blocks), trained("bsp", optimizer=momentum), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_under_all_reduce_it_is_the_same():
    for entry in (
        strategies.local_sgd(local_steps=3),
        strategies.adacomm(block_momentum=0.3, initial_steps=3),
    ):
        ring = entry.model_copy(update={"placement": strategies.all_reduce().placement})
        torch.testing.assert_close(trained(ring), trained(entry), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("consistency", ["asp", "ssp", "k_asp", "k_bsp"])
def test_block_momentum_needs_a_barrier(consistency):
    """One worker's way since it read the model is not that of all, and the others' blocks overlap with it."""
    with pytest.raises(ParameterError, match=f"block_momentum treats a commit .* {consistency} has no"):
        strategies.adacomm(consistency=consistency)
    strategies.adacomm(consistency=consistency, aggregation="model_average")


def test_the_catalogue_s_adacomm_is_without_and_may_have_it():
    assert strategies.adacomm().aggregation == BlockMomentum(block_momentum=0.0)
    assert strategies.adacomm(block_momentum=0.3).aggregation == BlockMomentum()
    assert strategies.adacomm.parameters["block_momentum"].default == 0.0
    assert BlockMomentum.model_fields["block_momentum"].default == 0.3
    spec = json.loads(json.dumps(strategies.adacomm(block_momentum=0.3).spec()))
    assert strategies.make_strategy(spec) == strategies.adacomm(block_momentum=0.3)
