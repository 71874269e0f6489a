"""The state at a moment follows from the log alone: against the engine's own view, and on exact numbers."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from oracles.moment import moment

from psbench import Experiment
from psbench.core.log import EventLog, Kind
from psbench.metrics import PHASES, timeline
from psbench.metrics.recording import STAGES, SWITCHING
from psbench.metrics.recording_reader import LogPrefix, recording
from psbench.runs.execution import run


@pytest.fixture
def ssp(scripted: Any) -> tuple[Any, Any]:
    """SSP with bound 1 and its recording: worker 0 takes 1 s a step, worker 1 takes 3 s."""
    played = scripted({"name": "ssp", "staleness_bound": 1}, [1.0, 3.0], steps=8)
    return played, recording(played.log, bounds=[1])


def test_a_wait_is_explained_with_the_lead_and_the_bound(ssp: Any) -> None:
    _, recorded = ssp
    state = moment(recorded, 2.5)
    assert [(w.worker, w.phase, w.clock) for w in state.workers] == [(0, "wait", 2), (1, "compute", 0)]
    assert state.sentences == [
        "Worker 0 waits 1 s for worker 1: it is 2 steps ahead of the slowest, "
        "one more than its bound of 1 allows"
    ]
    assert state.workers[0].progress == pytest.approx(0.5)
    assert state.version == 2
    assert state.buffer == ()


def test_a_wait_by_a_bound_of_0_is_explained_too(scripted: Any) -> None:
    played = scripted({"name": "ssp", "staleness_bound": 0}, [1.0, 3.0], steps=4)
    assert moment(recording(played.log, bounds=[0]), 2.5).sentences == [
        "Worker 0 waits 2 s for worker 1: it is 1 step ahead of the slowest, "
        "one more than its bound of 0 allows"
    ]


def test_a_wait_that_began_before_the_newest_rows_keeps_its_bound() -> None:
    """A later hold, for another reason and in the same exchange, does not take its place."""
    log = EventLog()
    for worker in (0, 1):
        log.add(Kind.JOIN, 0.0, worker)
        log.add(Kind.RELEASE, 0.0, worker)
    # it is sent at 1 s, and half a second is computed beside it
    log.add(Kind.PUSH, 2.0, 0, 0, 0, 4, 1, send_s=1.0, text='{"goes_on": true}')
    log.add(Kind.HOLD, 2.0, 0, text="staleness bound")
    log.add(Kind.HOLD, 3.0, 0, text="barrier")
    since = LogPrefix([0])
    since.read(log, len(log))
    log.add(Kind.PUSH, 4.0, 1, 1, 0, 4, 1, compute_s=4.0)
    log.add(Kind.RELEASE, 4.0, 0)
    log.add(Kind.PUSH, 5.0, 0, 2, 0, 4, 1, compute_s=0.5)
    spans = recording(log, [0], since)
    whys = {at: spans.whys[why] for at, why in zip(spans.spans["start_s"], spans.spans["why"], strict=True)}
    bound = "it is 1 step ahead of the slowest, one more than its bound of 0 allows"
    assert (whys[2.0], whys[3.0]) == (bound, "no worker continues before all have pushed")


def test_a_switch_that_is_asked_for_twice_lasts_from_the_first_time() -> None:
    log = EventLog()
    for worker in (0, 1):
        log.add(Kind.JOIN, 0.0, worker)
        log.add(Kind.RELEASE, 0.0, worker)
    log.add(Kind.PUSH, 1.0, 0, 0, 0, 4, 1, compute_s=1.0)
    log.add(Kind.HOLD, 1.0, 0, text="barrier")
    for at_s in (2.0, 3.0):
        log.add(Kind.SWITCH_REQUESTED, at_s, id=-1)
    log.add(Kind.PUSH, 4.0, 1, 1, 0, 4, 1, compute_s=4.0)
    log.add(Kind.HANDOVER, 4.0, id=1)
    spans = recording(log).spans
    drained = spans["phase"] == STAGES.index(SWITCHING)
    assert [*zip(spans["start_s"][drained], spans["end_s"][drained], strict=True)] == [(2.0, 4.0)]


def test_one_steps_to_waits_for_a_worker_and_not_to_others(scripted: Any) -> None:
    """Worker 1 waits again from 4 s, and the log ends before it is known for whom."""
    played = scripted("bsp", [3.0, 1.0, 2.0], steps=5)
    recorded = recording(played.log)
    assert {1.0, 2.0, 4.0} <= {*recorded.spans["start_s"][recorded.spans["phase"] == PHASES.index("wait")]}
    assert recorded.instants["wait"].tolist() == [1.0, 2.0]  # for worker 0


def test_what_happens_at_the_moment_has_happened(ssp: Any) -> None:
    _, recorded = ssp
    assert moment(recorded, np.nextafter(3.0, 0)).version == 2
    assert moment(recorded, 3.0).version == 3
    assert moment(recorded, 3.0).sentences == []


def test_a_barrier_keeps_pushes_until_the_last_has_come(scripted: Any) -> None:
    played = scripted("bsp", [1.0, 2.0, 3.0], steps=6)
    recorded = recording(played.log)
    state = moment(recorded, 2.25)
    assert state.buffer == ((0, 0), (1, 0))
    assert state.version == 0
    assert state.sentences == [
        "Worker 0 waits 2 s for worker 2: no worker continues before all have pushed",
        "Worker 1 waits 1 s for worker 2: no worker continues before all have pushed",
    ]
    assert recorded.versions["pushes"].tolist() == [3, 3]
    assert recorded.versions["barrier"].tolist() == [1, 1]
    assert moment(recorded, 3.0).buffer == ()


@pytest.mark.parametrize("strategy", ["ssp", "asp", "bsp", "k_asp", "k_bsp", "local_sgd", "osp", "selsync"])
def test_versions_clocks_and_models_are_the_engine_s(strategy: str) -> None:
    """Play a log again row by row, and compare at every instant between two rows."""
    experiment = Experiment(
        data={"name": "mixture", "num_samples": 120},
        model="logistic",
        cluster={"workers": 3, "speed": [1, 1, 0.4]},
        strategy=strategy,
        batch_size=12,
        stop={"epochs": 2},
    )
    log = run(experiment).log
    recorded = recording(log)
    rows = log.rows()
    times = np.unique(rows["time_s"])
    for at in times[:: max(1, len(times) // 12)][:-1]:
        state = moment(recorded, float(at))
        past = rows[rows["time_s"] <= at]
        applied = past[past["kind"] == Kind.APPLY]
        assert state.version == (applied["version"].max() if len(applied) else 0)
        for worker in state.workers:
            own = past[past["worker"] == worker.worker]
            assert worker.clock == (own["kind"] == Kind.PUSH).sum()
            assert worker.version == own[own["kind"] == Kind.RELEASE]["version"][-1]
        settled = np.isin(past["kind"], (Kind.APPLY, Kind.DISCARD)).sum()
        assert len(state.buffer) == (past["kind"] == Kind.PUSH).sum() - settled


def test_a_worker_that_has_left_is_not_there_and_one_that_returns_is() -> None:
    failures = [{"worker": 1, "at_s": 0.05, "rejoin_s": 0.1}]
    experiment = Experiment(
        data={"name": "mixture", "num_samples": 240},
        model="logistic",
        cluster={"workers": 2, "speed": [1, 1], "failures": failures},
        strategy="asp",
        batch_size=16,
        stop={"epochs": 3},
    )
    recorded = recording(run(experiment).log)
    there = [[w.worker for w in moment(recorded, at).workers] for at in (0.04, 0.07, 0.2)]
    assert there == [[0, 1], [0], [0, 1]]


def facts(state: Any) -> Any:
    workers = [(w.worker, w.phase, w.clock, w.version, w.waited_for, w.why) for w in state.workers]
    return state.version, state.composition, state.buffer, workers


@pytest.mark.parametrize("strategy", ["ssp", "k_asp", {"name": "strategy_switch", "rule": "manual"}])
def test_a_part_of_a_recording_and_the_newest_rows_have_the_same_moments(strategy: Any) -> None:
    """Waits across the edges are whole, and what was so before them is known, versions and reasons too."""
    experiment = Experiment(
        data={"name": "mixture", "num_samples": 240},
        model="logistic",
        cluster={"workers": 4, "speed": [1, 1, 1, 0.4], "failures": [{"worker": 1, "at_s": 0.05}]},
        strategy=strategy,
        switch_at_s=0.1 if isinstance(strategy, dict) else None,
        batch_size=16,
        stop={"epochs": 4},
    )
    log = run(experiment).log
    bounds = [getattr(each.consistency, "staleness_bound", None) for each in experiment.strategy.compositions]
    recorded = recording(log, bounds)
    end = recorded.end_s
    part, begin = recorded.around(end / 2, limit=100)
    assert 0 < begin < end / 2 < part.end_s < end
    assert len(part.spans["worker"]) <= 110
    for at in np.linspace(begin, part.end_s, 40)[1:-1]:
        assert facts(moment(part, at)) == facts(moment(recorded, at))
    # the newest rows, with what is known of the time before them
    rows, since = log.rows(), LogPrefix(bounds)
    for first in range(0, len(rows) - 40, 40):
        since.read(log, first)
        newest = recording(log, bounds, since)
        for at in np.linspace(float(rows["time_s"][first]), end, 12)[:-1]:
            assert facts(moment(newest, at)) == facts(moment(recorded, at)), first


def test_events_by_the_hundred_thousand_are_stepped_through() -> None:
    """Piece after piece, as a page does: each has the steps of every kind that the whole run has there."""
    one = run(Experiment(strategy="ssp", cluster={"workers": 4}, timing_only=True, stop={"updates": 400})).log
    rows, log = one.rows(), EventLog()
    parts = -(-300_000 // (len(rows) - 4))
    whole = np.tile(rows[4:], parts)
    block = np.repeat(np.arange(parts), len(rows) - 4)
    whole["time_s"] += block * (float(rows["time_s"][-1]) + 1e-3)
    ids = np.isin(whole["kind"], (Kind.PUSH, Kind.APPLY, Kind.DISCARD))
    whole["id"][ids] += (block * (int(rows["id"].max()) + 1))[ids].astype(whole["id"].dtype)
    log.extend(np.concatenate([rows[:4], whole]), one.texts[1:])
    assert len(log) >= 300_000
    recorded = recording(log, [3])
    at, steps, pieces = -1.0, 0, 0
    while (target := recorded.next("event", at)) is not None:
        part, begin = recorded.around(target, 30_000)
        for kind, times in recorded.instants.items():
            inside = times[(times >= begin) & (times <= part.end_s)]
            own = part.instants[kind]
            assert np.array_equal(own[(own >= begin) & (own <= part.end_s)], inside), kind
        events = part.instants["event"]
        steps += int(((events > at) & (events <= part.end_s)).sum())
        at, pieces = part.end_s, pieces + 1
    assert steps == len(recorded.instants["event"])
    assert pieces > 9
    for kind, times in recorded.instants.items():
        last = float(times[-1]) if len(times) else None
        assert recorded.next(kind, recorded.end_s + 1, back=True) == last


def test_columns_travel_exactly(ssp: Any) -> None:
    _, recorded = ssp
    plain = recorded.plain()
    for name, table in recorded.tables.items():
        for column, values in table.items():
            packed = plain["tables"][name][column]
            back = np.frombuffer(base64.b64decode(packed["data"]), dtype=f"<{packed['as']}")
            assert np.array_equal(back, values), (name, column)


def test_spans_are_the_timeline_s(ssp: Any) -> None:
    played, recorded = ssp
    assert recorded.spans["start_s"].tolist() == timeline(played.log)["start_s"].tolist()
    assert recorded.workers == [0, 1]


def test_an_empty_log_has_an_empty_moment() -> None:
    log = EventLog()
    log.add(Kind.JOIN, 0.0)
    state = moment(recording(log), 0.0)
    assert (state.version, state.workers, state.buffer) == (0, (), ())
