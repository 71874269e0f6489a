"""The computation tree of a run: what theory says of published methods, and a graph walked node by node."""

import numpy as np
import pytest

import psbench as ps
from psbench import charts, metrics
from psbench.core.log import EventLog, Kind
from psbench.errors import ParameterError
from psbench.strategies import make_strategy
from psbench.testing import toy_experiment
from psbench_fuzz.explore import explore
from psbench_fuzz.schedule import Schedule

WORKERS = 4


def tree_of(name, schedule_seed, workers=WORKERS, events=60):
    """The tree and the log of a schedule drawn by chance, in which nobody leaves."""
    strategy = make_strategy(name)
    schedule = Schedule(strategy.spec(), workers, workers, seed=schedule_seed, batches=(4,))
    rng = np.random.default_rng(schedule_seed)
    _, error, player = explore(schedule, strategy, rng, events, kinds="", heals=False)
    assert error is None
    log = player.engine.log
    return metrics.computation_tree(log, strategy), log


def largest_staleness(log):
    ages = metrics.staleness(log)["staleness"]
    return int(ages.max()) if len(ages) else 0  # some schedules end before the first update


def check_theory(seed):
    """R and delays of five methods (Birch SGD, Table 1 and sec. 3; Ringleader, Lemma on delays)."""
    n = WORKERS
    bsp, _ = tree_of("bsp", seed)
    whole = bsp.gradients.groupby("version").size().max() == n
    assert bsp.radius == n - 1 if whole else bsp.radius < n - 1
    rennala, _ = tree_of({"name": "rennala", "k": 3}, seed)
    assert rennala.radius == 2
    ringmaster, _ = tree_of({"name": "ringmaster", "max_delay": 3}, seed)
    assert ringmaster.radius <= 2
    asp, log = tree_of("asp", seed)
    assert asp.radius == largest_staleness(log)
    _, log = tree_of("ringleader", seed)
    assert largest_staleness(log) <= 2 * n - 2


def test_radius_and_delays_are_what_theory_says_of_each_method():
    for seed in range(8):
        check_theory(seed)


@pytest.mark.nightly
def test_radius_and_delays_of_ten_thousand_schedules():
    for seed in range(2_000):
        check_theory(seed)


# ------------------------------------------------------------------ the paper's definitions, walked


class Graph:
    """Nodes with their parent and the gradient on the edge; the main branch is grown push by push."""

    def __init__(self):
        self.parent, self.edge = {0: None}, {0: None}
        self.main = [0]

    def add(self, parent, gradient):
        node = len(self.parent)
        self.parent[node], self.edge[node] = parent, gradient
        return node

    def path(self, node):
        found = [node]
        while self.parent[found[-1]] is not None:
            found.append(self.parent[found[-1]])
        return found

    def distance(self, one, other):
        mine, theirs = self.path(one), self.path(other)
        common = next(node for node in mine if node in theirs)
        return max(mine.index(common), theirs.index(common))

    def gradients(self, node):
        return {self.edge[each] for each in self.path(node)} - {None}


def walked(log, own_steps):
    """The distances along the main branch, and whether all of repr(z) is in repr(x)."""
    rows = log.rows()
    pushes = {int(row["id"]): row for row in rows[rows["kind"] == Kind.PUSH]}
    graph, of_version = Graph(), {0: 0}
    applied = rows[rows["kind"] == Kind.APPLY]
    distances, contained = [], []
    for place, row in enumerate(applied):
        push = pushes[int(row["id"])]
        start = of_version[int(push["version"])]
        ways, z = [], start
        for step in range(int(push["steps"]) if own_steps else 1):
            ways.append(z)
            z = graph.add(z, (int(row["id"]), step))
        alone = [int(each["version"]) for each in applied].count(int(row["version"])) == 1
        coincides = graph.main[-1] == start and alone
        for step, z in enumerate(ways):
            x = graph.main[-1]
            distances.append(0 if coincides else graph.distance(x, z))
            contained.append(graph.gradients(z) <= graph.gradients(x))
            graph.main.append(graph.add(x, (int(row["id"]), step)))
        last = place + 1 == len(applied) or applied[place + 1]["version"] != row["version"]
        if last:
            of_version[int(row["version"])] = graph.main[-1]
    return distances, contained


@pytest.mark.parametrize(
    ("strategy", "own_steps"),
    [
        ("bsp", False),
        ("asp", False),
        ("ssp", False),
        ("k_bsp", False),
        ("rennala", False),
        ("all_reduce", False),
        ({"name": "local_sgd", "communication": {"name": "local_sgd", "local_steps": 3}}, True),
        ("diloco", True),
    ],
    ids=str,
)
def test_the_tree_is_the_graph_walked_node_by_node(strategy, own_steps):
    cluster = {"workers": 3, "speed": [1.0, 0.7, 0.3]}
    done = ps.run(toy_experiment(strategy, cluster=cluster))
    tree = metrics.computation_tree(done.log, done.experiment.strategy)
    distances, contained = walked(done.log, own_steps)
    assert tree.gradients["distance"].tolist() == distances
    assert all(contained)
    assert tree.radius == max(distances) > 0


@pytest.mark.parametrize("strategy", ["bsp", "asp", {"name": "local_sgd"}], ids=str)
def test_one_worker_is_sgd_with_gradients_where_they_are_applied(strategy):
    done = ps.run(toy_experiment(strategy, cluster={"workers": 1}))
    tree = metrics.computation_tree(done.log, done.experiment.strategy)
    assert tree.radius == 0
    assert len(tree.gradients) > 1


def test_a_switch_changes_how_pushes_are_read():
    own = {"name": "local_sgd", "local_steps": 2}
    second = {"consistency": "bsp", "aggregation": "model_average", "communication": own, "name": "second"}
    strategy = {"first": "bsp", "second": second, "rule": {"name": "after", "fraction": 0.5}}
    done = ps.run(toy_experiment(strategy, cluster={"workers": 2}))
    tree = metrics.computation_tree(done.log, done.experiment.strategy)
    of_a_push = tree.gradients.groupby("push").size().tolist()
    assert of_a_push[0] == 1
    assert of_a_push[-1] == 2
    assert tree.gradients.groupby("version")["distance"].max().tolist()[-1] == 3


def test_the_largest_rate_is_the_smallest_of_three_bounds():
    log = EventLog()
    for worker in range(3):
        log.add(Kind.JOIN, 0.0, worker)
    for worker in range(3):
        log.add(Kind.PUSH, 1.0, worker, id=worker, steps=1)
    for worker in range(3):
        log.add(Kind.APPLY, 1.0, worker, id=worker, version=1, steps=1)
    tree = metrics.computation_tree(log, make_strategy("bsp"))
    assert tree.gradients["distance"].tolist() == [0, 1, 2]
    assert tree.largest_rate(smoothness=1.0, variance=0.0, target=1.0) == 1 / 4  # 1/(2RL)
    assert tree.largest_rate(smoothness=1.0, variance=10.0, target=1.0) == 1 / 40  # eps/(4 sigma^2 L)
    fresh = metrics.computation_tree(EventLog(), make_strategy("bsp"))
    assert fresh.radius == 0
    assert fresh.largest_rate(smoothness=2.0, variance=0.0, target=1.0) == 1 / 4  # 1/(2L)
    with pytest.raises(ParameterError, match="smoothness = 0"):
        tree.largest_rate(smoothness=0, variance=0, target=1)


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ("d_psgd", "no server"),
        ("easgd", "workers continue"),
        ("selsync", "workers continue"),
        ("osp", "workers"),
    ],
)
def test_a_strategy_without_a_tree_is_refused_with_the_reason(strategy, why):
    with pytest.raises(ParameterError, match=why):
        metrics.computation_tree(EventLog(), make_strategy(strategy))


def test_bars_go_from_where_a_gradient_was_taken_to_where_it_was_applied():
    done = ps.run(toy_experiment("asp", cluster={"workers": 3, "speed": [1.0, 0.7, 0.3]}))
    tree = metrics.computation_tree(done.log, done.experiment.strategy)
    piece = charts.tree_figure(tree, first=5, nodes=4)
    drawn = piece.table[["node", "base", "worker"]].to_numpy().tolist()
    assert drawn == tree.gradients[["node", "base", "worker"]].to_numpy()[5:9].tolist()
    (rows,) = piece.chart.to_dict()["datasets"].values()
    assert {row["y"] for row in rows} == {1 + worker for _, _, worker in drawn}
    with pytest.raises(ParameterError, match="no server"):
        ps.run(toy_experiment("d_psgd", cluster={"workers": 3})).chart("tree")
