"""Fragments, Streaming and Eager DiLoCo: the papers' steps by hand, what equals what, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from oracles.story import rows_of, sent_beside
from threaded_run import ThreadedRun
from toybox import take_out
from vectors import how, pushed

import psbench as ps
from psbench import metrics
from psbench.core import ClusterView, Push
from psbench.core.arithmetic import State
from psbench.core.log import Kind
from psbench.core.part import REGISTRY
from psbench.core.strategy import Strategy
from psbench.errors import ParameterError
from psbench.optimization.optimizer import SGD
from psbench.runs.execution import resume
from psbench.runs.replaying import replay
from psbench.strategies.aggregation import EagerOuter, Outer
from psbench.strategies.communication import Eager, Fragments
from psbench.testing import toy_experiment
from psbench.training.build import Workload
from psbench.training.local_model import LocalModel
from psbench.training.server import Server
from psbench.training.trainer import StepResult

NONE = torch.zeros(0)
LAYOUT = [("a", 2), ("b", 3), ("c", 1)]
PLAIN = {"outer_optimizer": "plain", "outer_lr": 1.0}


def run(strategy, **changes):
    return ps.run(toy_experiment(strategy, **{"stop": {"updates": 9}, "seed": 3, "model": "mlp"} | changes))


def streaming(**values):
    return {"name": "streaming_diloco", "local_steps": 6, "num_fragments": 3} | values


# -------------------------------------------------------------------- which entries


def test_fragments_are_whole_tensors_every_pth_or_consecutive():
    assert Fragments(num_fragments=2).fragments(LAYOUT) == [[(0, 2), (5, 6)], [(2, 5)]]
    assert Fragments(num_fragments=2, fragment_pattern="contiguous").fragments(LAYOUT) == [[(0, 5)], [(5, 6)]]
    assert Fragments(local_steps=21, num_fragments=3).fragments(LAYOUT) == [[(0, 2)], [(2, 5)], [(5, 6)]]


@pytest.mark.parametrize("pattern", ["strided", "contiguous"])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 50, 1, 1), (50, 1, 1, 1, 1, 1), (3, 3, 3, 3, 3, 3, 3)])
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_each_entry_is_in_one_fragment_and_none_is_empty(sizes, count, pattern):
    layout = [(str(i), size) for i, size in enumerate(sizes)]
    part = Fragments(local_steps=6 * count, num_fragments=count, fragment_pattern=pattern, overlap=0)
    found = [list(range(*each)) for own in part.fragments(layout) for each in own]
    assert sorted(entry for own in found for entry in own) == list(range(sum(sizes)))
    assert all(part.fragments(layout))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"local_steps": 20, "num_fragments": 3}, "not a multiple of num_fragments, 3; the nearest is 21"),
        ({"local_steps": 6, "num_fragments": 3, "overlap": 2}, "use at most 1"),
        ({"takes": "change", "mixing": 0.2}, "has no effect with takes: 'change'"),
        ({"aggregation": "mean"}, "takes local steps, which would be lost"),
        ({"consistency": "asp"}, "asp has no barrier"),
        (
            {"consistency": "k_batch_asp", "aggregation": "fedbuff"},
            "of several fragments together",
        ),
        ({"codec": {"name": "top_k"}}, "without error feedback"),
        ({"codec_down": {"name": "sign"}}, "codec_down 'none' or 'fp16'"),
        ({"aggregation": "krum"}, "fragment"),
    ],
)
def test_what_has_no_meaning_is_refused(values, says):
    with pytest.raises(ParameterError, match=says):
        ps.strategies.streaming_diloco(**values)


def test_more_fragments_than_tensors_are_refused_before_any_step():
    with pytest.raises(ParameterError, match="num_fragments: 30, but the model has"):
        run(streaming(local_steps=60, num_fragments=30))


def test_random_fragments_deal_out_every_entry_once():
    layout = [("a", 50), ("b", 51)]
    part = ps.strategies.loscar(num_fragments=4, local_steps=20).communication
    dealt = part.fragments(layout)
    assert sorted(at for own in dealt for at, _ in own) == [*range(101)]
    assert sorted(len(own) for own in dealt) == [25, 25, 25, 26]
    assert all([*own] == sorted(own) and {stop - at for at, stop in own} == {1} for own in dealt)
    assert all(own[0][0] < 50 <= own[-1][0] for own in dealt)  # of both tensors
    assert dealt == part.fragments(layout)
    assert dealt != part.model_copy(update={"pattern_seed": 1}).fragments(layout)
    with pytest.raises(ParameterError, match="num_fragments: 4, but the model has 3 entries"):
        part.fragments([("a", 3)])


# -------------------------------------------------------------------- without a barrier


class InTurn(Fragments):
    """Block coordinate descent: a step moves the fragment alone that is pushed, and not on the worker."""

    name = "toy_in_turn"

    def step(self, w, gradient, state, own):
        state["step"] = gradient * own.lr

    def keep(self, w, state, own):
        pass

    def payload(self, w, state, own):
        return state["step"].clone()


take_out("toy_in_turn")
ADDS_UP = {"name": "fedbuff", "outer_lr": 1.0, "staleness_exponent": 0.0}
CONSTANT = {"step_time": "constant"}


def blocks(consistency="asp", aggregation=ADDS_UP, **values):
    values = {"overlap": 0, "mixing": 0.0, "first_push": "after_share"} | values
    return Strategy(consistency=consistency, aggregation=aggregation, communication=InTurn(**values))


def test_one_fragment_is_asynchronous_sgd():
    settings = {"cluster": {"workers": 3}, "stop": {"updates": 30}}
    ours = run(blocks(num_fragments=1, local_steps=1), optimizer={"name": "sgd", "lr": 0.1}, **settings)
    asp = run("asp", optimizer={"name": "sgd", "lr": 0.3}, **settings)  # of which each push has its third
    torch.testing.assert_close(ours.parameters, asp.parameters, rtol=1e-5, atol=1e-6)
    assert staleness(ours) == staleness(asp)
    assert max(staleness(asp)) > 1


def test_fragments_in_turn_of_one_worker_are_block_coordinate_descent():
    alone = {"cluster": {"workers": 1} | CONSTANT, "optimizer": {"name": "sgd", "lr": 0.1}}
    strategy = blocks(num_fragments=2, local_steps=2)
    done = run(strategy, **alone)
    workload = Workload.build(done.experiment)
    trainer, layout = workload.trainer(), workload.model.layout
    x = workload.server().parameters
    for update in range(9):
        job = trainer.start(0, done.experiment.batch_size)
        gradient = trainer.result(job, x, NONE).gradient
        for start, stop in strategy.communication.fragments(layout)[(update + 1) % 2]:
            x[start:stop] -= 0.1 * gradient[start:stop]
    assert torch.equal(done.parameters, x)
    assert set(staleness(done)) == {0}


def staleness(done):
    return ps.metrics.staleness(done.log)["staleness"].tolist()


def test_staleness_is_of_the_fragment_and_a_rule_sees_it(tmp_path, monkeypatch):
    """By hand: each push's fragment, from the orders, and the versions of it since the worker was sent it."""
    settings = {"cluster": {"workers": 3}, "stop": {"updates": 24}, "checkpoint_every": 0.2}
    strategy = blocks(aggregation=ADDS_UP | {"staleness_exponent": 1.0}, num_fragments=2, local_steps=2)
    done = run(strategy, **settings)
    made, sent, following, expected = [0, 0], {}, {}, []
    for row in done.log.rows():
        worker = int(row["worker"])
        if row["kind"] == Kind.RELEASE:
            known = sent.setdefault(worker, [0, 0])
            for fragment in [following[worker]] if worker in following else (0, 1):
                known[fragment] = made[fragment]
            following[worker] = json.loads(done.log.texts[row["text"]])["fragment"]
        if row["kind"] == Kind.APPLY:
            fragment = following[worker]
            expected.append((made[fragment] - sent[worker][fragment], float(row["loss"])))
            made[fragment] += 1
    assert staleness(done) == [stale for stale, _ in expected]
    weights = [1.0 / (stale + 1) for stale, _ in expected]
    assert [weight for _, weight in expected] == pytest.approx(weights, rel=1e-6)
    assert {0, 1, 2} <= set(staleness(done))
    assert replay(done) == len(done.log)
    monkeypatch.setitem(REGISTRY["communication"], InTurn.name, InTurn)
    ps.run(done.experiment.but(stop={"updates": 12}), folder=tmp_path)
    again = resume(tmp_path, {"stop": {"updates": 24}})
    assert replay(again) == len(again.log)


# -------------------------------------------------------------------- the exchange of a fragment


def worker_of(strategy, model):
    fragments = [Cut(own) for own in strategy.communication.fragments([("a", 1), ("b", 2), ("c", 1)])]
    worker = LocalModel(strategy, SGD(lr=1.0, momentum=0.0), fragments)
    worker.load(torch.tensor(model), NONE)
    return worker, fragments


class Cut:
    """Entries of a vector."""

    def __init__(self, ranges):
        self.index = torch.cat([torch.arange(*each) for each in ranges])

    def of(self, vector):
        return vector[self.index]

    def put(self, vector, part):
        vector[self.index] = part


def step(worker, *gradient):
    worker.stepped(StepResult(torch.tensor(gradient), NONE, 0.0), 4, 0.0)


def test_a_fragment_is_exchanged_as_in_algorithm_2():
    strategy = ps.strategies.streaming_diloco(local_steps=4, num_fragments=2, mixing=0.25, outer_lr=0.5)
    worker, fragments = worker_of(strategy, (1.0, 2.0, 3.0, 4.0))
    own = Server(torch.tensor([1.0, 2.0, 3.0, 4.0]), NONE, SGD(lr=9.0), 8, strategy.aggregation, fragments)
    step(worker, 0.5, 0.5, 0.5, 0.5)
    sent = worker.payload(fragment=0)  # entries 0 and 3: g - w
    assert sent.tolist() == [0.5, 0.5]
    step(worker, 1.0, 1.0, 1.0, 1.0)  # while the push is under way
    own.apply(pushed([sent], [1.0]), how(fragment=0))
    # v = D, x = x - .5 (D + .9 D)
    assert own.parameters.tolist() == pytest.approx([1 - 0.475, 2, 3, 4 - 0.475])
    worker.load(fragments[0].of(own.parameters), NONE, fragment=0)
    mixed = [0.25 * -0.5 + 0.75 * 0.525, 0.5, 1.5, 0.25 * 2.5 + 0.75 * 3.525]
    assert worker.parameters.tolist() == pytest.approx(mixed)
    # the next difference is from what all agreed on, and not from the mixture
    assert worker.payload(fragment=0).tolist() == pytest.approx([0.525 - mixed[0], 3.525 - mixed[3]])
    # the momentum of a fragment is its own
    own.apply(pushed([torch.tensor([1.0, 1.0])], [1.0]), how(fragment=1))
    assert own.parameters[1:3].tolist() == pytest.approx([2 - 0.95, 3 - 0.95])
    assert own.state["velocity"].tolist() == pytest.approx([0.5, 1.0, 1.0, 0.5])


def test_without_mixing_the_steps_meanwhile_are_forgotten():
    for mixing, expected in ((0.0, [7.0, 1.0, 1.0, 8.0]), (1.0, [0.0, 1.0, 1.0, 3.0])):
        made = ps.strategies.streaming_diloco(local_steps=4, num_fragments=2, mixing=mixing)
        worker, _ = worker_of(made, (1.0, 2.0, 2.0, 4.0))
        step(worker, 1.0, 1.0, 1.0, 1.0)
        worker.load(torch.tensor([7.0, 8.0]), NONE, fragment=0)
        assert worker.parameters.tolist() == expected


def test_the_delta_rule_keeps_the_steps_meanwhile():
    made = ps.strategies.streaming_diloco(local_steps=4, num_fragments=2, takes="change")
    worker, _ = worker_of(made, (1.0, 2.0, 2.0, 4.0))
    step(worker, 0.5, 0.5, 0.5, 0.5)
    worker.payload(fragment=0)  # at .5 and 3.5
    step(worker, 1.0, 1.0, 1.0, 1.0)
    worker.load(torch.tensor([7.0, 8.0]), NONE, fragment=0)
    assert worker.parameters.tolist() == [7.0 - 1.0, 0.5, 0.5, 8.0 - 1.0]
    assert worker.payload(fragment=0).tolist() == [1.0, 1.0]  # in the next mean, too
    worker.load(torch.tensor([3.0, 3.0]), NONE, fragment=0)
    assert worker.parameters[0] == 3.0
    step(worker, 1.0, 1.0, 1.0, 1.0)  # void: a new value that is no answer to a push replaces its own
    worker.load(torch.tensor([9.0, 9.0]), NONE, fragment=0)
    assert worker.parameters[0] == 9.0


def test_a_sparse_average_with_overlap_keeps_the_mean_of_the_workers():
    """LOSCAR-SGD: x_j = mean_j + (z_j - y_j) on the entries that were sent, z_j elsewhere."""
    made, rng = ps.strategies.loscar(num_fragments=2, local_steps=4), torch.Generator().manual_seed(0)
    workers = [worker_of(made, (1.0, 2.0, 2.0, 4.0))[0] for _ in range(3)]
    fragments = worker_of(made, (1.0, 2.0, 2.0, 4.0))[1]
    for fragment in (0, 1, 0):
        for worker in workers:
            step(worker, *torch.randn(4, generator=rng).tolist())
        y = torch.stack([worker.parameters.clone() for worker in workers])
        sent = torch.stack([worker.payload(fragment=fragment) for worker in workers])
        for worker in workers:
            step(worker, *torch.randn(4, generator=rng).tolist())
        z = torch.stack([worker.parameters.clone() for worker in workers])
        where = fragments[fragment].index
        mean = y[:, where].mean(0)
        assert sent.shape == (3, 2)
        for worker in workers:
            worker.load(mean, NONE, fragment=fragment)
        x = torch.stack([worker.parameters for worker in workers])
        expected = z.clone()
        expected[:, where] += mean - y[:, where]
        torch.testing.assert_close(x, expected)
        torch.testing.assert_close(x.mean(0), z.mean(0))


def test_a_sparse_average_of_everything_is_a_local_average():
    whole = {"num_fragments": 1, "local_steps": 3}
    sparta = run({"name": "sparta"} | whole)
    averaged = run({"name": "local_sgd", "local_momentum": "kept", "local_steps": 3})
    torch.testing.assert_close(sparta.parameters, averaged.parameters, rtol=1e-4, atol=1e-5)
    assert ps.strategies.make_strategy("sparta").communication.overlap == 0
    share = run("loscar", stop={"updates": 2}).log.of_kind(Kind.PUSH)["bytes"]
    every = sparta.log.of_kind(Kind.PUSH)["bytes"]
    assert share.max() <= every.max() / 5 + 4


def test_the_delta_rule_changes_nothing_alone_and_is_the_average_at_once():
    """What one worker sends is what comes back; and no step is made meanwhile."""
    alone = {"cluster": {"workers": 1, "step_time": "constant"}, "stop": {"epochs": 3}}
    averaging = streaming(num_fragments=1, takes="change", **PLAIN)
    one, other = run(averaging | {"overlap": 3}, **alone), run("bsp", **alone)
    torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-4, atol=1e-5)
    mixed = streaming(num_fragments=1, overlap=0, mixing=0.0, **PLAIN)
    ours, theirs = run(averaging | {"overlap": 0}), run(mixed)
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-4, atol=1e-5)


def test_numbers_and_vectors_of_a_state_are_each_fragments_own():
    whole, cut = State(torch.zeros(4)), Cut([(0, 1), (3, 4)])
    part = whole.of(cut, 1)
    part["steps"] = part.number("steps") + 1
    part.vector("v").add_(2.0)
    whole.put(cut, 1, part)
    assert whole.of(cut, 1).number("steps") == 1
    assert whole.of(cut, 0).number("steps") == 0
    assert whole["v"].tolist() == [2, 0, 0, 2]
    restored = State(torch.zeros(4))
    restored.load(whole.tensors())
    assert restored.of(cut, 1).number("steps") == 1


# -------------------------------------------------------------------- what equals what


def test_one_fragment_without_overlap_or_mixing_is_diloco_bit_for_bit():
    one = run(streaming(num_fragments=1, overlap=0, mixing=0.0, outer_lr=0.7))
    other = run({"name": "diloco", "local_steps": 6})
    assert one.meta["params_digest"] == other.meta["params_digest"]
    mixed = run(streaming(num_fragments=1, overlap=0, mixing=0.5, outer_lr=0.7))
    assert mixed.meta["params_digest"] != one.meta["params_digest"]


@pytest.mark.parametrize("values", [{"overlap": 0}, {"overlap": 1}, {"fragment_pattern": "contiguous"}])
def test_one_server_three_and_a_ring_have_the_same_bits(values):
    made = [
        streaming(**values),
        streaming(servers=3, **values),
        streaming(servers=2, assignment="layer", **values),
        streaming(placement="all_reduce", **values),
    ]
    assert len({run(strategy).meta["params_digest"] for strategy in made}) == 1


def test_bytes_in_h_steps_are_dilocos_and_the_peak_is_a_share():
    pieces = run(streaming(), stop={"updates": 3}).log.of_kind(Kind.PUSH)
    (whole,) = {
        *run({"name": "diloco", "local_steps": 6}, stop={"updates": 1}).log.of_kind(Kind.PUSH)["bytes"]
    }
    sent = pieces["bytes"][pieces["worker"] == 0]
    assert sent.sum() == whole
    assert sent.max() < whole


@pytest.mark.parametrize(("first", "steps"), [("after_all", [6, 8, 10]), ("after_share", [2, 4, 6])])
def test_pushes_are_as_far_apart_as_the_paper_has_them(first, steps):
    done = run(streaming(overlap=0, first_push=first), stop={"updates": 3})
    pushes = done.log.of_kind(Kind.PUSH)
    assert pushes["steps"][pushes["worker"] == 0].cumsum().tolist() == steps


def test_a_link_that_is_slow_is_hidden_by_the_overlap():
    slow = {"cluster": {"workers": 3, "bandwidth_mbit_s": 0.05, "step_time": "constant"}}
    waits = [run(streaming(local_steps=9, overlap=tau), **slow).summary()["time_s"] for tau in (0, 1, 2)]
    assert waits[0] > waits[1] > waits[2]


def test_the_result_is_of_steps_and_not_of_speed():
    fast, slow = (
        run(
            streaming(local_steps=9, overlap=2),
            cluster={"workers": 3, "bandwidth_mbit_s": rate, "step_time": "constant"},
        )
        for rate in (1e6, 0.2)
    )
    assert fast.summary()["time_s"] < slow.summary()["time_s"]
    assert fast.meta["params_digest"] == slow.meta["params_digest"]


@pytest.mark.parametrize("strategy", [streaming(), {"name": "eager_diloco", "local_steps": 4}])
def test_a_resumed_run_is_sent_the_whole_model(strategy, tmp_path):
    options = {"checkpoint_every": 1, "stop": {"epochs": 5}, "model": "mlp"}
    whole = ps.run(toy_experiment(strategy, **options), folder=tmp_path)
    ps.replay(whole)
    again = resume(whole.meta["checkpoints"][1])
    ps.replay(again)
    assert again.summary()["final"]["val_accuracy"] == pytest.approx(
        whole.summary()["final"]["val_accuracy"], abs=0.2
    )


def test_without_overlap_a_resumed_run_has_the_same_bits(tmp_path):
    options = {"checkpoint_every": 1, "stop": {"epochs": 5}, "model": "mlp"}
    whole = ps.run(toy_experiment(streaming(overlap=0), **options), folder=tmp_path)
    again = resume(whole.meta["checkpoints"][1])
    assert again.meta["params_digest"] == whole.meta["params_digest"]
    assert again.log.digest() == whole.log.digest()


# -------------------------------------------------------------------- eager


def eager(workers, *rounds, lr=0.5, beta=0.9):
    """Let workers make these differences, round by round; return their models and the server."""
    strategy = ps.strategies.eager_diloco(outer_lr=lr, outer_momentum=beta)
    own = Server(torch.zeros(2), NONE, SGD(lr=1.0), 8, strategy.aggregation)
    models = [LocalModel(strategy, SGD(lr=1.0, momentum=0.0)) for _ in range(workers)]
    for model in models:
        model.obey({"workers": workers})
        model.load(torch.zeros(2), NONE)
    for differences in rounds:
        for model, difference in zip(models, differences, strict=True):
            step(model, *difference)
        sent = [model.payload() for model in models]
        own.apply(pushed(sent, [1 / workers] * workers), how(numbers={"workers": workers}))
        for model in models:
            model.receive(own.aggregate)
    return [model.parameters for model in models], own.parameters


ROUNDS = [[(1.0, 0.0), (0.0, 3.0)], [(2.0, 1.0), (-1.0, 1.0)], [(0.5, 0.5), (4.0, -2.0)]]


def test_the_servers_model_is_the_mean_of_the_workers():
    models, server = eager(2, *ROUNDS)
    torch.testing.assert_close(server, sum(models) / 2)
    assert not torch.allclose(models[0], models[1])


def test_a_worker_steps_with_its_own_new_share_and_the_others_last_one():
    models, _ = eager(2, *ROUNDS[:2], beta=0.0, lr=1.0)
    first = torch.tensor([0.5, 1.5])  # D of round 1
    for model, (d1, d2) in zip(models, zip(*map(torch.tensor, ROUNDS[:2]), strict=True), strict=True):
        torch.testing.assert_close(model, -first - (first + (d2 - d1) / 2))
        another = -first - (d2 / 2 + first / 2)  # which counts the own last share too
        assert not torch.allclose(model, another)


def test_the_mean_is_shared_by_those_that_push():
    (apply,) = EagerOuter().on_commit([Push(i, i, 1, 0, samples=8) for i in range(2)], ClusterView(3))
    assert (apply.weights, apply.numbers) == ([0.5, 0.5], {"workers": 2})


def test_eager_with_one_worker_is_diloco():
    one, alone = {"cluster": {"workers": 1}}, {"local_steps": 4, "outer_lr": 0.7}
    left, right = (run({"name": name} | alone, **one) for name in ("eager_diloco", "diloco"))
    torch.testing.assert_close(left.parameters, right.parameters, rtol=1e-4, atol=1e-5)


def test_eager_workers_wait_for_nothing_but_the_last_answer():
    slow = {"cluster": {"workers": 3, "bandwidth_mbit_s": 0.05, "step_time": "constant"}}
    eager_s, diloco_s = (
        run({"name": name, "local_steps": 6}, **slow).summary()["time_s"]
        for name in ("eager_diloco", "diloco")
    )
    assert eager_s < diloco_s


def test_outer_steps_of_both_halves_are_one():
    assert Eager(outer_lr=0.3).outer_lr == 0.3
    made = ps.strategies.eager_diloco(outer_lr=0.3, outer_momentum=0.5)
    assert (made.communication.outer_lr, made.aggregation.outer_lr) == (0.3, 0.3)
    assert EagerOuter(outer_lr=0.3, outer_momentum=0.5).effective_outer_rate == pytest.approx(0.6)
    assert Outer().effective_outer_rate == pytest.approx(7)
    assert isinstance(made, Strategy)


@pytest.mark.parametrize("backend", ["simulated", "dask"])
def test_after_a_switch_pushes_are_whole_again(backend):
    switch = {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}}
    spec = toy_experiment(
        switch | {"first": streaming(overlap=0), "second": "asp"},
        model="mlp",
        cluster={"workers": 2, "step_time": "constant"},
        stop={"epochs": 4},
        backend=backend,
    )
    log = ps.run(spec).log if backend == "simulated" else ThreadedRun(spec).run().log
    sizes = [log.of_kind(Kind.PUSH)["bytes"][at] for at in (0, -1)]
    assert sizes[0] < sizes[1]
    assert len(log.of_kind(Kind.HANDOVER)["id"]) == 1


@pytest.mark.parametrize(
    "strategy",
    [
        streaming(servers=2, codec="e3m0"),
        streaming(overlap=0, placement="all_reduce"),
        streaming(consistency="asp", aggregation="fedbuff", servers=2),  # alone, as its order is a clock's
        {"name": "eager_diloco", "local_steps": 4, "servers": 2},
        {"name": "loscar", "num_fragments": 2, "local_steps": 4, "servers": 2},
    ],
)
def test_live_the_bits_are_those_of_virtual_time(strategy):
    workers = 1 if "consistency" in strategy else 2
    simulated = run(strategy, cluster={"workers": workers, "step_time": "constant"})
    live = ThreadedRun(simulated.experiment.model_copy(update={"backend": "dask"})).run()
    assert torch.equal(live.parameters, simulated.parameters)
    assert ps.replay(replace(simulated, log=live.log)) == len(live.log)
    sizes = [log.of_kind(Kind.PUSH)["bytes"].tolist() for log in (live.log, simulated.log)]
    assert sizes[0] == sizes[1]
    goes_on = strategy.get("overlap", 1) > 0
    assert shown_beside(live.log) == goes_on
    if workers == 2:  # alone, and at this speed, a push takes no virtual time that a float would show
        assert shown_beside(simulated.log) == goes_on


def shown_beside(log):
    """Return whether workers computed while they sent, after checking the spans against the timeline."""
    spans, beside = metrics.timeline(log), metrics.sends_beside(log)
    for send in beside.itertuples():
        own = spans[(spans["worker"] == send.worker) & (spans["phase"] == "compute")]
        slack = 1e-6 * send.end_s  # durations are recorded to seven digits
        assert ((own["start_s"] <= send.start_s + slack) & (own["end_s"] >= send.end_s - slack)).any()
    return len(beside) > 0


def test_workers_that_come_back_after_all_have_failed_push_one_fragment():
    """The last to fail came back with the fragment of before, and the run ended with an error."""
    away = [{"worker": 1, "at_s": 0.02, "rejoin_s": 1.5}]
    cluster = {"workers": 2, "step_time": "constant", "failures": away, "joins": [{"worker": 0, "at_s": 1.0}]}
    found = ps.run(
        ps.Experiment(
            strategy="streaming_diloco",
            data="digits",
            model={"name": "mlp", "hidden": [2]},
            batch_size=8,
            cluster=cluster,
            stop={"updates": 20, "epochs": 50},
        )
    )
    assert found.meta["status"] == "finished"
    assert set(found.log.of_kind(Kind.PUSH)["worker"]) == {0, 1}


def test_sends_over_a_slow_link_are_those_that_the_log_says():
    """They last longer than the steps beside them, the last ones too, which no push follows."""
    cluster = {"workers": 3, "step_time": "constant", "bandwidth_mbit_s": 0.02, "speed": [1.0, 2.0, 4.0]}
    strategy = {"name": "streaming_diloco", "local_steps": 4}
    run = ps.run(toy_experiment(strategy, stop={"epochs": 3}, cluster=cluster))
    found = [(send.worker, send.start_s, send.end_s) for send in metrics.sends_beside(run.log).itertuples()]
    expected = sorted((send.worker, send.start_s, send.end_s) for send in sent_beside(rows_of(run.log)))
    assert found == [pytest.approx(send, rel=1e-6) for send in expected]


@pytest.mark.parametrize("epochs", [2, 3])
def test_a_budget_used_up_beside_a_push_is_no_deadlock(epochs):
    """The answer may be here before the steps after which it is taken, which the budget must not cut off."""
    slow = {"workers": 4, "latency_s": 0.005, "bandwidth_mbit_s": 10.0, "server_bandwidth_mbit_s": 1000.0}
    pieces = {"local_steps": 24, "num_fragments": 3, "fragment_pattern": "contiguous", "overlap": 6}
    done = ps.run(
        ps.Experiment(
            strategy={"name": "streaming_diloco", **pieces},
            **{"data": "digits", "cluster": slow, "batch_size": 64, "timing_only": True},
            stop={"epochs": epochs},
        )
    )
    assert epochs <= done.summary()["epochs"] < 1.05 * epochs
