"""Versions of a live run under All-Reduce: when they are made, and what ends a ring."""

from __future__ import annotations

from itertools import count
from typing import Any, ClassVar

import pytest

from psbench import strategies
from psbench.backends.dask.coordinator import checkpointing
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.server.all_reduce import AllReduceStore
from psbench.backends.dask.server.introductions import Introductions
from psbench.core import events as ev
from psbench.core.actions import Action, Apply, Drop, Handover, SetTimer
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView
from psbench.strategies.aggregation.mean import Mean
from psbench.strategies.consistency.bsp import BSP
from psbench.strategies.placement.all_reduce import AllReduce
from tests.live_runs import World
from tests.live_runs.scenes import DropsTheLast, MeasuresFirst, settle, workload, world


def in_a_ring() -> World:
    """Two workers of All-Reduce whose steps ended 1 and 3 s after training began, and who add up since."""
    run = world(workload("all_reduce", stop={"updates": 1}))
    settle(run)
    for worker, at_s in ((0, 1.0), (1, 3.0)):
        run.now = at_s
        run.end_step(f"worker {worker}")
        settle(run)
    run.workers["worker 0"].live()  # the ring is full now
    return run


def test_a_version_of_all_reduce_is_stamped_when_all_have_its_sum() -> None:
    """As in virtual time, the last push arrives when the ring is over, and what it decides is of then."""
    run = in_a_ring()
    log = run.live.run.log
    assert not len(log.of_kind(Kind.APPLY)["row"])
    run.now = 5.0
    run.end_step("worker 0")
    settle(run)
    assert not len(log.of_kind(Kind.APPLY)["row"])  # worker 1 has not the sum yet
    run.now = 6.0
    run.end_step("worker 1")
    settle(run)
    assert log.of_kind(Kind.APPLY)["time_s"].tolist() == [6.0, 6.0]
    assert log.of_kind(Kind.RELEASE)["time_s"].tolist() == [0.0, 0.0, 6.0, 6.0]
    pushes = log.of_kind(Kind.PUSH)
    assert pushes["time_s"].tolist() == [1.0, 6.0]
    assert pushes["send_s"].tolist() == [0.0, pytest.approx(3.0)]
    assert [log.text(number) for number in pushes["text"]] == ["", '{"collective_s":3.0}']
    run.heal()
    assert run.outcome is not None
    assert run.outcome.facts["time_s"] == 6.0


def test_an_evaluation_that_comes_in_the_last_ring_is_kept() -> None:
    """The event waits for the ring, and the version that the ring makes is the run's last."""
    run = world(workload("all_reduce", stop={"updates": 2}, evaluate_every=0.0001))
    late = ("evaluator", "coordinator")
    settle(run)
    for version in (1, 2):
        for worker in (0, 1):
            run.end_step(f"worker {worker}")
            while pairs := [pair for pair in run.waiting() if pair != late]:
                run.arrive(pairs[0])
        run.workers["worker 0"].live()  # the ring is full now
        if version == 2:
            run.arrive(late)
        for worker in (0, 1):
            run.end_step(f"worker {worker}")
            while pairs := [pair for pair in run.waiting() if pair != late]:
                run.arrive(pairs[0])
    run.heal()
    assert run.live.run.log.of_kind(Kind.EVALUATED)["version"].tolist() == [0, 1, 2]


def test_so_is_one_before_which_a_part_measures() -> None:
    strategy = Strategy(aggregation=MeasuresFirst(), placement=AllReduce(), consistency=BSP())
    run = world(workload(strategy, stop={"updates": 1}))
    settle(run)
    for worker, at_s in ((0, 1.0), (1, 3.0)):
        run.now = at_s
        run.end_step(f"worker {worker}")
        while pairs := run.waiting():
            run.arrive(pairs[0])
            if pairs[0] == ("evaluator", "coordinator"):
                run.now = 6.0  # the loss was known at 3 s, and the workers have added up since
    run.workers["worker 0"].live()  # the ring is full now
    for worker in (0, 1):
        run.end_step(f"worker {worker}")
        settle(run)
    assert run.live.run.log.of_kind(Kind.APPLY)["time_s"].tolist() == [6.0, 6.0]


def test_so_is_one_that_comes_of_a_worker_that_is_dropped() -> None:
    strategy = Strategy(stragglers=DropsTheLast(), placement=AllReduce(), consistency=BSP())
    run = world(workload(strategy, 3, stop={"updates": 1}))
    settle(run)
    for worker, at_s in ((0, 1.0), (1, 3.0), (0, 5.0), (1, 6.0)):
        run.now = at_s
        run.end_step(f"worker {worker}")
        settle(run)
        if at_s == 3:
            run.workers["worker 0"].live()  # the ring is full now
    assert run.live.run.log.of_kind(Kind.APPLY)["time_s"].tolist() == [6.0, 6.0]


class DropsInTime(BSP):
    """Drops whoever computes still at two seconds."""

    name: ClassVar[str] = "drops_in_time"

    def on_start(self, view: ClusterView) -> list[Action]:
        return [*super().on_start(view), SetTimer(2.0, "late")]

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        return [Drop(worker, "late") for worker in view.computing]


def test_a_version_that_nobody_foresaw_waits_for_its_ring() -> None:
    """A timer completes a barrier unasked: the version is decided before its ring, and made after it."""
    strategy = Strategy(placement=AllReduce(), consistency=DropsInTime())
    run = world(workload(strategy, 3, stop={"updates": 1}))
    settle(run)
    run.end_step("worker 0")
    run.end_step("worker 1")
    settle(run)
    run.pass_time(2.0)
    settle(run)
    run.workers["worker 0"].live()  # the ring is full now
    for worker in (0, 1):
        assert run.live.run.wait is not run.live.training_wait
        run.now += 1.0
        run.end_step(f"worker {worker}")
        settle(run)
    assert run.live.run.view.version == 1
    assert run.live.run.log.of_kind(Kind.APPLY)["time_s"].tolist() == [2.0, 2.0]


def test_a_version_whose_ring_loses_a_member_is_stamped_after_the_next() -> None:
    run = in_a_ring()
    run.now = 4.0
    run.kill("worker 0")
    run.is_healing = True
    for _ in range(4):
        run.pass_time(0.25)
        settle(run)
    run.now = 6.0
    run.end_step("worker 1")
    settle(run)
    log = run.live.run.log
    assert log.of_kind(Kind.APPLY)["time_s"].tolist() == [6.0, 6.0]
    assert log.of_kind(Kind.APPLY)["worker"].tolist() == [0, 1]  # as it was decided
    run.heal()
    assert run.outcome is not None
    assert run.outcome.facts["lost_workers"] == [0]


def test_a_run_that_is_stopped_in_a_ring_ends_with_the_version_before() -> None:
    run = in_a_ring()
    run.ask(msg.RequestStop(False))
    settle(run)
    run.heal()
    assert run.outcome is not None
    assert run.outcome.status == "stopped"
    assert not len(run.live.run.log.of_kind(Kind.APPLY)["row"])
    assert float(run.outcome.tensors["parameters"][0]) == 0.0


def test_a_switch_waits_for_what_was_asked_for_under_all_reduce() -> None:
    """A push for a checkpoint, say, that is not in the model; the new servers know nothing of it."""
    run = world(workload(strategies.strategy_switch(first="all_reduce", second="asp", rule="manual")))
    settle(run)
    run.end_step("worker 1")
    settle(run)
    checkpointing.write(run.live.run, "now")
    switch = run.live.driver.perform_one(Handover(0, 1, "by hand"), run.live.run.now)
    assert switch is not None
    model = next(switch)
    run.perform(run.live.run.out.take())
    run.end_step("worker 0")
    settle(run, "worker 1")
    assert model.done()
    others = next(switch)
    assert not others.done()
    settle(run)
    assert others.done()


def test_a_version_waits_for_the_model_before_it_that_was_asked_for() -> None:
    """Its worker is dead, and was dropped before: another one was asked, and had the next version by then."""
    strategy = Strategy(stragglers=DropsTheLast(), placement=AllReduce(), consistency=BSP())
    run = world(workload(strategy, 3, evaluate_every=0.0001, recovery={"min_workers": 1}))
    settle(run)
    for _ in ("a push", "a sum"):
        for worker in (0, 1):
            run.end_step(f"worker {worker}")
            run.arrive((f"worker {worker}", "coordinator"))
            settle(run, "worker 0")
        run.workers["worker 0"].live()  # the ring is full now
    run.kill("worker 0", arrives=False)  # it has not sent the first version, which is to be evaluated
    for _ in ("a push", "a sum"):
        run.end_step("worker 1")
        settle(run)
    run.heal()
    assert run.outcome is not None
    assert {1, 2} <= set(run.live.run.log.of_kind(Kind.EVALUATED)["version"].tolist())


def test_a_version_waits_for_no_model_of_a_worker_that_is_dropped() -> None:
    """It computes for long, perhaps, and reads between two steps what it is asked for."""
    strategy = Strategy(stragglers=DropsTheLast(), placement=AllReduce(), consistency=BSP())
    run = world(workload(strategy, 3))
    settle(run)
    found: list[StateDict] = []
    run.live.run.store.gather(False, found.append)
    run.perform(run.live.run.out.take())
    for _ in ("a push", "a sum"):
        for worker in (1, 2):
            run.end_step(f"worker {worker}")
            settle(run)
        run.workers["worker 1"].live()  # the ring is full now
    assert run.live.run.view.version == 1
    assert [float(state["parameters"][0]) for state in found] == [0.0]
    run.heal()
    assert run.outcome is not None
    assert len(found) == 1


@pytest.mark.parametrize("adds_up", [False, True])
def test_a_version_of_pushes_that_are_all_lost_is_the_model_before(adds_up: bool) -> None:
    """Another worker has the model, makes the version, and trains on."""
    cluster = {"workers": 3, "step_time": "constant", "joins": [{"worker": 0, "at_s": 2.0}]}
    run = world(workload("all_reduce", 3, cluster=cluster, recovery={"min_workers": 1}, stop={"updates": 2}))
    settle(run)
    run.end_step("worker 1")
    if adds_up:
        run.end_step("worker 2")
    settle(run)
    run.workers["worker 1"].live()  # if both add up, the ring is full now
    for worker in (1, 2):
        run.kill(f"worker {worker}")
    for _ in range(60):
        run.pass_time(0.1)
        settle(run)
        if run.busy():
            run.end_step("worker 0")
    assert run.outcome is not None
    assert run.outcome.status == "finished"
    applied = run.live.run.log.of_kind(Kind.APPLY)
    made = list(zip(applied["version"].tolist(), applied["worker"].tolist(), strict=True))
    assert made == ([(1, 1), (1, 2), (2, 0)] if adds_up else [(1, 1), (2, 0)])


def sent_to(out: Outbox, *kinds: type[Message]) -> list[tuple[str, Any]]:
    return [(each.to, each.message) for each in out.take() if isinstance(each.message, kinds)]


def test_a_sum_is_not_handed_out_when_its_giver_is_lost() -> None:
    """What came of asking a dead worker for it, nothing, was taken for the sum."""
    out = Outbox()
    store = AllReduceStore(out, [0, 1, 2], None, count(1), Introductions(out, lambda worker: None), Mean())
    pushes = [ev.Push(worker, worker, 1, 0, 4, 1, 0, 0.1, 0.0, 1.0, None, False) for worker in (0, 1, 2)]
    for push in pushes:
        store.arrived(push)
    store.reduce(Apply(pushes, [1.0, 1.0, 1.0]))
    ((_, order), *_) = sent_to(out, msg.StartRing)
    store.leave(2, 1)
    store.reply("worker 0", msg.RingVerdict(order.ring, True))
    store.reply("worker 1", msg.RingVerdict(order.ring, False))
    ((giver, asked),) = sent_to(out, msg.SendSum)
    assert giver == "worker 0"
    store.leave(0, 1)
    store.reply("worker 0", msg.StateReply(asked.tag, {}))
    assert [to for to, _ in sent_to(out, msg.AbortRing, msg.TakeSum)] == ["worker 1"]
    store.reply("worker 1", msg.RingVerdict(order.ring, False))
    ((_, again),) = sent_to(out, msg.StartRing)
    assert (again.place.size, again.weight, again.share) == (1, 3.0, 1.0)
