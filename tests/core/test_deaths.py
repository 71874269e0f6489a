"""Deaths at awkward moments: while numbers are being measured, and of workers that were dropped."""

from __future__ import annotations

import pytest

from psbench import strategies
from psbench.core.actions import Release
from psbench.core.events import Join, Leave
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.metrics import timeline
from psbench.runs.execution import run
from psbench.runs.replaying import replay
from psbench.testing import ScriptedCluster, toy_experiment
from psbench.testing.invariants import Invariants
from psbench.testing.toys import toy_cluster

DROPPING = {"name": "drop_stragglers", "window": 1, "patience": 1, "most": 0.5, "readmit_after_s": 0.2}


def dropping(**failure):
    """BSP on three workers, of which the slow one is dropped with its first push at 20 ms, until 220 ms."""
    cluster = toy_cluster([1.0, 1.0, 0.25], failures=[{"worker": 2, **failure}])
    return run(toy_experiment(strategies.bsp(stragglers=DROPPING), cluster=cluster, stop={"seconds": 0.4}))


def rows(done, worker):
    kinds = [Kind(kind) for kind in done.log.rows()["kind"][done.log.rows()["worker"] == worker]]
    return [kind for kind in kinds if kind in (Kind.JOIN, Kind.DROP, Kind.LEAVE, Kind.READMIT)]


@pytest.mark.slow
def test_a_dropped_worker_that_dies_is_not_taken_back():
    done = dropping(at_s=0.1)
    assert rows(done, 2) == [Kind.JOIN, Kind.DROP, Kind.LEAVE]
    assert replay(done) == len(done.log)


def test_a_dropped_worker_that_lives_is_taken_back():
    assert rows(dropping(at_s=0.39), 2)[:3] == [Kind.JOIN, Kind.DROP, Kind.READMIT]


def test_a_dropped_worker_that_dies_and_comes_back_joins_once():
    done = dropping(at_s=0.1, rejoin_s=0.15)
    assert rows(done, 2)[:4] == [Kind.JOIN, Kind.DROP, Kind.LEAVE, Kind.JOIN]
    assert Kind.READMIT not in rows(done, 2)[:5]
    assert replay(done) == len(done.log)


@pytest.mark.slow
def test_who_was_dropped_and_dies_is_away_once():
    spans = timeline(dropping(at_s=0.1).log)
    last = spans[spans["worker"] == 2]["end_s"].max()
    assert last <= 0.1
    assert all(0.0 <= share <= 1.0 for share in dropping(at_s=0.1).summary()["idle_fraction"])


#: measures for 0.25 s of the scripted cluster's time with every commit but the first
MEASURING = Strategy(
    consistency="asp",
    communication={"name": "local_sgd", "local_steps": 1},
    aggregation="loss_weighted",
)


def test_who_leaves_and_comes_back_while_numbers_are_measured_begins_once():
    """Worker 1 pushes at 1.1 s; while its push is measured it goes and returns."""
    changes = [(1.15, Leave(1)), (1.2, Join(1))]
    cluster = ScriptedCluster(MEASURING, [1.0, 1.1], changes=changes)
    invariants = Invariants("leaves while measured", cluster.engine)
    cluster.run(until=1.4)
    invariants.look()
    answered = [a for _, _, actions in cluster.history for a in actions if isinstance(a, Release)]
    assert sum(a.worker == 1 for a in answered) == 3  # at the start, for its push, and as a newcomer
    cluster.run(until=2.6)
    pushed = cluster.log.of_kind(Kind.PUSH)
    assert pushed["time_s"][pushed["worker"] == 1].round(6).tolist() == [1.1, 2.45]
    invariants.look()


def test_a_late_worker_that_dies_while_it_waits_for_numbers_does_not_stay():
    """Measuring takes a backend's time; whoever comes and goes meanwhile has been and gone."""
    cluster = toy_cluster(
        [1.0, 1.0, 1.0],
        joins=[{"worker": 2, "at_s": 0.0201}],
        failures=[{"worker": 2, "at_s": 0.0202}],
    )
    done = run(toy_experiment(MEASURING, cluster=cluster, stop={"seconds": 0.1}))
    assert rows(done, 2) == [Kind.JOIN, Kind.LEAVE]
    joins = done.log.of_kind(Kind.JOIN)
    assert joins["time_s"][joins["worker"] == 2] > 0.0202  # the engine heard of it when it was dead already
    assert replay(done) == len(done.log)
