"""Workers without a server: what equals what, what is kept and what contracts, how long it takes."""

from math import cos, pi

import numpy as np
import pytest
import torch
from threaded_run import ThreadedRun

import psbench as ps
from psbench import metrics
from psbench.core import ClusterView, Engine, Hold, Push, Release, Strategy
from psbench.core.actions import Apply, Mix
from psbench.core.events import Join, Leave
from psbench.core.log import EventLog, Kind
from psbench.core.view import Status
from psbench.results.run import Run
from psbench.strategies.placement import graphs
from psbench.training.workload import Workload

TINY = {"data": "digits", "cluster": {"workers": 4}, "stop": {"epochs": 2}, "batch_size": 96, "seed": 3}
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


def trained(strategy, **changes):
    run = ps.run(
        ps.Experiment(**TINY | {"optimizer": {"name": "sgd", "lr": 0.1}} | changes, strategy=strategy)
    )
    return run.parameters, run


class Toys:
    """Workers with small vectors, whose steps end in an order that is drawn."""

    def __init__(self, strategy, models, seed=0, gradient=None):
        self.models = np.array(models, dtype=float)
        n = len(self.models)
        self.log, self.rng = EventLog(), np.random.default_rng(seed)
        self.engine = Engine(strategy, ClusterView(n, dataset_size=n, global_batch=n), log=self.log)
        self.gradient = gradient or (lambda worker, model: 0 * model)
        self.steps_first = not strategy.communication.sends_first
        self.sent, self.held, self.pushes, self.now, self.mixes = {}, {}, 0, 0.0, []
        self.perform(self.engine.begin(range(n)))

    def perform(self, actions):
        for action in actions:
            if isinstance(action, Mix):
                self.mixes.append(action)
                self.mix(action)
            elif isinstance(action, Release):
                worker = action.worker
                if worker in self.held:
                    self.models[worker] -= self.held.pop(worker)
                self.sent.setdefault((worker, action.load), self.models[worker].copy())

    def mix(self, mix):
        before = self.models.copy()
        for worker, row in mix.rows.items():
            version = mix.versions[worker] - 1
            known = {other: self.sent[other, version] if mix.sent else before[other] for other in row}
            self.models[worker] = sum(weight * known[other] for other, weight in row.items())

    def step(self, worker):
        """Let a worker's step end, and perform the answer."""
        seen = self.engine.view.workers[worker]
        direction = self.gradient(worker, self.models[worker])
        if self.steps_first:
            self.models[worker] -= direction
            self.sent[worker, seen.version] = self.models[worker].copy()
        else:
            self.held[worker] = direction
        push = Push(self.pushes, worker, seen.ticket, seen.base_version, samples=1)
        self.pushes, self.now = self.pushes + 1, self.now + 1.0
        self.perform(self.engine.handle(push, self.now))

    def rounds(self, count):
        """Let everybody make so many exchanges, in an order that is drawn."""
        goal = {w.id: w.version + count for w in self.engine.view.workers.values()}
        while able := [
            w.id
            for w in self.engine.view.workers.values()
            if w.status is Status.COMPUTING and w.version < goal[w.id]
        ]:
            self.step(int(self.rng.choice(able)))

    @property
    def spread(self):
        return float(((self.models - self.models.mean(0)) ** 2).sum())


def made(name="d_psgd_step_first", graph="ring", **values):
    return ps.strategies.CATALOGUE[name](graph=graph, **values)


# -------------------------------------------------------------------- graphs


@pytest.mark.parametrize("n", [3, 4, 5, 8, 12])
def test_spectral_gaps_have_their_closed_forms(n):
    def gap(graph):
        return graphs.spectral_gap(graphs.weights(graph, 0, n))

    assert gap("complete") == pytest.approx(1.0)
    ring = [abs(1 + 2 * cos(2 * pi * k / n)) / 3 for k in range(1, n)]
    assert gap("ring") == pytest.approx(1 - max(ring))


def test_a_torus_has_the_gap_of_its_two_rings():
    # 3 x 4: eigenvalues (1 + 2 cos(2 pi a/3) + 2 cos(2 pi b/4))/5
    found = [
        abs(1 + 2 * cos(2 * pi * a / 3) + 2 * cos(2 * pi * b / 4)) / 5 for a in range(3) for b in range(4)
    ]
    expected = 1 - sorted(found)[-2]
    assert graphs.spectral_gap(graphs.weights("torus", 0, 12)) == pytest.approx(expected)


@pytest.mark.parametrize("graph", graphs.names())
@pytest.mark.parametrize("n", [2, 4, 5, 9])
def test_mixing_matrices_are_doubly_stochastic(graph, n):
    for exchange in range(4):
        found = graphs.weights(graph, exchange, n)
        assert (found >= 0).all()
        np.testing.assert_allclose(found.sum(0), 1)
        np.testing.assert_allclose(found.sum(1), 1)
        for worker in range(n):
            to = graphs.receivers(graph, worker, exchange, n)
            assert all(worker in graphs.senders(graph, other, exchange, n) for other in to)


def test_one_peer_at_a_time_gives_the_exact_mean_after_log_n_exchanges():
    product = np.eye(8)
    for exchange in range(3):
        product = graphs.weights("one_peer_exponential", exchange, 8) @ product
    np.testing.assert_allclose(product, np.full((8, 8), 1 / 8))


def test_news_travels_an_edge_an_exchange():
    assert graphs.distances("ring", 6)[0] == [0, 1, 2, 3, 2, 1]
    assert max(max(row) for row in graphs.distances("exponential", 16)) == 4


# -------------------------------------------------------------------- decisions


@pytest.mark.parametrize("graph", graphs.names())
@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first"])
def test_exchanges_are_the_mixing_matrices_whatever_the_order_of_arrival(name, graph):
    start = np.random.default_rng(1).normal(size=(6, 3))
    toys = Toys(made(name, graph), start, seed=5)
    toys.rounds(4)
    expected = start
    for exchange in range(4):
        expected = graphs.weights(graph, exchange, 6) @ expected
    np.testing.assert_allclose(toys.models, expected, atol=1e-12)


@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first", "ad_psgd"])
@pytest.mark.parametrize("graph", ["ring", "torus", "complete", "random_pairs", "time_varying_ring"])
def test_mixing_keeps_the_mean_and_contracts(name, graph):
    start = np.random.default_rng(2).normal(size=(8, 2))
    toys = Toys(made(name, graph), start)
    before = toys.spread
    toys.rounds(6)
    np.testing.assert_allclose(toys.models.mean(0), start.mean(0), atol=1e-12)
    assert toys.spread < before
    if graph in ("ring", "torus", "complete") and name != "ad_psgd":
        rho = 1 - graphs.spectral_gap(graphs.weights(graph, 0, 8))
        assert toys.spread <= before * rho ** (2 * 6) * (1 + 1e-9)


def test_the_slowest_direction_contracts_by_exactly_rho_squared():
    n = 8
    wave = np.cos(2 * pi * np.arange(n) / n)[:, None]  # an eigenvector of the ring
    toys = Toys(made(), wave)
    before = toys.spread
    toys.rounds(1)
    rho = 1 - graphs.spectral_gap(graphs.weights("ring", 0, n))
    assert toys.spread == pytest.approx(rho**2 * before)


def test_both_orders_are_the_formulas():
    start = np.random.default_rng(3).normal(size=(5, 2))
    slopes = np.random.default_rng(4).normal(size=5)

    def gradient(worker, model):
        return 0.1 * slopes[worker] * model

    matrix = graphs.weights("ring", 0, 5)
    after = {True: start, False: start}
    for _ in range(3):
        after[True] = matrix @ (after[True] - 0.1 * slopes[:, None] * after[True])
        after[False] = matrix @ after[False] - 0.1 * slopes[:, None] * after[False]
    for name, steps_first in (("d_psgd_step_first", True), ("d_psgd", False)):
        toys = Toys(made(name), start, gradient=gradient)
        toys.rounds(3)
        np.testing.assert_allclose(toys.models, after[steps_first])


def test_a_worker_waits_for_its_neighbours_alone():
    engine = Engine(made(), ClusterView(4, dataset_size=4, global_batch=4))
    engine.begin(range(4))

    def push(number, worker):
        seen = engine.view.workers[worker]
        return engine.handle(Push(number, worker, seen.ticket, seen.base_version, samples=1), float(number))

    assert push(0, 0) == [Hold(0, "neighbours")]
    assert push(1, 1) == [Hold(1, "neighbours")]
    apply, mix, release = push(2, 3)[:3]  # 0 has 3 and 1 now; worker 2 computes on
    assert isinstance(apply, Apply)
    assert mix.rows == {0: {0: pytest.approx(1 / 3), 1: pytest.approx(1 / 3), 3: pytest.approx(1 / 3)}}
    assert (release.worker, release.load) == (0, 1)


def test_who_sends_first_waits_for_neighbours_that_have_not_begun():
    toys = Toys(made("d_psgd"), np.zeros((4, 1)))
    toys.step(0)  # its neighbours have sent what their first step begins with
    view = toys.engine.view
    assert view.workers[0].version == 1
    toys.step(0)  # but not their second
    assert view.workers[0].hold_reason == "neighbours"


# -------------------------------------------------------------------- stochastic gradient push


def test_push_sum_weights_stay_1_while_all_send_and_the_mean_is_exact():
    start = np.random.default_rng(5).normal(size=(8, 2))
    toys = Toys(made("sgp", "one_peer_exponential"), start)
    toys.rounds(3)
    assert [w.push_weight for w in toys.engine.view.workers.values()] == [1.0] * 8
    np.testing.assert_allclose(toys.models, np.broadcast_to(start.mean(0), (8, 2)), atol=1e-12)


def test_push_sum_is_d_psgd_on_a_symmetric_graph():
    start = np.random.default_rng(6).normal(size=(6, 2))
    one, other = (Toys(made(name, "ring"), start, seed=2) for name in ("sgp", "d_psgd_step_first"))
    one.rounds(5)
    other.rounds(5)
    np.testing.assert_allclose(one.models, other.models)


def test_push_sum_weights_share_out_what_there_is_when_a_worker_is_lost():
    start = np.random.default_rng(7).normal(size=(8, 2))
    toys = Toys(made("sgp", "one_peer_exponential"), start)
    workers = toys.engine.view.workers
    toys.perform(toys.engine.handle(Leave(3), 0.5))  # before it has sent anything
    there = [w for w in range(8) if w != 3]
    for _ in range(40):
        toys.rounds(1)
        assert sum(workers[w].push_weight for w in there) == pytest.approx(7)
    assert len({round(workers[w].push_weight, 6) for w in there}) > 1  # they differ: a plain mean would drift
    np.testing.assert_allclose(toys.models[there], np.broadcast_to(start[there].mean(0), (7, 2)), atol=1e-6)


def test_a_weight_divides_the_rate_of_a_worker():
    toys = Toys(made("sgp", "one_peer_exponential"), np.zeros((4, 1)))
    toys.perform(toys.engine.handle(Leave(3), 0.5))
    toys.rounds(1)
    worker = next(w for w in toys.engine.view.workers.values() if w.push_weight != 1 and w.id != 3)
    orders = toys.engine.composition.communication.on_release(worker.id, toys.engine.view)
    assert orders == {"lr_scale": pytest.approx(1 / worker.push_weight)}


# -------------------------------------------------------------------- pairs


def test_a_pair_is_averaged_at_once_and_nobody_waits():
    toys = Toys(made("ad_psgd", "ring"), np.arange(6.0)[:, None])
    for _ in range(30):
        toys.step(int(toys.rng.integers(6)))  # all compute, always
    assert not (toys.log.columns()["kind"] == Kind.HOLD).any()
    assert all(len(mix.rows) == 2 for mix in toys.mixes)
    assert toys.models.mean() == pytest.approx(2.5)


def test_a_gradients_staleness_is_the_averages_since_its_step_began():
    toys = Toys(made("ad_psgd", "complete"), np.zeros((2, 1)))
    for worker in (0, 0, 0, 1):
        toys.step(worker)
    found = metrics.staleness(toys.log)
    assert found["worker"].tolist() == [0, 0, 0, 1]
    assert found["staleness"].tolist() == [0, 0, 0, 3]


def test_partners_of_the_other_parity():
    toys = Toys(made("ad_psgd", "complete", partners="other_parity"), np.zeros((6, 1)))
    toys.rounds(5)
    assert {sum(mix.rows) % 2 for mix in toys.mixes} == {1}


# -------------------------------------------------------------------- who comes and goes


@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first", "sgp", "ad_psgd"])
def test_a_newcomer_begins_with_anothers_model_and_is_waited_for(name):
    toys = Toys(made(name, "ring"), np.random.default_rng(8).normal(size=(5, 2)))
    toys.rounds(2)
    toys.perform(toys.engine.handle(Leave(2), 20.0))
    toys.rounds(3)
    toys.now = 90.0
    toys.perform(toys.engine.handle(Join(2), 90.0))
    assert toys.mixes[-1].rows == {2: {0: 1.0}}
    workers = toys.engine.view.workers
    assert workers[2].version == max(w.version for w in workers.values())
    toys.rounds(4)
    assert len({w.version for w in workers.values()}) == 1 or name == "ad_psgd"


# -------------------------------------------------------------------- runs


def test_in_the_complete_graph_stepping_first_is_bsp():
    momentum = {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}
    found, run = trained(made(graph="complete"), **momentum)
    expected, _ = trained("bsp", **momentum)
    torch.testing.assert_close(found, expected, **ROUNDING)
    assert run.metrics["consensus_distance"].max() < 1e-8
    averaged, _ = trained({"name": "local_sgd", "local_steps": 1, "local_momentum": "kept"}, **momentum)
    torch.testing.assert_close(found, averaged, **ROUNDING)
    mixed_first, _ = trained(made("d_psgd", "complete"), **momentum)
    assert (mixed_first - expected).norm() > 0.001 * expected.norm()


def test_a_ring_of_two_is_complete():
    two = {"cluster": {"workers": 2}}
    one, other = (trained(made(graph=graph), **two)[0] for graph in ("ring", "complete"))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first", "sgp", "ad_psgd"])
def test_it_learns_replays_and_agrees_on_a_model(name):
    _, run = trained(name, stop={"epochs": 6}, optimizer={"name": "sgd", "lr": 0.2, "momentum": 0.9})
    assert run.metrics["val_accuracy"].iloc[-1] > 0.9
    assert run.metrics["consensus_distance"].iloc[0] == 0
    assert 0 < run.metrics["consensus_distance"].iloc[-1] < 2
    assert ps.replay(run) == len(run.log)


def test_an_exchange_takes_and_sends_a_model_for_each_edge():
    cluster = {"name": "homogeneous", "workers": 4, "bandwidth_mbit_s": 8, "latency_s": 0.5}
    for name, graph, degree in (("d_psgd_step_first", "ring", 2), ("d_psgd_step_first", "complete", 3)):
        _, run = trained(made(name, graph), cluster=cluster, stop={"updates": 8}, timing_only=True)
        model = run.meta["model_bytes"]
        summary = run.summary()
        assert summary["bytes"] == {"up": 8 * degree * model, "down": 0}
        steps = metrics.pushes(run.log)["compute_s"]
        # the second exchange is decided at the end of the second step, and not waited for
        travel = degree * model / 1e6 + 0.5
        assert 2 * steps.min() < summary["time_s"] - travel < 2 * steps.max()


def test_a_model_that_is_sent_first_travels_while_its_worker_computes():
    cluster = {"name": "homogeneous", "workers": 4, "bandwidth_mbit_s": 80, "seconds_per_sample": 0.01}
    times = {
        name: trained(name, cluster=cluster, stop={"updates": 80}, timing_only=True)[1].summary()["time_s"]
        for name in ("d_psgd", "d_psgd_step_first")
    }
    assert times["d_psgd"] < times["d_psgd_step_first"]


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"consistency": "bsp"}, "use consistency 'neighbours'"),
        ({"consistency": "ssp"}, "use consistency 'neighbours'"),
        ({"aggregation": "mean"}, "use aggregation"),
        ({"aggregation": "pair_average"}, "'neighbour_average' or 'push_sum'"),
        ({"communication": "local_sgd"}, "use communication 'step_then_mix'"),
        ({"communication": {"name": "step_then_mix", "codec": "fp16"}}, "set both codecs to 'none'"),
        ({"placement": "parameter_server"}, "use placement 'gossip'"),
        ({"placement": {"name": "gossip", "servers": 2}}, "servers"),
        ({"placement": {"name": "gossip", "graph": "star"}}, "must be 'ring', 'torus'"),
    ],
)
def test_what_has_no_meaning_is_refused_with_what_has(change, word):
    parts = {
        "consistency": "neighbours",
        "aggregation": "neighbour_average",
        "communication": "step_then_mix",
        "placement": "gossip",
    }
    with pytest.raises(ps.errors.PsbenchError, match=word):
        Strategy(**parts | change)


def test_graphs_that_do_not_exist_are_refused_before_any_work():
    with pytest.raises(ps.errors.ParameterError, match="5 workers make no torus"):
        ps.Experiment(strategy=made(graph="torus"), cluster={"workers": 5})
    with pytest.raises(ps.errors.ParameterError, match="nobody to exchange with"):
        ps.Experiment(strategy=made(), cluster={"workers": 1})


def test_what_a_run_without_a_common_model_cannot_do_is_refused():
    for change, word in (
        ({"stop": {"tolerance": 0.1}}, "stop.tolerance: no common model moves"),
        (
            {"cluster": {"workers": 4, "corruptions": [{"worker": 1, "how": "nan"}]}},
            "use communication 'step_then_mix'",
        ),
    ):
        with pytest.raises(ps.errors.ParameterError, match=word):
            ps.Experiment(strategy="d_psgd", **change)
    with pytest.raises(ps.errors.ParameterError, match="nobody the one that a switch hands over"):
        ps.strategies.strategy_switch(first="d_psgd", second="asp")


# -------------------------------------------------------------------- checkpoints


def first_checkpoint(run):
    return run.meta["checkpoints"][0]


@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first", "sgp", "ad_psgd"])
def test_a_run_goes_on_from_a_checkpoint(name, tmp_path):
    experiment = ps.Experiment(
        **TINY | {"stop": {"epochs": 3}, "checkpoint_every": 1.0, "strategy": name},
        optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9},
    )
    whole = ps.run(experiment, folder=tmp_path / "run")
    resumed = ps.resume(first_checkpoint(whole), folder=tmp_path / "again")
    assert resumed.meta["status"] == "finished"
    assert ps.replay(resumed) == len(resumed.log)
    # steps under way were void, so that it is another run, of the same quality
    for value in ("val_loss", "consensus_distance"):
        one, other = (run.metrics[value].iloc[-1] for run in (whole, resumed))
        assert other == pytest.approx(one, rel=0.5)


def test_at_a_full_exchange_a_resumed_run_has_the_same_bits(tmp_path):
    experiment = ps.Experiment(
        **TINY | {"stop": {"epochs": 3}, "checkpoint_every": 1.0}, strategy=made(graph="complete")
    )
    whole = ps.run(experiment, folder=tmp_path / "run")
    resumed = ps.resume(first_checkpoint(whole), folder=tmp_path / "again")
    assert resumed.log.digest() == whole.log.digest()
    torch.testing.assert_close(resumed.parameters, whole.parameters, rtol=0, atol=0)


def test_a_worker_that_is_lost_and_one_that_comes(tmp_path):
    cluster = {"workers": 4, "failures": [{"worker": 1, "at_s": 0.3, "rejoin_s": 0.7}]}
    for name in ("d_psgd", "d_psgd_step_first", "sgp", "ad_psgd"):
        _, run = trained(name, cluster=cluster, stop={"epochs": 4})
        assert ps.replay(run) == len(run.log)
        assert run.metrics["val_accuracy"].iloc[-1] > 0.8


# -------------------------------------------------------------------- who has heard of whom


def test_who_has_heard_of_whom_follows_the_edges():
    toys = Toys(made("d_psgd_step_first", "ring"), np.zeros((6, 1)))
    toys.rounds(1)
    heard = metrics.heard_of(toys.log).pivot(index="worker", columns="of", values="heard").to_numpy()
    assert heard.tolist() == (graphs.weights("ring", 0, 6) > 0).astype(int).tolist()
    toys.rounds(2)
    table = metrics.heard_of(toys.log)
    distance = np.array(graphs.distances("ring", 6))
    expected = [3 - max(distance[w][o] - 1, 0) for w in range(6) for o in range(6)]
    assert table["heard"].tolist() == expected
    assert (table["missing"] == table["made"] - table["heard"]).all()
    along = metrics.lags(toys.log)
    assert along["most"].iloc[-1] == table["missing"].max()


def test_models_that_are_sent_first_bring_news_a_step_later():
    toys = Toys(made("d_psgd", "complete"), np.zeros((3, 1)))
    toys.rounds(2)
    table = metrics.heard_of(toys.log)
    assert table["heard"].tolist() == [2 if w == o else 1 for w in range(3) for o in range(3)]


def test_a_run_with_a_server_has_nobody_who_had_to_hear():
    _, run = trained("asp", stop={"updates": 5})
    assert metrics.heard_of(run.log).empty


# -------------------------------------------------------------------- live, in threads


def live(strategy, **changes):
    settings = TINY | {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}, "backend": "dask"} | changes
    experiment = ps.Experiment(**settings, strategy=strategy)
    run = ThreadedRun(experiment).run()
    assert run.error is None
    return experiment, run


@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first"])
def test_live_in_the_complete_graph_it_has_the_bits_of_virtual_time(name):
    experiment, found = live(made(name, "complete"))
    expected = ps.run(experiment.but(backend="simulated"))
    last, other = found.log.evaluations()[-1], expected.log.evaluations()[-1]
    if name == "d_psgd_step_first":  # else workers run ahead, each at its own pace
        torch.testing.assert_close(found.parameters, expected.parameters, rtol=0, atol=0)
        assert last["val_loss"] == other["val_loss"]
        assert metrics.total_bytes(found.log)["up"] == metrics.total_bytes(expected.log)["up"]
    assert last["consensus_distance"] < 1


@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first", "sgp", "ad_psgd"])
def test_live_it_learns_and_replays(name):
    experiment, found = live(name, stop={"epochs": 4})
    last = found.log.evaluations()[-1]
    assert last["val_accuracy"] > 0.85
    assert 0 < last["consensus_distance"] < 2

    meta = Workload.build(experiment).facts()
    assert ps.replay(Run(experiment, found.log, meta, None, None)) == len(found.log)
