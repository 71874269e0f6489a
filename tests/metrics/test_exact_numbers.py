"""Exact numbers from a log of three workers that can be read by eye."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from psbench.charts.growing import tables_of
from psbench.core.log import EventLog, Kind
from psbench.errors import DataError
from psbench.metrics import (
    batch_sizes,
    clock_lead,
    conservation,
    evaluations,
    idle,
    idle_fraction,
    local_steps_ratio,
    messages,
    pushes,
    rule_values,
    sends_beside,
    share_of_applied,
    staleness,
    summarise,
    switches,
    throughput,
    time_to_target,
    timeline,
    total_bytes,
    training_loss,
)
from psbench.metrics.axes import Axes
from psbench.metrics.pushes import BatchSizes
from psbench.metrics.recording import STAGES
from psbench.metrics.recording_reader import recording
from psbench.metrics.rows import Absences, with_membership
from psbench.results.equal import cut_equal
from psbench.runs.execution import run
from psbench.testing import toy_experiment


def spans_of(log: EventLog, worker: int) -> list[tuple]:
    frame = timeline(log)
    frame = frame[frame["worker"] == worker]
    other = [
        None if w is None else int(w)
        for w in frame["waited_for"].astype(object).where(frame["waited_for"].notna(), None)
    ]
    return list(zip(frame["phase"], frame["start_s"], frame["end_s"], frame["reason"], other, strict=True))


@pytest.mark.parametrize("timing_only", [False, True])
def test_a_summary_needs_no_data_frame(timing_only, monkeypatch):
    """Nine of them took more than half of its time; a search has a summary of every run."""
    done = run(toy_experiment("ssp", timing_only=timing_only))
    monkeypatch.setattr(pd, "DataFrame", None)
    assert done.summary()["updates"] == 48


def test_a_step_is_pull_compute_send_and_a_wait_names_reason_and_worker(three_workers):
    assert spans_of(three_workers, 0) == [
        ("pull", 0.0, 0.25, "", None),
        ("compute", 0.25, 0.75, "", None),
        ("send", 0.75, 1.0, "", None),
        ("wait", 1.0, 4.0, "barrier", 2),
        ("cancelled", 4.0, 4.5, "", None),
        ("compute", 4.5, 5.0, "not finished", None),
    ]


def test_spans_of_a_worker_that_leaves_end_there_and_its_step_is_lost(three_workers):
    assert spans_of(three_workers, 1)[-2:] == [
        ("wait", 2.0, 4.0, "barrier", 2),
        ("cancelled", 4.0, 4.75, "left", None),
    ]


def test_the_worker_that_opens_the_barrier_never_waits(three_workers):
    assert idle_fraction(three_workers) == pytest.approx({0: 3 / 5, 1: 2 / 4.75, 2: 0.0})
    waited = idle(three_workers)
    assert waited["reason"].tolist() == ["barrier", "barrier"]
    assert waited["idle_s"].tolist() == [3.0, 2.0]


def test_counts_bytes_and_messages(three_workers):
    assert total_bytes(three_workers) == {"up": 30, "down": 120}
    assert conservation(three_workers) == {"committed": 3, "discarded": 0, "buffered": 0, "cancelled": 2}
    assert messages(three_workers) == {"push": 3, "vote": 0, "report": 0, "release": 7, "tell": 0, "void": 0}


def test_answers_to_the_version_that_ends_the_run_do_not_count(three_workers):
    """Four releases follow the update: three with a model, and one after a cancellation with none."""
    assert total_bytes(three_workers, unanswered=True) == {"up": 30, "down": 60}
    assert messages(three_workers, unanswered=True)["release"] == 3


def test_evaluations_know_time_updates_and_bytes(three_workers):
    """Bytes until the version was made: the answers that carry it, 60 bytes, are behind it."""
    (row,) = evaluations(three_workers).to_dict("records")
    assert row == {
        "epoch": 0.6, "time_s": 5.0, "updates": 1, "bytes": 90, "val_accuracy": 0.5, "val_loss": 0.7,
    }  # fmt: skip
    assert time_to_target(three_workers, 0.5) == 5.0
    assert time_to_target(three_workers, 0.51) is None
    assert time_to_target(three_workers, 0.7, "val_loss") == 5.0


def test_the_training_loss_is_a_mean_over_samples(three_workers):
    frame = training_loss(three_workers, dataset_size=40, smooth_epochs=0.4)  # 16 samples: two pushes
    assert frame["train_loss"].tolist() == [1.0, 1.5, 2.5]
    assert frame["bytes"].tolist() == [70, 80, 90]
    assert frame["epoch"].tolist() == [0.0, 0.0, 0.0]
    assert training_loss(three_workers, 40, smooth_epochs=0.0)["train_loss"].tolist() == [1.0, 2.0, 3.0]


def test_losses_that_are_no_numbers_are_left_out():
    log = EventLog()
    log.add(Kind.PUSH, 1.0, 0, 0, 0, 8, 1, loss=float("nan"))
    log.add(Kind.PUSH, 2.0, 0, 1, 0, 8, 1, loss=0.5)
    assert training_loss(log, 8)["train_loss"].tolist() == [0.5]


def test_throughput_counts_samples_when_they_are_applied(three_workers):
    frame = throughput(three_workers, bins=5)
    assert frame["time_s"].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert frame["samples_per_s"].tolist() == [0, 0, 0, 0, 24]


def test_staleness_counts_the_versions_between_start_and_application():
    log = EventLog()
    for worker in (0, 1):
        log.add(Kind.JOIN, 0.0, worker)
    for number, (worker, base, version) in enumerate([(0, 0, 1), (0, 1, 2), (1, 0, 3)]):
        log.add(Kind.PUSH, float(number), worker, number, base, 4, 1)
        log.add(Kind.APPLY, float(number), worker, number, version, 4, 1)
    assert staleness(log)["staleness"].tolist() == [0, 0, 2]
    assert share_of_applied(log)["share"].tolist() == [2 / 3, 1 / 3]


def test_every_push_has_a_fate():
    log = EventLog()
    log.add(Kind.JOIN, 0.0, 0)
    for number in (7, 5, 6):
        log.add(Kind.PUSH, 1.0, 0, number, 2, 4, 1)
    log.add(Kind.APPLY, 2.0, 0, 5, 4, 4, 1)
    log.add(Kind.DISCARD, 2.0, 0, 7, text="late")
    frame = pushes(log)
    assert frame["fate"].tolist() == ["discarded", "committed", "buffered"]
    assert frame["staleness"].isna().tolist() == [True, False, True]
    assert frame["staleness"][1] == 1


def test_batch_sizes_are_kept_where_they_change():
    log = EventLog()
    for at, samples in enumerate([8, 8, 8, 4, 4]):
        log.add(Kind.PUSH, float(at), 1, at, 0, samples, 1)
    assert batch_sizes(log)["time_s"].tolist() == [0.0, 3.0, 4.0]
    assert batch_sizes(log)["batch_size"].tolist() == [8.0, 4.0, 4.0]
    growing = EventLog()
    for at in range(10):
        growing.add(Kind.PUSH, float(at), 0, at, 0, at + 1, 1)
    sizes = BatchSizes()
    sizes.read(growing.rows())
    assert [time_s for time_s, *_ in sizes.seen(4)] == [0, 3, 6, 9]
    assert len(sizes.seen(20)) == 10


def test_a_wait_is_cut_where_its_reason_changes():
    log = EventLog()
    for worker in (0, 1):
        log.add(Kind.JOIN, 0.0, worker)
    for worker in (0, 1):
        log.add(Kind.RELEASE, 0.0, worker)
    log.add(Kind.PUSH, 1.0, 0, 0, 0, 4, 1, compute_s=1.0)
    log.add(Kind.HOLD, 1.0, 0, text="barrier")
    log.add(Kind.SWITCH_REQUESTED, 2.0, id=-1)
    log.add(Kind.HOLD, 2.0, 0, text="switch")
    log.add(Kind.PUSH, 4.0, 1, 1, 0, 4, 1, compute_s=4.0)
    log.add(Kind.APPLY, 4.0, 0, 0, 1, 4, 1)
    log.add(Kind.APPLY, 4.0, 1, 1, 1, 4, 1)
    log.add(Kind.HOLD, 4.0, 1, text="switch")
    log.add(Kind.HANDOVER, 4.0, id=1, version=1, steps=0, compute_s=0.5, text="asked by hand")
    for worker in (0, 1):
        log.add(Kind.RELEASE, 4.0, worker, version=1)
    log.add(Kind.PUSH, 5.5, 0, 2, 1, 4, 1, compute_s=1.0)
    assert spans_of(log, 0) == [
        ("compute", 0.0, 1.0, "", None),
        ("wait", 1.0, 2.0, "barrier", None),
        ("wait", 2.0, 4.0, "switch", 1),
        ("wait", 4.0, 4.5, "hand-over", None),
        ("compute", 4.5, 5.5, "", None),
    ]
    assert spans_of(log, 1)[-1] == ("compute", 4.5, 5.5, "not finished", None)
    assert switches(log, 8, ["all_reduce", "asp"]) == [
        {
            "epoch": 1.0,
            "time_s": 4.0,
            "version": 1,
            "bytes": 0,
            "from": "all_reduce",
            "to": "asp",
            "reason": "asked by hand",
            "cost_s": 0.5,
        }
    ]
    assert switches(log, 8)[0]["from"] == "composition 0"


def test_a_wait_that_begins_at_a_hand_over_is_not_one_for_the_switch():
    log = EventLog()
    for kind in (Kind.JOIN, Kind.RELEASE):
        for worker in (0, 1):
            log.add(kind, 0.0, worker)
    log.add(Kind.PUSH, 1.0, 0, 0, 0, 4, 1, compute_s=1.0)
    log.add(Kind.HOLD, 1.0, 0, text="barrier")
    log.add(Kind.SWITCH_REQUESTED, 2.0, id=1)
    log.add(Kind.PUSH, 4.0, 1, 1, 0, 4, 1, compute_s=4.0)
    log.add(Kind.HANDOVER, 4.0, id=1, text="asked by hand")
    log.add(Kind.RELEASE, 4.0, 0)
    log.add(Kind.HOLD, 4.0, 1, text="barrier")
    log.add(Kind.RELEASE, 5.0, 1)
    spans = recording(log).spans
    found = zip(spans["worker"], spans["phase"], spans["start_s"], spans["end_s"], strict=True)
    waits = [(worker, STAGES[phase], *times) for worker, phase, *times in found if STAGES[phase] != "compute"]
    assert waits == [(0, "wait", 1.0, 2.0), (0, "switching", 2.0, 4.0), (1, "wait", 4.0, 5.0)]


def test_what_is_sent_beside_steps_ends_with_them_or_with_its_arrival():
    """The steps beside a push are those of the same worker's next one; of the last none are known."""
    log = EventLog()
    pushes = [(3.0, 0, 1.0, 2.0), (4.0, 1, 1.0, 3.0), (5.0, 0, 0.5, 3.0)]
    for number, (at, worker, compute_s, send_s) in enumerate(pushes):
        times = {"compute_s": compute_s, "send_s": send_s}
        log.add(Kind.PUSH, at, worker, number, 0, 4, 1, **times, text='{"goes_on": 1.0}')
    beside = sends_beside(log)[["worker", "start_s", "end_s"]]
    assert beside.to_numpy().tolist() == [[0, 1.0, 1.5], [0, 2.0, 5.0], [1, 1.0, 4.0]]


def test_votes_are_compute_and_what_follows_them_is_send():
    log = EventLog()
    log.add(Kind.JOIN, 0.0, 0)
    log.add(Kind.RELEASE, 0.0, 0)
    log.add(Kind.VOTE, 1.0, 0)
    log.add(Kind.HOLD, 1.0, 0, text="vote")
    log.add(Kind.VOTE, 2.0, 1)
    unanswered = {"local": 0, "synchronous": 0, "lssr": 0.0, "saving": None}
    assert local_steps_ratio(log) == unanswered
    log.add(Kind.RELEASE, 2.0, 0, id=1)
    log.add(Kind.PUSH, 2.5, 0, 0, 0, 4, 1, compute_s=1.0, send_s=0.5)
    assert [(phase, stop) for phase, _, stop, _, _ in spans_of(log, 0)] == [
        ("compute", 1.0), ("wait", 2.0), ("send", 2.5),
    ]  # fmt: skip


def test_the_rule_s_values_are_read_from_its_notes():
    log = EventLog()
    log.add(Kind.NOTE, 1.0, text="rule empirical value=0.0371 threshold=0.01 epoch=6")
    log.add(Kind.NOTE, 1.0, text="something else")
    assert rule_values(log).to_dict("records") == [
        {"time_s": 1.0, "rule": "empirical", "epoch": 6, "value": 0.0371, "threshold": 0.01}
    ]


def test_a_log_without_its_beginning_is_refused():
    for push in (0, 17):
        log = EventLog()
        log.add(Kind.APPLY, 1.0, 0, push, 1, 4, 1)
        with pytest.raises(DataError, match=f"push {push}, which never arrived"):
            staleness(log)
    log.add(Kind.PUSH, 1.0, 0, 17, 0, 4, 1)
    log.add(Kind.PUSH, 1.0, 0, 17, 0, 4, 1)
    with pytest.raises(DataError, match="same id"):
        pushes(log)


def test_the_summary_is_plain_json(three_workers):
    meta = {"dataset_size": 40, "name": "tiny", "lost_workers": [1], "target_accuracy": 0.5, "num_workers": 3}
    summary = summarise(three_workers, meta)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["epochs"] == pytest.approx(0.6)
    assert (summary["steps"], summary["updates"], summary["time_s"]) == (3, 1, 5.0)
    assert summary["pushes"] == {"committed": 3, "discarded": 0, "buffered": 0}
    assert summary["final"]["val_accuracy"] == summary["best_val_accuracy"] == 0.5
    assert summary["final"]["train_loss"] == 3.0  # of the last ten samples: one push
    assert summary["time_to_target_s"] == 5.0
    assert summary["warnings"] == ["lost during the run: worker 1"]


def test_an_empty_log_has_a_summary():
    summary = summarise(EventLog(), {"dataset_size": 40})
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert set(summary["final"]) == {"train_loss", "train_accuracy", "val_loss", "val_accuracy"}
    assert set(summary["final"].values()) == {None}
    assert summary["warnings"] == []
    assert timeline(EventLog()).empty
    assert clock_lead(EventLog()).empty


def test_who_is_dropped_leaves_once_and_who_comes_back_may_leave_again():
    log = EventLog()
    for kind, worker in zip("JJDLJLDRL", (0, 1, 1, 1, 1, 1, 0, 0, 0), strict=True):
        kinds = {"J": Kind.JOIN, "D": Kind.DROP, "L": Kind.LEAVE, "R": Kind.READMIT}
        log.add(kinds[kind], float(len(log)), worker)
    J, L, N = Kind.JOIN, Kind.LEAVE, Kind.NOTE
    rows = log.rows()
    assert with_membership(rows)["kind"].tolist() == [J, J, L, N, J, L, L, J, L]
    for cut in range(len(rows)):  # whether it is read at once or not
        absences = Absences()
        parts = [absences.read(rows[:cut]), absences.read(rows[cut:])]
        assert [*parts[0]["kind"], *parts[1]["kind"]] == [J, J, L, N, J, L, L, J, L]


def test_a_log_that_is_not_of_one_run_is_refused():
    log = EventLog()
    for number in (0, 1, 1):
        log.add(Kind.PUSH, 1.0, 0, number)
    with pytest.raises(DataError, match="two pushes with the same id"):
        pushes(log)
    log = EventLog()
    log.add(Kind.PUSH, 1.0, 0, 0)
    log.add(Kind.APPLY, 1.0, 0, 3)
    for table in (pushes, staleness):
        with pytest.raises(DataError, match="uses push 3, which never arrived"):
            table(log)


def test_an_empty_log_has_no_throughput():
    assert len(throughput(EventLog())) == 0


#: 28 features of 21 classes are a model of 609 numbers, and a message of 2,436 bytes
OF_609 = {"name": "mixture", "num_samples": 120, "num_features": 28, "num_classes": 21}


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_bytes_of_rounds_of_diloco_are_two_models_a_worker(rounds, tmp_path):
    """Each round a worker is sent the model and pushes one; the answer to the last round is not sent.

    Two rounds of three workers are 12 messages, 29,232 bytes; with a reply to the last push 31,668.
    """
    made = toy_experiment(
        {"name": "diloco", "local_steps": 4},
        data=OF_609,
        stop={"updates": rounds},
        evaluate_every=0.1,
        batch_size=30,
    )
    done = run(made)
    workers, model = done.meta["num_workers"], 4 * 609
    expected = [2 * workers * model * made for made in range(rounds + 1)]
    assert expected[2:3] in ([], [29_232])
    assert evaluations(done.log)["bytes"].tolist() == expected
    assert sum(total_bytes(done.log, done.meta["unanswered"]).values()) == expected[-1]
    assert sum(done.summary()["bytes"].values()) == expected[-1]
    table = pd.read_csv(done.export(tmp_path / "run.csv"))
    assert table["bytes"].max() == expected[-1]
    drawn = tables_of(done, "run").totals("bytes")
    assert sum(drawn["bytes"]) == expected[-1]
    longer = run(made.but(stop={"updates": rounds + 2}))
    (whole, cut), budget, _ = cut_equal([done, longer], "bytes")
    assert whole is done
    assert sum(cut.summary()["bytes"].values()) == expected[-1]
    assert f"{expected[-1] / 1e6:.4g} MB" in budget


def test_bytes_of_an_evaluation_that_comes_late_are_those_of_its_version():
    """As live, where it is computed while workers go on; nor do votes on later steps count."""
    log = EventLog()
    log.add(Kind.JOIN, 0.0, 0)
    for version in range(3):
        log.add(Kind.RELEASE, float(version), 0, version=version, bytes=100)
        log.add(Kind.PUSH, version + 1.0, 0, version, version, 8, 1, bytes=7)
        log.add(Kind.APPLY, version + 1.0, 0, version, version + 1, 8, 1)
    log.add(Kind.RELEASE, 3.0, 0, version=3, bytes=100)
    for version in (0, 1, 3):
        log.add(Kind.EVALUATED, 3.5, id=version, version=version, text="{}")
    assert evaluations(log)["bytes"].tolist() == [0, 107, 321]
    pieces, found = Axes(), []
    for start in range(len(log)):
        found += pieces.read(log.rows(start, start + 1)).evaluated_bytes.tolist()
    assert found == [0, 107, 321]
