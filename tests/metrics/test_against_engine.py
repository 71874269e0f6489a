"""The vectorised metrics agree with what the engine itself counts."""

from __future__ import annotations

import numpy as np
import pytest

from psbench.core import events as ev
from psbench.core.log import ROW, EventLog, Kind
from psbench.metrics import clock_lead, conservation, staleness, summarise, timeline

STRATEGIES = [
    "asp",
    "bsp",
    {"name": "ssp", "staleness_bound": 2},
    {"name": "k_bsp", "k": 2, "cancel": "on_arrival"},
    {"name": "k_batch_asp", "k": 3},
    {"name": "strategy_switch", "first": "bsp", "rule": {"name": "manual"}},
]
COMINGS_AND_GOINGS = (
    *(
        (4.05, ev.Leave(1)),
        (7.15, ev.Join(1)),
        (9.25, ev.SwitchRequested()),
        (11.35, ev.Leave(0)),
        (30.45, ev.Join(0)),
    ),
)


@pytest.mark.parametrize("events", [(), COMINGS_AND_GOINGS], ids=["quiet", "comings and goings"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_leads_fates_and_spans_agree_with_the_engine(scripted, strategy, events):
    run = scripted(strategy, [1.0, 1.3, 2.1, 4.0], steps=120, events=events)
    view = run.engine.view
    assert clock_lead(run.log)["lead"].tolist() == run.leads
    kept = conservation(run.log)
    assert kept == {
        "committed": view.committed,
        "discarded": view.discarded,
        "buffered": len(view.pending),
        "cancelled": view.cancelled,
    }
    assert (staleness(run.log)["staleness"] >= 0).all()
    spans = timeline(run.log)
    assert set(spans.columns) == {"worker", "phase", "start_s", "end_s", "reason", "waited_for"}
    for _, own in spans.groupby("worker"):
        gaps = own["start_s"].to_numpy()[1:] - own["end_s"].to_numpy()[:-1]
        assert (gaps >= 0).all()
        assert events or (gaps == 0).all()  # the only gaps are absences


def test_ssp_bounds_the_lead_and_not_the_staleness(scripted):
    run = scripted({"name": "ssp", "staleness_bound": 2}, [1.0, 1.3, 2.1, 4.0], steps=200)
    assert clock_lead(run.log)["lead"].max() == 2
    assert staleness(run.log)["staleness"].max() > 2


@pytest.mark.slow
@pytest.mark.nightly
def test_a_million_rows_are_counted_exactly():
    steps, workers = 333_000, 50
    rows = np.zeros(workers + 3 * steps, dtype=ROW)
    rows["kind"][:workers] = Kind.JOIN
    rows["worker"][:workers] = np.arange(workers)
    body = rows[workers:]
    number = np.arange(steps)
    for offset, kind in enumerate((Kind.PUSH, Kind.APPLY, Kind.RELEASE)):
        part = body[offset::3]
        part["kind"], part["worker"], part["time_s"] = kind, number % workers, number + 1.0
        part["id"] = 0 if kind == Kind.RELEASE else number
        part["samples"], part["steps"] = 4 * (kind != Kind.RELEASE), 1
        part["version"] = number + (kind == Kind.APPLY)
    log = EventLog.from_columns({name: rows[name] for name in ROW.names}, [""])
    summary = summarise(log, {"dataset_size": 1000})
    assert summary["pushes"] == {"committed": steps, "discarded": 0, "buffered": 0}
    assert (summary["updates"], summary["epochs"], summary["staleness"]["max"]) == (
        steps,
        4 * steps / 1000,
        0,
    )
