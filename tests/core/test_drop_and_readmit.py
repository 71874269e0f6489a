"""A part does without workers and takes them back, at any moment of an answer, under any strategy."""

from __future__ import annotations

from typing import ClassVar

import pytest
from pydantic import PrivateAttr
from toybox import put_in, take_out

from psbench import strategies
from psbench.core.actions import Action, Drop, Readmit
from psbench.core.events import Leave, Push
from psbench.core.log import Kind
from psbench.core.parts import Switching
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.specification import parameter
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView, Status
from psbench.strategies import CATALOGUE
from psbench.testing import ScriptedCluster, check_strategy, random_cluster
from psbench.testing.invariants import Invariants

#: without a server there is no model to hand over
NAMES = [
    name
    for name, entry in CATALOGUE.items()
    if isinstance(made := entry(), Strategy) and not isinstance(made.placement, PeerToPeer)
]


class Whim(Switching):
    """Toy: now and then drops somebody, or takes somebody back."""

    name: ClassVar[str] = "toy_whim"
    chance: float = parameter(0.3, "of a change")

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        return self._change(view)

    def on_applied(self, view: ClusterView) -> list[Action]:
        return self._change(view)

    def _change(self, view: ClusterView) -> list[Action]:
        worker = view.workers[int(view.rng.choice(sorted(view.workers)))]
        if view.rng.random() > self.chance:
            return []
        if worker.dropped:
            return [Readmit(worker.id)]
        return [Drop(worker.id, "a whim")] if worker.status is not Status.GONE else []


class Plan(Switching):
    """Toy: drops workers at one version and takes them back at another, in the hook asked for."""

    name: ClassVar[str] = "toy_plan"
    hook: str = parameter("on_applied", "when")
    drop: tuple[int, ...] = parameter((1, 2), "who")
    _changes: int = PrivateAttr(default=0)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        return self._change(view) if self.hook == "on_push" else []

    def on_applied(self, view: ClusterView) -> list[Action]:
        return self._change(view) if self.hook == "on_applied" else []

    def _change(self, view: ClusterView) -> list[Action]:
        if view.version < (3, 6, 10**9)[self._changes]:
            return []
        self._changes += 1
        if self._changes == 1:
            return [Drop(worker, "planned") for worker in self.drop]
        return [Readmit(worker) for worker in self.drop]


PARTS = take_out("toy_whim") + take_out("toy_plan")


@pytest.fixture(autouse=True, scope="module")
def toys():
    put_in(PARTS)
    yield
    take_out("toy_whim")
    take_out("toy_plan")


@pytest.mark.by_day(17)
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_switches_by_hand_at_random_under_every_strategy(name):
    strategy = strategies.strategy_switch(first=name, second="asp", rule="toy_whim")
    changes = 0
    for seed in range(2):
        cluster = random_cluster(strategy, seed)
        invariants = Invariants(f"{name}, cluster {seed}", cluster.engine)
        while len(cluster.history) < 80 and not cluster.done:
            cluster.step()
            invariants.look()
        changes += len(cluster.log.of_kind(Kind.READMIT)["row"])
    assert changes >= 1


@pytest.mark.slow
def test_the_contract_of_a_rule_with_whims():
    check_strategy(Whim, clusters=1)


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["on_push", "on_applied"])
@pytest.mark.parametrize(
    "first", ["bsp", "asp", "ssp", "k_bsp", "backup_workers", "all_reduce", "local_sgd", "osp"]
)
def test_changes_wait_until_the_answer_is_done(hook, first):
    """Asked within the answer, a barrier would open twice, and a k-variant cancel who is gone."""
    rule = {"name": "toy_plan", "hook": hook}
    cluster = ScriptedCluster(strategies.strategy_switch(first=first, rule=rule), [1, 1.5, 2, 1])
    cluster.run(until=400)
    dropped, back = cluster.log.of_kind(Kind.DROP), cluster.log.of_kind(Kind.READMIT)
    assert sorted(dropped["worker"].tolist()) == sorted(back["worker"].tolist()) == [1, 2]
    pushes = cluster.log.of_kind(Kind.PUSH)
    away = (pushes["row"] > dropped["row"].max()) & (pushes["row"] < back["row"].min())
    assert set(pushes["worker"][away].tolist()) <= {0, 3}
    released = cluster.log.of_kind(Kind.RELEASE)
    assert set(released["worker"][released["row"] > back["row"].max()].tolist()) == {0, 1, 2, 3}


def test_the_last_worker_stays():
    rule = {"name": "toy_plan", "drop": (0, 1, 2)}
    cluster = ScriptedCluster(strategies.strategy_switch(first="asp", rule=rule), [1, 1, 1])
    cluster.run(until=3.5)
    assert cluster.log.of_kind(Kind.DROP)["worker"].tolist() == [0, 1]
    assert cluster.engine.view.active == [2]


def test_if_all_others_leave_the_dropped_come_back():
    rule = {"name": "toy_plan", "drop": (0, 1)}
    changes = [(3.25, Leave(2)), (20.0, Leave(0))]
    cluster = ScriptedCluster(strategies.strategy_switch(first="bsp", rule=rule), [1, 1, 1], changes=changes)
    cluster.run(until=10)
    assert cluster.log.of_kind(Kind.READMIT)["time_s"].tolist() == [3.25, 3.25]
    assert cluster.engine.view.active == [0, 1]
    assert cluster.engine.view.version > 6
