"""Who takes part in a live run: workers that are lost, replaced, planned to fail, or pressed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from psbench.backends.dask.coordinator import membership
from psbench.backends.dask.coordinator.peers import Peers
from psbench.backends.dask.coordinator.run_state import Timers
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.instructions import (
    FIRST_SERVER,
    Answer,
    End,
    Forget,
    Looked,
    Send,
)
from psbench.backends.dask.protocol.transport import Received
from psbench.core import events as ev
from psbench.core.actions import Release
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.core.view import Status
from psbench.errors import WorkerLost
from psbench.runs.execution import run as run_simulated
from psbench.strategies.consistency.bsp import BSP
from psbench.strategies.placement.parameter_server import ParameterServer
from tests.live_runs.scenes import (
    FAILS,
    LONG,
    MeasuresFirst,
    all_connected,
    connected_and_begun,
    settle,
    workload,
    world,
)
from tests.live_runs.world import COORDINATOR


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


def test_the_death_of_one_that_is_back_shows_before_it_is_ready() -> None:
    """Of a worker the run may do without it, so it counts as gone until it is ready."""
    peers = Peers(["evaluator", "worker 0"])
    for act in (peers.connect, peers.lose, peers.connect):
        for name in ("evaluator", "worker 0"):
            act(name)
    assert peers.to_look_at == ("evaluator",)
    peers.admit("worker 0", msg.Ready())
    assert peers.to_look_at == ("evaluator", "worker 0")


def test_who_is_retired_and_found_dead_is_lost_once_and_stops_nothing() -> None:
    live = connected_and_begun()
    said = live.handle(Received("client", msg.RoleLeaves("worker 1")), 1.0)
    said += live.handle(Looked(("worker 1",)), 1.1)
    assert [each.message.text for each in said if type(getattr(each, "message", None)) is msg.Incident] == [
        "worker 1 was lost at 1.1 s"
    ]
    assert (live.run.retired, bool(live.run.ending)) == ("", False)
    assert live.run.view.num_active == 1


def test_a_run_moves_when_its_last_worker_is_retired() -> None:
    """As when a batch system ends all jobs of Dask workers at once: no process was lost."""
    live = connected_and_begun()
    for name in ("worker 1", "worker 0"):
        live.handle(Received("client", msg.RoleLeaves(name)), 1.0)
        live.handle(Looked(()), 1.1)
    assert (live.run.view.num_active, live.run.retired) == (1, "worker 0")
    assert live.run.checkpoint_schedule.stopping


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


def test_a_worker_joins_once_whoever_says_so() -> None:
    """Its return by the profile waited for its turn when another process took its place."""
    live = all_connected(workload("asp", evaluate_every=100))
    live.handle(Received(FIRST_SERVER, msg.StateReply(1, {})), 0.0)
    live.handle(Received("evaluator", msg.EvaluationDone(0, {"val_loss": 1.0})), 0.0)
    assert not membership.is_possible(live.run, ev.Join(1))
    live.run.view.workers[1].status = Status.GONE
    live.run.events.append(ev.Join(1))
    assert membership.awaits_worker(live.run)  # others may be gone meanwhile


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


def test_a_worker_that_comes_back_as_the_run_ends_is_lost() -> None:
    run = world(workload("bsp", 3, stop={"seconds": 2.0}, recovery={"min_workers": 1}))
    settle(run)
    run.ask(msg.PressWorker(1, "lost", 1.0))
    settle(run)
    run.live.run.events.append(ev.Join(1))
    run.now = 2.5
    run.heal()
    assert run.outcome is not None
    assert run.outcome.facts["lost_workers"] == [1]


def test_what_the_user_does_to_a_worker_is_done_and_said() -> None:
    live = connected_and_begun(3)

    def press(worker: int, what: Any, factor: float = 1.0) -> tuple[list[Any], str]:
        given = live.handle(Received("client", msg.PressWorker(worker, what, factor)), 1.0)
        orders = [each.message for each in given if isinstance(each, Send)]
        factors = [each.factor for each in orders if isinstance(each, msg.ChangeSpeed)]
        (said,) = [each.text for each in orders if isinstance(each, msg.Incident) and "worker" in each.text]
        return factors, said

    assert press(0, "speed", 0.5) == ([0.5], "worker 0 was made 0.5 times as fast by hand at 1.00 s")
    assert press(0, "speed", 0.5)[0] == [0.25]  # of the profile's
    assert press(1, "speed", 2.0)[0] == [2.0]
    assert "is already in the run" in press(0, "back")[1]
    assert "cannot be changed: it has no process" in press(3, "lost")[1]
    assert live.run.view.num_active == 3
    assert "was removed by hand" in press(2, "lost")[1]
    assert live.run.view.num_active == 2
    assert "is already lost" in press(2, "lost")[1]
    assert "was removed by hand" in press(1, "lost")[1]
    assert "is the last worker and cannot be lost" in press(0, "lost")[1]
    assert "was brought back by hand" in press(2, "back")[1]
    assert live.run.view.num_active == 2
    assert "is already in the run" in press(2, "back")[1]
    live.handle(
        Received("worker 0", msg.Hello("worker 0")), 2.0
    )  # another process, as fast as the one before
    given = live.handle(Received("worker 0", msg.Ready()), 2.0)
    told = [each for each in given if isinstance(each, Send) and isinstance(each.message, msg.ChangeSpeed)]
    assert [(each.to, each.message.factor) for each in told] == [("worker 0", 0.25)]


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
        *("worker 1 was removed by hand", "worker 2 was removed by hand"),
        "worker 0 is the last worker and cannot be lost",
    ]


def test_a_worker_that_left_and_came_back_in_one_answer_is_not_released() -> None:
    """It was released by what was decided before it left, and computed while it was new in the run."""
    measuring = Strategy(aggregation=MeasuresFirst(), consistency=BSP(), placement=ParameterServer())
    run = world(workload(measuring, **LONG))
    settle(run)
    for name in ("worker 0", "worker 1"):
        run.end_step(name)
    while ("evaluator", "coordinator") not in run.waiting():
        run.arrive(run.waiting()[0])
    run.ask(msg.PressWorker(1, "lost", 1.0))
    run.ask(msg.PressWorker(1, "back", 1.0))
    settle(run, without="evaluator")
    settle(run)
    assert run.live.run.view.workers[1].status is Status.NEW
    assert run.busy() == ["worker 0"]


def test_a_late_push_of_a_composition_with_fragments_is_void() -> None:
    """It came after a switch to a composition without fragments, of a worker that had left: the run ended."""
    live = connected_and_begun()
    worker = live.run.view.workers[0]
    worker.status, worker.fragment = Status.GONE, 1
    push = msg.PushMessage(worker.ticket, 0, 4, 1, 0.1, 0.0, 1.0)
    said = live.handle(Received("worker 0", push), 0.1)
    assert not [each for each in said if isinstance(each, End)]


def test_a_push_of_an_earlier_ticket_is_not_what_its_worker_computes_now() -> None:
    """Its worker left, came back and was released: what it pushed before says nothing of a divergence."""
    live = connected_and_begun()
    worker = live.run.view.workers[0]
    assert worker.status is Status.COMPUTING
    for ticket, ends in ((worker.ticket - 1, False), (worker.ticket, True)):
        push = msg.PushMessage(ticket, 0, 4, 1, 0.1, 0.0, 1.0, is_finite=False)
        live.handle(Received("worker 0", push), 0.1)
        assert (live.run.ending.status == "diverged") == ends


@pytest.mark.parametrize("why", ["released again", "about to leave", "none"])
def test_who_has_left_since_a_release_was_decided_is_sent_none(why: str) -> None:
    live = connected_and_begun()
    worker = live.run.view.workers[0]
    live.run.out.take()
    if why == "about to leave":
        live.run.events.append(ev.Leave(0, "failed"))
    live.run.events.append(ev.Leave(1, "failed"))
    ticket = worker.ticket - (why == "released again")
    live.driver.perform_one(Release(0, ticket=ticket, load=worker.base_version), live.run.now)
    assert bool(live.run.out.take()) == (why == "none")


def test_in_virtual_time_such_a_worker_computes_nothing_void() -> None:
    measuring = Strategy(aggregation=MeasuresFirst(), consistency=BSP(), placement=ParameterServer())
    away = [{"worker": 1, "at_s": 0.05, "rejoin_s": 0.1}]  # the first loss takes until 0.12 s
    machines = {"workers": 2, "step_time": "constant", "failures": away}
    of = workload(measuring, cluster=machines, stop={"updates": 4}, backend="simulated")
    rows = run_simulated(of.experiment).log.rows()
    assert rows["time_s"][rows["kind"] == Kind.LEAVE] == rows["time_s"][rows["kind"] == Kind.MEASURED][0]
    assert not (rows["kind"] == Kind.VOID).any()


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


def test_nobody_waits_for_the_planned_return_of_a_dead_process() -> None:
    """The run went on without any worker until the time of that return."""
    run = world(workload("asp", cluster=FAILS, stop={"updates": 60}, evaluate_every=100))
    run.is_healing = True  # it is noticed at once who is dead
    settle(run)
    run.pass_time(0.6)
    for name in ("worker 1", "worker 0"):
        run.kill(name)
    for _ in range(3):
        if run.end is None:
            run.pass_time(0.3)
            settle(run)
    assert run.end is not None
    assert isinstance(run.end.error, WorkerLost)
    assert run.now < 2.0


def test_a_dead_worker_is_not_waited_for_at_the_end() -> None:
    """What it used is nowhere: the end waited for that as for a worker in a long step."""
    run = world(workload("asp", stop={"updates": 2}))
    run.is_healing = True  # it is noticed at once who is dead
    settle(run)
    run.kill("worker 1")
    run.pass_time(0.3)
    settle(run)
    for _ in range(2):
        run.end_step("worker 0")
        settle(run)
    for _ in range(3):
        run.pass_time(0.3)
        settle(run)
    assert run.outcome is not None


def test_that_a_place_was_found_late_is_said() -> None:
    live = connected_and_begun()
    live.handle(Looked(("evaluator",)), 1.0)
    live.handle(Received("client", msg.RoleLost("evaluator")), 2.0)
    live.handle(Received("evaluator", msg.Hello("evaluator")), 3.0)
    said = live.handle(Received("evaluator", msg.Ready()), 3.0)
    assert "evaluator has joined on another Dask worker at 3.0 s" in str(said)


def test_who_is_lost_by_hand_in_the_last_ring_is_said_to_be_lost() -> None:
    """The ring came of it, and the run was stopped before the engine had heard of it."""
    run = world(workload("all_reduce", 3, **LONG))
    settle(run)
    for worker in (0, 2):
        run.end_step(f"worker {worker}")
    settle(run)
    for asked in (msg.PressWorker(1, "lost", 1.0), msg.RequestStop(False)):
        run.ask(asked)
        settle(run)
    run.heal()
    assert run.outcome is not None
    assert run.outcome.facts["lost_workers"] == [1]
