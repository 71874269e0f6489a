"""Live runs of which every message is a choice: what is to hold holds, and planted faults are found."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import pytest

from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.coordinator.log_stream import LogStream
from psbench.backends.dask.protocol import messages as msg
from psbench.core import events as ev
from psbench.testing.invariants import BrokenContract
from tests.live_runs import run_live_campaign


def test_schedules_of_live_runs_keep_the_contract() -> None:
    done = run_live_campaign(50)
    assert done.findings == []
    assert done.ended.get("finished", 0) > 10


@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
def test_100_000_schedules_of_live_runs_keep_the_contract() -> None:
    assert run_live_campaign(100_000, seed=1).findings == []


class ForgetsWhoLeft(LiveRun):
    """The store is not told that a worker is dead."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.actions_use, self.actions.use = self.actions.use, self._use  # type: ignore[method-assign]

    def _use(self, *given: Any) -> None:
        self.actions_use(*given)
        self.run.store.leave = lambda *_: None  # type: ignore[method-assign]


class AsksTheDead(LiveRun):
    """Models and checkpoints wait for workers that are gone."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.checkpoints.leave = self.run.averaging.leave = lambda *_: None  # type: ignore[method-assign]


class DropsEvaluations(LiveRun):
    """Another evaluator is not sent what the one before has not answered."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.evaluation.queue.begin_again = lambda: None  # type: ignore[method-assign]


class ReleasesInMidMove(LiveRun):
    """Workers go on before every server holds its entries."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        reassign = self.actions._reassign

        def at_once(change: Any) -> None:
            next(reassign(change))

        from psbench.core import actions as act

        self.actions._performers[act.Reassign] = at_once


class KeepsVoidPushes(LiveRun):
    """The event of a push is lost, as if its message had not come."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        take, seen = self.pushes.take, []

        def lose_the_fourth(worker: int, message: Any) -> None:
            seen.append(worker)
            if len(seen) != 4:
                take(worker, message)

        self._of_workers[msg.PushMessage] = lose_the_fourth


class EndsWithoutLeaves(LiveRun):
    """A lost worker is not reported to the engine."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.membership._lose_worker = lambda *given: None  # type: ignore[method-assign]


class LosesNumbers(LiveRun):
    """What was measured does not reach the engine; drawn by tests.mutation.live."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.measurements._events = deque()


class NeverLooks(LiveRun):
    """It is not asked who is dead; drawn by tests.mutation.live."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._next_look = math.inf


class NeverHeld(LogStream):
    """A log that is sent whatever the replica has."""

    held = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]


class HoldsNoLog(LiveRun):
    """The client is sent rows while the replica takes the state that they led to."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.run.log_stream.__class__ = NeverHeld


class AcceptsAnyReceipt(LiveRun):
    """A receipt of an earlier state counts for the one that the replica is taking."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.replication.take_receipt = lambda _: self.replication._take_off()  # type: ignore[method-assign]


class PlansNoFailure(LiveRun):
    """The failures that a cluster plans do not happen."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        timers = self.run.timers
        timers._heap = [entry for entry in timers._heap if type(entry[2]) is not ev.Leave]


class ResumesWithoutNewcomers(LiveRun):
    """Who is here when a run goes on, and was not in it at the checkpoint, does not join."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        members, known = self.membership, self.run.view.workers
        changes = members.changes_since_checkpoint
        members.changes_since_checkpoint = lambda *given: [  # type: ignore[method-assign]
            event for event in changes(*given) if type(event) is ev.Leave or event.worker in known
        ]


class ResumesWithTheLost(LiveRun):
    """Who was in a run at a checkpoint, and is not here when it goes on, does not leave it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        changes = self.membership.changes_since_checkpoint
        self.membership.changes_since_checkpoint = lambda *given: [  # type: ignore[method-assign]
            event for event in changes(*given) if type(event) is ev.Join
        ]


class ResumesWithoutEvaluations(LiveRun):
    """An evaluation under way at a checkpoint is not made by the run that goes on."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.start is not None:
            self.start.checkpoint.state.pop("awaited", None)


SOON = KeepsVoidPushes, EndsWithoutLeaves, NeverLooks, ResumesWithoutNewcomers, AsksTheDead, DropsEvaluations
#: found after a hundred schedules and more
LATE = [
    *(ForgetsWhoLeft, ReleasesInMidMove, LosesNumbers, HoldsNoLog, AcceptsAnyReceipt),
    *(ResumesWithTheLost, PlansNoFailure, ResumesWithoutEvaluations),
]


@pytest.mark.slow
@pytest.mark.parametrize("canary", [*SOON, *(pytest.param(each, marks=pytest.mark.nightly) for each in LATE)])
def test_planted_faults_are_found(canary: type[LiveRun]) -> None:
    done = run_live_campaign(3000, run_class=canary, most_failures=1, shrinks=False)
    assert done.failures == 1
    assert "TypeError" not in done.findings[0][3]  # the canary itself fits no more


def test_a_fault_is_played_again_with_fewer_choices() -> None:
    done = run_live_campaign(200, run_class=KeepsVoidPushes, most_failures=1)
    ((block, number, choices, error),) = done.findings
    assert choices < 150
    assert error.startswith(BrokenContract.__name__) or "Error" in error or "lost" in error
    assert block >= 0
    assert number >= 0
