"""The loop of the coordinator's process: it reads, gives the run what came, and performs what that says."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from psbench.backends.dask.coordinator.coordinator import Coordinator
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import MessageRefused
from psbench.backends.dask.protocol.instructions import (
    FIRST_SERVER,
    Answer,
    End,
    Forget,
    Look,
    Looked,
    Refused,
    Send,
    Tick,
)
from psbench.backends.dask.protocol.messages import ReleaseMessage
from psbench.backends.dask.protocol.transport import Received
from psbench.backends.stamps import CoordinatorStamps
from psbench.errors import ServerLost
from psbench.experiment import Experiment
from psbench.training.build import Workload


class Socket:
    """Gives what was put into it, and keeps what is sent; a peer may be dead."""

    def __init__(self) -> None:
        self.coming: list[Any] = []
        self.sent: list[tuple[str, Any]] = []
        self.forgotten: list[str] = []
        self.dead: set[str] = set()
        self.strangers, self.keep_payload = 3, None

    def receive(self, timeout_s: float) -> Any:
        found = self.coming.pop(0) if self.coming else None
        if isinstance(found, Exception):
            raise found
        return found

    def send(self, name: str, message: Any) -> bool:
        self.sent.append((name, message))
        return name not in self.dead

    def forget(self, name: str) -> None:
        self.forgotten.append(name)


class Live:
    """Says in turn what a test wants said, and keeps what it is given."""

    def __init__(self, *said: list[Any]) -> None:
        self.said, self.given = list(said), list[Any]()
        self.run = SimpleNamespace(begin_s=0.0)

    def handle(self, given: Any, now: float) -> list[Any]:
        self.given.append(given)
        return self.said.pop(0)


@pytest.fixture(scope="module")
def workload() -> Workload:
    model = {"name": "mlp", "hidden": [2]}
    return Workload.build(
        Experiment(strategy="asp", data="digits", model=model, cluster={"workers": 2}, backend="dask")
    )


def coordinator(workload: Workload, *said: list[Any]) -> Any:
    made: Any = Coordinator(workload, Socket(), [])  # type: ignore[arg-type]
    made.live, made.socket = Live(*said), made._socket
    return made


def test_the_run_is_given_messages_silence_and_nonsense(workload: Workload) -> None:
    one = coordinator(workload, [], [], [], [End()])
    hello = Received("worker 0", msg.Hello("worker 0"))
    one.socket.coming = [hello, None, MessageRefused("no kind", "worker 1"), hello]
    one.run()
    assert one.live.given == [hello, Tick(), Refused("worker 1"), hello]


def test_a_look_finds_the_dead_and_is_answered_before_all_messages(workload: Workload) -> None:
    one = coordinator(workload, [Look(("worker 0", "worker 1")), Forget("worker 1")], [End()])
    one.socket.coming, one.socket.dead = [None, None], {"worker 1"}
    one.run()
    assert one.live.given == [Tick(), Looked(("worker 1",), 3)]
    assert one.socket.sent == [("worker 0", msg.Ping()), ("worker 1", msg.Ping())]
    assert one.socket.forgotten == ["worker 1"]


def test_orders_to_the_first_server_are_carried_out_here(workload: Workload) -> None:
    start = torch.arange(float(workload.model.num_parameters))
    begin = msg.BeginSlice(0, None, None, {"parameters": start, "buffers": start[:0]})
    release = ReleaseMessage(1, 0, 16, True)
    said = [Send(FIRST_SERVER, begin), Send("worker 1", msg.Halt()), Answer("worker 0", release)]
    one = coordinator(workload, [*said, Send(FIRST_SERVER, msg.SendState(7, False))], [End()])
    one.run()
    (tick, reply) = one.live.given
    assert tick == Tick()
    assert (reply.sender, reply.message.tag) == (FIRST_SERVER, 7)
    assert torch.equal(reply.message.tensors["parameters"], start)
    (halt, answer) = one.socket.sent
    assert halt == ("worker 1", msg.Halt())
    assert answer[0] == "worker 0"
    assert torch.equal(answer[1].payload, start)


def test_what_ends_a_run_before_its_time_is_raised(workload: Workload) -> None:
    with pytest.raises(ServerLost, match="server 1 is gone"):
        coordinator(workload, [End(ServerLost("server 1 is gone"))]).run()


def test_stamps_hear_from_pushes_how_long_a_step_was(workload: Workload) -> None:
    one = coordinator(workload, [], [], [], [End()])
    heard = []
    one._stamps = CoordinatorStamps(2)
    one._stamps.has = lambda worker, step_s: heard.append((worker, step_s)) or False
    one.socket.waiting = 0
    push, vote = msg.PushMessage(0, 0, 12, 3, 6.0, 0.0, 1.0), msg.VoteMessage(1, 0.5, 4, 2.0)
    single = msg.PushMessage(1, 0, 4, 1, 3.0, 0.0, 1.0)
    one.socket.coming = [Received("worker 1", push), Received("worker 0", vote), Received("worker 1", single)]
    one.run()
    assert heard == [(1, 2.0), (0, None), (1, 3.0)]


def test_stamps_and_the_load_are_of_pushes_and_of_words_apart(workload: Workload) -> None:
    one = coordinator(workload, [], [], [End()])
    noted, began = [], time.perf_counter()
    one._stamps = CoordinatorStamps(2)
    one._stamps.has = lambda worker, step_s: True
    one._stamps.push = lambda row: noted.append(("push", *row[:2]))
    one._stamps.word = lambda row, is_vote: noted.append(("vote" if is_vote else "report", *row[:2]))
    one.socket.waiting = 0
    push, vote = msg.PushMessage(7, 0, 12, 3, 6.0, 0.0, 1.0), msg.VoteMessage(8, 0.5, 4, 2.0)
    one.socket.coming = [Received("worker 1", push), Received("worker 0", vote)]
    busy, serves, handle = SimpleNamespace(whole_s=1.0), iter([3.0, 5.0, 0.0]), one.live.handle
    one.first_server.slice = SimpleNamespace(busy=busy, close=lambda: None)

    def served(given: Any, now: float) -> list[Any]:
        busy.whole_s += next(serves)
        return handle(given, now)

    one.live.handle = served
    one.run()
    assert noted == [("push", 1, 7), ("vote", 0, 8)]
    load = one._load()
    assert (load["pushes"], load["serving_s"]) == (1, 1.0 + 3.0)
    assert 0 <= load["handled_s"] <= time.perf_counter() - began  # clocks that only go on


def test_a_release_asks_for_stamps_and_is_noted_once_it_is_sent(workload: Workload) -> None:
    releases = [ReleaseMessage(ticket, 0, 16, True) for ticket in (5, 6)]
    said = [Send(f"worker {worker}", release) for worker, release in enumerate(releases)]
    one = coordinator(workload, [*said, Send("worker 0", msg.Halt())], [End()])
    noted = []
    one._stamps = CoordinatorStamps(2)
    one._stamps.begins = lambda worker: worker == 1
    one._stamps.answered = lambda *answer: noted.append((*answer, len(one.socket.sent)))
    one.run()
    assert [message.stamped for _, message in one.socket.sent[:2]] == [False, True]
    assert noted == [(1, 6, 2)]
    assert one._received_s > 0


@pytest.mark.parametrize("stamped", [False, True])
def test_an_outcome_says_what_the_coordinator_did_and_its_stamps(workload: Workload, stamped: bool) -> None:
    outcome = msg.RunOutcome("finished", "", {}, {})
    one = coordinator(workload, [Send("client", outcome), End()])
    one._stamps = CoordinatorStamps(2) if stamped else None
    peers = SimpleNamespace(stamps={"worker 1": {}}, served={"server 0": {}})
    one.live.run = SimpleNamespace(begin_s=0.0, peers=peers)
    one.run()
    assert outcome.facts.pop("coordinator") == {"pushes": 0, "handled_s": 0.0, "serving_s": 0.0}
    stamps = outcome.facts.pop("stamps", None)
    assert (stamps is not None) == stamped
    if stamps is not None:
        assert (stamps["workers"], stamps["servers"]) == ({"worker 1": {}}, {"server 0": {}})
