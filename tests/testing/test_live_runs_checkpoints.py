"""Checkpoints of a live run: what is in them, and how a run goes on from one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from psbench.backends.dask.coordinator import checkpointing
from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.coordinator.run_state import WorkerPart
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.instructions import (
    Send,
)
from psbench.backends.simulated.event_queue import TIMER
from psbench.core import events as ev
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.strategies.consistency.bsp import BSP
from psbench.training.build import Workload
from tests.live_runs import World
from tests.live_runs.scenes import FAILS, LONG, DropsTheLast, settle, workload, world


def test_a_switch_in_which_a_run_is_stopped_is_in_no_checkpoint() -> None:
    switch = {"name": "strategy_switch", "first": "bsp", "second": "asp", "rule": "manual", "cost_s": 5.0}
    run = world(workload(switch))
    settle(run)
    run.ask(msg.RequestSwitch(None))
    while run.live.run.wait is run.live.training_wait:
        run.let_all_happen()
    assert run.live.run.wait is not None
    assert run.live.run.wait.awaited() == "the time that a switch takes"
    run.ask(msg.RequestStop(False))
    run.heal()
    assert run.outcome is not None
    assert (run.outcome.status, run.outcome.facts["unanswered"]) == ("stopped", True)
    assert run.checks.stored_versions == []


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
    checkpointing.write(run.live.run, "now")
    sends = [each for each in run.live.run.out.take() if isinstance(each, Send)]
    assert isinstance(sends[0].message, msg.LogRows)


def test_whose_parts_of_a_checkpoint_are_missing_is_said() -> None:
    run = world(workload("bsp"))
    settle(run)
    checkpointing.write(run.live.run, "now")
    assert checkpointing._missing(run.live.run) == "the servers, worker 0, worker 1 (a checkpoint)"


def test_a_checkpoint_does_not_wait_for_a_worker_that_is_gone() -> None:
    """Its part was waited for until the end of the run, and so were all later checkpoints."""
    run = world(workload("asp", checkpoint_every=1.0))
    settle(run)
    checkpointing.write(run.live.run, "now")
    run.perform(run.live.run.out.take())
    assert len(run.live.run.unfinished) == 1
    run.kill("worker 1")
    run.is_healing = True
    for _ in range(4):
        run.pass_time(0.25)
        settle(run)
    run.end_step("worker 0")  # it reads what it is asked between two steps
    settle(run)
    assert len(run.live.run.unfinished) == 0
    assert run.record.start is not None


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


def test_a_run_goes_on_without_a_worker_lost_as_the_replica_asked() -> None:
    """What the replica kept of it from then on lacked its place in the data, and the run did not begin."""
    of = workload("local_sgd", 3, recovery={"replicas": 1}, evaluate_every=100, stop={"updates": 4})
    run = world(of)
    while not len(run.live.run.unfinished):
        run.arrive(run.waiting()[0])
    run.is_healing = True  # it is noticed at once who is dead
    run.kill("worker 0")
    while run.live.run.view.version < 2:
        run.let_all_happen()
    run.lose_coordinator()
    again = World(of, np.random.Generator(np.random.PCG64(2)), before=run)
    assert again.live.start is not None
    again.heal()
    assert again.outcome is not None
    assert again.outcome.status == "finished"


def resumed_from_now(run: World, of: Workload) -> World:
    """Return a run that goes on from a checkpoint of this moment of another."""
    checkpointing.write(run.live.run, "now")
    run.perform(run.live.run.out.take())
    run.pass_time(0.0)
    while run.record.start is None:
        run.let_all_happen()
    return World(of, np.random.Generator(np.random.PCG64(2)), before=run)


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


def test_events_that_waited_are_in_a_checkpoint() -> None:
    of = workload("asp")
    run = world(of)
    settle(run)
    waiting = [ev.SwitchRequested(None), ev.Timer("a", 0), ev.Evaluated(1, 1, {"val_loss": 1.0})]
    run.live.run.events.extend(waiting)
    kept = checkpointing._coordinator_state(run.live.run)["events"]
    assert [each[1:4] for each in kept] == [
        [TIMER, 0, name] for name in ("SwitchRequested", "Timer", "Evaluated")
    ]


def test_an_evaluation_that_had_come_at_a_checkpoint_is_heard_of() -> None:
    of = workload("asp")
    run = world(of)
    settle(run)
    come = ev.Evaluated(0, 7, {"val_loss": 0.5})
    run.live.run.events.append(come)
    run = resumed_from_now(run, of)
    heard, engine = list[ev.Event](), run.live.run.engine
    handle = engine.handle
    engine.handle = lambda event, now: heard.append(event) or handle(event, now)
    settle(run)
    assert come in heard


def test_an_evaluation_under_way_at_a_checkpoint_is_of_what_goes_on() -> None:
    """It was of an earlier version, and lost: patience did without it. Of several the last is made."""
    of = workload("bsp", evaluate_every=0.01)
    run = world(of)
    settle(run)
    while run.live.run.view.version < 4:
        for name in run.busy():
            run.end_step(name)
        settle(run, without="evaluator")
    again = resumed_from_now(run, of)
    settle(again)
    assert again.live.start is not None
    begun, kept = again.live.run.rules.state_dict(), again.live.start.checkpoint.state["stop_rules"]
    assert begun["evaluations"] == kept["evaluations"] == 2  # that are not due again
    again.heal()
    log = again.log.of_kind(Kind.EVALUATED)
    assert list(zip(log["id"].tolist(), log["version"].tolist(), strict=True))[:2] == [(0, 0), (2, 4)]


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


def test_who_was_dropped_is_not_back_when_a_run_goes_on() -> None:
    """It has a process, and is not in the run: a straggler is not admitted again as a lost worker is."""
    strategy = Strategy(stragglers=DropsTheLast(), consistency=BSP())
    of = workload(strategy, 3, evaluate_every=100)
    run = world(of)
    settle(run)
    for worker in (0, 1):
        run.end_step(f"worker {worker}")
        settle(run)
    assert run.live.run.view.workers[2].dropped
    run = resumed_from_now(run, of)
    settle(run)
    assert run.live.run.view.workers[2].dropped
    run.heal(looks=True)


def test_a_worker_that_is_not_waited_for_goes_on_after_its_last_push() -> None:
    """A step took longer than a stop waits for its worker's part: the worker began its data again.

    Also if the run was resumed, and is stopped before the worker has pushed anew.
    """
    of = workload("asp", checkpoint_every=1.0)
    run = world(of)
    settle(run)
    run.end_step("worker 1")
    for resumes in (False, True):
        if resumes:
            run = World(of, np.random.Generator(np.random.PCG64(2)), LiveRun, run)
        settle(run)
        run.ask(msg.RequestStop(True))
        for _ in range(60):
            settle(run)
            run.pass_time(0.1)
        assert run.end is not None
        assert run.record.start is not None
        found = run.record.start.checkpoint.state["workers"]
        assert [found[worker]["position"][:2] for worker in "01"] == [[0, 0], [4, 1]]


def test_a_client_that_lacks_just_what_a_replica_has_is_given_it() -> None:
    """One that had been sent nothing of the log was told that it lacked more than the replica has."""
    run = world(workload("asp", recovery={"replicas": 1}))
    settle(run)
    assert len(run.log) == 0
    run.lose_coordinator()
    assert len(run.log) > 0
    assert run.record.start is not None


def test_who_has_no_place_when_a_run_goes_on_at_its_end_is_lost() -> None:
    """That it was gone is the event at which the time was found to be over, and nobody heard of it."""
    of = workload(
        "asp", checkpoint_every=0.01, stop={"seconds": 2.0}, recovery={"min_workers": 1}, evaluate_every=100
    )
    before = world(of)
    settle(before)
    for _ in range(3):
        before.end_step("worker 0")
        before.end_step("worker 1")
        before.pass_time(0.1)
        settle(before)
    before.lose_coordinator()
    run = World(of, np.random.Generator(np.random.PCG64(2)), before=before, absent="worker 1")
    assert run.live.start is not None
    run.live.start.checkpoint.state["time_s"] = 2.0
    run.heal(looks=True)
    assert run.outcome is not None
    assert run.outcome.facts["lost_workers"] == [1]


def test_the_part_of_a_worker_that_waits_has_what_outlasts_its_steps() -> None:
    lasting = {"position": [8, 2, 0, 0, 0], "used": 2, "num_sent": 3, "ready_s": 1.5, "messages": 2}
    state = lasting | {"loop": {}, "since": "release"}
    tensors = dict.fromkeys(("residual", "selection/taken_at", "model/parameters", "held"), torch.zeros(1))
    kept = checkpointing._as_of_release(WorkerPart(state, tensors))
    assert kept.state == lasting
    assert {*kept.tensors} == {"residual", "selection/taken_at"}
