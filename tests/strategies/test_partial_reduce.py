"""Partial reduce: one group of all is All-Reduce, the mean is kept, and groups that conflict take turns."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import psbench as ps
from psbench.core import Apply, Commit, Push, Release
from psbench.core.actions import Discard, Mix
from psbench.core.log import Kind
from psbench.errors import ParameterError
from psbench.strategies.aggregation import GroupAverage
from psbench.strategies.consistency import ArrivalGroups, RandomGroups
from psbench.testing import ScriptedCluster, toy_experiment
from psbench.testing.toys import toy_cluster

BOTH = ["partial_reduce", "prague"]
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
LINK = {"workers": 3, "bandwidth_mbit_s": 0.1, "latency_s": 0.01, "step_time": "constant"}


def made(name="partial_reduce", **values):
    return ps.strategies.CATALOGUE[name](**values)


# ---------------------------------------------------------------- one group of all


@pytest.mark.parametrize("name", BOTH)
def test_one_group_of_all_workers_is_all_reduce(name):
    """The model, the time of each update and the bytes, which a ring has in two halves."""
    ours, theirs = (
        ps.run(toy_experiment(each, cluster=LINK, optimizer=SGD, stop={"epochs": 6}))
        for each in (made(name, group_size=3), "all_reduce")
    )
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-4, atol=1e-5)
    assert ours.metrics["consensus_distance"].max() < 1e-8
    pushes = [run.log.of_kind(Kind.PUSH) for run in (ours, theirs)]
    np.testing.assert_array_equal(*(each["samples"] for each in pushes))
    # a push is logged when it arrives: under All-Reduce that of the last worker comes with the ring's end
    starts = [run.log.of_kind(Kind.PUSH)["time_s"][::3] for run in (ours, theirs)]
    np.testing.assert_allclose(*starts, rtol=1e-9)
    model = ours.meta["model_bytes"]
    assert set(ours.log.of_kind(Kind.MIX)["bytes"]) == {2 * 2 * model}
    sent = theirs.summary()["bytes"]
    assert sent["up"] == ours.summary()["bytes"]["up"] // 2


# ---------------------------------------------------------------- the mean


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("size", [2, 3])
def test_a_group_keeps_the_mean_of_all_models_and_agrees(name, size):
    cluster = ScriptedCluster(made(name, group_size=size), [1.0, 1.3, 1.7, 2.9, 0.6])
    cluster.run(until=20)
    models, mixed = np.random.default_rng(0).standard_normal((5, 4)), 0
    mean = models.mean(axis=0)
    for _, _, actions in cluster.history:
        for mix in (each for each in actions if isinstance(each, Mix)):
            before = models.copy()
            for worker, row in mix.rows.items():
                models[worker] = sum(weight * before[other] for other, weight in row.items())
            assert len(mix.rows) == size
            assert len({models[worker].tobytes() for worker in mix.rows}) == 1
            np.testing.assert_allclose(models.mean(axis=0), mean, atol=1e-12)
            mixed += 1
    assert mixed > 10
    assert np.ptp(models, axis=0).max() < 0.5


# ---------------------------------------------------------------- decisions


class Workers:
    """A view of workers, of which some have pushed; groups are drawn from a list."""

    def __init__(self, count, *draws):
        self.active, self.pending, self.num_active = list(range(count)), {}, count
        self.rng = SimpleNamespace(choice=lambda size, number, replace: draws_left.pop(0))
        draws_left = list(draws)
        self.workers = {worker: SimpleNamespace(last_push=-1) for worker in range(count)}

    def buffered(self):
        return sorted(self.pending.values(), key=lambda push: push.worker)

    def hear(self, part, worker):
        push = Push(len(self.pending) + 10 * worker, worker, 0, 0, 1)
        self.pending[push.id] = push
        self.workers[worker].last_push = push.id
        return self._done(part.on_push(push, self))

    def lose(self, part, worker):
        self.active.remove(worker)
        self.num_active -= 1
        return self._done(part.on_leave(worker, self))

    def _done(self, actions):
        told = []
        for each in actions:
            if isinstance(each, Commit):
                told.append([push.worker for push in each.pushes])
                for push in each.pushes:
                    del self.pending[push.id]
            elif isinstance(each, Discard):
                del self.pending[each.push.id]
                told.append(f"lost {each.push.worker}")
            else:
                told.append(("release" if isinstance(each, Release) else "hold", each.worker))
        return told


def test_the_first_that_arrive_are_a_group():
    part, view = ArrivalGroups(group_size=2), Workers(3)
    assert view.hear(part, 2) == [("hold", 2)]
    assert view.hear(part, 0) == [[0, 2], ("release", 0), ("release", 2)]
    assert view.hear(part, 0) == [("hold", 0)]
    assert view.hear(part, 1) == [[0, 1], ("release", 0), ("release", 1)]
    assert view.hear(part, 2) == [("hold", 2)]


def test_groups_with_a_common_member_take_turns():
    # of the others in order: 0 draws 1; 2 draws 1, too; 3 draws 2
    part, view = RandomGroups(group_size=2), Workers(4, [0], [1], [2])
    assert view.hear(part, 0) == [("hold", 0)]
    assert view.hear(part, 2) == [("hold", 2)]
    assert view.hear(part, 3) == [("hold", 3)]
    # 1 is in the groups of 0 and of 2, of which that of 0 is the older; 3 waits for 2, which waits for 1
    assert view.hear(part, 1) == [[0, 1], ("release", 0), ("release", 1)]
    assert view.hear(part, 1) == [[1, 2], ("release", 1), ("release", 2)]
    assert view.hear(part, 2) == [[2, 3], ("release", 2), ("release", 3)]


def test_a_worker_that_leaves_is_not_waited_for():
    part, view = ArrivalGroups(group_size=3), Workers(3)
    view.hear(part, 0), view.hear(part, 1)
    assert view.lose(part, 2) == [[0, 1], ("release", 0), ("release", 1)]
    view.hear(part, 0)
    assert view.lose(part, 0) == ["lost 0"]
    part, view = RandomGroups(group_size=2), Workers(3, [1], [0])
    view.hear(part, 0), view.hear(part, 1)  # 0 waits for 2, and 1 for 0
    assert view.lose(part, 2) == [[0], ("release", 0)]
    assert view.hear(part, 0) == [[0, 1], ("release", 0), ("release", 1)]


def test_no_circle_of_groups_waits():
    """Every worker of a long run goes on, whatever is drawn."""
    cluster = ScriptedCluster(made("prague", group_size=3), [1.0, 1.1, 0.9, 1.3, 2.5, 1.7])
    cluster.run(until=60)
    versions = [worker.version for worker in cluster.view.workers.values()]
    assert min(versions) > 5
    waiting = {}
    for _, event, actions in cluster.history:  # a worker is in one average at a time
        if isinstance(event, Push):
            waiting[event.worker] = event.id
        for each in actions:
            if isinstance(each, Apply):
                assert [waiting.pop(push.worker) for push in each.pushes] == [push.id for push in each.pushes]


# ---------------------------------------------------------------- runs


def test_a_straggler_is_not_waited_for():
    cluster = toy_cluster([1.0, 1.0, 1.0, 0.1])
    times = {
        name: ps.run(toy_experiment(strategy, cluster=cluster, stop={"epochs": 4})).summary()["time_s"]
        for name, strategy in (("partial", made(group_size=2)), ("all", "all_reduce"))
    }
    assert times["partial"] < times["all"] / 2


@pytest.mark.parametrize("name", BOTH)
def test_it_learns_replays_and_loses_workers(name):
    cluster = toy_cluster([1.0, 1.2, 0.8, 1.1], failures=[{"worker": 3, "at_s": 0.05}])
    run = ps.run(toy_experiment(made(name), cluster=cluster, stop={"epochs": 8}))
    losses = [row["train_loss"] for row in run.log.evaluations()]
    assert losses[-1] < losses[0]
    assert ps.replay(run) == len(run.log)
    heard = ps.metrics.gradient_spread(run.log)
    own = heard[heard["worker"] == heard["of"]]
    assert (own["missing"] <= 1).all()  # its own gradients are in each worker's model, but the last's


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"placement": "gossip"}, "use placement 'peers'"),
        ({"consistency": "bsp"}, "use consistency"),
        ({"aggregation": "pair_average"}, "use aggregation 'group_average'"),
        ({"communication": "every_step"}, "have no models of their own"),
    ],
)
def test_parts_of_another_family_are_refused(parts, message):
    with pytest.raises(ParameterError, match=message):
        made(**parts)


def test_a_group_is_no_larger_than_the_cluster():
    with pytest.raises(ParameterError, match="set group_size to 3 or less"):
        ps.run(toy_experiment(made(group_size=4), cluster=toy_cluster([1.0, 1.0, 1.0])))


def test_weights_are_those_of_the_mean():
    mix, *updates = GroupAverage().on_commit([Push(0, 2, 0, 0, 1), Push(1, 0, 0, 0, 1)], None)
    assert mix.rows == {0: {0: 0.5, 2: 0.5}, 2: {0: 0.5, 2: 0.5}}
    assert (mix.meet, mix.push) == (True, 1)
    assert [each.weights for each in updates] == [[1.0]] * 2  # each worker's model is one more version
    assert isinstance(mix, Mix)
