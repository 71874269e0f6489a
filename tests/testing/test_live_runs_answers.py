"""Answers of a live run: evaluations, models and receipts that are awaited, and pushes that end it."""

from __future__ import annotations

import json
from itertools import count
from typing import Any, ClassVar

import pytest
import torch

from psbench import strategies
from psbench.backends.dask.coordinator import membership
from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.coordinator.run_state import EvaluationState, PendingEvaluation
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.instructions import (
    Answer,
    Input,
    Instruction,
    Outbox,
    Send,
)
from psbench.backends.dask.protocol.transport import Received
from psbench.backends.dask.server.all_reduce import AllReduceStore
from psbench.backends.dask.server.introductions import Introductions
from psbench.core.actions import Action, Release, SetTimer, Tell
from psbench.core.events import Evaluated, Push
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import SwitchingStrategy
from psbench.core.view import ClusterView
from psbench.strategies.aggregation.mean import Mean
from psbench.strategies.consistency.bsp import BSP
from psbench.strategies.switching.once import SwitchOnce
from tests.live_runs import World
from tests.live_runs.scenes import (
    FAILS,
    MeasuresFirst,
    connected_and_begun,
    settle,
    workload,
    world,
)
from tests.live_runs.world import COORDINATOR


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


class SwitchesAtOnce(SwitchOnce):
    """Toy: switches at the first evaluation."""

    name: ClassVar[str] = "switches_at_once"

    def on_evaluated(self, event: Evaluated, view: ClusterView) -> list[Action]:
        return self._switch_once("evaluated")


@pytest.mark.parametrize(("target", "switches"), [(1e-9, 0), (1.0, 1)])
def test_no_switch_comes_of_the_evaluation_that_ends_a_run(target: float, switches: int) -> None:
    """As in virtual time; its row is one of after the end."""
    pair = SwitchingStrategy(first=strategies.bsp(), second=strategies.asp(), rule=SwitchesAtOnce())
    settings = {"evaluate_every": 0.01, "stop": {"updates": 12, "target_accuracy": target}}
    run = world(workload(pair, **settings))
    run.heal()
    log = run.live.run.log
    assert len(log.of_kind(Kind.HANDOVER)["row"]) == switches
    assert log.of_kind(Kind.EVALUATED)["id"].tolist()[:2] == [0, 1 if switches else -1]


def test_no_push_that_waits_is_before_an_evaluation_that_sets_the_rate() -> None:
    plateau = {"name": "sgd", "lr": 0.1, "schedule": {"name": "plateau"}}
    run = world(workload("asp", 3, evaluate_every=0.001, optimizer=plateau))
    settle(run)
    while not run.live.run.ending:
        for name in run.busy():
            run.end_step(name)
        settle(run, without="evaluator")
        settle(run)
    run.heal()
    rows = run.log.rows()
    kinds = [kind for kind in rows["kind"].tolist() if kind in (Kind.APPLY, Kind.EVALUATED)]
    assert kinds == [Kind.EVALUATED, *[Kind.APPLY, Kind.EVALUATED] * 6]


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


def test_a_void_push_that_is_not_finite_ends_nothing() -> None:
    live = connected_and_begun()
    assert live.run.view.workers[0].ticket == 1
    push = msg.PushMessage(0, 0, 4, 1, 0.1, 0.0, 1.0, is_finite=False)  # under the ticket before
    live.handle(Received("worker 0", push), 0.0)
    assert not live.run.ending
    assert len(live.run.log.of_kind(Kind.VOID)["row"]) == 1


def test_orders_of_the_engine_are_sent_to_their_worker() -> None:
    live = connected_and_begun()
    live.driver.perform_one(Tell(1, {"batch_size": 3}), 0.0)
    assert live.run.out.take() == [Send("worker 1", msg.NewOrders({"batch_size": 3}))]


def test_releases_that_are_not_sent_leave_workers_unanswered() -> None:
    live = connected_and_begun()
    live.run.ending.stop()
    assert [*live.driver.perform([SetTimer(1.0, "a"), Release(0)])] == []
    assert live.run.ending.unanswered


@pytest.mark.parametrize("how", ["halted", "lost"])
def test_a_mean_is_without_the_model_of_a_worker_that_is_away(how: str) -> None:
    """Before the engine hears of a loss, too: what it is told first may wait for that evaluation."""
    live = connected_and_begun()
    averaging, found = live.run.models, list[Any]()
    averaging.ask_more(tag := averaging.ask(), [0, 1])
    averaging.mean(tag, lambda *mean: found.append(mean))
    model = {"parameters": torch.ones(2), "buffers": torch.zeros(0)}
    averaging.answer(0, tag, model)
    averaging.answer(1, tag - 1, model)  # for another mean, which is there
    assert not found
    live.driver.void(1) if how == "halted" else membership.lose(live.run, "worker 1")
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


@pytest.mark.parametrize("dies_first", [False, True])
def test_a_late_replica_is_not_for_the_next_in_a_place(dies_first: bool) -> None:
    """A process that had just come was given the release of the dead one."""
    out = Outbox()
    store = AllReduceStore(out, [0, 1], {}, count(1), Introductions(out, lambda worker: None), Mean())
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
    wait = run.live.run.wait
    assert wait is not None
    assert wait.awaited() == "replica (to keep the state)"
    run.live.handle(Received("replica", msg.StateKept(-1)), run.now)
    assert run.live.run.wait is wait
    settle(run)
    assert run.live.run.wait is run.live.training_wait


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


@pytest.mark.parametrize(("model_bytes", "room"), [(1 << 26, 4), (1 << 25, 8), (1 << 30, 4)])
def test_training_waits_once_a_quarter_of_a_gigabyte_is_to_be_evaluated(model_bytes: int, room: int) -> None:
    state = EvaluationState(model_bytes)
    for key in range(room):
        state.pending[key] = PendingEvaluation(key, 0, 0.0)
    assert not state.is_full
    state.pending[room] = PendingEvaluation(room, 0, 0.0)
    assert state.is_full


def without_an_evaluator(strategy: Any, **changes: Any) -> World:
    """Return a run whose evaluator is lost; its client is about to say that there is no place for one."""
    run = world(workload(strategy, evaluate_every=0.0001, **changes))
    run.is_healing = True  # it is noticed at once who is dead
    settle(run)
    run.kill("evaluator")
    run.pass_time(0.3)
    settle(run)
    run.find_places(False)
    return run


def test_an_evaluator_for_which_there_was_no_place_at_first_evaluates() -> None:
    run = without_an_evaluator("bsp")
    settle(run)
    run.find_places()
    run.heal()
    assert run.log.of_kind(Kind.EVALUATED)["version"].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_that_there_was_no_place_is_old_news_once_there_is_one() -> None:
    """The evaluator was there before its client's last word of it was read, and was sent nothing any more."""
    run = without_an_evaluator("bsp")
    run.find_places()
    settle(run, without="client")
    run.heal()
    assert run.log.of_kind(Kind.EVALUATED)["version"].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_a_last_version_is_evaluated_by_an_evaluator_found_at_the_end() -> None:
    """It counted as evaluated: that was due while there was no place for an evaluator."""
    strategy = {"name": "bsp", "placement": {"name": "parameter_server", "servers": 2}}
    run = without_an_evaluator(strategy, stop={"updates": 1})
    settle(run)
    for worker in (0, 1):
        run.end_step(f"worker {worker}")
        settle(run, without="server 1")
    run.find_places()
    settle(run, without="server 1")
    run.heal()
    assert run.log.of_kind(Kind.EVALUATED)["version"].tolist() == [0, 1]


def with_a_replica() -> World:
    """Return a run whose replica has parts of its workers, and that notices at once who is dead."""
    of = workload("async_local_sgd", recovery={"replicas": 1}, evaluate_every=100, stop={"updates": 60})
    run = world(of)
    run.is_healing = True
    return run


def test_a_replica_lost_while_a_switch_waits_is_done_without() -> None:
    """The state was sent to nobody, and its receipt awaited for good."""
    two = {"name": "bsp", "placement": {"name": "parameter_server", "servers": 2}}
    switch = {"name": "strategy_switch", "first": two, "second": "asp", "rule": "manual"}
    run = world(workload(switch, recovery={"replicas": 1}))
    run.is_healing = True  # it is noticed at once who is dead
    settle(run)
    run.ask(msg.RequestSwitch(None))
    for worker in (0, 1):
        run.end_step(f"worker {worker}")
        settle(run, without="server 1")
    run.kill("replica")
    run.pass_time(0.3)
    settle(run)
    assert run.live.run.view.version == 1
    run.heal()
    assert run.outcome is not None
    assert run.outcome.status == "finished"


def let_push(run: World, worker: int, without: str = "") -> None:
    """Let a worker compute until it has pushed, and that be answered."""
    before = run.live.run.pushes.next_number
    while run.live.run.pushes.next_number == before:
        settle(run, without)
        run.end_step(f"worker {worker}")
    settle(run, without)


def lose_replica(run: World, without: str = "") -> None:
    run.kill("replica")
    run.pass_time(0.3)
    settle(run, without)


def positions_kept(run: World) -> list[list[int]]:
    """Return the samples and steps of workers 0 and 1 in the state that the client takes from the replica."""
    run.lose_coordinator()
    assert run.record.start is not None
    workers = run.record.start.checkpoint.state["workers"]
    return [workers[number]["position"][:2] for number in "01"]


def test_another_replica_hears_how_far_workers_have_come_meanwhile() -> None:
    """It had a worker that computed where that was under the replica before: its steps were taken again."""
    run = with_a_replica()
    let_push(run, 1)
    lose_replica(run)
    let_push(run, 1)
    run.find_places()
    settle(run)
    let_push(run, 0)
    assert positions_kept(run) == [[0, 20], [160, 40]]


def test_a_part_for_a_replica_that_is_lost_is_not_for_the_next() -> None:
    """It came late, and with it another worker's of then, which took the place of that one's newer part."""
    run, late = with_a_replica(), "worker 1"
    for _ in range(2):
        run.arrive((late, COORDINATOR))
    settle(run, late)  # which is asked for its part with the first release
    lose_replica(run, late)
    run.find_places()
    let_push(run, 0, late)
    let_push(run, 1)
    assert positions_kept(run) == [[0, 20], [0, 20]]


def test_a_mean_is_without_a_model_that_comes_when_it_is_not_awaited() -> None:
    """Its worker was halted meanwhile, and sent it before it heard of that."""
    live = connected_and_begun(3)
    averaging, found = live.run.models, list[Any]()
    averaging.ask_more(tag := averaging.ask(), [0, 1, 2])
    averaging.mean(tag, lambda *mean: found.append(mean))
    live.driver.void(1)
    for worker in (0, 1, 2):
        averaging.answer(
            worker, tag, {"parameters": torch.tensor([1.0 + worker**2]), "buffers": torch.zeros(0)}
        )
    ((mean, _),) = found
    assert mean["parameters"].tolist() == [3.0]


def test_steps_that_are_kept_after_a_version_are_evaluated_at_the_end() -> None:
    """The last version was evaluated, and the workers have stepped on by themselves since."""
    run = world(workload({"name": "selsync", "delta": 1e9}, evaluate_every=0.015, stop={"epochs": 0.02}))
    run.heal()
    log = run.log.of_kind(Kind.EVALUATED)
    epochs = [json.loads(run.log.text(number))["epoch"] for number in log["text"]]
    assert log["version"].tolist() == [0, 1, 1]
    assert epochs == pytest.approx([0.0, 24 / 1438, 32 / 1438])


def test_a_version_is_held_while_a_push_that_waits_started_from_it() -> None:
    """Its worker was lost, and another process in that place had been released from a later one."""
    run = world(workload("bounded_step"))
    settle(run)
    live, view = run.live, run.live.run.view

    def held(worker: int, load: int) -> list[msg.HoldVersion]:
        live.driver.perform_one(Release(worker, ticket=view.workers[worker].ticket, load=load), 0.0)
        sent = [each.message for each in live.run.out.take()]
        return [message for message in sent if isinstance(message, msg.HoldVersion)]

    assert held(1, 5) == [msg.HoldVersion(5, [])]
    push = Push(7, 1, 1, 5, 4, 1, 0, 0.1, 0.0, 1.0, None, False)
    view.pending[push.id] = push
    assert held(1, 9) == [msg.HoldVersion(9, [])]
    assert held(1, 9) == []
    del view.pending[push.id]
    assert held(0, 9) == [msg.HoldVersion(9, [0, 5])]  # which only worker 0 and that push had started from


def test_a_version_is_held_for_an_update_of_the_same_answer() -> None:
    """A push came while loads were measured; a release before its update had the version dropped."""
    moves = {"name": "by_load", "every": 2, "threshold": 1.05}
    servers = {"name": "parameter_server", "servers": 3, "assignment": "layer", "reassignment": moves}
    run = world(workload({"name": "dc_asgd", "placement": servers}, stop={"updates": 30}))
    came = False
    while not came:
        if pairs := run.waiting():
            run.arrive(pairs[0])
        else:
            run.end_step(run.busy()[0])
        if run.live.run.engine.measuring and run.busy():
            run.end_step(run.busy()[0])
            while pairs := [pair for pair in run.waiting() if not pair[0].startswith("server")]:
                run.arrive(pairs[0])
            came = bool(run.live.run.engine.waiting_events)
    run.heal(looks=True)
    assert run.outcome is not None
    assert run.outcome.status == "finished"


class Noted(LiveRun):
    """A run whose instructions are kept."""

    def handle(self, given: Input, now: float) -> list[Instruction]:
        done = super().handle(given, now)
        self.done: list[Instruction] = [*getattr(self, "done", []), *done]
        return done


def test_the_model_of_the_end_is_of_the_release_that_ended_the_run() -> None:
    """It would be asked for anew, and workers had gone on with a step of their own by then."""
    of = workload({"name": "selsync", "delta": 1e9}, evaluate_every=100, stop={"epochs": 0.02})
    run = world(of, Noted)
    run.heal()
    assert isinstance(run.live, Noted)
    sends = [each.message for each in run.live.done if isinstance(each, Send)]
    asked = [each.with_release for each in sends if isinstance(each, msg.SendModel)]
    assert asked
    assert all(asked)


@pytest.mark.parametrize("checkpoint_every", [None, 0.0001])
def test_nothing_is_released_by_the_answer_that_ends_a_run(checkpoint_every: float | None) -> None:
    """Whether a checkpoint is due with it or not."""
    of = workload("bsp", evaluate_every=100, stop={"updates": 2}, checkpoint_every=checkpoint_every)
    run = world(of, Noted)
    run.heal()
    assert isinstance(run.live, Noted)
    versions = [each.message.version for each in run.live.done if isinstance(each, Answer)]
    assert versions == [0, 0, 1, 1]
