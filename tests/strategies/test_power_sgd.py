"""PowerSGD: torch's own hook as the oracle, what is conserved, and what travels."""

import threading
from types import SimpleNamespace

import pytest
import torch
from vectors import decided, how, pushed

import psbench as ps
from psbench.core.log import Kind
from psbench.optimization.optimizer import SGD
from psbench.runs.replaying import replay
from psbench.strategies.aggregation import PowerSGD
from psbench.testing import toy_experiment
from psbench.testing.arithmetic import check_update
from psbench.training.server import Server

SHAPES = [(6, 8), (6,), (5, 3, 2), (5,)]
ENTRIES = 48 + 6 + 30 + 5
WEIGHTS = [0.5, 0.25, 0.25]
EARLY = {"name": "power_sgd", "rank": 2, "start_iter": 2, "min_compression_rate": 1.0}
MLP = {"model": {"name": "mlp", "hidden": [16]}}


def drawn(*key):
    return torch.randn(ENTRIES, generator=torch.Generator().manual_seed(hash(key) % 2**31))


def server(**values):
    part = PowerSGD(**{"start_iter": 0, "min_compression_rate": 0.1} | values)
    return Server(torch.zeros(ENTRIES), torch.zeros(0), SGD(lr=1.0), 8, part, shapes=SHAPES)


def exchanged(own, vectors, weights, version=0):
    """What each member has after an exchange, what each leaves out; and the version is made."""
    numbers = {"version": float(version)}
    pushes = pushed(vectors, weights)
    found = own.exchange(pushes, numbers)
    left = [own.left_out(push.vector, found[0], numbers) for push in pushes]
    own.apply(found[:1], how(numbers=numbers))
    return found, left


class Both:
    """torch.distributed for two threads: an all-reduce, and nothing else."""

    group = SimpleNamespace(WORLD=None)

    def __init__(self):
        self.meet, self.parts = threading.Barrier(2, timeout=120), {}

    def all_reduce(self, tensor, group, async_op):
        rank = int(threading.current_thread().name)
        self.parts[rank] = tensor.clone()
        self.meet.wait()
        tensor.copy_(self.parts[0] + self.parts[1])
        self.meet.wait()
        future = torch.futures.Future()
        future.set_result([tensor])
        return SimpleNamespace(get_future=lambda: future)


def torchs(theirs, gradients, rank, start):
    """What torch's hook makes of two workers' gradients, [update][worker], from these factors."""
    found = [[], []]

    def train(place):
        state = theirs.PowerSGDState(
            SimpleNamespace(size=lambda: 2), rank, 2, 1.0, orthogonalization_epsilon=1e-8
        )
        state.iter = 2
        state.p_memory_dict[0] = torch.zeros(11 * rank)
        state.q_memory_dict[0] = start.clone()
        for both in gradients:
            whole = both[place].clone()
            cuts = whole.split([48, 6, 30, 5])
            bucket = SimpleNamespace(
                buffer=lambda whole=whole: whole,
                gradients=lambda cuts=cuts: [c.view(s) for c, s in zip(cuts, SHAPES, strict=True)],
                index=lambda: 0,
                is_last=lambda: True,
            )
            found[place].append(theirs.powerSGD_hook(state, bucket).wait().clone())

    threads = [threading.Thread(target=train, args=(place,), name=str(place)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2])
def test_two_workers_get_what_torchs_hook_gives_them(rank, monkeypatch):
    import torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook as theirs  # takes a second

    monkeypatch.setattr(theirs, "dist", Both())
    gradients = [[1e-3 * drawn(update, worker) for worker in range(2)] for update in range(4)]
    own = server(rank=rank, min_compression_rate=1.0)
    part = own.aggregation
    first = [part._factor(each, own.state, torch.zeros(1), 0) for each in part._matrices(SHAPES, 0)]
    expected = torchs(theirs, gradients, rank, torch.cat([each.reshape(-1) for each in first]))
    residuals = [torch.zeros(ENTRIES), torch.zeros(ENTRIES)]
    for update, both in enumerate(gradients):
        given = [gradient + residual for gradient, residual in zip(both, residuals, strict=True)]
        (found, _), residuals = exchanged(own, given, [0.5, 0.5], update)
        torch.testing.assert_close(found.vector, expected[0][update], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("rank", [1, 3])
def test_what_is_left_out_and_what_comes_out_are_what_went_in(rank):
    own = server(rank=rank)
    for update in range(3):
        vectors = [drawn(update, worker) for worker in range(3)]
        found, left = exchanged(own, vectors, WEIGHTS, update)
        assert all(torch.equal(each.vector, found[0].vector) for each in found)
        assert all(torch.equal(each.more["factors"], found[0].more["factors"]) for each in found)
        given, kept = (sum(w * v for w, v in zip(WEIGHTS, each, strict=True)) for each in (vectors, left))
        torch.testing.assert_close(found[0].vector + kept, given, rtol=1e-5, atol=1e-5)
        assert not left[0][48:54].any()
        assert not left[0][84:].any()


def test_a_gradient_of_zeros_makes_no_nan_and_does_not_stay():
    own = server(rank=2)
    exchanged(own, [torch.zeros(ENTRIES)], [1.0])
    for update in range(1, 12):
        (found,), _ = exchanged(own, [drawn(99)], [1.0], update)
    assert found.vector.isfinite().all()
    one = drawn(99)[:48].view(6, 8)
    u, s, v = torch.linalg.svd(one)
    torch.testing.assert_close(found.vector[:48].view(6, 8), u[:, :2] * s[:2] @ v[:2], rtol=0.05, atol=0.05)


def test_sums_are_as_long_as_declared_and_each_takes_a_ring():
    part = PowerSGD(rank=2, start_iter=0, min_compression_rate=0.1)
    member = part.exchange(drawn(0), server().state, SHAPES, {"version": 0.0})
    first = next(member)
    assert [len(first), len(member.send(first))] == part.sums(SHAPES, 0) == [6 * 2 + 6 + 5 * 2 + 5, 28]
    slow = {"workers": 3, "bandwidth_mbit_s": 1.0, "latency_s": 0.25, "step_time": "constant"}
    done = ps.run(toy_experiment(EARLY, cluster=slow, stop={"updates": 4}, **MLP))
    pushes = done.log.of_kind(Kind.PUSH)
    # matrices of 16 x 4 and 3 x 16 with vectors of 16 and 3 beside: 131 entries, or 2 sums of 57 and 40
    sent = {0: [131], 1: [131], 2: [57, 40], 3: [57, 40]}
    assert pushes["bytes"].tolist() == [round(sum(sent[v]) * 8 / 3) for v in pushes["version"]]
    last = pushes["send_s"] > 0
    assert last.sum() == 4
    for seconds, version in zip(pushes["send_s"][last], pushes["version"][last], strict=True):
        rings = sum(4 * (0.25 + 4 * n / 3 * 8 / 1e6) for n in sent[int(version)])
        assert seconds == pytest.approx(rings, rel=1e-3)
    answers = done.log.of_kind(Kind.RELEASE)
    assert set(answers["bytes"][answers["version"] > 2]) == {round(97 * 8 / 3)}
    replay(done)


def test_ranks_above_the_true_one_do_no_harm():
    """A batch of few samples has a gradient of few dimensions; columns that are rounding would be noise."""
    thin = torch.zeros(ENTRIES)
    thin[:48] = torch.outer(torch.arange(1.0, 7), torch.arange(1.0, 9)).reshape(-1)
    own = server(rank=5)
    for update in range(3):
        (found,), _ = exchanged(own, [thin], [1.0], update)
        torch.testing.assert_close(found.vector, thin, rtol=1e-5, atol=1e-4)


def test_its_arithmetic_passes_the_checks_in_both_phases():
    check_update(*decided(EARLY | {"min_compression_rate": 0.1}))


def test_a_switch_takes_the_residuals_along():
    switch = {"name": "strategy_switch", "first": EARLY, "second": "bsp"}
    switch |= {"rule": {"name": "after", "fraction": 0.5}}
    done = ps.run(toy_experiment(switch, **MLP))
    replay(done)
    assert done.log.of_kind(Kind.HANDOVER)["version"].tolist() == [8]
    whole = ps.run(toy_experiment("bsp", **MLP))
    off = (done.parameters - whole.parameters).norm() / whole.parameters.norm()
    assert 0 < off < 0.01


@pytest.mark.parametrize("placement", ["all_reduce", "summing_servers"])
def test_what_a_push_has_lost_is_in_the_next_unless_its_worker_is_lost(placement, monkeypatch):
    """Each worker has one gradient, as no model moves; its push is that, and what its last one has lost."""
    exchange, rounds = Server.exchange, []

    def noted(self, pushes, numbers):
        found = exchange(self, pushes, numbers)
        rounds.append(({push.worker: push.vector for push in pushes}, found[0].vector))
        return found

    monkeypatch.setattr(Server, "exchange", noted)
    strategy = EARLY | {"rank": 1, "start_iter": 0, "placement": placement}
    lost = {"failures": [{"worker": 1, "at_s": 0.15, "rejoin_s": 0.3}]}
    cluster = {"workers": 3, "step_time": "constant"} | lost
    still = {"optimizer": {"name": "sgd", "lr": 1e-30}, "batch_size": 96, "sharding": "modular"}
    ps.run(toy_experiment(strategy, cluster=cluster, **still, stop={"updates": 16}, **MLP))
    rounds = [each for each in rounds if len(each[1]) == 131]  # others are of the forecast of memory
    matrices = torch.ones(131)
    matrices[64:80] = matrices[128:] = 0.0
    own, left = rounds[0][0], {}
    for sent, aggregate in rounds:
        left = {worker: (sent[worker], left[worker]) for worker in left if worker in sent}
        for worker, (vector, residual) in left.items():
            torch.testing.assert_close(vector, own[worker] + residual, rtol=1e-4, atol=1e-5)
        for worker in sent.keys() - left.keys():  # the first, and the first after it was lost
            torch.testing.assert_close(sent[worker], own[worker], rtol=1e-4, atol=1e-5)
        left = {worker: (vector - aggregate) * matrices for worker, vector in sent.items()}
    assert sorted({len(sent) for sent, _ in rounds}) == [2, 3]
    assert len(rounds[-1][0]) == 3
