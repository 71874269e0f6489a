"""HALoS: servers in two levels. What equals what, the order of what happens between servers, refusals.

`Simulator` restates the authors' code, which has no licence: utnslab/halos, commit 4b5bf73, src/halos.
"""

import heapq
from itertools import count

import numpy as np
import pytest
import torch
from threaded_run import ThreadedRun
from vectors import how, pushed

import psbench as ps
from psbench import metrics
from psbench.core.actions import Apply, Note
from psbench.core.events import Push
from psbench.core.log import Kind
from psbench.core.view import ClusterView, WorkerView
from psbench.errors import ParameterError
from psbench.optimization.optimizer import SGD
from psbench.strategies.aggregation import TwoLevels
from psbench.testing import check_strategy, toy_experiment
from psbench.training.server import Server

NONE = torch.zeros(0)
#: a region that takes over the global model, whose step is what the region has sent
ONE_LEVEL = {"pushes_per_exchange": 1, "merging": 1.0, "global_lr": 1.0, "global_momentum": 0.0}


def run(strategy, **changes):
    spec = {"stop": {"updates": 24}, "seed": 3, "model": "mlp"}
    cluster = {"workers": 4, "speed": [1.0, 0.7, 0.5, 0.4], "step_time": "constant"}
    return ps.run(toy_experiment(strategy, **spec | {"cluster": cluster} | changes))


def halos(**values):
    return {"name": "halos", "local_steps": 4} | values


def decided(part, pushes, links=()):
    """Return the numbers of the commits of pushes (time, worker)."""
    view = ClusterView(4, 1, 1)
    view.layout = [("a", 125_000)]  # half a megabyte: 4 Mbit
    found = []
    for number, (now, worker) in enumerate(pushes):
        view.now = now
        *notes, apply = part.on_commit([Push(number, worker, 1, 0, samples=8)], view)
        assert isinstance(apply, Apply)
        assert all(isinstance(note, Note) for note in notes)
        found.append([(key.split()[1], int(value)) for key, value in apply.numbers.items()])
    return found


# -------------------------------------------------------------------- what happens between servers


def test_an_update_takes_its_way_and_pushes_go_on_meanwhile():
    part = TwoLevels(region_size=2, pushes_per_exchange=2, region_links_mbit_s=(4.0, 1.0))
    pushes = [(0.0, 0), (0.5, 1), (1.0, 0), (1.6, 2), (2.6, 0), (3.0, 1), (5.0, 3), (99.0, 0)]
    assert decided(part, pushes) == [
        [("begin", 0), ("push", 0)],
        [("push", 0), ("send", 0)],  # a second there, and one back
        [("push", 0)],
        [("global", 0), ("begin", 1), ("push", 1)],  # the view of this test has no other workers
        [("merge", 0), ("push", 0)],  # and counts anew
        [("push", 0), ("send", 0)],
        [("global", 0), ("merge", 0), ("push", 1), ("send", 1)],  # four seconds each way
        [("global", 1), ("merge", 1), ("push", 0)],
    ]


class Stepped:
    """ParameterServer (ps.py): a model and its DelayedNesterovOptimizer (opt.py, lines 93-112, c = 0)."""

    def __init__(self, model, lr, beta, buffer_size):
        self.model, self.lr, self.beta, self.size = model, lr, beta, buffer_size
        self.t, self.m, self.delta = 0, np.zeros_like(model), np.zeros_like(model)

    def update_model(self, grad):
        self.delta = self.delta + grad  # line 96
        if (self.t + 1) % self.size == 0:  # lines 99-105
            self.m = self.beta * self.m + self.delta / self.size
            self.model = self.model - self.lr * (self.beta * self.m + grad / self.size)
            self.delta = np.zeros_like(grad)
        else:  # line 109
            self.model = self.model - self.lr * (grad / self.size)
        self.t += 1

    def merge_model(self, merge_params, merge_weight):  # ps.py, lines 66-69
        self.model = self.model * (1.0 - merge_weight) + merge_params * merge_weight


class Simulator:
    """simulation/exec_halos.py: LocalParameterServer (lines 22-118) and HalosSimulator (lines 186-240)."""

    def __init__(self, own, model, regions, seconds):
        # examples/run_halos.sh, lines 19-20: each rate is multiplied by its buffer size
        local = own.region_lr * own.region_every, own.region_momentum, own.region_every
        self.gps = Stepped(model, own.global_lr * own.global_every, own.global_momentum, own.global_every)
        self.lps = [Stepped(model, *local) for _ in range(regions)]  # each loads the model (ps.py, line 14)
        self.merged, self.version, self.merged_version = [model] * regions, [0] * regions, [0] * regions
        self.alpha, self.k, self.seconds = own.merging, own.pushes_per_exchange, seconds
        self.events, self.ids = [], count()

    def progress(self, until):  # common.py, lines 375-390
        while self.events and self.events[0][0] <= until:
            self.time, _, callback = heapq.heappop(self.events)
            callback()

    def schedule(self, wait, callback):
        heapq.heappush(self.events, (self.time + wait, next(self.ids), callback))

    def on_new_worker_pgrads(self, now, r, pgrads):  # lines 57-81
        self.progress(now)
        self.time = now
        self.lps[r].update_model(pgrads)
        self.version[r] += 1
        if self.version[r] == self.merged_version[r] + self.k:
            update = self.merged[r] - self.lps[r].model  # line 99
            self.schedule(self.seconds[r], lambda: self.on_new_lps_updates(r, update))
        return self.lps[r].model  # what the worker goes on from, line 113

    def on_new_lps_updates(self, r, update):  # lines 215-237
        self.gps.update_model(update)
        params = self.gps.model
        self.schedule(self.seconds[r], lambda: self.on_new_global_model(r, params))

    def on_new_global_model(self, r, params):  # lines 83-89
        self.lps[r].merge_model(params, self.alpha)
        self.merged[r], self.merged_version[r] = self.lps[r].model, self.version[r]


@pytest.mark.parametrize(
    "values",
    [
        {"merging": 0.25},  # as in examples/run_halos.sh
        {"merging": 0.6, "pushes_per_exchange": 2, "region_every": 3, "global_every": 1},
        {"merging": 1.0, "region_momentum": 0.0, "global_lr": 0.8},
    ],
)
def test_both_levels_step_as_the_simulator_of_the_authors(values):
    """Region 2 is slow: its first push comes after the global model has moved."""
    rng, start = np.random.default_rng(5), np.array([10.0, -3.0])
    links = (4.0, 1.0, 0.5)  # 1, 4 and 8 s for half a megabyte
    part = TwoLevels(**{"region_size": 2, "pushes_per_exchange": 4, "region_links_mbit_s": links} | values)
    own = Server(torch.tensor(start, dtype=torch.float32), NONE, SGD(lr=9.0), 8, part)
    theirs = Simulator(part, start, 3, [4.0 / link for link in links])
    view = ClusterView(6, 1, 1)
    view.layout = [("a", 125_000)]
    for worker in range(6):
        view.workers[worker] = WorkerView(worker)
    moved = []
    for number in range(80):
        worker = int(rng.integers(6 if number > 25 else 4))
        view.now, given = 0.3 + 0.5 * number, rng.normal(size=2)
        answer = theirs.on_new_worker_pgrads(view.now, worker // 2, given)
        *_, apply = part.on_commit([Push(number, worker, 1, number, samples=8)], view)
        own.apply(pushed([torch.tensor(given, dtype=torch.float32)]), how(numbers=apply.numbers))
        np.testing.assert_allclose(own.aggregate, answer, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(own.parameters, theirs.gps.model, rtol=1e-4, atol=1e-5)
        moved.append(not np.array_equal(theirs.gps.model, start))
    assert moved[26], "the region is not late"


def test_a_region_whose_workers_come_later_begins_with_the_global_model():
    part, view = TwoLevels(region_size=1, pushes_per_exchange=1), ClusterView(2, 1, 1)
    own = Server(torch.tensor([10.0]), NONE, SGD(lr=9.0), 8, part)
    for number, worker in enumerate([0, 0, 1]):
        view.workers[worker] = WorkerView(worker)
        *_, apply = part.on_commit([Push(number, worker, 1, number, samples=8)], view)
        before = own.parameters.item()
        own.apply(pushed([torch.tensor([4.0 - worker])]), how(numbers=apply.numbers))
    assert before != 10.0
    sent = part.region_lr * 3.0  # what the new region sends at once: it has exchanged with every push
    assert own.parameters.item() == pytest.approx(before - part.global_lr * sent)
    merged = (1 - part.merging) * (before - sent) + part.merging * own.parameters.item()
    assert own.aggregate.item() == pytest.approx(merged)


def test_workers_are_ordered_the_steps_of_the_authors_environment():
    """common.py, line 508: max(1, ceil(H speed)), H = 8, speeds of examples/env.yaml over the fastest."""
    speeds = [0.232, 0.907, 0.828, 0.347, 0.574, 0.531, 0.722, 0.194]
    speeds += [0.852, 0.132, 0.896, 0.107, 0.827, 0.515, 0.527, 0.788]
    found = ps.run(
        toy_experiment(
            halos(local_steps=8, region_size=4),
            **{"stop": {"updates": 300}, "batch_size": 16},
            cluster={"workers": 16, "speed": speeds, "step_time": "constant"},
        )
    )
    pushes = metrics.pushes(found.log)
    last = pushes[pushes["steps"] > 0].groupby("worker")["steps"].last()
    expected = np.maximum(1, np.ceil(8 * np.array(speeds) / max(speeds)))
    assert last.to_list() == expected.tolist()


# -------------------------------------------------------------------- what equals what


def test_one_region_that_exchanges_at_once_is_async_local_sgd():
    rates = {"region_lr": 0.175, "region_momentum": 0.5, "region_every": 4}
    one = run(halos(region_size=4, global_every=1, **rates | ONE_LEVEL))
    other = run(
        {
            "name": "async_local_sgd",
            "local_steps": 4,
            "outer_lr": 0.7,
            "outer_momentum": 0.5,
            "momentum_every": 4,
            "rounding": "up",
        }
    )
    torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-4, atol=1e-5)
    assert one.summary()["time_s"] == other.summary()["time_s"]


def test_regions_that_never_exchange_leave_the_global_model_where_it_is():
    alone = run(halos(pushes_per_exchange=1000))
    start = run(halos(), stop={"updates": 1})
    torch.testing.assert_close(alone.parameters, start.parameters)
    assert not torch.equal(run(halos(pushes_per_exchange=2)).parameters, start.parameters)


def test_slow_links_between_regions_delay_the_global_model_and_no_worker():
    near, far = (
        run(halos(pushes_per_exchange=2, **links)) for links in ({}, {"region_links_mbit_s": [1e6, 0.01]})
    )
    assert near.summary()["time_s"] == far.summary()["time_s"]
    assert not torch.equal(near.parameters, far.parameters)
    (said,) = {text for text in far.log.texts if text.startswith("region 1")}
    assert "s each way" in said
    assert far.log.of_kind(Kind.NOTE)["id"].size
    ps.replay(far)


def test_bits_are_those_of_one_server_on_three_and_live():
    one, three = (run(halos(pushes_per_exchange=2, servers=count)) for count in (1, 3))
    assert one.meta["params_digest"] == three.meta["params_digest"]
    alone = run(halos(region_size=1, pushes_per_exchange=1), cluster={"workers": 1, "step_time": "constant"})
    live = ThreadedRun(alone.experiment.model_copy(update={"backend": "dask"})).run()
    assert torch.equal(live.parameters, alone.parameters)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"consistency": "bsp"}, "weights one push against its own state"),
        ({"communication": "local_sgd"}, "use communication 'answered_sgd' or 'regional_sgd'"),
        ({"aggregation": "delayed_nesterov"}, "use aggregation 'heloco' or 'two_levels'"),
        ({"placement": "all_reduce"}, "sums pushes in transit"),
    ],
)
def test_what_has_no_meaning_is_refused(values, says):
    with pytest.raises(ParameterError, match=says):
        ps.strategies.halos(**values)


def test_there_is_a_link_for_each_region():
    with pytest.raises(ParameterError, match="4 workers in regions of 2 need 2"):
        run(halos(region_links_mbit_s=[1.0]))


@pytest.mark.slow
def test_it_keeps_the_contract():
    check_strategy(ps.strategies.halos(pushes_per_exchange=2), clusters=1)
