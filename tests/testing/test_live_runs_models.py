"""Live runs whose workers have models of their own, or shares: what is lost with a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psbench.backends.dask.coordinator import run_state
from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.instructions import Outbox, Send
from psbench.backends.dask.protocol.messages import ReleaseMessage
from psbench.backends.dask.protocol.transport import Received
from psbench.backends.dask.server.gossip import GossipStore
from psbench.core import events as ev
from psbench.core.actions import Mix
from psbench.core.log import Kind
from psbench.core.view import Status
from psbench.errors import WorkerLost
from psbench.training.build import Workload
from tests.live_runs import World
from tests.live_runs.scenes import LONG, settle, workload, world

JOINS = {"joins": [{"worker": 2, "at_s": 0.5}]}
NEIGHBOURS = ("d_psgd", "d_psgd_step_first", "sgp", "ad_psgd")


def of(name: str, workers: int = 3, **cluster: Any) -> Workload:
    machines = {"workers": workers, "step_time": "constant"} | cluster
    return workload(name, workers, **LONG | {"cluster": machines, "stop": {"updates": 30}})


def pushed(run: World) -> set[int]:
    rows = run.log.rows()
    return {int(worker) for worker in rows["worker"][rows["kind"] == Kind.PUSH]}


def said_by_coordinator(run: World, name: str) -> list[Any]:
    """Let all messages arrive, and return those of the coordinator to a process."""
    said: list[Any] = []
    while pairs := run.waiting():
        if pairs[0] == ("coordinator", name):
            said.append(run.next_of(pairs[0]))
        run.arrive(pairs[0])
    return said


def ends(run: World) -> msg.RunOutcome:
    run.heal(looks=True)
    assert run.outcome is not None
    assert run.outcome.status == "finished"
    return run.outcome


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_who_joins_is_given_the_model_of_another_if_the_giver_is_lost(name: str) -> None:
    """The run ended with the error of the worker that joined."""
    run = world(of(name, **JOINS))
    settle(run)
    run.kill("worker 0", arrives=False)
    run.pass_time(0.6)  # worker 2 joins, and worker 0 is not known to be dead
    run.end_step("worker 1")
    for _ in range(3):  # worker 1 may wait for the model of worker 2, which waits for its own
        settle(run)
    ends(run)
    assert pushed(run) == {0, 1, 2}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_worker_that_is_dropped_sends_what_it_was_released_with(name: str) -> None:
    """Others waited for good: it is released and dropped in one answer, and its release was left out."""
    drops = {"name": "drop_stragglers", "factor": 1.05, "window": 1, "patience": 1, "most": 0.5}
    strategy = {"name": name, "stragglers": drops | {"readmit_after_s": 0.3}}
    cluster = {"workers": 4, "step_time": "constant"}
    run = world(workload(strategy, 4, **LONG | {"cluster": cluster, "stop": {"updates": 30}}))
    ends(run)
    kinds = run.log.rows()["kind"]
    assert np.isin([Kind.DROP, Kind.READMIT], kinds).all()


def test_a_run_ends_when_no_worker_is_left_that_has_a_model() -> None:
    run = world(of("ad_psgd", 2, joins=[{"worker": 1, "at_s": 0.5}]))
    settle(run)
    run.kill("worker 0", arrives=False)
    run.pass_time(0.6)
    run.is_healing = True
    run.pass_time(0.6)
    assert run.end is not None
    assert isinstance(run.end.error, WorkerLost)
    assert "every worker that has a model is lost" in str(run.end.error)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_run_ends_when_all_were_away_and_one_comes_back(name: str) -> None:
    """As in virtual time: it went on from the first model, without a word."""
    failures = [{"worker": 0, "at_s": 0.5, "rejoin_s": 1.0}, {"worker": 1, "at_s": 0.6}]
    run = world(of(name, 2, failures=failures))
    settle(run)
    for worker in ("worker 0", "worker 1"):
        run.end_step(worker)
        settle(run)
    for _ in range(2):
        run.pass_time(0.6)
        settle(run)
    assert run.end is not None
    assert isinstance(run.end.error, WorkerLost)
    assert "worker 0 returns, but no other worker has a model" in str(run.end.error)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_who_is_back_at_once_is_sent_the_models_again_that_it_has_taken(name: str) -> None:
    """It waited for good for models that it had mixed before it was lost by hand."""
    run = world(of(name))
    settle(run)
    for worker in ("worker 0", "worker 1", "worker 2", "worker 0"):
        run.end_step(worker)
        settle(run)
    run.ask(msg.PressWorker(0, "lost", 1.0))
    run.ask(msg.PressWorker(0, "back", 1.0))
    assert ends(run).facts["lost_workers"] == []


def test_a_stop_waits_for_the_models_of_workers_whose_step_takes_long() -> None:
    """After 2 s the checkpoint was written without them, and they went on from the first model."""
    run = world(of("d_psgd"))
    settle(run)
    run.ask(msg.RoleLeaves("coordinator"))
    run.end_step("worker 0")
    for _ in range(50):
        settle(run)
        run.pass_time(0.1)
    assert run.end is None
    for worker in ("worker 1", "worker 2"):
        run.end_step(worker)
    run.heal()
    assert run.record.start is not None
    found = run.record.start.checkpoint.tensors
    assert {f"worker/{worker}/model/parameters" for worker in range(3)} <= found.keys()


@pytest.mark.parametrize("name", ["d_psgd", "ad_psgd"])
def test_a_worker_whose_model_was_lost_with_it_begins_with_another_model(name: str) -> None:
    """Others waited for good for what it had sent before the checkpoint."""
    before = world(of(name))
    settle(before)
    before.ask(msg.RoleLeaves("coordinator"))
    settle(before)
    before.pass_time(0.3)
    before.end_step("worker 0")
    settle(before)  # a version is made, and a checkpoint asked of all
    before.kill("worker 1", arrives=False)
    before.end_step("worker 2")
    settle(before)
    before.is_healing = True
    before.pass_time(0.3)
    before.heal()
    assert before.record.start is not None
    state = before.record.start.checkpoint.state
    assert state["workers"].keys() == {"0", "2"}
    assert [each["status"] for each in state["engine"]["view"]["workers"]].count(Status.GONE) == 0
    run = World(of(name), np.random.Generator(np.random.PCG64(2)), LiveRun, before)
    said = said_by_coordinator(run, "worker 1")
    kinds = [type(message) for message in said if isinstance(message, (msg.MixModels, ReleaseMessage))]
    assert kinds == [msg.MixModels, ReleaseMessage]
    assert ends(run).facts["lost_workers"] == []


@pytest.mark.parametrize("switches", [False, True])
def test_a_worker_that_a_checkpoint_of_shares_lacks_does_not_join(switches: bool) -> None:
    """It was given a share of the model, and versions were made without it: the model was of two versions.

    After a switch it was out of the run for good, though it could take part.
    """
    switch = {"name": "strategy_switch", "rule": "manual", "first": "fsdp", "second": "bsp"}
    experiment = workload(switch, 3, stop={"updates": 30}, evaluate_every=0.01)
    before = world(experiment)
    before.kill("worker 2", arrives=False)
    before.report_dead()
    for _ in range(8):
        settle(before)
        before.pass_time(0.3)
        for worker in before.busy():
            before.end_step(worker)
    before.ask(msg.RoleLeaves("coordinator"))
    before.heal()
    assert before.can_go_on
    run = World(experiment, np.random.Generator(np.random.PCG64(2)), LiveRun, before)
    settle(run)
    run.ask(msg.PressWorker(2, "back", 1.0))
    said = [
        message.text for message in said_by_coordinator(run, "client") if isinstance(message, msg.Incident)
    ]
    assert "worker 2 cannot be back by hand: each worker has a share of the model" in said[-1]
    if switches:
        run.ask(msg.RequestSwitch(None))
    ends(run)
    assert pushed(run) == ({0, 1, 2} if switches else {0, 1})


def test_a_worker_that_is_out_of_the_run_has_no_share_after_a_switch() -> None:
    """It has a process, and is in no ring: its share would be of the version at the switch for good."""
    switch = {"name": "strategy_switch", "rule": "manual", "first": "all_reduce", "second": "fsdp"}
    run = world(workload(switch, 3, stop={"updates": 30}, evaluate_every=100))
    settle(run)
    for asked in (msg.PressWorker(2, "lost", 1.0), msg.RequestSwitch(None)):
        run.ask(asked)
        settle(run)
    said: list[Any] = []
    for _ in range(8):
        for worker in run.busy():
            run.end_step(worker)
        said += said_by_coordinator(run, "worker 0")
        run.pass_time(0.1)
    places = [order.place for order in said if isinstance(order, msg.KeepShare)]
    assert places == [msg.RingPlace(0, 2, 2, 1)]
    ends(run)


def test_who_is_lost_by_hand_while_shares_are_dealt_out_has_none() -> None:
    """It had one, and was in no ring: what was evaluated was of two versions."""
    switch = {"name": "strategy_switch", "rule": "manual", "first": "all_reduce", "second": "fsdp"}
    run = world(workload(switch, 3, stop={"updates": 30}, evaluate_every=100))
    settle(run)
    run.ask(msg.RequestSwitch(None))
    while not run.live.run.view.in_force:
        if pairs := run.waiting():
            run.arrive(pairs[0])
        for worker in run.busy():
            run.end_step(worker)
        run.pass_time(0.01)
    assert run.live.run.wait is not None
    assert run.live.run.wait.awaited() == "the holders of the model"
    press = Received("client", msg.PressWorker(2, "lost", 1.0))
    run.perform(run.live.handle(press, run.now))
    ends(run)


def test_a_new_process_is_not_told_to_mix_what_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push waited for the evaluator while the worker that was to exchange models with it was replaced."""
    monkeypatch.setattr(run_state, "_WAITING_BYTES", 0)
    run = world(workload("ad_psgd", 3, **LONG | {"evaluate_every": 0.001}))
    run.is_healing = True
    settle(run)
    while run.live.run.wait is None or run.live.run.wait.awaited() != "evaluator":
        run.end_step(run.busy()[0])
        settle(run, without="evaluator")
    run.end_step(run.busy()[0])
    settle(run, without="evaluator")
    lost = run.busy()[0]
    run.kill(lost)
    for _ in range(4):
        run.pass_time(0.3)
        run.find_places()
        settle(run, without="evaluator")
    assert [type(event) for event in run.live.run.events] == [ev.Push, ev.Leave, ev.Join]
    orders = [order for order in said_by_coordinator(run, lost) if isinstance(order, msg.MixModels)]
    assert [len(order.row) for order in orders] == [1]  # to begin with the model of another


def test_no_worker_waits_for_one_that_is_missing_as_a_run_goes_on() -> None:
    """The rest of the checkpoint's answer may mix its model, before the engine hears that it is gone."""
    run = world(of("d_psgd_step_first"))
    settle(run)
    state, out = run.live.run, Outbox()
    store = GossipStore(out, state.workload, state.view, [0, 1], iter(range(9)), state.introductions)
    store.mix(Mix({0: {0: 0.5, 2: 0.5}}, sent=True, push=0, versions={0: 1}))
    (order,) = [each.message for each in out.take() if isinstance(each, Send)]
    assert order.lost == [2]
