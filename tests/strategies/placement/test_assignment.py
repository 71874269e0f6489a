"""Which server holds which parameters."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from vectors import pushed

from psbench import strategies
from psbench.backends.partition import gather, partitions
from psbench.core.log import Kind
from psbench.core.part import make_part
from psbench.errors import ParameterError
from psbench.runs.execution import run
from psbench.strategies.placement import ParameterServer
from psbench.strategies.placement.assignment import POLICIES
from psbench.testing import toy_experiment
from psbench.training.build import Workload
from psbench.training.server import Server

#: 784-128-64-10, the perceptron of the published example: 109,386 parameters in six tensors
MLP = [
    *(("0.weight", 100_352), ("0.bias", 128), ("2.weight", 8192)),
    *(("2.bias", 64), ("4.weight", 640), ("4.bias", 10)),
]


def entries(**values):
    return ParameterServer(**values).balance(MLP)["entries"]


@pytest.mark.parametrize("assignment", sorted(POLICIES))
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_every_entry_is_on_exactly_one_server(assignment, servers):
    server = ParameterServer(servers=servers, assignment=assignment, large_tensor=5000)
    held = sorted(stretch for own in server.ranges(MLP) for stretch in own)
    assert held[0][0] == 0
    assert held[-1][1] == 109_386
    assert all(before[1] == after[0] for before, after in pairwise(held))


def test_contiguous_ranges_are_equal_to_within_an_entry():
    assert entries(servers=2) == [54_693, 54_693]
    assert entries(servers=4) == [27_347, 27_347, 27_346, 27_346]


def test_tensors_in_turn_are_as_uneven_as_the_tensors():
    """Worked by hand: round-robin over six tensors on two servers."""
    assert entries(servers=2, assignment="layer") == [109_184, 202]
    balance = ParameterServer(servers=2, assignment="layer").balance(MLP)
    assert balance["imbalance"]["entries"] == pytest.approx(2 * 109_184 / 109_386)
    assert balance["requests"] == [3, 3]


def test_large_tensors_are_cut_over_all_servers():
    server = ParameterServer(servers=2, assignment="size_threshold", large_tensor=8192)
    assert min(server.balance(MLP)["entries"]) >= (100_352 + 8192) / 2
    assert sum(server.balance(MLP)["requests"]) == 2 + 2 + 4


def test_best_fit_evens_out_the_sizes():
    assert ParameterServer(servers=2, assignment="best_fit").balance(MLP)["imbalance"]["entries"] < 1.1
    equal = [(str(i), 10) for i in range(8)]
    assert ParameterServer(servers=4, assignment="best_fit").balance(equal)["entries"] == [20] * 4


@pytest.mark.parametrize(("last", "server"), [(1, 0), (2, 1)])
def test_at_most_a_hundredth_of_a_share_goes_to_the_fewest_requests(last, server):
    """Half of 202 entries is a server's share; larger ones go where they just fit."""
    layout = [("a", 101), ("b", 60), ("c", 41 - last), ("d", last)]
    held = ParameterServer(servers=2, assignment="best_fit").held(layout)
    assert 202 - last in [block.start for block in held[server]]


def holders(held):
    """Return which server holds what begins where."""
    return {block.start: server for server, own in enumerate(held) for block in own}


def test_another_server_moves_only_the_tensors_that_it_takes_over():
    layout = [(f"tensor {i}", 10) for i in range(200)]
    before, after = (holders(ParameterServer(servers=n, assignment="hash").held(layout)) for n in (4, 5))
    moved = [start for start in before if before[start] != after[start]]
    assert {after[start] for start in moved} == {4}
    assert 20 <= len(moved) <= 60  # a fifth, give or take


@pytest.mark.slow
@pytest.mark.parametrize("assignment", sorted(POLICIES))
@pytest.mark.parametrize("codec", ["none", "fp16"])
def test_the_update_does_not_depend_on_the_assignment(assignment, codec):
    """fp16 sends runs down the path that really cuts vectors and puts them together."""
    model = {"name": "mlp", "hidden": [6, 5]}
    placement = {"name": "parameter_server", "servers": 2, "assignment": assignment, "large_tensor": 20}
    one = toy_experiment(strategies.bsp(codec=codec, codec_down=codec), model=model)
    two = toy_experiment(strategies.bsp(codec=codec, codec_down=codec, placement=placement), model=model)
    assert torch.equal(run(one).parameters, run(two).parameters)


@pytest.mark.slow
@pytest.mark.parametrize("assignment", sorted(POLICIES))
@pytest.mark.parametrize(
    "optimizer", [{"name": "sgd", "momentum": 0.9}, {"name": "adam"}], ids=["sgd", "adam"]
)
def test_an_entrywise_optimizer_works_alike_on_each_server(assignment, optimizer):
    """Each server has its own, of its slice alone; put together they have done what one would have."""
    layout = [("0.weight", 12), ("0.bias", 4), ("2.weight", 8), ("2.bias", 2)]
    spec = make_part("optimizer", optimizer)
    chance = torch.Generator().manual_seed(4)
    start, *gradients = torch.randn(6, 26, generator=chance)
    placement = ParameterServer(servers=2, assignment=assignment, large_tensor=8)
    own = partitions(placement, layout)
    whole = Server(start, torch.empty(0), spec, 4)
    shards = [Server(cut.of(start), torch.empty(0), spec, 4) for cut in own]
    for gradient in gradients:
        whole.apply(pushed([gradient]))
        for shard, cut in zip(shards, own, strict=True):
            shard.apply(pushed([cut.of(gradient)]))
    assert torch.equal(gather([shard.parameters for shard in shards], own), whole.parameters)


@pytest.mark.parametrize(
    ("codec", "is_global"), [("qsgd", True), ("sign", True), ("top_k", True), ("fp16", False)]
)
def test_what_needs_a_norm_of_the_whole_has_one_a_server_and_differs(codec, is_global):
    """QSGD's norm, sign's mean and top-k's threshold are those of a slice: no server sees the others'."""
    model = {"name": "mlp", "hidden": [6, 5]}
    one, two = (
        run(toy_experiment(strategies.bsp(codec=codec, servers=servers), model=model)) for servers in (1, 2)
    )
    assert torch.equal(one.parameters, two.parameters) is not is_global


def test_a_message_is_as_late_as_its_largest_slice():
    cluster = {"workers": 1, "step_time": "constant", "latency_s": 0.0, "server_bandwidth_mbit_s": 0.001}
    model = {"name": "mlp", "hidden": [30]}

    def send_s(assignment):
        placement = {"name": "parameter_server", "servers": 2, "assignment": assignment}
        experiment = toy_experiment(strategies.bsp(placement=placement), model=model, cluster=cluster)
        return run(experiment).log.of_kind(Kind.PUSH)["send_s"][0], Workload.build(experiment).model.layout

    (even, layout), (uneven, _) = send_s("contiguous"), send_s("layer")
    load = {
        name: ParameterServer(servers=2, assignment=name).balance(layout)["imbalance"]["entries"]
        for name in ("contiguous", "layer")
    }
    assert uneven / even == pytest.approx(load["layer"] / load["contiguous"], rel=1e-5)


def test_a_server_that_would_hold_nothing_is_refused_at_once():
    placement = {"name": "parameter_server", "servers": 3, "assignment": "layer"}
    with pytest.raises(ParameterError, match="server 2 of 3 would hold nothing of the model's 2 tensors"):
        Workload.build(toy_experiment(strategies.bsp(placement=placement)))
