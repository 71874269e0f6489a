"""What is refused, and why: each refusal is lifted here, and what then goes wrong is shown.

Over 400 lines because each reason in the table has its test beside it.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np
import pytest
import torch
from draws import kinds
from strategies.aggregation.own_arithmetic import Elastic, Median
from toybox import take_out
from vectors import how, pushed

from psbench.backends.compression import Compression
from psbench.backends.control import Control
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.server.sharded import ShardedStore
from psbench.backends.partition import Partition, partitions_of
from psbench.backends.simulated.simulation import Simulation
from psbench.core.actions import Apply, Mix, Release
from psbench.core.aggregation import PayloadKind
from psbench.core.compatibility import misfits
from psbench.core.events import Push
from psbench.core.log import EventLog, Kind
from psbench.core.part import make_part
from psbench.core.parts import Placement
from psbench.core.strategy import DOMAINS, Strategy
from psbench.core.view import ClusterView
from psbench.errors import CodecError, ParameterError, ProtocolError, ServerLost
from psbench.optimization.optimizer import SGD
from psbench.runs.execution import run
from psbench.seeds import Streams
from psbench.strategies.aggregation import Mean
from psbench.strategies.codecs import Channel, TopK
from psbench.strategies.communication import EveryStep, LocalSGD
from psbench.testing import ScriptedCluster, toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.local_model import LocalModel
from psbench.training.server import Server
from psbench.training.trainer import StepResult
from psbench.training.workload import Workload


class Stateless(Placement):
    """What MapReduce is: tasks that come and go."""

    name: ClassVar[str] = "refused_stateless"
    collective: ClassVar[bool] = True
    stateless_workers: ClassVar[bool] = True


class BareModels(Mean):
    """Has workers send models, and does not say what to do with them."""

    name: ClassVar[str] = "refused_bare_models"
    payload: ClassVar[PayloadKind] = "parameters"


class BareLocal(EveryStep):
    """Says that steps stay on the worker, and not what becomes of them."""

    name: ClassVar[str] = "refused_bare_local"
    local: ClassVar[bool] = True


class TwoVectors(Mean):
    """Has pushes carry a vector beside."""

    name: ClassVar[str] = "refused_two_vectors"
    payload: ClassVar[PayloadKind] = "difference"
    carries: ClassVar[tuple[str, ...]] = ("control",)


class TwoModels(TwoVectors):
    """The same of models."""

    name: ClassVar[str] = "refused_two_models"
    payload: ClassVar[PayloadKind] = "parameters"


class GivesTwo(LocalSGD):
    """Gives both."""

    name: ClassVar[str] = "refused_gives_two"

    def payload(self, w, state, own):
        return {"vector": super().payload(w, state, own), "control": w}


take_out("refused_")

#: each row of `misfits` by the name of its test below
ROWS = {
    "who_may_never_push": "a worker that may never push would stall the others",
    "all_push_together": "all push together, which needs a barrier",
    "missed_aggregates": "would miss its aggregate",
    "lost_steps": "steps kept on the worker would be lost",
    "answers_to_others": "answers the pushers of a commit, of which",
    "answers_in_part": "is no difference from the one before",
    "steps_without_a_half": "does not say how; derive it from OwnSteps",
    "no_model_to_send": "has no model of its own to send",
    "no_model_to_apply_to": "cannot apply an aggregate",
    "interrupted_overlap": "cannot be interrupted",
    "sums_taken_for_means": "a push of several steps would count as one",
    "means_taken_for_sums": "each push is a mean already, not a sum",
    "models_added_up_as_directions": "the weighted sum of models is no direction",
    "pushes_that_only_their_sum_is_left_of": "pushes are added up on their way",
    "blocks_of_all": "takes a commit for the work of all since the last",
    "one_push_against_a_state": "weighs one push against its own state",
    "replicas_that_overlap": "its workers are not at one model",
    "chunks_unknown": "sizes chunks of data, which",
    "progress_not_reported": "looks at the workers' progress, which",
    "recut_without_a_barrier": "cuts new batches at each barrier",
    "a_ring_of_some": "a collective operation needs all workers",
    "bits_that_belong_together": "vectors are added up on their way",
    "tasks_that_keep_nothing": "its tasks keep nothing between steps",
    "tasks_that_hand_on_floats": "its tasks hand on 32-bit floats",
    "nobody_who_makes_a_version": "no server makes a version of pushes",
    "one_model_for_all": "mixes models of workers, and",
    "neighbours_not_waited_for": "mixes what a worker's neighbours sent at the same exchange",
    "neighbours_waited_for_in_vain": "waits for what neighbours send",
    "pairs_that_wait_for_all": "a pair exchanges whatever others do",
    "a_model_that_is_replaced": "would not go on from its own model",
    "no_mixture": "a worker goes on from a mixture, and",
    "parts_of_a_mixture": "what a codec loses of a model that is mixed",
    "a_regions_model_taken_for_a_gradient": "a worker would take for a gradient",
    "no_model_of_a_region": "goes on from the model of a region, and",
    "a_share_of_the_model": "a worker holds a share of the model between steps",
    "shares_that_are_nowhere_else": "a share of the model is with its worker alone",
    "tensors_in_part": "takes norms of whole tensors, of which",
    "fragments_at_different_steps": "takes pushes of several together",
    "fragments_without_a_step": "a fragment is a difference, and a step of its own",
    "numbers_of_whole_vectors": "asks for numbers of whole vectors",
    "codecs_of_whole_vectors": "codecs keep whole vectors",
    "fragments_that_move": "parameters that move, while",
    "vectors_that_are_not_given": "does not give; define its 'payload'",
    "several_vectors_in_part": "fragments and measured numbers are of one vector",
    "several_vectors_as_differences": "sends models as differences, and knows of one vector",
    "several_vectors_that_wait": "and may wait for a commit under",
    "several_vectors_that_move": "whose entries parameter_server does not move",
    "sums_that_depend_on_sums": "several times for a version, which",
    "sums_of_something_else": "decides what its sums carry",
}

PLAIN = {
    "consistency": "bsp",
    "aggregation": "mean",
    "communication": "every_step",
    "stragglers": "fixed",
    "placement": "parameter_server",
}
GRADIENTS = {"name": "exchange", "aggregate": "gradient"}
PIECES = {"name": "fragments", "local_steps": 4, "num_fragments": 2, "overlap": 0}
MOVING = {"name": "parameter_server", "servers": 2, "reassignment": "by_load"}
#: what is refused of pushes that are not one vector of all entries
OF_PUSHES = {
    "tensors_in_part": {
        "aggregation": "radial_outer",
        "communication": "local_sgd",
        "placement": {"name": "parameter_server", "servers": 2},
    },
    "fragments_at_different_steps": {
        "consistency": {"name": "k_batch_asp", "k": 2},
        "aggregation": "fedbuff",
        "communication": PIECES,
    },
    "fragments_without_a_step": {"aggregation": "model_average", "communication": PIECES},
    "numbers_of_whole_vectors": {"aggregation": "sparse_outer", "communication": PIECES},
    "codecs_of_whole_vectors": {"aggregation": "outer", "communication": PIECES | {"codec": "top_k"}},
    "fragments_that_move": {"aggregation": "outer", "communication": PIECES, "placement": MOVING},
    "vectors_that_are_not_given": {"aggregation": TwoVectors(), "communication": "local_sgd"},
    "several_vectors_in_part": {"aggregation": TwoVectors(), "communication": PIECES},
    "several_vectors_as_differences": {"aggregation": TwoModels(), "communication": GivesTwo(codec="top_k")},
    "several_vectors_that_wait": {
        "consistency": {"name": "k_batch_asp", "k": 2},
        "aggregation": TwoVectors(),
        "communication": GivesTwo(),
    },
    "several_vectors_that_move": {
        "aggregation": TwoVectors(),
        "communication": GivesTwo(),
        "placement": MOVING,
    },
    "sums_that_depend_on_sums": {"aggregation": "power_sgd"},
    "sums_of_something_else": {
        "aggregation": "power_sgd",
        "communication": {"name": "every_step", "codec": "fp16"},
        "placement": "all_reduce",
    },
}


def unchecked(**parts):
    """The composition, whether it is refused or not."""
    made = {domain: make_part(domain, parts.get(domain, PLAIN[domain])) for domain in DOMAINS}
    return Strategy.model_construct(name="unchecked", lr_scaling="none", **made)


def refused(row, **parts):
    """Check that a composition is refused for that reason, and return it nonetheless."""
    with pytest.raises(ParameterError) as raised:
        Strategy(**PLAIN | parts)
    composition = unchecked(**parts)
    assert str(raised.value).endswith(misfits(composition)[0])
    assert [reason for reason in misfits(composition) if ROWS[row] in reason]
    return composition


@pytest.mark.slow
def test_every_reason_is_in_the_list_and_all_of_the_list_occur():
    known = {domain: [kind() for kind in kinds(domain)] for domain in DOMAINS}
    known["aggregation"] += [make_part("aggregation", GRADIENTS), BareModels(), Elastic()]
    known["placement"].append(Stateless())
    known["communication"] += [
        make_part("communication", {"name": name, "codec": "top_k", "codec_down": "top_k"})
        for name in ("every_step", "local_sgd")
    ]
    known["communication"].append(BareLocal())
    reasons = set()
    composition = unchecked(**{domain: parts[0] for domain, parts in known.items()})
    # a reason is of two or three parts, and every eleventh of 400,000 compositions has all triples of parts
    for parts in itertools.islice(itertools.product(*known.values()), 0, None, 11):
        vars(composition).update(zip(known, parts, strict=True))  # to make them would be slow
        reasons.update(misfits(composition))
    for parts in OF_PUSHES.values():
        reasons.update(misfits(unchecked(**parts)))
    rows = [[row for row, text in ROWS.items() if text in reason] for reason in reasons]
    assert [found for found in rows if len(found) != 1] == []
    assert {row for (row,) in rows} == set(ROWS)


def test_every_row_has_a_test():
    assert {f"test_{row}" for row in ROWS} <= set(globals())


# -------------------------------------------------------------------- who pushes when


class SteadyAndLucky(ScriptedCluster):
    """Worker 0's test loss always falls; that of the others never does, so that they never push."""

    def _statistics(self, worker):
        stats = super()._statistics(worker)
        stats["test_loss"] = 1 / (1 + self._taken[0]) if worker == 0 else 1.0
        return stats


HERMES = {"name": "hermes_gup", "alpha": -0.9, "beta": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("waiting", ["bsp", {"name": "ssp", "staleness_bound": 2}, {"name": "k_asp", "k": 2}])
def test_who_may_never_push(waiting):
    """Worker 0 waits for the others for ever, who compute on and have nothing to say."""
    stalled = refused(
        "who_may_never_push", consistency=waiting, communication=HERMES, aggregation="model_average"
    )
    cluster = SteadyAndLucky(stalled, [1, 1, 1])
    cluster.run(until=20)
    early = cluster.engine.view.version, cluster.engine.view.pushes
    cluster.run(until=500)
    view = cluster.engine.view
    assert (view.version, view.pushes) == early
    assert view.workers[0].hold_reason
    assert view.computing == [1, 2]
    fits = SteadyAndLucky(
        unchecked(consistency="asp", communication=HERMES, aggregation="loss_weighted"), [1, 1, 1]
    )
    fits.run(until=500)
    assert fits.engine.view.version > 100


def first_loads(cluster):
    """The version that each worker takes over with its second step-release, by worker."""
    loads = {}
    for _, event, actions in cluster.history:
        for release in actions if event is not None else ():
            if isinstance(release, Release) and release.then == "step" and release.send:
                loads.setdefault(release.worker, release.load)
    return loads


def test_all_push_together():
    """They synchronise to be at one model, and would go on from three."""
    together = {"communication": {"name": "selsync", "delta": 0.0}, "aggregation": "exchange"}
    apart = ScriptedCluster(refused("all_push_together", consistency="asp", **together), [1, 1, 1])
    apart.run(until=1.5)
    assert first_loads(apart) == {0: 1, 1: 2, 2: 3}
    fits = ScriptedCluster(unchecked(**together), [1, 1, 1])
    fits.run(until=1.5)
    assert first_loads(fits) == {0: 1, 1: 1, 2: 1}


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


LOCAL = {"name": "local_sgd", "local_steps": 4}


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


def test_steps_without_a_half():
    """The gradient would be taken for a model, as by a worker that has none."""
    nonsense = refused("steps_without_a_half", communication=BareLocal(), aggregation="model_average")
    experiment = toy_experiment(nonsense, stop={"updates": 1}, **ALONE)
    stepped = run(experiment.but(strategy="bsp")).parameters
    gradient = (Workload.build(experiment).parameters - stepped) / 0.1
    torch.testing.assert_close(run(experiment).parameters, gradient)


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
    with pytest.raises(NotImplementedError, match="is sent models only"):
        LocalModel(nowhere, SGD()).receive(torch.ones(3), lr=0.1)


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


def simulated(strategy, updates, **cluster):
    """A simulation that has ended, and the number of steps that were computed to their end."""
    experiment = toy_experiment(strategy, cluster=toy_cluster(**cluster), stop={"updates": updates})
    simulation = Simulation(Workload.build(experiment), EventLog(), Control())
    count, result = itertools.count(), simulation.cluster.steps.result
    simulation.cluster.steps.result = lambda *job: (next(count), result(*job))[1]
    simulation.run()
    return simulation, next(count)


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


# -------------------------------------------------------------------- collectives


def models_of(strategy):
    """The workers' own models after a few updates."""
    simulation, _ = simulated(strategy, 5, speed=[1.0, 1.0, 1.0], latency_s=0.001, bandwidth_mbit_s=0.1)
    return [worker.model.parameters for worker in simulation.cluster.workers._workers.values()]


def test_replicas_that_overlap():
    """Each is at a model of its own, by the steps that it made meanwhile; a ring makes equal replicas."""
    overlapping = {"communication": "osp", "aggregation": "accumulated"}
    refused("replicas_that_overlap", placement="all_reduce", **overlapping)
    first, second, third = models_of(unchecked(**overlapping))
    assert not torch.allclose(first, second, rtol=1e-4)
    assert not torch.allclose(first, third, rtol=1e-4)


@pytest.mark.parametrize("consistency", ["asp", {"name": "k_bsp", "k": 2}, {"name": "k_asp", "k": 2}])
def test_a_ring_of_some(consistency):
    """Who is not in the ring has a replica that lacks the update."""
    some = refused("a_ring_of_some", consistency=consistency, placement="all_reduce")
    cluster = ScriptedCluster(some, [1, 1.1, 5])
    cluster.run(until=4)
    rings = {len(a.pushes) for _, _, actions in cluster.history for a in actions if isinstance(a, Apply)}
    assert rings
    assert max(rings) < 3


@pytest.mark.parametrize("codec", kinds("codec"), ids=lambda kind: kind.name)
def test_bits_that_belong_together(codec):
    """A ring cuts a vector in slices and adds them up on their way: a slice must mean the same by itself."""
    made = codec()
    vector = np.array([8, -7, 6, -5, 0.4, 0.3, -0.2, 0.1], dtype=np.float32)

    def arrives(piece):
        return made.decode(made.encode(piece, np.random.default_rng(0)), len(piece))

    in_slices = np.concatenate([arrives(vector[:4]), arrives(vector[4:])])
    assert np.array_equal(in_slices, arrives(vector)) == codec.entrywise
    ring = {"communication": {"name": "every_step", "codec": made}, "placement": "all_reduce"}
    if codec.entrywise:
        assert not misfits(unchecked(**ring))
    else:
        refused("bits_that_belong_together", **ring)


def test_tasks_that_hand_on_floats():
    """It has no meaning: the framework carries what tasks return, and no backend writes it in fewer bits."""
    shorter = {"communication": {"name": "every_step", "codec": "fp16"}}
    refused("tasks_that_hand_on_floats", placement=Stateless(), **shorter)


@pytest.mark.parametrize(
    "parts",
    [
        {"communication": LOCAL, "aggregation": "model_average"},
        {"communication": "osp", "aggregation": "accumulated"},
        {"communication": "micro_steps"},
    ],
    ids=["a model", "unpushed gradients", "a sum over pieces"],
)
def test_tasks_that_keep_nothing(parts):
    """It has no meaning: a task ends with its step, and with it what these keep on the worker until later."""
    refused("tasks_that_keep_nothing", placement=Stateless(), **parts)
    keeps = unchecked(**parts).communication
    assert keeps.local or keeps.overlaps or keeps.accumulates


# -------------------------------------------------------------------- how much work


def test_chunks_unknown():
    """Orders for a chunk of several steps would be given, and every push be of one."""
    ordered = refused("chunks_unknown", stragglers={"name": "dual_binary_search", "chunk_batch": 2})
    cluster = ScriptedCluster(ordered, [1, 1])
    cluster.run(until=5)
    orders = [a.orders for _, _, actions in cluster.history for a in actions if isinstance(a, Release)]
    assert all(o["passes"] * o["samples"] > o["batch_size"] for o in orders)
    assert set(cluster.log.of_kind(Kind.PUSH)["steps"].tolist()) == {1}


def test_progress_not_reported():
    """Nothing would ever be re-assigned, however slow a worker is."""
    blind = ScriptedCluster(refused("progress_not_reported", stragglers="flex_rr"), [1, 1, 9], samples=8)
    blind.run(until=60)
    assert not len(blind.log.of_kind(Kind.TELL)["row"])
    informed = ScriptedCluster(
        unchecked(stragglers="flex_rr", communication="micro_steps"), [1, 1, 9], samples=8
    )
    informed.run(until=60)
    assert len(informed.log.of_kind(Kind.TELL)["row"])


def test_recut_without_a_barrier():
    """Shares of different cuts would be at work together, and not make one global batch."""
    cluster = ScriptedCluster(
        refused("recut_without_a_barrier", consistency="asp", stragglers="lb_bsp"), [1, 2, 5]
    )
    together = set()
    while cluster.now < 30:
        cluster.step()
        together.add(sum(worker.batch_size for worker in cluster.engine.view.workers.values()))
    assert together != {cluster.engine.view.global_batch}


# -------------------------------------------------------------------- without a server

GOSSIP = {
    "consistency": "neighbours",
    "aggregation": "neighbour_average",
    "communication": "step_then_mix",
    "placement": "gossip",
}


def mixes(composition, step_s=(1, 1, 1, 2)):
    """All exchanges of a short run, with the cluster."""
    cluster = ScriptedCluster(composition, list(step_s))
    cluster.run(until=20)
    return [a for *_, actions in cluster.history for a in actions if isinstance(a, Mix)], cluster


def test_nobody_who_makes_a_version():
    """Gradients are averaged, and no worker ever hears of another."""
    alone = refused("nobody_who_makes_a_version", **GOSSIP | {"aggregation": "mean", "consistency": "asp"})
    assert mixes(alone)[0] == []
    assert mixes(unchecked(**GOSSIP))[0]


@pytest.mark.parametrize("row", ["one_model_for_all", "no_mixture"])
def test_a_server_has_no_graph(row):
    changed = {"placement": "parameter_server"}
    if row == "no_mixture":
        changed |= {"aggregation": "mean", "consistency": "asp"}
        assert mixes(refused(row, **GOSSIP | changed))[0] == []
        return
    with pytest.raises(AssertionError):
        mixes(refused(row, **GOSSIP | changed))


test_one_model_for_all = test_no_mixture = test_a_server_has_no_graph


def test_neighbours_not_waited_for():
    """A worker would take models that do not exist yet."""
    found, cluster = mixes(refused("neighbours_not_waited_for", **GOSSIP | {"consistency": "asp"}))
    behind = {worker.id: worker.version for worker in cluster.engine.view.workers.values()}
    assert any(mix.versions[w] - 1 > behind[o] for mix in found for w, row in mix.rows.items() for o in row)


def test_neighbours_waited_for_in_vain():
    """Pairs would wait for neighbours of whose models they take nothing."""
    held = refused("neighbours_waited_for_in_vain", **GOSSIP | {"aggregation": "pair_average"})
    assert (mixes(held)[1].log.columns()["kind"] == Kind.HOLD).any()


def test_pairs_that_wait_for_all():
    """A barrier commits four pushes at once, and a pair is of two."""
    with pytest.raises(ValueError, match="too many values"):
        mixes(
            refused(
                "pairs_that_wait_for_all", **GOSSIP | {"aggregation": "pair_average", "consistency": "bsp"}
            )
        )


def test_a_model_that_is_replaced():
    """Local SGD's workers make several steps, of which the other's exchange of that number knows nothing."""
    steps = {"communication": {"name": "local_sgd", "local_momentum": "cleared"}}
    assert unchecked(**GOSSIP).communication.forgets_momentum is False
    assert refused("a_model_that_is_replaced", **GOSSIP | steps).communication.forgets_momentum


def test_parts_of_a_mixture():
    """Ten entries in a hundred of a model are no model to mix with."""
    sparse = {"name": "step_then_mix", "codec": {"name": "top_k", "ratio": 0.1}}
    refused("parts_of_a_mixture", **GOSSIP | {"communication": sparse})


# -------------------------------------------------------------------- some entries, or several vectors


def of_pushes(row):
    return refused(row, **OF_PUSHES[row])


def first_answer(worker_half, aggregation):
    """What a worker is at after one step of 1 from 2, and an answer of 8."""
    parts = {"consistency": "asp", "communication": worker_half, "aggregation": aggregation}
    worker = LocalModel(unchecked(**parts), SGD(lr=1.0, momentum=0.0))
    worker.load(torch.tensor([2.0]), torch.zeros(0), 1.0)
    worker.stepped(StepResult(torch.tensor([1.0]), torch.zeros(0), 0.0), 4, 1.0)
    worker.payload()
    worker.receive(torch.tensor([8.0]), 1.0)
    return worker.parameters.item()


def test_a_regions_model_taken_for_a_gradient():
    """It would step along the model."""
    refused(
        "a_regions_model_taken_for_a_gradient",
        consistency="asp",
        communication=LOCAL,
        aggregation="two_levels",
    )
    assert first_answer(LOCAL, "two_levels") == 1 - 8
    assert first_answer("regional_sgd", "two_levels") == 8


def test_no_model_of_a_region():
    """An aggregate would become its model."""
    refused("no_model_of_a_region", communication="regional_sgd", aggregation=GRADIENTS)
    assert first_answer("regional_sgd", GRADIENTS) == 8


def test_a_share_of_the_model():
    """Steps by oneself need all of it: what a worker is said to hold would be too little."""
    kept = refused(
        "a_share_of_the_model", communication=LOCAL, aggregation="model_average", placement="sharded"
    )
    held = [make_part("placement", name).worker_bytes(1000, 1, 4) for name in ("sharded", "all_reduce")]
    assert held == [3000, 12000]
    assert held[0] < 4 * 1000
    assert kept.own_steps


def test_shares_that_are_nowhere_else():
    """A model of rounded parameters is another one; and who is dropped takes a share along."""
    rounding = {"name": "every_step", "codec": "fp16"}
    refused("shares_that_are_nowhere_else", communication=rounding, placement="sharded")
    refused("shares_that_are_nowhere_else", stragglers="drop_stragglers", placement="sharded")
    out = Outbox()
    store = ShardedStore(out, [0, 1], None, itertools.count())
    with pytest.raises(ServerLost, match="worker 1 is lost, and its share"):
        store.leave(1, 0)


def test_tensors_in_part():
    """Lengths of halves are not those of the whole."""
    part = of_pushes("tensors_in_part").aggregation
    one, other = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 5.0])
    whole, *halves = (
        Server(torch.zeros(len(each)), torch.zeros(0), SGD(), 8, part) for each in ([0, 0], [0], [0])
    )
    for own, cut in zip((whole, *halves), (slice(0, 2), slice(0, 1), slice(1, 2)), strict=True):
        own.apply(pushed([one[cut], other[cut]], [0.5, 0.5]))
    assert not torch.allclose(whole.parameters, torch.cat([half.parameters for half in halves]))


def test_fragments_at_different_steps():
    """A commit would take one fragment of one worker and another of another."""
    with pytest.raises(ProtocolError, match="takes pushes of fragments"):
        ScriptedCluster(of_pushes("fragments_at_different_steps"), [1, 1.5]).run(until=60)


def test_fragments_without_a_step():
    """What local steps did would become the model."""
    part = of_pushes("fragments_without_a_step").aggregation
    own = Server(torch.ones(1), torch.zeros(0), SGD(), 8, part, [Partition((slice(0, 1),))])
    own.apply(pushed([torch.tensor([0.25])], [1.0]), how(numbers={"keep": 0.0}, fragment=0))
    assert own.parameters.tolist() == [0.25]


def test_numbers_of_whole_vectors():
    """A version that a push started from has more entries than the fragment."""
    of_pushes("numbers_of_whole_vectors")
    part, (push,) = make_part("aggregation", "delay_compensated"), pushed([torch.ones(1)])
    push.base = torch.ones(3)
    own = Server(torch.ones(3), torch.zeros(0), SGD(), 8, part, [Partition((slice(0, 1),))])
    own.fragments = [Partition((slice(0, 2),))]
    push.vector = torch.ones(2)
    with pytest.raises(RuntimeError, match="size of tensor"):
        own.apply([push], how(fragment=0))


def test_codecs_of_whole_vectors():
    """A residual has an entry for each of the model."""
    of_pushes("codecs_of_whole_vectors")
    with pytest.raises(CodecError, match="expected a vector of 4 entries"):
        Channel(TopK(), 4, Streams(0), 0).send(np.zeros(2, np.float32))


def test_vectors_that_are_not_given():
    """Local SGD gives a vector, and the push is to be taken from a mapping."""
    model = LocalModel(of_pushes("vectors_that_are_not_given"), SGD())
    model.load(torch.ones(3), torch.zeros(0), 0.1)
    with pytest.raises((IndexError, TypeError)):
        model.payload()


def test_several_vectors_as_differences():
    """The model that a worker holds has half as many entries as its push."""
    composition = of_pushes("several_vectors_as_differences")
    codecs = Compression(composition, partitions_of([[(0, 15)]]), Streams(0), {})
    codecs.model(0, 1, 0, torch.zeros(15))
    with pytest.raises(ValueError, match="broadcast"):
        codecs.push(0, 1, torch.zeros(30))


def test_several_vectors_in_part():
    """Where in a push a fragment's entries are would be said of the first vector alone."""
    of_pushes("several_vectors_in_part")


def test_several_vectors_that_wait():
    """A checkpoint would hold the first vector of a push that waits."""
    of_pushes("several_vectors_that_wait")


def test_several_vectors_that_move():
    """A server would give away the entries of the first vector alone."""
    of_pushes("several_vectors_that_move")


POWER = {"name": "power_sgd", "start_iter": 0, "min_compression_rate": 0.1}


def test_sums_that_depend_on_sums():
    """A server is sent the gradients, and not what they come to."""
    of_pushes("sums_that_depend_on_sums")
    server = Server(torch.zeros(4), torch.zeros(0), SGD(lr=0.1), 8, make_part("aggregation", POWER))
    with pytest.raises(ValueError, match="too many values"):
        server.apply(pushed([torch.ones(4), torch.ones(4)]))


def test_sums_of_something_else():
    """A codec would be of no effect: what travels are the factors, in the bytes that the part declares."""
    kept = of_pushes("sums_of_something_else")
    size = Workload.build(toy_experiment()).wire_size
    part = make_part("aggregation", POWER)
    half, whole = (
        unchecked(aggregation=part, communication=each, placement="all_reduce").sums(size, 0)
        for each in (kept.communication, "every_step")
    )
    assert half == whole == [(4 * (3 + 3), False), (4 * 4, False)]


def test_fragments_that_move():
    """Where a server has a fragment's entries is settled when it begins."""
    of_pushes("fragments_that_move")
