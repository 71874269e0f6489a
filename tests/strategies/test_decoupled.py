"""Decoupled DiLoCo: the paper's numbers by hand, what equals what, what is refused."""

import math

import pytest
import torch
from threaded_run import ThreadedRun
from vectors import how, pushed

import psbench as ps
from psbench.core.events import Push
from psbench.core.log import Kind
from psbench.core.view import ClusterView
from psbench.errors import ParameterError
from psbench.optimization.optimizer import SGD
from psbench.runs.execution import resume
from psbench.strategies.aggregation import RadialOuter
from psbench.testing import check_strategy, toy_experiment
from psbench.training.server import Server

NONE = torch.zeros(0)
PLAIN = {"outer_lr": 1.0, "outer_momentum": 0.0}


def step(vectors, shapes, weights=None, momentum=(), **values):
    """Return the way that a server of a zero model moves, backwards: the merged difference."""
    part = RadialOuter(**PLAIN | values)
    entries = len(vectors[0])
    server = Server(torch.zeros(entries), NONE, SGD(lr=9.0), 8, part, shapes=shapes)
    if momentum:
        server.state["velocity"] = torch.tensor(momentum)
    weights = weights or [1 / len(vectors)] * len(vectors)
    server.apply(pushed([torch.tensor(vector) for vector in vectors], weights))
    return (-server.parameters).tolist()


# -------------------------------------------------------------------- the merge


def test_a_push_weighs_its_samples_squared_over_its_steps():
    part = RadialOuter()
    pushes = [Push(0, 0, 1, 0, samples=100, steps=10), Push(1, 1, 1, 0, samples=100, steps=30)]
    (apply,) = part.on_commit(pushes, ClusterView(2))  # 1000 and 1000/3
    assert apply.weights == pytest.approx([0.75, 0.25])


def test_samples_count_since_a_fragment_was_pushed_last():
    part = RadialOuter()
    for number, fragment in enumerate((0, 1, 0)):
        pushes = [
            Push(10 * number + worker, worker, 1, 0, samples=samples, steps=2, fragment=fragment)
            for worker, samples in enumerate((8, 16 if number < 2 else 8))
        ]
        weights = part.on_commit(pushes, ClusterView(2))[0].weights
    # of fragment 0 since its first push: 16 samples in 4 steps, and 24 in 4
    assert weights == pytest.approx([64 / (64 + 144), 144 / (64 + 144)])


def test_orthogonal_differences_keep_their_length():
    assert step([[2.0, 0.0], [0.0, 2.0]], [(2,)]) == pytest.approx([math.sqrt(2), math.sqrt(2)])
    assert step([[1.0, 2.0], [-1.0, -2.0]], [(2,)]) == [0.0, 0.0]
    assert step([[0.0, 0.0], [0.0, 0.0]], [(2,)]) == [0.0, 0.0]
    assert step([[3.0, -4.0]], [(2,)], [1.0]) == pytest.approx([3.0, -4.0])


def test_each_tensor_is_merged_by_itself():
    one, other = [2.0, 0.0, 3.0], [0.0, 2.0, -1.0]
    assert step([one, other], [(2,), (1,)]) == pytest.approx([math.sqrt(2), math.sqrt(2), 1.0])
    # lengths 3 and 1 weigh 3/4 and 1/4, directions 1 and -1: .5, of which the direction is 1
    assert step([one, other], [(2,), (1,)], [0.75, 0.25])[2] == pytest.approx(2.5)


def test_tensors_of_embeddings_take_the_weighted_mean():
    view = ClusterView(2)
    view.layout = [("embedding.weight", 2), ("head.bias", 1)]
    pushes = [Push(worker, worker, 1, 0, samples=4) for worker in range(2)]
    (apply,) = RadialOuter().on_commit(pushes, view)
    assert apply.numbers == {"mean:0": 1.0}
    server = Server(torch.zeros(3), NONE, SGD(lr=9.0), 8, RadialOuter(**PLAIN), shapes=[(2,), (1,)])
    vectors = [torch.tensor(v) for v in ([2.0, 0.0, 2.0], [0.0, 2.0, 2.0])]
    server.apply(pushed(vectors, apply.weights), how(numbers=apply.numbers))
    assert (-server.parameters).tolist() == pytest.approx([1.0, 1.0, 2.0])


# -------------------------------------------------------------------- whole runs


def run(strategy, **changes):
    return ps.run(toy_experiment(strategy, **{"stop": {"updates": 9}, "seed": 3, "model": "mlp"} | changes))


def decoupled(**values):
    return {"name": "decoupled_diloco", "local_steps": 6, "num_fragments": 3, "mixing": 0.0} | values


@pytest.mark.slow
@pytest.mark.parametrize("speed", [1.0, [1.0, 0.5, 0.7]])
def test_a_full_quorum_that_asks_nobody_with_the_mean_is_diloco(speed):
    cluster = {"workers": 3, "speed": speed, "step_time": "constant"}
    own = {"quorum": 0, "asks": False, "num_fragments": 1, "overlap": 0, "merge": "mean"}
    one, other = (
        run(strategy, cluster=cluster)
        for strategy in (decoupled(**own), {"name": "diloco", "local_steps": 6})
    )
    assert one.meta["params_digest"] == other.meta["params_digest"]
    assert one.summary()["time_s"] == other.summary()["time_s"]
    radial = run(decoupled(**own | {"merge": "radial"}), cluster=cluster)
    assert radial.meta["params_digest"] != other.meta["params_digest"]


def applied_of(done, worker):
    return int((done.log.of_kind(Kind.APPLY)["worker"] == worker).sum())


def test_a_slow_worker_takes_part_with_fewer_steps_if_it_is_asked():
    cluster = {"workers": 3, "speed": [1.0, 1.0, 0.4], "step_time": "constant"}
    alone, asking, waiting = (
        run(decoupled(quorum=2, **values), cluster=cluster)
        for values in ({"asks": False}, {"grace_s": 1.0}, {"asks": False, "grace_s": 1.0})
    )
    assert not applied_of(alone, 2)  # its share of the steps is never made in time
    assert set(alone.log.of_kind(Kind.DISCARD)["worker"]) == {2}
    steps = asking.log.of_kind(Kind.APPLY)["steps"]
    of_slow = asking.log.of_kind(Kind.APPLY)["worker"] == 2
    assert of_slow.sum() == 9
    assert steps[of_slow].max() < steps[~of_slow].max()
    assert asking.summary()["time_s"] < waiting.summary()["time_s"]
    ps.replay(asking)


def test_grace_lets_a_late_worker_into_the_version():
    cluster = {"workers": 3, "speed": [1.0, 1.0, 0.9], "step_time": "constant"}
    without, given = (
        run(decoupled(quorum=2, asks=False, grace_s=each), cluster=cluster) for each in (0.0, 5.0)
    )
    assert not applied_of(without, 2)
    assert applied_of(given, 2) == 9
    assert {"quorum", "grace for the others"} <= set(given.log.texts)


def test_live_the_bits_are_those_of_virtual_time():
    strategy = decoupled(asks=False)
    simulated = run(strategy, cluster={"workers": 2, "step_time": "constant"}, stop={"updates": 6})
    live = ThreadedRun(simulated.experiment.model_copy(update={"backend": "dask"})).run()
    assert torch.equal(live.parameters, simulated.parameters)


def test_a_late_worker_is_on_the_fragment_of_the_others_when_resumed(tmp_path):
    """It computed for an earlier version, and begins anew with the others: one commit took two fragments."""
    strategy = decoupled(quorum=2, asks=False, overlap=0, local_steps=4, num_fragments=2)
    cluster = {"workers": 3, "step_time": {"name": "lognormal", "sigma": 0.8}}
    options = {"cluster": cluster, "checkpoint_every": 0.5, "stop": {"epochs": 4}}
    whole = ps.run(toy_experiment(strategy, model="mlp", **options), folder=tmp_path)
    for checkpoint in whole.meta["checkpoints"][:-1]:
        assert resume(checkpoint).log.of_kind(Kind.APPLY)["row"].size


def test_the_slack_of_the_overlap_is_the_grace():
    part = ps.strategies.decoupled_diloco(grace_s=10.0, grace_steps=2, grace_share=0.5).consistency
    # half of what two steps of the slowest take, less the wait for the quorum and a message
    assert part.grace(step_s=3.0, quorum_s=1.0, sync_s=1.0) == pytest.approx(0.5 * (6 - 1 - 1))
    assert part.grace(step_s=100.0, quorum_s=1.0, sync_s=1.0) == pytest.approx(0.5 * 10)
    assert part.grace(step_s=0.1, quorum_s=1.0, sync_s=1.0) == 0.0
    fixed = ps.strategies.decoupled_diloco(grace_s=10.0).consistency
    assert fixed.grace(step_s=3.0, quorum_s=1.0, sync_s=1.0) == 10.0


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"servers": 2}, "whole tensors"),
        ({"placement": "all_reduce"}, "sums pushes in transit"),
        ({"consistency": "k_batch_asp"}, "commits pushes of several fragments together"),
        ({"grace_share": 0.5}, "grace_s"),
        ({"codec": "top_k"}, "without error feedback"),
    ],
)
def test_what_has_no_meaning_is_refused(values, says):
    with pytest.raises(ParameterError, match=says):
        ps.strategies.decoupled_diloco(**values)


def test_more_than_there_are_make_no_quorum():
    with pytest.raises(ParameterError, match=r"quorum = 5 .* give quorum between 0 and 3"):
        run(decoupled(quorum=5), cluster={"workers": 3})


@pytest.mark.slow
def test_it_keeps_the_contract():
    check_strategy(ps.strategies.decoupled_diloco(quorum=2, grace_s=0.5), clusters=1)
