"""Refusals of what a push carries and of what an update takes: lifted, and what then goes wrong."""

from __future__ import annotations

import pytest
import torch
from refusals import GRADIENTS, LOCAL, BareModels, refused, simulated, unchecked
from strategies.aggregation.own_arithmetic import Elastic, Median
from vectors import how, pushed

from psbench.backends.compression import Compression
from psbench.backends.partition import partitions_of
from psbench.core.actions import Apply, Release
from psbench.core.events import Push
from psbench.core.log import Kind
from psbench.core.part import make_part
from psbench.core.view import ClusterView
from psbench.optimization.optimizer import SGD
from psbench.runs.execution import run
from psbench.seeds import Streams
from psbench.testing import ScriptedCluster, toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload
from psbench.training.local_model import LocalModel
from psbench.training.server import Server

# -------------------------------------------------------------------- what a push carries


def receivers(cluster):
    """Who was sent each version's aggregate."""
    found = {}
    for _, _, actions in cluster.history:
        for action in actions:
            if isinstance(action, Apply):
                found[action.version] = set()
            elif isinstance(action, Release) and action.aggregate:
                found[action.load].add(action.worker)
    return found


def test_missed_aggregates():
    """Of nine updates each worker would hear of three: only those that it was part of."""
    applied = {"communication": LOCAL, "aggregation": GRADIENTS}
    apart = ScriptedCluster(refused("missed_aggregates", consistency="asp", **applied), [1, 1, 1])
    apart.run(until=12)
    assert list(receivers(apart).values()) == [{0}, {1}, {2}] * 3
    fits = ScriptedCluster(unchecked(**applied), [1, 1, 1])
    fits.run(until=12)
    assert list(receivers(fits).values()) == [{0, 1, 2}] * 3


ELASTIC = {"communication": LOCAL, "aggregation": Elastic()}


def test_answers_to_others():
    """A worker that waited is sent what was meant for the one whose push has set it free."""
    ssp = {"name": "ssp", "staleness_bound": 1}
    apart = ScriptedCluster(refused("answers_to_others", consistency=ssp, **ELASTIC), [1, 1, 3])
    fits = ScriptedCluster(unchecked(consistency="asp", **ELASTIC), [1, 1, 3])
    for cluster in (apart, fits):
        cluster.run(until=40)
        pushers = {
            action.version: {push.worker for push in action.pushes}
            for *_, actions in cluster.history
            for action in actions
            if isinstance(action, Apply)
        }
        strangers = [workers - pushers[version] for version, workers in receivers(cluster).items()]
        assert any(strangers) == (cluster is apart)


def test_answers_in_part():
    """Ten entries in a hundred of a model are no model."""
    sparse = {"name": "local_sgd", "codec_down": {"name": "top_k", "ratio": 0.1}}
    kept = refused("answers_in_part", communication=sparse, aggregation=Elastic())
    compression = Compression(kept, partitions_of([[(0, 15)]]), Streams(0), {})
    arrived = compression.aggregate(0, 1, torch.ones(15))
    assert 0 < arrived.count_nonzero() < 3


ALONE = {"cluster": toy_cluster([1.0]), "batch_size": 8}


def test_lost_steps():
    """Of four steps the last one's gradient would reach the server, and three be forgotten."""
    lost = toy_experiment(refused("lost_steps", communication=LOCAL), stop={"updates": 1}, **ALONE)
    three_steps, four_steps = (
        run(toy_experiment("bsp", stop={"updates": steps}, **ALONE)).parameters for steps in (3, 4)
    )
    last_step = four_steps - three_steps
    torch.testing.assert_close(run(lost).parameters, Workload.build(lost).parameters + last_step)
    kept = unchecked(communication=LOCAL, aggregation="model_average")
    torch.testing.assert_close(run(lost.but(strategy=kept)).parameters, four_steps)


def test_no_model_to_send():
    """The gradient would be taken for a model."""
    nonsense = refused("no_model_to_send", aggregation="model_average")
    experiment = toy_experiment(nonsense, stop={"updates": 1}, **ALONE)
    stepped = run(experiment.but(strategy="bsp")).parameters
    gradient = (Workload.build(experiment).parameters - stepped) / 0.1
    torch.testing.assert_close(run(experiment).parameters, gradient)


def test_no_model_to_apply_to():
    """A worker that is sent a model for every step has none between them."""
    nowhere = refused("no_model_to_apply_to", aggregation=GRADIENTS)
    with pytest.raises(NotImplementedError, match="receives only models"):
        LocalModel(nowhere, SGD()).receive(torch.ones(3))


def test_sums_taken_for_means():
    """A step of the worker that made three would count three times as much as one of the other."""
    refused("sums_taken_for_means", communication="osp")
    pushes = [Push(0, 0, 1, 0, samples=8, steps=1), Push(1, 1, 1, 0, samples=24, steps=3)]
    view = ClusterView(2, 1, 1)
    weights = {
        name: make_part("aggregation", name).on_commit(list(pushes), view)[0].weights
        for name in ("mean", "accumulated")
    }
    assert weights == {"mean": [0.25, 0.75], "accumulated": [0.5, 0.5]}


def test_means_taken_for_sums():
    """Two workers with equally many samples would count differently, because one cut them in eight."""
    composition = refused("means_taken_for_sums", aggregation="accumulated", communication="micro_steps")
    pushes = [Push(0, 0, 1, 0, samples=8, steps=8), Push(1, 1, 1, 0, samples=8, steps=1)]
    (apply,) = composition.aggregation.on_commit(pushes, ClusterView(2, 1, 1))
    assert apply.weights == pytest.approx([1 / 9, 8 / 9])


def steps_in_no_push(strategy):
    """Steps that were computed, and that no push has told of or can still tell of."""
    simulation, computed = simulated(strategy, 30, speed=[1.0, 0.5, 0.5, 0.25], latency_s=0.02)
    pushed = int(simulation.log.of_kind(Kind.PUSH)["steps"].sum())
    on_their_way = sum(push.steps for push in simulation.cluster.under_way.values())
    unpushed = sum(worker.loop._steps for worker in simulation.cluster.workers._workers.values())
    return computed - pushed - on_their_way - unpushed


@pytest.mark.slow
def test_interrupted_overlap():
    """Whoever is cancelled loses not only the step that it computes, but all that no push has carried."""
    overlapping = {"communication": "osp", "aggregation": "accumulated"}
    interrupted = refused("interrupted_overlap", consistency={"name": "k_bsp", "k": 2}, **overlapping)
    assert steps_in_no_push(interrupted) > 30
    assert steps_in_no_push(unchecked(**overlapping)) == 0


# -------------------------------------------------------------------- what an update takes


def averaged(aggregation, versions):
    """Two workers, at 1 and at 3, whose models arrive in as many commits as `versions`."""
    part = make_part("aggregation", aggregation)
    server = Server(torch.zeros(1), torch.zeros(0), SGD(lr=0.1), 8, part)
    view = ClusterView(2, 1, 1, num_active=2, num_computing=versions - 1)
    models, pushes = [torch.tensor([1.0]), torch.tensor([3.0])], [Push(n, n, 1, 0, samples=4) for n in (0, 1)]
    size = 2 // versions
    for at in range(0, 2, size):
        (apply,) = part.on_commit(pushes[at : at + size], view)
        server.apply(pushed(models[at : at + size], apply.weights), how(numbers=apply.numbers))
    return server.parameters.item()


def test_models_added_up_as_directions():
    """The model of a worker at 1 would be stepped along, to the other side of 0."""
    refused("models_added_up_as_directions", communication=LOCAL, aggregation=BareModels())
    server = Server(torch.zeros(1), torch.zeros(0), SGD(lr=0.1), 8, BareModels())
    server.apply(pushed([torch.ones(1)]))
    assert server.parameters.item() == pytest.approx(-0.1)


def test_pushes_that_only_their_sum_is_left_of():
    """Of the sum a median is the mean: one liar among three takes the model with it."""
    refused("pushes_that_only_their_sum_is_left_of", aggregation=Median(), placement="all_reduce")
    vectors = [torch.tensor([value]) for value in (1.0, 1.0, -8.0)]
    servers = [Server(torch.zeros(1), torch.zeros(0), SGD(lr=1.0), 8, Median()) for _ in range(2)]
    servers[0].apply(pushed(vectors, [1 / 3] * 3))
    servers[1].apply(pushed([sum(vectors) / 3]))
    assert [server.parameters.item() for server in servers] == [-1.0, 2.0]


def test_blocks_of_all():
    """Each push would undo what the one before has brought: the last one's model stays."""
    refused("blocks_of_all", consistency="asp", communication=LOCAL, aggregation="block_momentum")
    block = {"name": "block_momentum", "block_momentum": 0.0}
    assert averaged(block, versions=1) == averaged("model_average", versions=1) == 2.0
    assert averaged(block, versions=2) == 3.0
    assert averaged("model_average", versions=2) == 1.75  # (0 + 1)/2, and half the way from there to 3


def test_one_push_against_a_state():
    """There is one share of the old model, and one loss to compare with: two pushes are one too many."""
    several = refused("one_push_against_a_state", communication=LOCAL, aggregation="loss_weighted")
    with pytest.raises(ValueError) as wrong:  # noqa: PT011 - Python's own, which unpacks one of two
        ScriptedCluster(several, [1, 1]).run(until=10)
    assert wrong.traceback[-1].path.stem == "loss_weighted"
