from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import pytest

from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.engine import Engine
from psbench.core.log import EventLog, Kind
from psbench.core.view import ClusterView
from psbench.strategies import make_strategy


class Scripted:
    """Drive an engine through a cluster of constant step times; note the clock lead at every step start."""

    def __init__(self, strategy: Any, step_s: list[float], steps: int, events: tuple[Any, ...] = ()) -> None:
        self.log = EventLog()
        n = len(step_s)
        self.engine = Engine(
            make_strategy(strategy),
            ClusterView(num_workers=n, dataset_size=40, global_batch=4 * n),
            log=self.log,
        )
        self.leads: list[int] = []
        self.step_s = step_s
        self.heap: list[tuple[float, int, Any]] = []
        self.ids = 0
        for at, event in events:
            heapq.heappush(self.heap, (at, -1, event))
        self.perform(self.engine.begin(range(n)), 0.0)
        for _ in range(steps):
            now, worker, event = heapq.heappop(self.heap)
            if worker >= 0:
                event = ev.Push(self.ids, worker, *event, samples=4, bytes=10, compute_s=step_s[worker])
                self.ids += 1
            self.perform(self.engine.handle(event, now), now)

    def perform(self, actions: list[Any], now: float) -> None:
        for action in actions:
            if type(action) is act.Release:
                # releases are performed after all of the answer, when clocks do not move any more
                self.leads.append(self.engine.view.clock_lead(action.worker))
                self.heap_push(action, now)

    def heap_push(self, release: act.Release, now: float) -> None:
        flight = (release.ticket, release.load)
        heapq.heappush(self.heap, (now + self.step_s[release.worker], release.worker, flight))


@pytest.fixture
def scripted() -> Callable[..., Scripted]:
    return Scripted


@pytest.fixture
def three_workers() -> EventLog:
    """Three workers and a barrier, reached at 1, 2 and 4 s; then 0 is cancelled and 1 leaves."""
    log = EventLog()
    for worker in range(3):
        log.add(Kind.JOIN, 0.0, worker)
    for worker in range(3):
        log.add(Kind.RELEASE, 0.0, worker, bytes=20)
    for number, (worker, at) in enumerate([(0, 1.0), (1, 2.0), (2, 4.0)]):
        compute = at - 0.5
        log.add(Kind.PUSH, at, worker, number, 0, 8, 1, 10, compute_s=compute, send_s=0.25, loss=1.0 + worker)
        if worker < 2:
            log.add(Kind.HOLD, at, worker, text="barrier")
    for number in range(3):
        log.add(Kind.APPLY, 4.0, number, number, 1, 8, 1, loss=1 / 3)
    for worker in range(3):
        log.add(Kind.RELEASE, 4.0, worker, version=1, bytes=20)
    log.add(Kind.CANCEL, 4.5, 0)
    log.add(Kind.RELEASE, 4.5, 0, version=1)
    log.add(Kind.LEAVE, 4.75, 1, text="failed")
    log.add(Kind.EVALUATED, 5.0, id=1, version=1, text='{"epoch":0.6,"val_accuracy":0.5,"val_loss":0.7}')
    return log
