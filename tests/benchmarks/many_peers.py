"""The coordinator of thousands of peers that are none: CPU time of a message, and bytes, by their number.

The decisions and messages of a live run, without sockets, tensors and workers. It takes minutes, so it is not
among the rows that run without a name.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from itertools import count
from typing import Any

import torch

from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.protocol import instructions as ins
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.roles import (
    CLIENT,
    EVALUATOR,
    Address,
    server_name,
    servers_of,
    worker_name,
    worker_number,
)
from psbench.backends.dask.protocol.transport import Received
from psbench.experiment import Experiment
from psbench.training.build import Workload
from tests.benchmarks.measure import Row, Rows

FEW, MANY = 10, 3000
#: of all versions
_MODEL = {"parameters": torch.zeros(1), "buffers": torch.zeros(0)}
#: by what a message may cost more among many peers
MOST = 1.5
#: strategies: with servers, in a ring, and on graphs of bounded degree
STRATEGIES: dict[str, Any] = {
    "asp": "asp",
    "ssp": "ssp",
    "bsp": "bsp",
    "All-Reduce": "all_reduce",
    "gossip on a ring": "d_psgd",
    "gossip on a torus": {"name": "d_psgd", "placement": {"name": "gossip", "graph": "torus"}},
}


class FakePeers:
    """A live run, and processes that answer at once, but for workers, whose steps take a while.

    Attributes
    ----------
    cpu_s, handled : float and int
        CPU seconds of the coordinator, and the messages that it has handled in them.
    start_bytes : int
        Bytes of all that was sent until all workers had their first release.
    sent_bytes : int
        Bytes of all that was sent since then.
    """

    def __init__(self, strategy: Any, workers: int, measure_bytes: bool = False) -> None:
        self._workers = workers
        workload = Workload.build(
            Experiment(
                strategy=strategy,
                timing_only=True,
                batch_size=workers,
                stop={"updates": 10**9},
                evaluate_every=1e6,
                cluster={"name": "homogeneous", "workers": workers},
            )
        )
        servers = servers_of(workload.experiment.strategy.compositions[0])
        names = [*map(server_name, range(1, servers)), *map(worker_name, range(workers)), EVALUATOR, CLIENT]
        self.live = LiveRun(workload, names)
        self._inputs: deque[ins.Input] = deque()
        self._steps: list[tuple[float, int, str, msg.PushMessage]] = []
        self._order, self._now, self._numbers = count(), 0.0, [0] * workers
        self._rings: dict[int, list[str]] = {}
        self._measures_bytes, self.sent_bytes = measure_bytes, 0
        self.cpu_s, self.handled, self.pushes = 0.0, 0, 0
        self._handle(ins.Tick())
        for name in names:
            self._inputs += [Received(name, msg.Hello(name)), Received(name, self._ready(name))]
            self._take_inputs()
        self.start_cpu_s, self.start_bytes = self.cpu_s, self.sent_bytes
        self.reset()

    def _ready(self, name: str) -> msg.Ready:
        worker = worker_number(name)
        return msg.Ready(None if worker is None else Address(f"tls://10.0.{worker // 256}.{worker % 256}:4"))

    def reset(self) -> None:
        """Count CPU time, messages and bytes from now on."""
        self.cpu_s, self.handled, self.pushes, self.sent_bytes = 0.0, 0, 0, 0

    def play(self, pushes: int) -> None:
        """Let workers end so many steps."""
        for _ in range(pushes):
            self._now, _, name, push = heapq.heappop(self._steps)
            self._inputs.append(Received(name, push))
            self.pushes += 1
            self._take_inputs()

    def _take_inputs(self) -> None:
        while self._inputs:
            self._handle(self._inputs.popleft())

    def _handle(self, given: ins.Input) -> None:
        began = time.thread_time()
        instructions = self.live.handle(given, self._now)
        self.cpu_s += time.thread_time() - began
        self.handled += 1
        for instruction in instructions:
            if isinstance(instruction, ins.End):
                raise instruction.error or AssertionError("the run has ended")
            if isinstance(instruction, ins.Look):
                self._inputs.append(ins.Looked(()))
            elif isinstance(instruction, (ins.Send, ins.Answer)):
                if self._measures_bytes:
                    self.sent_bytes += len(instruction.message.encode()[0])
                self._answer(instruction.to, instruction.message)

    def _answer(self, to: str, message: Message) -> None:
        if isinstance(message, msg.ReleaseMessage):
            worker = worker_number(to)
            assert worker is not None
            number = self._numbers[worker] = self._numbers[worker] + 1
            seconds = 1.0 + 0.3 * ((worker * 7919 + number * 104_729) % 1000) / 1000
            push = msg.PushMessage(
                message.ticket, message.version, message.samples, 1, seconds, 0.0, 1.0, stats={}
            )
            heapq.heappush(self._steps, (self._now + seconds, next(self._order), to, push))
        elif isinstance(message, msg.StartRing):
            members = self._rings.setdefault(message.ring, [])
            members.append(to)
            if len(members) == message.place.size:
                verdict = msg.RingVerdict(message.ring, True)
                self._inputs += [Received(name, verdict) for name in self._rings.pop(message.ring)]
        elif isinstance(message, msg.SendState | msg.SendModel):
            self._inputs.append(Received(to, msg.StateReply(message.tag, dict(_MODEL))))
        elif isinstance(message, msg.EvaluateModel):
            self._inputs.append(Received(to, msg.EvaluationDone(message.key, {"val_loss": 1.0})))


def microseconds(strategy: Any, workers: int, turns: int = 3) -> float:
    """Return the least CPU microseconds of a message, of several turns of two rounds."""
    peers, found = FakePeers(strategy, workers), []
    peers.play(workers)
    for _ in range(turns):
        peers.reset()
        peers.play(max(2 * workers, 2000))
        found.append(peers.cpu_s / peers.handled)
    return 1e6 * min(found)


def run() -> Rows:
    """Measure a message of each strategy at both numbers, and the bytes of a start and of an update."""
    rows = [_cpu_row(name, strategy) for name, strategy in STRATEGIES.items()]
    return [*rows, *(row for name in ("asp", "All-Reduce") for row in _bytes_rows(name))]


def _cpu_row(name: str, strategy: Any) -> Row:
    few, many = microseconds(strategy, FEW), microseconds(strategy, MANY)
    what = f"CPU of the coordinator for a message, {name}: {MANY:,} peers / {FEW}"
    return Row(what, f"{many:.3g} us", f"{few:.3g} us", many / few, MOST, lower_is_better=True)


def _bytes_rows(name: str) -> Rows:
    """Measure the bytes for each peer: of the start, and of two pushes with their answers."""
    found = []
    for workers in (FEW, MANY):
        peers = FakePeers(STRATEGIES[name], workers, measure_bytes=True)
        peers.play(2 * workers)
        found.append((peers.start_bytes / workers, peers.sent_bytes / workers))
    whats = "at the start", "of two pushes and their answers"
    return [
        Row(
            f"bytes of the coordinator for a peer {what}, {name}: {MANY:,} peers / {FEW}",
            f"{many:,.0f}",
            f"{few:,.0f}",
            many / few,
            MOST,
            lower_is_better=True,
        )
        for what, few, many in zip(whats, *found, strict=True)
    ]
