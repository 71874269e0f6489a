"""Live runs of which every message is a choice: what is to hold holds, and planted faults are found."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from psbench.backends.dask.coordinator import (
    beginning,
    checkpointing,
    evaluation,
    live_run,
    membership,
    pushes,
    run_state,
)
from psbench.backends.dask.coordinator.driver import LiveDriver
from psbench.backends.dask.coordinator.model_requests import ModelRequests
from psbench.backends.dask.coordinator.peers import LogStream
from psbench.backends.dask.coordinator.run_state import RunState, Script
from psbench.core import events as ev
from psbench.testing.invariants import BrokenContract
from tests.live_runs import run_live_campaign

#: plants itself in the coordinator
Fault: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def test_schedules_of_live_runs_keep_the_contract() -> None:
    done = run_live_campaign(50)
    assert done.findings == []
    assert done.ended.get("finished", 0) > 10


@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
def test_100_000_schedules_of_live_runs_keep_the_contract() -> None:
    assert run_live_campaign(100_000, seed=1).findings == []


def forgets_who_left(patch: pytest.MonkeyPatch) -> None:
    """The store is not told that a worker is dead."""
    use = LiveDriver.use

    def use_forgetful(driver: LiveDriver, *given: Any) -> None:
        use(driver, *given)
        driver._run.store.leave = lambda *_: None  # type: ignore[method-assign]

    patch.setattr(LiveDriver, "use", use_forgetful)


def asks_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Models and checkpoints wait for workers that are gone."""
    patch.setattr(checkpointing, "leave", lambda *_: None)
    patch.setattr(ModelRequests, "leave", lambda *_: None)


def drops_evaluations(patch: pytest.MonkeyPatch) -> None:
    """Another evaluator is not sent what the one before has not answered."""
    patch.setattr(evaluation, "begin_again", lambda run: None)


def releases_in_mid_move(patch: pytest.MonkeyPatch) -> None:
    """Workers go on before every server holds its entries."""
    reassign = LiveDriver.reassign
    patch.setattr(LiveDriver, "reassign", lambda *given: next(reassign(*given)) and None)


def keeps_void_pushes(patch: pytest.MonkeyPatch) -> None:
    """The event of a push is lost, as if its message had not come."""
    take = pushes.take

    def lose_the_fourth(run: RunState, worker: int, message: Any) -> None:
        seen: list[int] = vars(run).setdefault("seen", [])
        seen.append(worker)
        if len(seen) != 4:
            take(run, worker, message)

    patch.setattr(pushes, "take", lose_the_fourth)


def ends_without_leaves(patch: pytest.MonkeyPatch) -> None:
    """A lost worker is not reported to the engine."""
    patch.setattr(membership, "_lose_worker", lambda *_: None)


def loses_numbers(patch: pytest.MonkeyPatch) -> None:
    """What was measured does not reach the engine; drawn by tests.mutation.live."""
    patch.setattr(evaluation, "take_number", lambda *_: None)


def never_looks(patch: pytest.MonkeyPatch) -> None:
    """It is not asked who is dead, once all have connected; drawn by tests.mutation.live."""
    patch.setattr(live_run, "_LOOK_S", math.inf)


def holds_no_log(patch: pytest.MonkeyPatch) -> None:
    """The client is sent rows while the replica takes the state that they led to."""
    patch.setattr(LogStream, "held", property(lambda _: False, lambda _, held: None), raising=False)


def accepts_any_receipt(patch: pytest.MonkeyPatch) -> None:
    """A receipt of an earlier state counts for the one that the replica is taking."""
    patch.setattr(checkpointing, "take_receipt", lambda run, tag: checkpointing._confirm(run))


def plans_no_failure(patch: pytest.MonkeyPatch) -> None:
    """The failures that a cluster plans do not happen."""
    planned = run_state.membership_events
    patch.setattr(
        run_state,
        "membership_events",
        lambda profile: [entry for entry in planned(profile) if type(entry[1]) is not ev.Leave],
    )


def resumes_without_newcomers(patch: pytest.MonkeyPatch) -> None:
    """Who is here when a run goes on, and was not in it at the checkpoint, does not join."""
    changes = membership.changes_since_checkpoint
    patch.setattr(
        membership,
        "changes_since_checkpoint",
        lambda run, *given: [
            event
            for event in changes(run, *given)
            if type(event) is ev.Leave or event.worker in run.view.workers
        ],
    )


def resumes_with_the_lost(patch: pytest.MonkeyPatch) -> None:
    """Who was in a run at a checkpoint, and is not here when it goes on, does not leave it."""
    changes = membership.changes_since_checkpoint
    patch.setattr(
        membership,
        "changes_since_checkpoint",
        lambda *given: [event for event in changes(*given) if type(event) is ev.Join],
    )


def resumes_without_evaluations(patch: pytest.MonkeyPatch) -> None:
    """An evaluation under way at a checkpoint is not made by the run that goes on."""
    resume = beginning.resume

    def resume_without(run: RunState, driver: LiveDriver, start: beginning.Start) -> Script[None]:
        start.checkpoint.state.pop("awaited", None)
        return resume(run, driver, start)

    patch.setattr(beginning, "resume", resume_without)


SOON = (
    keeps_void_pushes,
    ends_without_leaves,
    never_looks,
    resumes_without_newcomers,
    asks_the_dead,
    drops_evaluations,
)
#: found after a hundred schedules and more
LATE = [
    *(forgets_who_left, releases_in_mid_move, loses_numbers, holds_no_log, accepts_any_receipt),
    *(resumes_with_the_lost, plans_no_failure, resumes_without_evaluations),
]


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize("fault", [*SOON, *(pytest.param(each, marks=pytest.mark.nightly) for each in LATE)])
def test_planted_faults_are_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    done = run_live_campaign(3000, most_failures=1, shrinks=False)
    assert done.failures == 1
    assert "TypeError" not in done.findings[0][3]  # the fault itself fits no more


def test_a_fault_is_played_again_with_fewer_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_void_pushes(monkeypatch)
    done = run_live_campaign(200, most_failures=1)
    ((block, number, choices, error),) = done.findings
    assert choices < 150
    assert error.startswith(BrokenContract.__name__) or "Error" in error or "lost" in error
    assert block >= 0
    assert number >= 0
