"""Whole live runs, of which every message is a choice: what is to hold holds, and faults are found."""

from __future__ import annotations

import math
from collections import deque
from itertools import count
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr

from psbench.backends.dask.coordinator.evaluation_queue import EvaluationQueue
from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.coordinator.log_stream import LogStream
from psbench.backends.dask.coordinator.timers import Timers
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.instructions import (
    FIRST_SERVER,
    Answer,
    End,
    Forget,
    Looked,
    Outbox,
    Send,
    Tick,
)
from psbench.backends.dask.protocol.transport import Received
from psbench.backends.dask.server.all_reduce import AllReduceStore
from psbench.backends.simulated.event_queue import TIMER
from psbench.core import events as ev
from psbench.core.actions import Action, Drop, Measure, Release, SetTimer, Tell
from psbench.core.log import Kind
from psbench.core.parts import Stragglers
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView, Status
from psbench.errors import WorkerLost
from psbench.experiment import Experiment
from psbench.metrics.traffic import total_bytes
from psbench.strategies.aggregation.mean import Mean
from psbench.strategies.consistency.bsp import BSP
from psbench.strategies.placement.all_reduce import AllReduce
from psbench.strategies.placement.parameter_server import ParameterServer
from psbench.testing.invariants import BrokenContract
from psbench.training.workload import Workload
from tests.live_runs import World, run_live_campaign
from tests.live_runs.world import COORDINATOR


def workload(strategy: Any, workers: int = 2, **changes: Any) -> Workload:
    settings: dict[str, Any] = {
        "strategy": strategy,
        "data": "digits",
        "model": {"name": "mlp", "hidden": [2]},
        "cluster": {"workers": workers, "step_time": "constant"},
        "batch_size": 4 * workers,
        "stop": {"updates": 6},
        "backend": "dask",
    }
    return Workload.build(Experiment(**settings | changes))


def world(of: Workload, run_class: type[LiveRun] = LiveRun) -> World:
    return World(of, np.random.Generator(np.random.PCG64(1)), run_class)


def test_schedules_of_live_runs_keep_the_contract() -> None:
    done = run_live_campaign(50)
    assert done.findings == []
    assert done.ended.get("finished", 0) > 10


@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
def test_100_000_schedules_of_live_runs_keep_the_contract() -> None:
    assert run_live_campaign(100_000, seed=1).findings == []


# -------------------------------------------------------------------- faults as lists of inputs


def test_the_same_inputs_give_the_same_instructions() -> None:
    of = workload("bsp")

    def played() -> list[str]:
        live, found = LiveRun(of, ["worker 0", "worker 1", "evaluator", "client"]), []
        for name in ("worker 0", "worker 1", "evaluator", "client"):
            for given in (Received(name, msg.Hello(name)), Received(name, msg.Ready())):
                found += [type(each).__name__ for each in live.handle(given, 1.0)]
        return found

    assert played() == played()
    assert played().count("Send") == 2


@pytest.mark.parametrize("strategy", ["asp", "bsp", "all_reduce"])
def test_a_worker_killed_before_it_connects_is_done_without(strategy: str) -> None:
    run = world(workload(strategy, 3))
    run.kill("worker 1")
    run.heal()
    assert run.outcome is not None
    assert run.outcome.status == "finished"
    assert run.outcome.facts["lost_workers"] == [1]


def test_an_evaluator_killed_before_it_connects_is_replaced_or_dropped() -> None:
    run = world(workload("asp"))
    run.kill("evaluator")
    run.heal()
    assert run.outcome is not None
    assert "evaluator" in run.alive


@pytest.mark.parametrize("name", ["worker 1", "evaluator"])
def test_training_begins_with_another_in_the_place_of_who_was_ready(name: str) -> None:
    run = world(workload("asp", recovery={"min_workers": 1, "replace_workers": True}))
    settle(run, without="worker 0")
    run.is_healing = True  # it is noticed at once who is dead
    run.kill(name)
    run.pass_time(0.3)
    settle(run)
    assert run.live.run.peers.missing == [name]
    assert not run.live.run.training
    run.find_places()
    settle(run)
    assert run.live.run.training


def test_all_workers_killed_before_they_connect_end_the_run() -> None:
    run = world(workload("asp"))
    for name in ("worker 0", "worker 1"):
        run.kill(name)
    run.heal()
    assert run.end is not None
    assert isinstance(run.end.error, WorkerLost)


def test_whoever_is_waited_for_is_named_again_and_again() -> None:
    live = LiveRun(workload("asp"), ["worker 0", "evaluator", "client"])
    live.handle(Received("client", msg.Hello("client")), 0.0)
    live.handle(Received("client", msg.Ready()), 0.0)
    said = [
        each.message.text
        for now in range(1, 26)
        for each in live.handle(Tick(), float(now))
        if isinstance(each, Send) and isinstance(each.message, msg.Waiting)
    ]
    assert said == ["waiting for worker 0, evaluator for 10 s", "waiting for worker 0, evaluator for 10 s"]


def test_a_stop_before_the_first_release_does_not_wait_for_models_of_it() -> None:
    """The workers' own models were asked for with releases that were then never sent."""
    run = world(workload("selsync", stop={"epochs": 2}))
    for name in ("worker 0", "worker 1", "client", "evaluator"):
        while (name, "coordinator") in run.waiting():
            run.arrive((name, "coordinator"))
    run.ask(msg.RequestStop(False))
    run.arrive(("client", "coordinator"))
    run.heal()
    assert run.outcome is not None
    assert run.outcome.status == "stopped"
    assert run.outcome.facts["unanswered"]
    assert total_bytes(run.log, True)["down"] == 0  # its releases were not sent


def test_a_dead_server_ends_the_run_with_an_error_and_stops_all_others() -> None:
    placement = {"name": "parameter_server", "servers": 2}
    live = LiveRun(workload({"name": "asp", "placement": placement}), ["server 1", "worker 0", "client"])
    for name in ("server 1", "worker 0", "client"):
        live.handle(Received(name, msg.Hello(name)), 0.0)
    *others, end = live.handle(Looked(("server 1",)), 1.0)
    assert isinstance(end, End)
    assert "server 1 is gone" in str(end.error)
    stopped = [each.to for each in others if isinstance(each, Send) and isinstance(each.message, msg.StopRun)]
    assert stopped == ["client", "worker 0"]


def settle(run: World, without: str = "") -> None:
    """Let all messages arrive, but those of a process that says nothing for now."""
    while pairs := [pair for pair in run.waiting() if pair[0] != without]:
        run.arrive(pairs[0])


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


class MeasuresFirst(Mean):
    """The mean of the pushes, once the loss of the model before it is known."""

    name: ClassVar[str] = "measures_first"
    measures: ClassVar[tuple[str, ...]] = ("model_loss",)
    _pushes: list[int] = PrivateAttr(default_factory=list)

    def on_commit(self, pushes: list[ev.Push], view: ClusterView) -> list[Action]:
        self._pushes = [push.id for push in pushes]
        return [Measure("aggregation", {"model_loss": None})]

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        return super().on_commit([view.pending[number] for number in self._pushes], view)


def test_another_evaluator_is_asked_for_a_loss_that_is_awaited() -> None:
    run = world(workload(Strategy(aggregation=MeasuresFirst(), consistency=BSP()), stop={"updates": 1}))
    settle(run)
    run.kill("evaluator")
    for worker in (0, 1):
        run.end_step(f"worker {worker}")
    settle(run)
    assert run.live.run.engine.measuring
    run.heal()
    assert run.outcome is not None
    assert run.outcome.status == "finished"


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


class DropsTheLast(Stragglers):
    """Drops whoever computes still when the others have pushed."""

    name: ClassVar[str] = "drops_the_last"

    def on_push(self, push: ev.Push, view: ClusterView) -> list[Action]:
        return [Drop(worker, "the last") for worker in view.computing if view.num_computing == 1]


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


def test_a_switch_in_which_a_run_is_stopped_is_in_no_checkpoint() -> None:
    switch = {"name": "strategy_switch", "first": "bsp", "second": "asp", "rule": "manual", "cost_s": 5.0}
    run = world(workload(switch))
    settle(run)
    run.ask(msg.RequestSwitch(None))
    while run.live.wait is run.live.training_wait:
        run.let_all_happen()
    assert run.live.wait is not None
    assert run.live.wait.whom() == "the time that a switch takes"
    run.ask(msg.RequestStop(False))
    run.heal()
    assert run.outcome is not None
    assert (run.outcome.status, run.outcome.facts["unanswered"]) == ("stopped", True)
    assert run.checks.stored_versions == []


def test_evaluations_that_come_after_the_end_count_each_for_its_version() -> None:
    """The check kept the last of them only, and missed the others."""
    run = world(workload("bsp", evaluate_every=0.01))
    settle(run)
    while not run.live.run.ending:
        for name in run.busy():
            run.end_step(name)
        settle(run, without="evaluator")
    run.heal()
    log = run.log.of_kind(Kind.EVALUATED)
    assert list(zip(log["id"].tolist(), log["version"].tolist(), strict=True)) == [
        (0, 0),
        (-1, 2),
        (-1, 4),
        (-1, 6),
    ]


def all_connected(of: Workload) -> LiveRun:
    """Return a run whose processes are all ready, at its first release."""
    names = ["worker 0", "worker 1", "evaluator", "client"]
    live = LiveRun(of, names)
    for name in names:
        live.handle(Received(name, msg.Hello(name)), 0.0)
        live.handle(Received(name, msg.Ready()), 0.0)
    return live


def sent(given: list[Any], kind: type[Any]) -> list[str]:
    return [each.to for each in given if isinstance(each, Send) and isinstance(each.message, kind)]


def test_a_process_may_take_the_place_of_one_not_known_to_be_dead() -> None:
    """The client knew from the scheduler that a worker is gone, and had started another: it joined twice."""
    live = all_connected(workload("asp", recovery={"min_workers": 1}, evaluate_every=100))
    live.handle(Received(FIRST_SERVER, msg.StateReply(1, {})), 0.0)
    live.handle(Received("evaluator", msg.EvaluationDone(0, {"val_loss": 1.0})), 0.0)
    said = live.handle(Received("worker 1", msg.Hello("worker 1")), 1.0)
    assert not sent(said, msg.RoleLost)
    assert not [each for each in said if isinstance(each, Forget)]
    assert "worker 1 was lost at 1.0 s" in str(said)
    assert live.run.view.num_active == 1
    said = live.handle(Received("worker 1", msg.Ready()), 1.1)
    assert "worker 1 has joined on another Dask worker at 1.1 s" in str(said)
    assert sent(said, msg.ResumeWorker) == ["worker 1"]
    assert [each.to for each in said if isinstance(each, Answer)] == ["worker 1"]
    assert live.run.view.num_active == 2


def test_a_push_is_lost_with_its_worker_even_if_that_is_replaced() -> None:
    """The newcomer was to add what the dead one had pushed."""
    run = world(workload("all_reduce", 2, recovery={"min_workers": 1}))
    settle(run)
    run.end_step("worker 1")
    settle(run)
    run.kill("worker 1")
    run.is_healing = True
    for _ in range(4):
        run.pass_time(0.25)
        run.find_places()
        settle(run)
    run.heal()
    assert run.outcome is not None
    assert run.outcome.status == "finished"
    assert run.outcome.facts["lost_workers"] == []


def test_servers_that_begin_with_a_composition_hear_who_is_dead() -> None:
    """A worker lost while the model was handed over was waited for by servers that had not met it."""
    second = {"name": "asp", "placement": {"name": "parameter_server", "servers": 2}}
    switch = {"name": "strategy_switch", "rule": "manual", "first": "all_reduce", "second": second}
    run = world(workload(switch, evaluate_every=100))
    run.is_healing = True
    settle(run)
    run.ask(msg.RequestSwitch(None))
    for _ in range(200):
        if run.live.run.view.in_force:
            break
        for name in run.busy():
            run.end_step(name)
        if pairs := run.waiting():
            run.arrive(pairs[0])
        else:
            run.pass_time(0.02)
    run.kill("worker 1")
    run.pass_time(0.3)
    run.heal()
    assert run.outcome is not None
    assert run.outcome.status == "finished"
    assert run.outcome.facts["lost_workers"] == [1]


def moved(of: Workload, absent: str = "") -> World:
    """Return a run that has ended after a few steps, as its first server's Dask worker is retired."""
    run = World(of, np.random.Generator(np.random.PCG64(1)), absent=absent)
    for _ in range(4):
        settle(run)
        run.end_step(run.busy()[0])
    run.ask(msg.RoleLeaves("coordinator"))
    while run.end is None:
        settle(run)
        run.pass_time(0.1)
    assert run.can_go_on
    return run


@pytest.mark.parametrize("place", ["at once", "while the replica keeps the first state"])
def test_a_worker_that_was_not_in_a_checkpoint_joins_once(place: str) -> None:
    """It was never admitted, or twice: as it came while the first answer waited for the replica."""
    of = workload("asp", recovery={"min_workers": 1, "replicas": 1}, evaluate_every=100, stop={"updates": 30})
    late = place != "at once"
    before = moved(of, "" if late else "worker 1")
    rng = np.random.Generator(np.random.PCG64(2))
    run = World(of, rng, LiveRun, before, "worker 1" if late else "")
    if late:
        while pairs := [pair for pair in run.waiting() if pair != ("coordinator", "replica")]:
            run.arrive(pairs[0])
        run.find_places()
        for _ in range(2):
            run.arrive(("worker 1", "coordinator"))
    run.heal()
    assert run.outcome is not None
    assert run.outcome.status == "finished"
    joins = run.live.run.log.of_kind(Kind.JOIN)["worker"].tolist()
    assert joins == [1]


def test_a_worker_joins_once_whoever_says_so() -> None:
    """Its return by the profile waited for its turn when another process took its place."""
    live = all_connected(workload("asp", evaluate_every=100))
    live.handle(Received(FIRST_SERVER, msg.StateReply(1, {})), 0.0)
    live.handle(Received("evaluator", msg.EvaluationDone(0, {"val_loss": 1.0})), 0.0)
    assert not live.membership.is_possible(ev.Join(1))
    live.run.view.workers[1].status = Status.GONE
    live.run.events.append(ev.Join(1))
    assert live.membership.awaits_worker  # others may be gone meanwhile


def test_who_is_lost_when_its_join_waits_for_a_measurement_leaves() -> None:
    """It was in the run for good: the engine had not known it when it was lost, and then let it join."""
    moving = {"name": "by_load", "every": 2, "threshold": 1.05}
    placed = {"name": "parameter_server", "servers": 2, "assignment": "layer", "reassignment": moving}
    late = {"workers": 2, "step_time": "constant", "joins": [{"worker": 0, "at_s": 0.5}]}
    run = world(workload({"name": "ssp", "placement": placed}, cluster=late, recovery={"min_workers": 1}))
    settle(run)
    for _ in range(2):
        run.end_step("worker 1")
        while pairs := [pair for pair in run.waiting() if pair != ("server 1", COORDINATOR)]:
            run.arrive(pairs[0])
    assert run.live.run.engine.measuring
    run.is_healing = True  # it is noticed at once who is dead
    run.kill("worker 0")
    run.pass_time(0.6)
    assert [type(event) for event in run.live.run.engine.waiting_events] == [ev.Join, ev.Leave]
    run.heal(looks=True)
    assert run.outcome is not None
    assert run.outcome.status == "finished"


def test_a_checkpoint_of_a_stop_without_version_comes_after_its_log() -> None:
    """The client went back to rows that it did not have if the run was lost then."""
    run = world(workload("bsp", checkpoint_every=1.0))
    settle(run)
    run.end_step("worker 0")
    run.ask(msg.RequestStop(True))
    for _ in range(50):
        run.pass_time(0.1)
        settle(run)
    assert run.record.start is not None
    run = world(workload("bsp"))
    settle(run)
    run.live.run.log.add(Kind.NOTE, 1.0)
    run.live.answers.write("now")
    sends = [each for each in run.live.run.out.take() if isinstance(each, Send)]
    assert isinstance(sends[0].message, msg.LogRows)


def test_whose_parts_of_a_checkpoint_are_missing_is_said() -> None:
    run = world(workload("bsp"))
    settle(run)
    run.live.answers.write("now")
    assert run.live.checkpoints._whom() == "the servers, worker 0, worker 1 (a checkpoint)"


def test_a_checkpoint_does_not_wait_for_a_worker_that_is_gone() -> None:
    """Its part was waited for until the end of the run, and so were all later checkpoints."""
    run = world(workload("asp", checkpoint_every=1.0))
    settle(run)
    run.live.answers.write("now")
    run.perform(run.live.run.out.take())
    assert len(run.live.checkpoints) == 1
    run.kill("worker 1")
    run.is_healing = True
    for _ in range(4):
        run.pass_time(0.25)
        settle(run)
    run.end_step("worker 0")  # it reads what it is asked between two steps
    settle(run)
    assert len(run.live.checkpoints) == 0
    assert run.record.start is not None


def test_a_push_that_is_not_finite_waits_for_its_turn() -> None:
    """The engine had it while a version was with the replica, whose checkpoint was of the next then."""
    run = world(workload("asp", checkpoint_every=1.0, recovery={"replicas": 1}))
    settle(run)
    run.end_step("worker 1")
    run.ask(msg.RequestStop(True))
    while pairs := [pair for pair in run.waiting() if pair != ("replica", "coordinator")]:
        run.arrive(pairs[0])
    run.diverge("worker 0")
    run.end_step("worker 0")
    for pair in run.waiting()[::-1]:  # the replica's receipt last
        run.arrive(pair)
    run.heal()  # a checkpoint is compared with its model
    assert run.record.start is not None
    assert run.outcome is not None
    assert run.outcome.status == "stopped"


def test_a_push_that_is_not_finite_ends_the_run_as_diverged() -> None:
    run = world(workload("asp"))
    settle(run)
    run.diverge("worker 0")
    run.end_step("worker 0")
    run.heal()
    assert run.outcome is not None
    assert run.outcome.status == "diverged"
    assert run.outcome.reason.startswith("push 0 of worker 0, computed on version 0")
    assert run.outcome.facts["unanswered"]
    assert not len(run.live.run.log.of_kind(Kind.VOID)["row"])  # the engine is given it once


def test_orders_of_the_engine_are_sent_to_their_worker() -> None:
    live = connected_and_begun()
    live.actions.perform(Tell(1, {"batch_size": 3}))
    assert live.run.out.take() == [Send("worker 1", msg.NewOrders({"batch_size": 3}))]


def test_releases_that_are_not_sent_leave_workers_unanswered() -> None:
    live = connected_and_begun()
    live.run.ending.stop()
    assert [*live.answers.perform([SetTimer(1.0, "a"), Release(0)])] == []
    assert live.answers.unanswered


def test_a_run_that_is_stopped_before_it_moves_ends_where_it_is() -> None:
    """The client was to go on elsewhere, and had no checkpoint."""
    run = world(workload("asp", 3))
    settle(run)
    run.end_step("worker 0")
    run.ask(msg.RoleLeaves("coordinator"))
    settle(run)
    run.pass_time(0.3)
    run.ask(msg.RequestStop(False))
    run.heal()
    assert run.outcome is not None
    assert run.outcome.status == "stopped"


def resumed_from_now(run: World, of: Workload) -> World:
    """Return a run that goes on from a checkpoint of this moment of another."""
    run.live.answers.write("now")
    run.perform(run.live.run.out.take())
    run.pass_time(0.0)
    while run.record.start is None:
        run.let_all_happen()
    return World(of, np.random.Generator(np.random.PCG64(2)), before=run)


FAILS = {"workers": 2, "step_time": "constant", "failures": [{"worker": 1, "at_s": 0.5, "rejoin_s": 2.0}]}
LONG: dict[str, Any] = {"recovery": {"min_workers": 1}, "evaluate_every": 100, "stop": {"updates": 60}}


@pytest.mark.parametrize("until", [0.6, 2.1], ids=["it fails", "it is back"])
def test_what_is_planned_and_waited_at_a_checkpoint_happens(until: float) -> None:
    """An event that was due and not handled yet was in no checkpoint, and over in the next run."""
    of = workload("asp", cluster=FAILS, **LONG)
    run = world(of)
    settle(run)
    if until > 2.0:
        run.pass_time(0.6)
    run.now = until
    live = run.live.run
    live.clock_s = until
    live.events.extend(live.timers.due(until))
    assert live.events
    run = resumed_from_now(run, of)
    run.heal(looks=True)
    assert [run.log.text(text) for text in run.log.of_kind(Kind.LEAVE)["text"]] == ["failed"]
    assert run.log.of_kind(Kind.JOIN)["worker"].tolist() == [0, 1, 1]


def test_a_resumed_run_begins_no_earlier_than_its_checkpoint() -> None:
    """By the rounding of clocks it began 2e-16 s before the last row of its log."""
    of = workload("asp", stop={"updates": 2})
    run = world(of)
    settle(run)
    run.now = 0.32
    run.end_step("worker 0")
    settle(run)
    again = resumed_from_now(run, of)
    again.now = 2.7
    assert again.now - (again.now - 0.32) < 0.32
    settle(again)
    assert again.live.run.now == 0.32


def test_what_waits_for_a_ring_is_in_a_checkpoint() -> None:
    """The ring of the run that went on was without it: a version of one worker's payload, or of none."""
    of = workload("all_reduce")
    run = world(of)
    settle(run)
    run.end_step("worker 0")
    settle(run)
    run = resumed_from_now(run, of)
    settle(run)
    run.end_step("worker 1")
    settle(run)
    run.heal(looks=True)
    assert run.log.of_kind(Kind.APPLY)["worker"][:2].tolist() == [0, 1]


def test_a_mean_is_without_the_model_of_a_worker_that_is_halted() -> None:
    live = all_connected(workload("asp"))
    averaging, found = live.run.averaging, list[Any]()
    tag = averaging.ask([0, 1], [])
    averaging.mean(tag, lambda *mean: found.append(mean))
    averaging.answer(0, tag, {"parameters": torch.ones(2), "buffers": torch.zeros(0)})
    assert not found
    live.actions.halt(1)
    ((mean, _),) = found
    assert mean["parameters"].tolist() == [1.0, 1.0]


def test_a_release_that_is_not_sent_brings_no_model() -> None:
    """A worker failed as planned in its last ring: the end waited for the model that it was to send then."""
    of = workload(
        {"name": "selsync", "delta": 0.0, "placement": "all_reduce"},
        cluster=FAILS,
        stop={"updates": 1},
        recovery={"min_workers": 1},
    )
    run = world(of)
    settle(run)
    for name in ("worker 0", "worker 1"):
        run.end_step(name)
        settle(run)
    run.workers["worker 0"].live()
    assert all(each.in_full_ring for each in run.workers.values())
    run.pass_time(0.6)
    run.heal(looks=True)
    assert run.outcome is not None
    assert len(run.log.of_kind(Kind.APPLY)["row"]) == 2


def test_events_that_waited_are_in_a_checkpoint() -> None:
    of = workload("asp")
    run = world(of)
    settle(run)
    waiting = [ev.SwitchRequested(None), ev.Timer("a", 0), ev.Evaluated(1, 1, {"val_loss": 1.0})]
    run.live.run.events.extend(waiting)
    kept = run.live.answers.state()["events"]
    assert [each[1:4] for each in kept] == [
        [TIMER, 0, name] for name in ("SwitchRequested", "Timer", "Evaluated")
    ]


def test_an_evaluation_under_way_at_a_checkpoint_is_of_what_goes_on() -> None:
    """It was of an earlier version, and lost: patience did without it."""
    of = workload("bsp", evaluate_every=0.01)
    run = world(of)
    settle(run)
    while run.live.run.view.version < 3:
        for name in run.busy():
            run.end_step(name)
        settle(run, without="evaluator")
    again = resumed_from_now(run, of)
    again.heal()
    log = again.log.of_kind(Kind.EVALUATED)
    assert list(zip(log["id"].tolist(), log["version"].tolist(), strict=True))[:2] == [(0, 0), (1, 3)]


def test_who_failed_as_planned_and_was_lost_later_is_back_when_resumed() -> None:
    """It was taken to be away as planned, and was never admitted again."""
    of = workload("asp", cluster=FAILS, **LONG)
    run = world(of)
    for seconds in (0.6, 1.5):
        settle(run)
        run.pass_time(seconds)
    run.kill("worker 1")
    run.pass_time(0.3)
    run.pass_time(0.3)
    assert run.live.run.view.num_active == 1
    run = resumed_from_now(run, of)
    run.heal(looks=True)
    assert run.log.of_kind(Kind.JOIN)["worker"].tolist() == [0, 1, 1, 1]


def test_a_worker_whose_failure_is_planned_is_in_the_run_until_then() -> None:
    """Its process was lost before and replaced: it was not admitted until the plan had it back."""
    of = workload("asp", cluster=FAILS | {"failures": [{"worker": 1, "at_s": 3.0}]}, **LONG)
    run = world(of)
    for _ in range(2):
        settle(run)
        run.kill("worker 1")
        for _ in range(4):
            run.pass_time(0.3)
            settle(run)
            run.find_places()
        settle(run)
        assert run.live.run.view.num_active == 2 - (run.now > 3.0), run.now
        run.pass_time(1.0)


def test_who_is_lost_at_the_end_makes_no_version() -> None:
    """The engine made one of the other's push, of which the server never heard."""
    run = world(workload("bsp", stop={"seconds": 2.0}))
    settle(run)
    run.end_step("worker 0")
    settle(run)
    run.live.run.events.append(ev.SwitchRequested(None))
    run.now = 2.5
    run.refuse("worker 1")
    run.heal()
    assert run.outcome is not None
    assert run.outcome.facts["lost_workers"] == [1]
    assert not len(run.log.of_kind(Kind.APPLY)["row"])


@pytest.mark.parametrize("dies_first", [False, True])
def test_a_late_replica_is_not_for_the_next_in_a_place(dies_first: bool) -> None:
    """A process that had just come was given the release of the dead one."""
    out = Outbox()
    store = AllReduceStore(out, [0, 1], {}, count(1))
    store.join(1)
    if dies_first:
        store.leave(1, 4)
    store.release(Release(1, ticket=4), 4)
    if dies_first:
        store.forget(1)
    else:
        store.leave(1, 4)
    store.join(1)
    out.take()
    store.reply("worker 0", msg.StateReply(1, {}))
    assert out.take() == []


def test_a_receipt_of_an_earlier_state_is_not_that_of_the_last() -> None:
    run = world(workload("asp", recovery={"replicas": 1}))
    settle(run)
    run.end_step("worker 0")
    settle(run, without="replica")
    wait = run.live.wait
    assert wait is not None
    assert wait.whom() == "replica (to keep the state)"
    run.live.handle(Received("replica", msg.StateKept(-1)), run.now)
    assert run.live.wait is wait
    settle(run)
    assert run.live.wait is run.live.training_wait


def test_an_answer_that_waits_is_not_for_the_next_in_a_place() -> None:
    """A process that had just connected under a dead worker's name was given its release."""
    run = world(workload("asp", recovery={"min_workers": 1, "replicas": 1}))
    settle(run)
    run.end_step("worker 1")
    settle(run, without="replica")  # to which version 1 is on its way
    run.kill("worker 1")
    run.is_healing = True
    run.pass_time(0.25)
    settle(run, without="replica")
    run.find_places()
    run.arrive(("worker 1", COORDINATOR))  # the greeting: it is not ready
    settle(run, without="worker 1")
    run.heal()
    assert run.outcome is not None
    assert run.outcome.status == "finished"


def connected_and_begun(workers: int = 2, **changes: Any) -> LiveRun:
    """Return a run that has released its workers; a lost one may come back."""
    names = [*(f"worker {number}" for number in range(workers)), "evaluator", "client"]
    settings = {"recovery": {"min_workers": 1}, "evaluate_every": 100}
    live = LiveRun(workload("asp", workers, **settings | changes), names)
    for name in names:
        live.handle(Received(name, msg.Hello(name)), 0.0)
        live.handle(Received(name, msg.Ready()), 0.0)
    live.handle(Received(FIRST_SERVER, msg.StateReply(1, {})), 0.0)
    live.handle(Received("evaluator", msg.EvaluationDone(0, {"val_loss": 1.0})), 0.0)
    return live


def test_what_the_user_does_to_a_worker_is_done_and_said() -> None:
    live = connected_and_begun(3)

    def press(worker: int, what: Any, factor: float = 1.0) -> tuple[list[Any], str]:
        given = live.handle(Received("client", msg.PressWorker(worker, what, factor)), 1.0)
        orders = [each.message for each in given if isinstance(each, Send)]
        factors = [each.factor for each in orders if isinstance(each, msg.ChangeSpeed)]
        (said,) = [each.text for each in orders if isinstance(each, msg.Incident) and "worker" in each.text]
        return factors, said

    assert press(0, "speed", 0.5) == ([0.5], "worker 0 is 0.5 times as fast by hand at 1.00 s")
    assert press(0, "speed", 0.5)[0] == [0.25]  # of the profile's
    assert press(1, "speed", 2.0)[0] == [2.0]
    assert "is there already" in press(0, "back")[1]
    assert "cannot be pressed: it has no process" in press(3, "lost")[1]
    assert live.run.view.num_active == 3
    assert "is lost by hand" in press(2, "lost")[1]
    assert live.run.view.num_active == 2
    assert "is gone already" in press(2, "lost")[1]
    assert "is lost by hand" in press(1, "lost")[1]
    assert "is the last one: it cannot be lost" in press(0, "lost")[1]
    assert "is back by hand" in press(2, "back")[1]
    assert live.run.view.num_active == 2
    assert "is there already" in press(2, "back")[1]
    live.handle(
        Received("worker 0", msg.Hello("worker 0")), 2.0
    )  # another process, as fast as the one before
    given = live.handle(Received("worker 0", msg.Ready()), 2.0)
    told = [each for each in given if isinstance(each, Send) and isinstance(each.message, msg.ChangeSpeed)]
    assert [(each.to, each.message.factor) for each in told] == [("worker 0", 0.25), ("worker 1", 2.0)]


@pytest.mark.parametrize("begins", [False, True], ids=["before training", "before it fails"])
def test_a_press_that_brings_nobody_back_keeps_no_planned_failure_off(begins: bool) -> None:
    """The check took the worker to be back by hand, and missed it in the run while it was away as planned."""
    run = world(workload("asp", cluster=FAILS, recovery={"min_workers": 1}, stop={"updates": 300}))
    if begins:
        settle(run)
    assert run.live.run.training is begins
    run.ask(msg.PressWorker(1, "back", 1.0))
    run.arrive(("client", "coordinator"))
    run.heal(looks=True)
    assert [run.log.text(text) for text in run.log.of_kind(Kind.LEAVE)["text"]] == ["failed"]
    assert run.log.of_kind(Kind.JOIN)["worker"].tolist() == [0, 1, 1]


def test_who_is_back_by_hand_fails_later_as_planned() -> None:
    run = world(workload("asp", cluster=FAILS, recovery={"min_workers": 1}, stop={"updates": 300}))
    settle(run)
    for what in ("lost", "back"):
        run.ask(msg.PressWorker(1, what, 1.0))
        settle(run)
    run.heal(looks=True)
    assert [run.log.text(text) for text in run.log.of_kind(Kind.LEAVE)["text"]] == ["failed", "failed"]


@pytest.mark.parametrize("measures", [False, True], ids=["in a ring", "while it measures"])
def test_a_worker_that_is_being_lost_is_counted_as_lost(measures: bool) -> None:
    """Its leave completed a ring, and waited for that: both others could be lost, and the run was over."""
    measuring = {"aggregation": MeasuresFirst(), "consistency": BSP(), "placement": ParameterServer()}
    run = world(workload(Strategy(**measuring) if measures else "all_reduce", 3, **LONG))
    settle(run)
    for name in ("worker 0", "worker 2"):
        run.end_step(name)
    settle(run)
    said: list[str] = []
    for worker in (1, 2, 0):
        given = run.live.handle(Received("client", msg.PressWorker(worker, "lost", 1.0)), run.now)
        sent_now = [each.message for each in given if isinstance(each, Send)]
        said += [each.text for each in sent_now if isinstance(each, msg.Incident)]
        run.perform(given)
    assert [text.partition(" at ")[0] for text in said] == [
        *("worker 1 is lost by hand", "worker 2 is lost by hand"),
        "worker 0 is the last one: it cannot be lost",
    ]


def test_a_worker_whose_messages_a_server_refused_is_removed_once() -> None:
    live = connected_and_begun()
    for name in ("worker 1", "worker 1", "evaluator"):
        live.handle(Received("server 1", msg.PeerRefused(name, "no message")), 1.0)
    assert live.run.view.num_active == 1
    assert sorted(live.run.peers.gone) == ["worker 1"]
    assert "evaluator" not in live.run.peers.gone


def test_what_is_planned_for_this_moment_is_due() -> None:
    profile = workload("asp", cluster={"workers": 2, "failures": [{"worker": 1, "at_s": 2}]}).profile
    timers = Timers(profile)
    assert timers.due(1.999) == []
    assert timers.due(2.0) == [ev.Leave(1, "failed")]
    assert not len(timers)


@pytest.mark.parametrize(("model_bytes", "room"), [(1 << 26, 4), (1 << 25, 8), (1 << 30, 4)])
def test_training_waits_once_a_quarter_of_a_gigabyte_is_to_be_evaluated(model_bytes: int, room: int) -> None:
    queue = EvaluationQueue(Outbox(), model_bytes)
    view = ClusterView(2)
    for number in range(room):
        queue.expect(number, view)
    assert not queue.is_full
    queue.expect(room, view)
    assert queue.is_full


# -------------------------------------------------------------------- planted faults


class ForgetsWhoLeft(LiveRun):
    """The store is not told that a worker is dead."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.actions_use, self.actions.use = self.actions.use, self._use  # type: ignore[method-assign]

    def _use(self, *given: Any) -> None:
        self.actions_use(*given)
        self.run.store.leave = lambda *_: None  # type: ignore[method-assign]


class AsksTheDead(LiveRun):
    """Models and checkpoints wait for workers that are gone."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.checkpoints.leave = self.run.averaging.leave = lambda *_: None  # type: ignore[method-assign]


class DropsEvaluations(LiveRun):
    """Another evaluator is not sent what the one before has not answered."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.evaluation.queue.begin_again = lambda: None  # type: ignore[method-assign]


class ReleasesInMidMove(LiveRun):
    """Workers go on before every server holds its entries."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        reassign = self.actions._reassign

        def at_once(change: Any) -> None:
            next(reassign(change))

        from psbench.core import actions as act

        self.actions._performers[act.Reassign] = at_once


class KeepsVoidPushes(LiveRun):
    """The event of a push is lost, as if its message had not come."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        take, seen = self.pushes.take, []

        def lose_the_fourth(worker: int, message: Any) -> None:
            seen.append(worker)
            if len(seen) != 4:
                take(worker, message)

        self._of_workers[msg.PushMessage] = lose_the_fourth


class EndsWithoutLeaves(LiveRun):
    """A lost worker is not reported to the engine."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.membership._lose_worker = lambda *given: None  # type: ignore[method-assign]


class LosesNumbers(LiveRun):
    """What was measured does not reach the engine; drawn by tests.mutation.live."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.measurements._events = deque()


class NeverLooks(LiveRun):
    """It is not asked who is dead; drawn by tests.mutation.live."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._next_look = math.inf


class NeverHeld(LogStream):
    """A log that is sent whatever the replica has."""

    held = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]


class HoldsNoLog(LiveRun):
    """The client is sent rows while the replica takes the state that they led to."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.run.log_stream.__class__ = NeverHeld


class AcceptsAnyReceipt(LiveRun):
    """A receipt of an earlier state counts for the one that the replica is taking."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.replication.take_receipt = lambda _: self.replication._take_off()  # type: ignore[method-assign]


class PlansNoFailure(LiveRun):
    """The failures that a cluster plans do not happen."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        timers = self.run.timers
        timers._heap = [entry for entry in timers._heap if type(entry[2]) is not ev.Leave]


class ResumesWithoutNewcomers(LiveRun):
    """Who is here when a run goes on, and was not in it at the checkpoint, does not join."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        members, known = self.membership, self.run.view.workers
        changes = members.changes_since_checkpoint
        members.changes_since_checkpoint = lambda time_s: [  # type: ignore[method-assign]
            event for event in changes(time_s) if type(event) is ev.Leave or event.worker in known
        ]


class ResumesWithTheLost(LiveRun):
    """Who was in a run at a checkpoint, and is not here when it goes on, does not leave it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        changes = self.membership.changes_since_checkpoint
        self.membership.changes_since_checkpoint = lambda time_s: [  # type: ignore[method-assign]
            event for event in changes(time_s) if type(event) is ev.Join
        ]


class ResumesWithoutEvaluations(LiveRun):
    """An evaluation under way at a checkpoint is not made by the run that goes on."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.start is not None:
            self.start.checkpoint.state.pop("awaited", None)


CANARIES = [
    *(ForgetsWhoLeft, ReleasesInMidMove, KeepsVoidPushes, EndsWithoutLeaves, LosesNumbers, NeverLooks),
    *(ResumesWithoutNewcomers, ResumesWithTheLost, AsksTheDead, DropsEvaluations, HoldsNoLog),
    AcceptsAnyReceipt,
    # found after hundreds of schedules
    *(pytest.param(each, marks=pytest.mark.nightly) for each in (PlansNoFailure, ResumesWithoutEvaluations)),
]


@pytest.mark.slow
@pytest.mark.parametrize("canary", CANARIES)
def test_planted_faults_are_found(canary: type[LiveRun]) -> None:
    done = run_live_campaign(3000, run_class=canary, most_failures=1)
    assert done.failures == 1


def test_a_fault_is_played_again_with_fewer_choices() -> None:
    done = run_live_campaign(200, run_class=KeepsVoidPushes, most_failures=1)
    ((block, number, choices, error),) = done.findings
    assert choices < 150
    assert error.startswith(BrokenContract.__name__) or "Error" in error or "lost" in error
    assert block >= 0
    assert number >= 0
