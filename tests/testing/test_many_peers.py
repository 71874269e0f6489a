"""The work and the bytes of a message do not grow with the number of peers; instructions stand for time.

Seen red: addresses of all with each message, and at the start. Not seen: a loop over all of two instructions
a peer, and a loop in C, such as `sorted`, which counts as one instruction. The row "many_peers" of the
benchmarks is for those: CPU time among 3,000 peers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from psbench.strategies import CATALOGUE
from psbench.testing import ScriptedCluster
from tests.benchmarks.many_peers import STRATEGIES, FakePeers

FEW, MANY = 8, 64
#: by what a message may cost more among eight times as many
MOST = 1.5
#: graphs in which all exchange with all at times: an order to mix names all models
COMPLETE = ("hierarchical_sgd",)


class Instructions:
    """Counts the bytecode instructions of a function that it stands for, and its calls."""

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

    def reset(self) -> None:
        self.count = self.calls = self.actions = 0


def a_message(strategy: Any, workers: int) -> tuple[float, float, float]:
    """Return the instructions and the sent bytes of a message, and the bytes of the start for each worker."""
    peers = FakePeers(strategy, workers, measure_bytes=True)
    peers.live.handle = counted = Instructions(peers.live.handle)  # type: ignore[method-assign]
    peers.play(2 * workers)
    counted.reset()
    peers.reset()
    peers.play(2 * workers)
    return counted.count / counted.calls, peers.sent_bytes / counted.calls, peers.start_bytes / workers


@pytest.mark.by_day(3)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_live_runs_messages_cost_as_much_among_many(name: str) -> None:
    few, many = (a_message(STRATEGIES[name], workers) for workers in (FEW, MANY))
    instructions, num_bytes, start_bytes = (other / one for one, other in zip(few, many, strict=True))
    assert max(instructions, num_bytes, start_bytes) <= MOST


def a_decision(name: str, workers: int) -> float:
    """Return the instructions of the engine for an event or an action, in the second round of messages."""
    step_s = [1.0 + 0.3 * (worker * 7919 % 1000) / 1000 for worker in range(workers)]
    cluster = ScriptedCluster(name, step_s=step_s, epochs=1000.0)
    cluster.engine.handle = counted = Instructions(cluster.engine.handle)  # type: ignore[method-assign]
    for _ in range(2):
        counted.reset()
        for _ in range(60 * workers):  # a message may come after many steps
            if counted.calls >= workers:
                break
            cluster.step()
    return counted.count / max(1, counted.calls + counted.actions)


@pytest.mark.by_day(8)
@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in COMPLETE])
def test_a_decision_costs_as_much_among_many(name: str) -> None:
    few, many = (a_decision(name, workers) for workers in (FEW, MANY))
    assert many <= MOST * few
