"""Until a live run's training begins: who is waited for, and who is lost before that."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path

import pytest

from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.protocol import instructions as ins
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.instructions import (
    End,
    Looked,
    Send,
    Tick,
)
from psbench.backends.dask.protocol.transport import Received
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.view import Status
from psbench.errors import WorkerLost
from psbench.metrics.traffic import total_bytes
from tests.live_runs.scenes import settle, workload, world

#: the page on the states of a live run
PAGE = Path(__file__).parents[2] / "notebooks/site/explanations/live_run.md"
#: names on it that are neither attributes nor messages
OTHERS = {"RunState", "LiveRun.training_wait"}


def test_the_page_on_states_names_attributes_and_messages_that_exist() -> None:
    """A name in small letters is an attribute of `RunState`, one with a capital a message or a status."""
    names = set(re.findall(r"`([\w.]+)`", PAGE.read_text())) - OTHERS
    words = {name for name in names if name.endswith(".py")} | {"finished", "stopped", "diverged"}
    attributes = {name for name in names - words if name[0].islower()}
    settle(run := world(workload("asp")))
    for name in attributes:
        reduce(getattr, name.split("."), run.live.run)
    there = {*vars(msg), *vars(ins), *vars(ev), *vars(act), *Status.__members__}
    assert names - words - attributes - there == set()
    assert len(attributes) > 20


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


def test_many_who_are_waited_for_are_counted() -> None:
    names = [f"worker {number}" for number in range(130)]
    live = LiveRun(workload("asp"), [*names, "client"])
    for name in (*names[:70], *names[128:], "client"):
        live.handle(Received(name, msg.Hello(name)), 0.0)
        live.handle(Received(name, msg.Ready()), 0.0)
    said = str(live.handle(Tick(), 11.0))
    assert "waiting for 58 of 131 processes, worker 70 first for 11 s" in said


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
