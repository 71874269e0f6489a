"""Overlap inside a switch: who computes although it has pushed pushes the rest, once, before it."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
import torch
from pydantic import PrivateAttr
from torch.nn import functional
from toybox import put_in, take_out

from psbench import strategies
from psbench.core.actions import Action, Handover, SwitchTo
from psbench.core.events import Leave, SwitchRequested
from psbench.core.log import Kind
from psbench.core.parts import Switching
from psbench.core.specification import parameter
from psbench.core.view import ClusterView
from psbench.runs.execution import run
from psbench.testing import ScriptedCluster, random_cluster, toy_experiment
from psbench.testing.invariants import Invariants
from psbench.training.batches import Batches
from psbench.training.build import Workload
from psbench.training.server import Server


class AtVersions(Switching):
    """Toy: changes to the other strategy at each of these versions."""

    name: ClassVar[str] = "toy_at_versions"
    at: tuple[int, ...] = parameter((3, 7, 10), "versions")
    drain: str = parameter("finish", "what happens to work under way")
    _last: int = PrivateAttr(default=0)

    def on_applied(self, view: ClusterView) -> list[Action]:
        if view.version not in self.at or view.version == self._last:
            return []
        self._last = view.version
        drain: Any = self.drain
        return [SwitchTo(1 - view.composition, f"version {view.version}", drain)]


PARTS = take_out("toy_at_versions")


@pytest.fixture(autouse=True, scope="module")
def toys():
    put_in(PARTS)
    yield
    take_out("toy_at_versions")


OVERLAPPING = [
    strategies.osp(),
    strategies.osp(local_steps=1),
    *(strategies.osp(consistency=c, local_steps=3) for c in ("asp", "ssp", "k_asp", "k_batch_asp", "dssp")),
]
OTHERS = ["bsp", "asp", "k_bsp", "all_reduce", "local_sgd", "selsync", "hermes", "osp"]
PAIRS = [
    *((osp, other) for osp, other in itertools.product(OVERLAPPING[:3], OTHERS)),
    *((osp, "asp") for osp in OVERLAPPING[3:]),
]


def finished_steps(cluster: ScriptedCluster) -> dict[int, int]:
    """Return how many steps each worker has finished."""
    return {worker: taken - (worker in cluster._busy) for worker, taken in enumerate(cluster._taken)}


def pushed_steps(cluster: ScriptedCluster) -> dict[int, int]:
    rows = cluster.log.of_kind(Kind.PUSH)
    found = dict.fromkeys(range(cluster.num_workers), 0)
    for worker, steps in zip(rows["worker"].tolist(), rows["steps"].tolist(), strict=True):
        found[worker] += steps
    return found


def handed_over(cluster: ScriptedCluster) -> bool:
    return any(isinstance(action, Handover) for action in cluster.history[-1][2])


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda s: s if isinstance(s, str) else s.name)
def test_no_step_is_lost_and_none_counts_twice(first, second):
    """Between two hand-overs, all that a worker computed by overlap is in its pushes, and committed."""
    rule = {"name": "toy_at_versions", "at": (2, 5, 8, 12)}
    checked = 0
    for seed, (a, b) in enumerate([(first, second), (second, first)]):
        cluster = random_cluster(strategies.strategy_switch(first=a, second=b, rule=rule), seed)
        invariants = Invariants(f"{a} to {b}, cluster {seed}", cluster.engine)
        left: set[int] = set()
        unpushed = dict.fromkeys(range(cluster.num_workers), 0)  # when the composition began
        overlaps = cluster.engine.composition.communication.overlaps
        while len(cluster.history) < 120 and not cluster.done:
            cluster.step()
            invariants.look()
            event = cluster.history[-1][1]
            left |= {event.worker} if isinstance(event, Leave) else set()
            if not handed_over(cluster):
                continue
            assert not cluster.engine.view.pending
            done, pushed = finished_steps(cluster), pushed_steps(cluster)
            here = [worker for worker in cluster.engine.view.workers if worker not in left]
            if overlaps:
                checked += len(here)
                assert [done[w] - unpushed[w] for w in here] == [pushed[w] for w in here]
            unpushed = {worker: done[worker] - pushed[worker] for worker in done}
            overlaps = cluster.engine.composition.communication.overlaps
    assert checked >= 4


@pytest.mark.slow
@pytest.mark.parametrize("first", OVERLAPPING, ids=range(len(OVERLAPPING)))
def test_it_never_deadlocks_however_often_a_person_asks(first):
    """The prototype of the contract stood still in 19 of 22 such runs."""
    for seed in range(10):
        strategy = strategies.strategy_switch(first=first, second="asp", rule="manual")
        cluster = random_cluster(strategy, 100 + seed)
        for at in (1.25, 3.0, 3.5, 6.0, 9.75, 13.0):
            cluster._schedule(at, 0, -1, SwitchRequested())
        while cluster.now < 25 and not cluster.done:
            cluster.step()  # raises Deadlock


def test_a_drain_in_seconds():
    """T = 3; steps take 1 and 2.5 s; a person asks at 3.75 s.

    Worker 0 has pushed at 3 s and goes on; worker 1 fills the barrier at 5 s and would go on too. Both are
    told to push what they have made since: worker 0 its steps of 4, 5 and 6 s, worker 1 that of 7.5 s.
    """
    strategy = strategies.strategy_switch(first=strategies.osp(local_steps=3), second="asp", rule="manual")
    cluster = ScriptedCluster(strategy, [1, 2.5], changes=[(3.75, SwitchRequested())])
    cluster.run(until=8)
    pushes = cluster.log.of_kind(Kind.PUSH)
    rows = zip(*(pushes[name].tolist() for name in ("time_s", "worker", "steps", "samples")), strict=True)
    assert list(rows) == [
        *[(1.0, 0, 1, 4), (2.5, 1, 1, 4), (3.0, 0, 2, 8), (5.0, 1, 1, 4)],
        *[(6.0, 0, 3, 12), (7.5, 1, 1, 4)],
    ]
    releases = cluster.log.of_kind(Kind.RELEASE)
    orders = [
        cluster.log.text(n) for n, at in zip(releases["text"], releases["time_s"], strict=True) if at == 5
    ]
    assert orders == ['{"push":true}'] * 2
    assert cluster.log.of_kind(Kind.HANDOVER)["time_s"].tolist() == [7.5]


def test_a_switch_that_cancels_does_not_cancel_unpushed_steps():
    """Of who pushes every step, "cancel" voids that under way; of others, steps before it would go too."""
    counts = {}
    for first in ("asp", strategies.osp(consistency="asp"), "local_sgd", "selsync", "flex_rr"):
        rule = {"name": "toy_at_versions", "at": (3,), "drain": "cancel"}
        cluster = ScriptedCluster(
            strategies.strategy_switch(first=first, second="bsp", rule=rule), [1, 1.5, 4]
        )
        while not handed_over(cluster):
            cluster.step()
        counts[getattr(first, "name", first)] = len(cluster.log.of_kind(Kind.CANCEL)["row"])
    assert counts == {"asp": 2, "osp": 0, "local_sgd": 0, "selsync": 0, "flex_rr": 0}


# -------------------------------------------------------------------- the gradients themselves


@pytest.mark.slow
def test_every_gradient_reaches_the_server_once(monkeypatch):
    """With a rate so small that no model moves, a push is a sum of gradients at the starting point."""
    sums: list[torch.Tensor] = []
    entries = len(Workload.build(toy_experiment()).parameters)
    plain = Server.apply

    def apply(server, pushes, how):
        if len(server.parameters) == entries:  # the memory forecast tries the part on others
            sums.extend(push.vector.clone() for push in pushes)
        plain(server, pushes, how)

    monkeypatch.setattr(Server, "apply", apply)
    rule = {"name": "toy_at_versions", "at": (4,)}
    strategy = strategies.strategy_switch(first=strategies.osp(local_steps=3), second="osp", rule=rule)
    done = run(toy_experiment(strategy, optimizer={"name": "sgd", "lr": 1e-30}, stop={"epochs": 6}))
    handed = int(done.log.of_kind(Kind.HANDOVER)["row"][0])
    pushes = done.log.of_kind(Kind.PUSH)
    assert pushes["steps"].max() > 1
    workload = Workload.build(done.experiment)
    before = int((done.log.of_kind(Kind.APPLY)["row"] < handed).sum())
    expected = torch.zeros_like(workload.parameters)
    for worker in range(3):
        own = (pushes["worker"] == worker) & (pushes["row"] < handed)
        batches = Batches(workload.shards[worker], workload.streams, worker)
        for _ in range(int(pushes["steps"][own].sum())):
            expected += gradient(workload, torch.from_numpy(batches.take(workload.batch_sizes[worker])))
    torch.testing.assert_close(sum(sums[:before]), expected, rtol=1e-5, atol=1e-6)
    assert done.summary()["pushes"]["buffered"] == 0


def gradient(workload: Workload, where: torch.Tensor) -> torch.Tensor:
    """Return the mean gradient of a batch at the starting point, by torch."""
    workload.model.load(workload.parameters, workload.buffers)
    module = workload.model.module
    module.zero_grad()
    functional.cross_entropy(module(workload.data.train_x[where]), workload.data.train_y[where]).backward()
    return torch.cat([p.grad.flatten() for p in module.parameters()])
