"""A worker alone with a hub that plays the conductor."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from psbench.backends.dask.protocol.messages import PUSH, RELEASE, PushMessage, ReleaseMessage
from psbench.backends.dask.protocol.transport import JSON, ClientSocket, Message, ServerSocket
from psbench.backends.dask.worker.mailbox import Abandoned
from psbench.backends.dask.worker.worker import Worker
from psbench.core.actions import Release
from psbench.experiment import Experiment
from psbench.training.workload import Workload

pytestmark = pytest.mark.timeout(60)

KEY = b"k" * 32


class Alone:
    """A worker in a thread, and the hub that it knows as its conductor."""

    def __init__(self, steps: int) -> None:
        spec = Experiment(strategy="local_sgd", cluster={"workers": 2}, batch_size=8, backend="dask")
        self.steps = steps
        self.workload, self.hub = Workload.build(spec), ServerSocket("127.0.0.1", KEY)
        self.ended: list[type] = []
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()
        while self.next().plain.get("do") != "ready":
            pass

    def _work(self) -> None:
        torch.set_num_threads(1)
        with ClientSocket(self.hub.address, KEY, "worker 0") as link:
            try:
                Worker(self.workload, 0, link, [], None, KEY).run()
            except Exception as error:
                self.ended.append(type(error))

    def next(self) -> Message:
        """Return the next letter; the clock is told by the way."""
        while True:
            letter = self.hub.receive(1.0)
            if letter is not None and letter.kind == JSON and letter.plain["do"] == "clock":
                self.hub.tell("worker 0", {"do": "clock", "time_s": time.monotonic()})
            elif letter is not None:
                return letter

    def release(self, ticket: int) -> None:
        """Release it with the model, to push after so many steps."""
        release = Release(0, ticket=ticket, load=0, orders={"local_steps": self.steps})
        self.hub.send("worker 0", RELEASE, ReleaseMessage.of(release, 4).encode(), self.workload.parameters)


def test_who_computes_without_speaking_notices_that_the_conductor_is_gone() -> None:
    alone = Alone(steps=100_000)
    alone.release(1)
    time.sleep(0.2)
    assert not alone.ended
    alone.hub.close()
    alone.thread.join(10)
    assert alone.ended == [Abandoned]


def test_a_halted_worker_forgets_what_it_computed_and_what_it_had_concluded() -> None:
    alone = Alone(steps=50)
    alone.release(1)
    time.sleep(0.05)
    alone.hub.tell("worker 0", {"do": "halt"})
    alone.release(2)
    push = alone.next()
    while push.kind == PUSH and PushMessage.decode(push.body).ticket == 1:  # it was quicker than the halt
        push = alone.next()
    told = PushMessage.decode(push.body)
    assert (told.ticket, told.steps, told.samples) == (2, 50, 200)
    alone.hub.tell("worker 0", {"do": "stop"})
    alone.thread.join(10)
    alone.hub.close()


def test_a_newer_release_makes_a_step_void_and_comes_next() -> None:
    alone = Alone(steps=30)
    for ticket in range(1, 6):
        alone.release(ticket)
    tickets = []
    while not tickets or tickets[-1] != 5:
        letter = alone.next()
        if letter.kind == PUSH:
            told = PushMessage.decode(letter.body)
            tickets.append(told.ticket)
            assert told.steps == 30  # no step of an older release is in it
    assert tickets == sorted(set(tickets))
    alone.hub.tell("worker 0", {"do": "stop"})
    alone.thread.join(10)
    alone.hub.close()
