"""A worker alone with a server socket that stands in for the coordinator."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import Outbox, Send
from psbench.backends.dask.protocol.messages import PushMessage, ReleaseMessage
from psbench.backends.dask.protocol.transport import Abandoned, ClientSocket, ServerSocket
from psbench.backends.dask.server.parameter_server import ParameterServerStore, partition_of
from psbench.backends.dask.server.server_process import ServerProcess
from psbench.backends.dask.server.store import state_of
from psbench.backends.dask.worker.worker import Worker
from psbench.core.actions import Release
from psbench.experiment import Experiment
from psbench.training.build import Workload

KEY = b"k" * 32


class Alone:
    """A worker in a thread, and the server socket that it knows as its coordinator."""

    def __init__(self, steps: int, strategy: Any = "local_sgd") -> None:
        spec = Experiment(strategy=strategy, cluster={"workers": 2}, batch_size=8, backend="dask")
        self.steps = steps
        self.workload, self.socket = Workload.build(spec), ServerSocket("127.0.0.1", KEY)
        self.ended: list[type] = []
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()
        while not isinstance(self.next(), msg.Ready):
            pass

    def _work(self) -> None:
        torch.set_num_threads(1)
        with ClientSocket(self.socket.address, KEY, "worker 0") as coordinator:
            try:
                Worker(self.workload, 0, coordinator, [], None, KEY).run()
            except Exception as error:
                self.ended.append(type(error))

    def next(self) -> Message:
        """Return the next message, and answer requests for the clock."""
        while True:
            received = self.socket.receive(1.0)
            if received is None:
                continue
            if not isinstance(received.message, msg.AskClock):
                return received.message
            self.socket.send("worker 0", msg.Clock(time.monotonic()))

    def release(self, ticket: int) -> None:
        """Release it with the model, to push after so many steps."""
        release = Release(0, ticket=ticket, load=0, orders={"local_steps": self.steps})
        self.socket.send("worker 0", ReleaseMessage.of(release, 4, self.workload.parameters))


def test_a_worker_in_a_long_step_notices_that_the_coordinator_is_gone() -> None:
    alone = Alone(steps=100_000)
    alone.release(1)
    time.sleep(0.2)
    assert not alone.ended
    alone.socket.close()
    alone.thread.join(60)
    assert alone.ended == [Abandoned]


def test_a_server_notices_that_the_coordinator_is_gone() -> None:
    """A connection that was closed at the other end is always ready to read."""
    spec = Experiment(strategy="asp", cluster={"workers": 2}, batch_size=8, backend="dask")
    coordinator = ServerSocket("127.0.0.1", KEY)
    with (
        ServerSocket("127.0.0.1", KEY) as own,
        ClientSocket(coordinator.address, KEY, "server 1") as client,
    ):
        server = ServerProcess(Workload.build(spec), own, client, 1)
        coordinator.receive(60)
        coordinator.close()
        ended: Future[None] = Future()
        threading.Thread(target=lambda: ended.set_exception(_raised_by(server.run)), daemon=True).start()
        with pytest.raises(Abandoned):
            ended.result(60)


@contextmanager
def second_server() -> Iterator[tuple[Workload, ServerSocket, ServerSocket, ServerProcess]]:
    """Give a workload, the sockets of the coordinator and of the second of two servers, and that server."""
    strategy = {"name": "asp", "placement": {"name": "parameter_server", "servers": 2}}
    spec = Experiment(strategy=strategy, cluster={"workers": 2}, batch_size=8, backend="dask")
    workload = Workload.build(spec)
    with (
        ServerSocket("127.0.0.1", KEY) as coordinator,
        ServerSocket("127.0.0.1", KEY) as own,
        ClientSocket(coordinator.address, KEY, "server 1") as client,
    ):
        yield workload, coordinator, own, ServerProcess(workload, own, client, 1)


def begin(coordinator: ServerSocket, workload: Workload, state: StateDict) -> None:
    """Send the second server its slice."""
    out = Outbox()
    ParameterServerStore(out, workload, 0, state, itertools.count())
    for instruction in out.take():
        assert isinstance(instruction, Send)
        coordinator.send(instruction.to, instruction.message)


def test_a_server_answers_a_worker_that_connects_after_the_order_for_it() -> None:
    """A worker is ready when its greeting is sent, and the server may not have read that yet."""
    with second_server() as (workload, coordinator, own, server):
        thread = threading.Thread(target=_raised_by, args=[server.run], daemon=True)
        thread.start()
        coordinator.receive(60)
        state = state_of(workload.server(), states=True)
        begin(coordinator, workload, state)
        for worker in (0, 1):
            coordinator.send("server 1", msg.AnswerWorker(worker, 7, 0, False))
        coordinator.send("server 1", msg.WorkerGone(0, False))  # the other one need not wait for it
        time.sleep(0.1)
        with ClientSocket(own.address, KEY, "worker 1") as late:
            answer = late.receive(60)
        assert isinstance(answer, ReleaseMessage)
        assert answer.ticket == 7
        assert answer.payload is not None
        coordinator.send("server 1", msg.StopRun())
        thread.join(60)


def test_a_server_keeps_a_push_that_comes_with_its_first_order() -> None:
    """A resumed worker that holds its model pushes at once, and a busy machine lets a server read late."""
    with (
        second_server() as (workload, coordinator, own, server),
        ClientSocket(own.address, KEY, "worker 0") as worker,
    ):
        coordinator.receive(60)
        state = state_of(workload.server(), states=True)
        begin(coordinator, workload, state)
        pushed = partition_of(workload.experiment.strategy, workload, None)[1].of(workload.parameters)
        worker.send(PushMessage(1, 0, 4, 1, 0.1, 0.2, 0.3, payload=pushed))
        coordinator.send("server 1", msg.SendPayload(5, (0, 1)))
        thread = threading.Thread(target=_raised_by, args=[server.run], daemon=True)
        thread.start()
        replies = [coordinator.receive(60), coordinator.receive(60)]
        coordinator.send("server 1", msg.StopRun())
        thread.join(60)
    assert replies[1] is not None
    assert isinstance(replies[1].message, msg.StateReply)
    assert torch.equal(replies[1].message.tensors["parameters"], pushed)


def test_a_server_drops_a_push_that_is_discarded_before_it_arrives() -> None:
    with (
        second_server() as (workload, coordinator, own, server),
        ClientSocket(own.address, KEY, "worker 0") as worker,
    ):
        thread = threading.Thread(target=_raised_by, args=[server.run], daemon=True)
        thread.start()
        coordinator.receive(60)
        state = state_of(workload.server(), states=True)
        begin(coordinator, workload, state)
        coordinator.send("server 1", msg.DiscardPush((0, 1)))
        coordinator.send("server 1", msg.SendState(5, False))  # is answered after it
        coordinator.receive(60)
        time.sleep(0.1)
        pushed = partition_of(workload.experiment.strategy, workload, None)[1].of(workload.parameters)
        for ticket in (1, 2):
            worker.send(PushMessage(ticket, 0, 4, 1, 0.1, 0.2, 0.3, payload=pushed))
        coordinator.send("server 1", msg.SendPayload(6, (0, 2)))
        tags = []
        while not tags or tags[-1] != 6:
            reply = coordinator.receive(60)
            assert reply is not None
            if isinstance(reply.message, msg.StateReply):
                tags.append(reply.message.tag)
        coordinator.send("server 1", msg.StopRun())
        thread.join(60)
    assert tags == [5, 6]
    assert server._held.slice.payloads.keys() == {(0, 2)}


def _raised_by(function: Callable[[], None]) -> BaseException:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("it returned")


def test_a_halted_worker_forgets_what_it_computed_and_concluded() -> None:
    alone = Alone(steps=50)
    alone.release(1)
    time.sleep(0.05)
    alone.socket.send("worker 0", msg.Halt())
    alone.release(2)
    push = alone.next()
    while isinstance(push, PushMessage) and push.ticket == 1:  # it was quicker than the halt
        push = alone.next()
    assert isinstance(push, PushMessage)
    assert (push.ticket, push.steps, push.samples) == (2, 50, 200)
    alone.socket.send("worker 0", msg.StopRun())
    alone.thread.join(60)
    alone.socket.close()


def test_a_model_asked_for_with_a_release_is_sent_after_a_switch() -> None:
    """It was forgotten with the first composition, and the run waited at its end for its evaluation."""
    alone = Alone(1, {"name": "strategy_switch", "first": "local_sgd", "second": "local_sgd"})
    alone.socket.send("worker 0", msg.SendModel(7, True))
    alone.socket.send("worker 0", msg.ChangeComposition(1))
    alone.release(1)
    answer = alone.next()
    assert isinstance(answer, msg.WorkerModel)
    assert answer.tag == 7
    assert torch.equal(answer.tensors["parameters"], alone.workload.parameters)
    alone.socket.close()
    alone.thread.join(60)


def test_a_newer_release_makes_a_step_void_and_comes_next() -> None:
    alone = Alone(steps=30)
    for ticket in range(1, 6):
        alone.release(ticket)
    tickets = []
    while not tickets or tickets[-1] != 5:
        push = alone.next()
        if isinstance(push, PushMessage):
            tickets.append(push.ticket)
            assert push.steps == 30  # no step of an older release is in it
    assert tickets == sorted(set(tickets))
    alone.socket.send("worker 0", msg.StopRun())
    alone.thread.join(60)
    alone.socket.close()
