"""The work and the bytes of a message do not grow with the number of peers.

Python's instructions stand for time. A loop over all peers at each message, of three instructions a peer, is
found in every strategy but k_bsp and k_batch_bsp, whose decisions are about n - k workers anyway. A loop in
C, such as `sorted`, counts as one instruction: the benchmarks' row "many_peers" finds it in CPU time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from psbench.backends.dask.protocol.instructions import Input
from psbench.strategies import CATALOGUE
from psbench.testing import ScriptedCluster
from tests.benchmarks.many_peers import STRATEGIES, FakePeers

FEW, MANY = 64, 256
#: instructions that a push, a decision or a worker's start may cost more for each further peer
GROWTH = 0.25
#: the ratio of the bytes among many to those among few
MOST = 1.1
#: graphs in which all exchange with all at times: an order to mix names all models
COMPLETE = ("hierarchical_sgd",)


class Instructions:
    """Counts the bytecode instructions of a function that it stands for, and its calls, which is slow."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.count, self.calls, self.actions = function, 0, 0, 0

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._trace

    def __call__(self, *arguments: Any) -> Any:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            found = self._function(*arguments)
        finally:
            sys.settrace(before)
        self.calls += 1
        self.actions += len(found)
        return found


def a_message(strategy: Any, workers: int) -> tuple[float, float, float]:
    """Return the instructions and the sent bytes of a push, and the bytes of the start for each worker."""
    peers = FakePeers(strategy, workers, measure_bytes=True)
    peers.play(2 * workers)
    peers.live.handle = counted = Instructions(peers.live.handle)  # type: ignore[method-assign]
    peers.reset()
    peers.play(workers)
    return counted.count / workers, peers.sent_bytes / workers, peers.start_bytes / workers


@pytest.mark.by_day(3)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_live_runs_messages_cost_as_much_among_many(name: str) -> None:
    few, many = (a_message(STRATEGIES[name], workers) for workers in (FEW, MANY))
    assert (many[0] - few[0]) / (MANY - FEW) <= GROWTH
    assert max(many[1] / few[1], many[2] / few[2]) <= MOST


class CountedStart(FakePeers):
    """Counts the coordinator's instructions until all workers have their first release."""

    counted: Instructions | None = None

    def _handle(self, given: Input) -> None:
        if self.counted is None:
            self.live.handle = self.counted = Instructions(self.live.handle)  # type: ignore[method-assign]
        super()._handle(given)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_start_costs_as_much_for_each_of_many_workers(name: str) -> None:
    few, many = (CountedStart(STRATEGIES[name], workers).counted.count / workers for workers in (FEW, MANY))
    assert (many - few) / (MANY - FEW) <= GROWTH


def a_decision(name: str, workers: int) -> float:
    """Return the instructions of the engine for an event or an action, in the second round of messages."""
    step_s = [1.0 + 0.3 * (worker * 7919 % 1000) / 1000 for worker in range(workers)]
    cluster = ScriptedCluster(name, step_s=step_s, epochs=1000.0)
    _play(cluster, workers)
    cluster.engine.handle = counted = Instructions(cluster.engine.handle)  # type: ignore[method-assign]
    _play(cluster, workers)
    return counted.count / max(1, counted.calls + counted.actions)


def _play(cluster: ScriptedCluster, events: int) -> None:
    until = len(cluster.history) + events
    for _ in range(60 * events):  # a message may come after many steps
        if len(cluster.history) < until:
            cluster.step()


@pytest.mark.by_day(8)
@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in COMPLETE])
def test_a_decision_costs_as_much_among_many(name: str) -> None:
    few, many = (a_decision(name, workers) for workers in (FEW, MANY))
    assert (many - few) / (MANY - FEW) <= GROWTH
