"""Refusals of collectives and of what has no server: lifted, and what then goes wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from draws import kinds
from refusals import LOCAL, PLAIN, Stateless, refused, simulated, unchecked

from psbench.core.actions import Apply, Mix
from psbench.core.compatibility import misfits
from psbench.core.log import Kind
from psbench.core.own_steps import OwnSteps
from psbench.core.strategy import Strategy
from psbench.runs.execution import run
from psbench.testing import ScriptedCluster, toy_experiment

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


def test_sums_rounded_without_a_residual():
    """The residual would be left out without a word: the run is that of the codec without one."""
    rounding = {"name": "every_step", "codec": {"name": "fp16", "error_feedback": True}}
    kept = refused("sums_rounded_without_a_residual", communication=rounding, placement="all_reduce")
    plain = unchecked(communication={"name": "every_step", "codec": "fp16"}, placement="all_reduce")
    models = [run(toy_experiment(each, stop={"updates": 5})).parameters for each in (kept, plain)]
    assert torch.equal(*models)


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
    assert isinstance(keeps, OwnSteps) or keeps.overlaps or keeps.accumulates


@pytest.mark.parametrize("selection", ["online_batch", "with_replacement"])
def test_no_memory_between_tasks(selection):
    """Losses, and where a worker is in its stream, are kept from step to step."""
    chosen = refused("no_memory_between_tasks", placement=Stateless(), selection=selection)
    assert chosen.selection.chooses
    Strategy(**PLAIN | {"placement": "map_reduce", "selection": "reshuffle"})


def test_samples_of_a_chunk():
    """A chunk is the next samples of a shard, and the rule would choose among others."""
    sized = {"consistency": "bsp", "communication": "local_sgd", "aggregation": "model_average"}
    sized |= {"stragglers": "dual_binary_search"}
    chosen = refused("samples_of_a_chunk", **sized, selection="with_replacement")
    assert chosen.stragglers.sizes_chunks


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


def test_parts_of_two_families():
    """One sentence refuses each mixture of parts with a server and parts without, whatever would go wrong."""
    row, server = "parts_of_two_families", {"placement": "parameter_server"}
    mean = {"aggregation": "mean", "consistency": "asp"}
    assert mixes(unchecked(**GOSSIP))[0]
    # gradients are averaged, and no worker ever hears of another
    assert mixes(refused(row, **GOSSIP | mean))[0] == []
    assert mixes(refused(row, **GOSSIP | mean | server))[0] == []
    with pytest.raises(AssertionError):  # a server has no graph
        mixes(refused(row, **GOSSIP | server))
    # local SGD's workers make several steps, of which the other's exchange of that number knows nothing
    steps = {"communication": {"name": "local_sgd", "local_momentum": "cleared"}}
    assert unchecked(**GOSSIP).communication.forgets_momentum is False
    assert refused(row, **GOSSIP | steps).communication.forgets_momentum


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


GROUPS = {
    "consistency": "arrival_groups",
    "aggregation": "group_average",
    "communication": "step_then_mix",
    "placement": "peers",
}


def test_groups_that_nobody_forms():
    """Every push would be a group of its own, and no worker would hear of another."""
    found, _ = mixes(refused("groups_that_nobody_forms", **GROUPS | {"consistency": "asp"}))
    assert {len(mix.rows) for mix in found} == {1}
    assert {len(mix.rows) for mix in mixes(unchecked(**GROUPS))[0]} == {2}


def test_groups_that_nobody_mixes():
    """Two push at once, and a pair is of the one that pushes and another."""
    with pytest.raises(ValueError, match="too many values"):
        mixes(refused("groups_that_nobody_mixes", **GROUPS | {"aggregation": "pair_average"}))


def test_groups_across_a_graph():
    """Workers would exchange models along edges that the ring does not have."""
    ring = refused("groups_across_a_graph", **GROUPS | {"placement": "gossip"})
    found, cluster = mixes(ring, step_s=(1, 1.1, 1.2, 1.3, 1.4))
    view = cluster.engine.view
    assert any(
        other not in ring.placement.receivers(worker, 0, view.num_workers)
        for mix in found
        for worker, row in mix.rows.items()
        for other in row.keys() - {worker}
    )


def test_parts_of_a_mixture():
    """Ten entries in a hundred of a model are no model to mix with."""
    sparse = {"name": "step_then_mix", "codec": {"name": "top_k", "ratio": 0.1}}
    refused("parts_of_a_mixture", **GOSSIP | {"communication": sparse})


# -------------------------------------------------------------------- one memory

UNLOCKED = {
    "consistency": {"name": "hogwild", "write_s": 5.0},
    "aggregation": "last_write",
    "placement": "shared_memory",
}


def weights_of(strategy):
    """How much of each update remains, where two workers often write at a time."""
    cluster = ScriptedCluster(strategy, [1, 1.01])
    cluster.run(until=20)
    return {
        w for _, _, actions in cluster.history for a in actions if isinstance(a, Apply) for w in a.weights
    }


def test_writes_that_take_no_time():
    """No write is under way when another ends: the last write is the mean."""
    assert min(weights_of(Strategy(**PLAIN | UNLOCKED))) < 1
    at_once = refused("writes_that_take_no_time", **UNLOCKED | {"consistency": "asp"})
    assert weights_of(at_once) == {1}


def test_overlaps_that_lose_nothing():
    """The writes overlap, and yet all of each remains."""
    kept = refused("overlaps_that_lose_nothing", **UNLOCKED | {"aggregation": "mean"})
    assert weights_of(kept) == {1}


def test_no_memory_to_write_into():
    """The gradient is in the model once it has come to the server: a worker does not write it as well."""
    sent = refused("no_memory_to_write_into", **UNLOCKED | {"placement": "parameter_server"})
    assert sent.placement.bytes_up(60, 2) == 60
    assert Strategy(**PLAIN | UNLOCKED).placement.bytes_up(60, 2) == 0


def test_codecs_of_what_is_not_sent():
    """Fewer bytes of nothing are nothing."""
    shorter = {"communication": {"name": "every_step", "codec": "fp16"}}
    encoded = refused("codecs_of_what_is_not_sent", **UNLOCKED | shorter)
    assert encoded.placement.bytes_up(30, 2) == encoded.placement.bytes_up(60, 2) == 0
