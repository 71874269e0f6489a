"""Refusals of pushes of some entries or of several vectors: lifted, and what then goes wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from refusals import GRADIENTS, LOCAL, OF_PUSHES, refused, unchecked
from vectors import how, pushed

from psbench.backends.compression import Compression
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.server.introductions import Introductions
from psbench.backends.dask.server.sharded import ShardedStore
from psbench.backends.partition import Partition, partitions_of
from psbench.core.events import Push
from psbench.core.part import make_part
from psbench.errors import CodecError, ProtocolError, ServerLost
from psbench.optimization.optimizer import SGD
from psbench.seeds import Streams
from psbench.strategies.aggregation.mean import Mean
from psbench.strategies.codecs import Channel, TopK
from psbench.testing import ScriptedCluster, toy_experiment
from psbench.training.build import Workload
from psbench.training.local_model import LocalModel
from psbench.training.server import Server
from psbench.training.trainer import StepResult


def of_pushes(row):
    return refused(row, **OF_PUSHES[row])


def first_answer(worker_half, aggregation):
    """What a worker is at after one step of 1 from 2, and an answer of 8."""
    parts = {"consistency": "asp", "communication": worker_half, "aggregation": aggregation}
    worker = LocalModel(unchecked(**parts), SGD(lr=1.0, momentum=0.0))
    worker.load(torch.tensor([2.0]), torch.zeros(0))
    worker.stepped(StepResult(torch.tensor([1.0]), torch.zeros(0), 0.0), 4, 0.0)
    worker.payload()
    worker.receive(torch.tensor([8.0]))
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
    assert first_answer("regional_sgd", GRADIENTS) == first_answer("answered_sgd", GRADIENTS) == 8


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
    refused("shares_of_the_dropped", stragglers="drop_stragglers", placement="sharded")
    out = Outbox()
    book = Introductions(out, lambda worker: None)
    store = ShardedStore(out, [0, 1], None, itertools.count(), book, Mean())
    with pytest.raises(ServerLost, match="worker 1 is lost, and its share"):
        store.leave(1, 0)


test_shares_of_the_dropped = test_shares_that_are_nowhere_else


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
    with pytest.raises(ProtocolError, match="pushes of several fragments"):
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
    model.load(torch.ones(3), torch.zeros(0))
    with pytest.raises(ProtocolError, match="returns one vector; the aggregation part takes a mapping"):
        model.payload()


def test_several_vectors_as_differences():
    """The model that a worker holds has half as many entries as its push."""
    composition = of_pushes("several_vectors_as_differences")
    codecs = Compression(composition, partitions_of([[(0, 15)]]), Streams(0), {})
    codecs.model(0, 1, 0, torch.zeros(15))
    with pytest.raises(ValueError, match="broadcast"):
        codecs.push(Push(0, 0, 1, 0, 1), torch.zeros(30))


def test_several_vectors_in_part():
    """Where in a push a fragment's entries are would be said of the first vector alone."""
    of_pushes("several_vectors_in_part")


def test_several_vectors_that_wait():
    """A checkpoint would hold the first vector of a push that waits."""
    of_pushes("several_vectors_that_wait")


def test_several_vectors_that_move():
    """A server would give away the entries of the first vector alone."""
    of_pushes("several_vectors_that_move")


def given(model):
    """What the worker's half finds of its answer."""
    return {name: vector.tolist() for name, vector in model._own.answer.items()}


def test_state_beside_no_model():
    """An aggregate comes by itself: the state that a worker reads stays that of its first model."""
    model = LocalModel(of_pushes("state_beside_no_model"), SGD())
    model.load(torch.tensor([1.0, 2.0]), torch.zeros(0))
    model.stepped(StepResult(torch.tensor([1.0]), torch.zeros(0), 0.0), 4, 0.0)
    model.receive(torch.tensor([3.0]))
    assert given(model) == {"control": [2.0]}


def test_state_beside_a_fragment():
    """So it does where fragments come."""
    model = LocalModel(of_pushes("state_beside_a_fragment"), SGD(), [Partition((slice(0, 1),))])
    model.load(torch.tensor([1.0, 2.0]), torch.zeros(0))
    model.obey({"fragment": 0})
    model.load(torch.tensor([3.0]), torch.zeros(0), 0)
    assert given(model) == {"control": [2.0]}


def test_state_of_a_share():
    """Parameters are gathered for a step, and state is not: a worker would read its own entries alone."""
    composition = of_pushes("state_of_a_share")
    share = Server(torch.zeros(2), torch.zeros(0), SGD(), 8, composition.aggregation)
    assert len(share.sent_model()) == 4  # of six entries that three workers share


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


# -------------------------------------------------------------------- halves that keep the same state


def test_control_variates_that_nobody_gives():
    """Local SGD pushes a model alone, and none could be split from it."""
    parts = {"aggregation": "control_variates", "communication": LOCAL}
    model = LocalModel(refused("control_variates_that_nobody_gives", **parts), SGD())
    model.load(torch.zeros(6), torch.zeros(0))
    with pytest.raises(ProtocolError, match="returns one vector"):
        model.payload()


def test_corrections_that_nobody_sends():
    """The worker looks for what has not come."""
    parts = {"aggregation": "model_average", "communication": "corrected_sgd"}
    model = LocalModel(refused("corrections_that_nobody_sends", **parts), SGD())
    with pytest.raises(KeyError, match="control"):
        model.load(torch.zeros(3), torch.zeros(0))


def test_a_table_that_is_never_filled():
    """What was entered first would count for ever."""
    part = refused(
        "a_table_that_is_never_filled", consistency="asp", aggregation="gradient_table"
    ).aggregation
    server = Server(torch.zeros(1), torch.zeros(0), SGD(lr=1.0), 8, part)
    for gradient in (4.0, 0.0):
        server.apply(pushed([torch.tensor([gradient])]), how(numbers={"begins": 0.0}))
    assert server.parameters.item() == -4.0 - 2.0


def test_gradients_added_to_estimates():
    """A constant gradient would come to twice as much with the second push."""
    part = refused("gradients_added_to_estimates", aggregation="gradient_estimates").aggregation
    server = Server(torch.zeros(1), torch.zeros(0), SGD(lr=1.0), 8, part)
    for _ in range(2):
        server.apply(pushed([torch.tensor([1.0])]), how(numbers={"knows 0": 1.0}))
    assert server.parameters.item() == -1.0 - 2.0


def differences(parts, row):
    """What a worker pushes whose gradient is always 1."""
    model, found = LocalModel(refused(row, communication="gradient_differences", **parts), SGD()), []
    for _ in range(2):
        model.load(torch.zeros(1), torch.zeros(0))
        model.stepped(StepResult(torch.tensor([1.0]), torch.zeros(0), 0.0), 4, 0.0)
        found.append(model.payload())
        model.sent(found[-1])
    return [vector.item() for vector in found]


def test_differences_taken_for_gradients():
    """The second push would say that the model is where its loss is least."""
    assert differences({}, "differences_taken_for_gradients") == [1.0, 0.0]


def test_differences_sent_twice():
    """The residual of a codec, and the next difference, both hold what one push has left out."""
    codec = {"name": "top_k", "ratio": 0.5}
    parts = {"communication": {"name": "gradient_differences", "codec": codec}}
    refused("differences_sent_twice", aggregation="gradient_estimates", **parts)
    channel = Channel(TopK(ratio=0.5), 2, Streams(0), 0)
    gradient, estimate = np.array([2.0, 1.0], np.float32), np.zeros(2, np.float32)
    for _ in range(2):
        estimate = estimate + channel.receive(channel.send(gradient - estimate))
    assert (estimate > gradient).any()


def test_estimates_of_void_pushes():
    """The worker would count a push that the server never sees."""
    parts = {"aggregation": "gradient_estimates", "communication": "gradient_differences"}
    refused("estimates_of_void_pushes", consistency="k_bsp", **parts)
