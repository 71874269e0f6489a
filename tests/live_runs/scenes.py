"""Live runs of which a test says what happens, message by message."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import PrivateAttr

from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.instructions import FIRST_SERVER
from psbench.backends.dask.protocol.transport import Received
from psbench.core import events as ev
from psbench.core.actions import Action, Drop, Measure
from psbench.core.parts import Stragglers
from psbench.core.view import ClusterView
from psbench.experiment import Experiment
from psbench.strategies.aggregation.mean import Mean
from psbench.training.build import Workload
from tests.live_runs import World


def workload(strategy: Any, workers: int = 2, **changes: Any) -> Workload:
    settings: dict[str, Any] = {
        "strategy": strategy,
        "data": "digits",
        "model": {"name": "mlp", "hidden": [2]},
        "cluster": {"workers": workers, "step_time": "constant"},
        "batch_size": 4 * workers,
        "stop": {"updates": 6},
        "backend": "dask",
    }
    return Workload.build(Experiment(**settings | changes))


def world(of: Workload, run_class: type[LiveRun] = LiveRun) -> World:
    return World(of, np.random.Generator(np.random.PCG64(1)), run_class)


def settle(run: World, without: str = "") -> None:
    """Let all messages arrive, but those of a process that says nothing for now."""
    while pairs := [pair for pair in run.waiting() if pair[0] != without]:
        run.arrive(pairs[0])


class MeasuresFirst(Mean):
    """The mean of the pushes, once the loss of the model before it is known."""

    name: ClassVar[str] = "measures_first"
    measures: ClassVar[tuple[str, ...]] = ("model_loss",)
    _pushes: list[int] = PrivateAttr(default_factory=list)

    def on_commit(self, pushes: list[ev.Push], view: ClusterView) -> list[Action]:
        self._pushes = [push.id for push in pushes]
        return [Measure("aggregation", {"model_loss": None})]

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        return super().on_commit([view.pending[number] for number in self._pushes], view)


class DropsTheLast(Stragglers):
    """Drops whoever computes still when the others have pushed."""

    name: ClassVar[str] = "drops_the_last"

    def on_push(self, push: ev.Push, view: ClusterView) -> list[Action]:
        return [Drop(worker, "the last") for worker in view.computing if view.num_computing == 1]


def all_connected(of: Workload) -> LiveRun:
    """Return a run whose processes are all ready, at its first release."""
    names = ["worker 0", "worker 1", "evaluator", "client"]
    live = LiveRun(of, names)
    for name in names:
        live.handle(Received(name, msg.Hello(name)), 0.0)
        live.handle(Received(name, msg.Ready()), 0.0)
    return live


FAILS = {"workers": 2, "step_time": "constant", "failures": [{"worker": 1, "at_s": 0.5, "rejoin_s": 2.0}]}


LONG: dict[str, Any] = {"recovery": {"min_workers": 1}, "evaluate_every": 100, "stop": {"updates": 60}}


def connected_and_begun(workers: int = 2, **changes: Any) -> LiveRun:
    """Return a run that has released its workers; a lost one may come back."""
    names = [*(f"worker {number}" for number in range(workers)), "evaluator", "client"]
    settings = {"recovery": {"min_workers": 1}, "evaluate_every": 100}
    live = LiveRun(workload("asp", workers, **settings | changes), names)
    for name in names:
        live.handle(Received(name, msg.Hello(name)), 0.0)
        live.handle(Received(name, msg.Ready()), 0.0)
    live.handle(Received(FIRST_SERVER, msg.StateReply(1, {})), 0.0)
    live.handle(Received("evaluator", msg.EvaluationDone(0, {"val_loss": 1.0})), 0.0)
    return live
