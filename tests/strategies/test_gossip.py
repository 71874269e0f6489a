"""Workers without a server: what equals what, what is kept and what contracts, how long it takes."""

from math import cos, pi
from typing import get_args

import numpy as np
import pytest

import psbench as ps
from psbench import metrics
from psbench.core import ClusterView, Engine, Hold, Push, Release
from psbench.core.actions import Apply, Mix
from psbench.core.events import Join, Leave
from psbench.core.log import EventLog, Kind
from psbench.core.peer_to_peer import sends_before_step
from psbench.core.view import Status
from psbench.strategies.placement import graphs

#: those that are drawn edge by edge; the others are of groups
GRAPHS = [name for name in get_args(graphs.GraphName) if name not in ("moshpit", "hierarchical")]


class Toys:
    """Workers with small vectors, whose steps end in an order that is drawn."""

    def __init__(self, strategy, models, seed=0, gradient=None):
        self.models = np.array(models, dtype=float)
        n = len(self.models)
        self.log, self.rng = EventLog(), np.random.default_rng(seed)
        self.engine = Engine(strategy, ClusterView(n, dataset_size=n, global_batch=n), log=self.log)
        self.gradient = gradient or (lambda worker, model: 0 * model)
        self.steps_first = not sends_before_step(strategy.communication)
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


@pytest.mark.parametrize("graph", GRAPHS)
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


@pytest.mark.parametrize(("size", "n", "rounds"), [(2, 8, 3), (3, 9, 2), (4, 4, 1)])
def test_moshpit_averaging_is_exact_after_an_exchange_along_each_axis(size, n, rounds):
    start = np.random.default_rng(9).normal(size=(n, 2))
    toys = Toys(made("moshpit_sgd", "moshpit", group_size=size), start)
    toys.rounds(rounds)
    np.testing.assert_allclose(toys.models, np.broadcast_to(start.mean(0), (n, 2)), atol=1e-12)


def test_levels_that_never_meet_are_refused():
    with pytest.raises(
        ps.errors.ParameterError, match=r"connect only 4 of 6 workers.* add a level such as \[8, 6\]"
    ):
        ps.Experiment(
            strategy=made("hierarchical_sgd", "hierarchical", levels=[(1, 4)]), cluster={"workers": 6}
        )


@pytest.mark.parametrize("name", ["moshpit_sgd", "hierarchical_sgd"])
def test_groups_that_are_not_full_keep_the_mean(name):
    start = np.random.default_rng(10).normal(size=(7, 2))
    toys = Toys(ps.strategies.CATALOGUE[name](), start)
    toys.rounds(8)
    np.testing.assert_allclose(toys.models.mean(0), start.mean(0), atol=1e-12)
    assert toys.spread < ((start - start.mean(0)) ** 2).sum() / 10


def test_of_several_levels_that_with_the_longest_period_is_due():
    start = np.arange(4.0)[:, None]
    toys = Toys(made("hierarchical_sgd", "hierarchical", levels=[(2, 2), (4, 4)]), start)
    expected = [[0, 1, 2, 3], [0.5, 0.5, 2.5, 2.5], [0.5, 0.5, 2.5, 2.5], [1.5] * 4]
    for models in expected:
        toys.rounds(1)
        np.testing.assert_allclose(toys.models[:, 0], models)


def distances(graph, n):
    """Return after how many exchanges each worker has heard of what each other had at first; -1: never."""
    found = [[0 if i == j else -1 for j in range(n)] for i in range(n)]
    for number in range(64):
        before = [row[:] for row in found]
        for sender, receiver in graphs.edges(graph, number, n):
            for origin in range(n):
                if before[sender][origin] >= 0 and found[receiver][origin] < 0:
                    found[receiver][origin] = number + 1
    return found


def test_news_travels_an_edge_an_exchange():
    assert distances("ring", 6)[0] == [0, 1, 2, 3, 2, 1]
    assert max(max(row) for row in distances("exponential", 16)) == 4


# -------------------------------------------------------------------- decisions


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first"])
def test_exchanges_are_the_mixing_matrices_whatever_the_order_of_arrival(name, graph):
    start = np.random.default_rng(1).normal(size=(6, 3))
    toys = Toys(made(name, graph), start, seed=5)
    toys.rounds(4)
    expected = start
    for exchange in range(4):
        expected = graphs.weights(graph, exchange, 6) @ expected
    np.testing.assert_allclose(toys.models, expected, atol=1e-12)
    assert metrics.staleness(toys.log)["staleness"].max() == 0  # nobody else mixes a worker's model
    assert metrics.staleness(toys.log)["version"].max() == 4  # of the worker's own, not of all


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
    mix, apply, release = push(2, 3)[:3]  # 0 has 3 and 1 now; worker 2 computes on
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


# -------------------------------------------------------------------- who has heard of whom


def test_who_has_heard_of_whom_follows_the_edges():
    toys = Toys(made("d_psgd_step_first", "ring"), np.zeros((6, 1)))
    toys.rounds(1)
    heard = (
        metrics.gradient_spread(toys.log).pivot(index="worker", columns="of", values="received").to_numpy()
    )
    assert heard.tolist() == (graphs.weights("ring", 0, 6) > 0).astype(int).tolist()
    toys.rounds(2)
    table = metrics.gradient_spread(toys.log)
    distance = np.array(distances("ring", 6))
    expected = [3 - max(distance[w][o] - 1, 0) for w in range(6) for o in range(6)]
    assert table["received"].tolist() == expected
    assert (table["missing"] == table["made"] - table["received"]).all()
    along = metrics.lags(toys.log)
    assert along["most"].iloc[-1] == table["missing"].max()


def test_models_that_are_sent_first_bring_news_a_step_later():
    toys = Toys(made("d_psgd", "complete"), np.zeros((3, 1)))
    toys.rounds(2)
    table = metrics.gradient_spread(toys.log)
    assert table["received"].tolist() == [2 if w == o else 1 for w in range(3) for o in range(3)]
