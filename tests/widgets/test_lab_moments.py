"""The panel at a chosen moment: forks, sums, predictions, goals, names of runs; and models of one's own."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from psbench import metrics
from psbench.backends.control import Press
from psbench.core.log import EventLog, Kind
from psbench.errors import DataError, ParameterError, UnknownName
from psbench.experiment import Experiment
from psbench.metrics.totals import SpanTotals
from psbench.runs.execution import run
from psbench.runs.fork import Fork, common_prefix
from psbench.twin.calibration import Calibration
from psbench_widgets import Lab, pace
from psbench_widgets.bridge import Job, perform
from psbench_widgets.check import as_values
from psbench_widgets.fault_controls import press_live
from psbench_widgets.figures import Figures, Shown
from psbench_widgets.predictions import Prediction, gaps
from psbench_widgets.presets import PRESETS, SITUATIONS, Preset

from .panel import BRIEF, Panel, Recorded, rows


def test_all_figures_of_a_refresh_stand_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on while they are made: what came meanwhile is in none of them."""
    done = run(BRIEF.but(stop={"epochs": 1}))
    whole, log = done.log.rows(), EventLog()
    half = len(whole) // 2
    log.extend(whole[:half], done.log.texts[1:])
    read = SpanTotals.read

    def slow(own: SpanTotals, of: EventLog, rows: Any) -> None:
        log.extend(whole[half:], ())
        read(own, of, rows)

    monkeypatch.setattr(SpanTotals, "read", slow)
    figures = Figures()
    figures.show(Shown("ssp", log, done.meta))
    figures.refresh()
    now = float(whole["time_s"][half - 1])
    assert len(log) == len(whole)
    assert max(row["time_s"] for row in figures.charts["train_loss"].rows()) <= now * (1 + 1e-5)
    shares = figures.charts["share"].rows()
    assert sum(row["applied"] for row in shares) == int((whole["kind"][:half] == Kind.APPLY).sum())
    monkeypatch.setattr(SpanTotals, "read", read)
    figures.refresh(final=True)
    assert sum(row["applied"] for row in figures.charts["share"].rows()) == done.summary()["updates"]
    assert figures.charts["train_accuracy"].rows()[-1]["train_accuracy"] == pytest.approx(
        done.summary()["final"]["train_accuracy"], rel=1e-5
    )
    figures.close()


def test_a_run_is_forked_and_both_futures_are_shown_at_that_moment(panel: Panel) -> None:
    panel.click(BRIEF)
    assert panel.wait(120)
    panel.say("fork", at=0.25, strategy="asp")
    assert panel.last("answer")["text"].endswith("asp at 0.25 s, momentum kept")
    assert panel.wait(120)
    first, other = panel.finished
    assert common_prefix(first.log, other.log) >= int((first.log.rows()["time_s"] < 0.25).sum())
    message = panel.last("films")
    assert [film["about"]["label"] for film in message["films"]] == [
        "ssp",
        "ssp -> asp at 0.25 s",
    ]
    assert message["at"] == 0.25
    # a page that is loaded anew begins there, and later where the runs were last looked at
    panel.say("film", at=None, view="late")
    assert panel.last("films") == message | {"view": "late"}
    panel.say("moment", at=0.3)
    panel.say("moment", since=0.3, at=0.4)  # a span that is selected moves no moment
    panel.say("film", at=None, view="late")
    assert panel.last("films")["at"] == 0.3
    assert {row["label"] for row in rows(panel, "val_accuracy")} == {
        "ssp",
        "ssp -> asp at 0.25 s",
    }
    panel.say("show", number=2)
    panel.say("fork", at=0.3, strategy="k_asp", momentum="zero")  # a fork of the fork
    assert panel.last("answer")["text"].endswith(", momentum reset")
    assert panel.wait(120)
    assert {tuple(change["to"] for change in each.summary()["switches"]) for each in panel.finished} == {
        (),
        ("asp",),
        ("asp", "k_asp"),
    }
    panel.say("settings", number=3)
    assert panel.experiment.strategy.requests == [(0.25, 1), (0.3, 2)]
    panel.say("fork", at=0.25, worker=99, kill=True)
    assert panel.last("answer")["text"] == "fork: there is no worker 99; the workers are 0 to 8"


def test_a_page_that_comes_later_is_sent_the_recording_alone(panel: Panel) -> None:
    panel.say("film", at=None, view="early")
    assert "films" not in {message["kind"] for message in panel.sent}  # there is none yet
    panel.click(BRIEF)
    assert panel.wait(120)
    shown = panel.last("films")
    assert shown["view"] == ""  # every page takes it
    panel.say("film", at=None, view="late")
    assert panel.last("films") == shown | {"view": "late"}


def test_sums_are_those_up_to_the_moment(panel: Panel) -> None:
    panel.click(BRIEF)
    assert panel.wait(120)
    log = panel.finished[0].log
    half = float(log.rows()["time_s"][-1]) / 2
    panel.say("moment", at=half)
    applied = log.of_kind(Kind.APPLY)["time_s"]
    assert sum(row["applied"] for row in rows(panel, "share")) == int((applied <= half).sum())
    quarter = half / 2
    panel.say("moment", since=quarter, at=half)  # a span of time that is selected
    inside = (applied > quarter) & (applied <= half)
    assert sum(row["applied"] for row in rows(panel, "share")) == int(inside.sum())
    assert sum(row["count"] for row in rows(panel, "staleness")) == int(inside.sum())
    use = {(row["worker"], row["phase"]): row["fraction"] for row in rows(panel, "time_use")}
    spans = metrics.timeline(panel.finished[0].log)
    marks = log.rows()["time_s"]
    begin, end = (float(marks[marks <= at][-1]) for at in (quarter, half))  # time goes on with the next row
    cut = spans["end_s"].clip(begin, end) - spans["start_s"].clip(begin, end)
    waited = cut[(spans["worker"] == 0) & (spans["phase"] == "wait")].sum()
    assert use.get((0, "wait"), 0.0) == pytest.approx(waited / (end - begin), rel=0.05)
    panel.say("moment", at=None)
    assert sum(row["applied"] for row in rows(panel, "share")) == len(applied)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_situation_is_one_press_and_shows_what_it_says(panel: Panel, preset: Preset) -> None:
    panel.say("preset", name=preset.name)
    assert panel.experiment == preset.experiment()
    assert panel.last("values")["values"] == panel.values
    log = run(preset.experiment().but(stop={"epochs": 12})).log
    idle = metrics.idle_fraction(log)
    shares = metrics.timeline(log)
    if preset.name == "slow_worker":
        assert idle[3] < 0.05 < 0.3 < idle[0]
        # on another cluster it is not that situation any more, and has not its name
        panel.experiment = panel.experiment.but(cluster={"workers": 2}, stop={"updates": 2})
        assert [job.experiment.name for job in panel.run()] == [""]
        assert panel.wait(60)
    if preset.name == "slow_network":
        lasted = (shares["end_s"] - shares["start_s"]).groupby(shares["phase"].astype(str)).sum()
        assert (lasted["pull"] + lasted["send"]) / lasted.sum() > 0.3
    if preset.name == "dying_worker":
        assert len(log.of_kind(Kind.LEAVE)["row"]) == 1
        assert len(log.of_kind(Kind.JOIN)["row"]) == 5


@pytest.mark.nightly
def test_measured_machines_are_a_situation_too(
    panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="measure yours with `psbench calibrate`"):
        SITUATIONS["my_cluster"].experiment()
    links = {"name": "trace", "seconds": [[1e-3]] * 4}
    cluster = {"workers": 2, "speed": [1.0, 0.5], "step_time": {"name": "constant"}, "link_time": links}
    cluster |= {"latency_s": 1e-3, "server_bandwidth_mbit_s": 1e3}
    measured = BRIEF.but(cluster=cluster, batch_size=32, backend="simulated").spec()
    Calibration(cluster, 2, (8, 16), 1438, {}, (), (), measured).to_yaml(Path("profile.yaml"))
    panel.say("preset", name="my_cluster")
    assert panel.experiment.name == "my own machines"
    assert panel.experiment.cluster.profile().speed == (1.0, 0.5)
    assert [job.experiment.name for job in panel.run()] == ["my own machines"]
    assert panel.wait(60)


def test_what_was_expected_is_compared_with_what_came(panel: Panel) -> None:
    panel.click(BRIEF.but(cluster={"workers": 2, "speed": [1, 0.3]}))
    assert panel.wait(120)
    assert panel.goal["gaps"] == []
    values = as_values(BRIEF.but(strategy="asp", cluster={"workers": 2, "speed": [1, 0.3]}))
    panel.say("run", values=values, prediction={"most_waiting": 1, "accuracy": None, "times_as_fast": 1.2})
    assert panel.wait(120)
    texts = [gap["text"] for gap in panel.goal["gaps"]]
    assert texts[0] == "You expected worker 1 to wait most; nobody waited."
    panel.say("fork", at=0.1, worker=0, kill=True)
    assert panel.wait(120)
    assert [gap["text"] for gap in panel.goal["gaps"]] == texts  # expected of the run, not of its fork
    assert texts[1].startswith("You expected 1.2 times as fast as the previous run; it was ")
    with pytest.raises(ParameterError, match="accuracy must be from 0 to 1"):
        panel.predict(accuracy=95)


def test_a_drawn_curve_is_compared_with_the_one_that_came() -> None:
    came = [{"epoch": float(epoch), "val_accuracy": a} for epoch, a in enumerate((0.1, 0.5, 0.9, 0.9, 0.9))]
    (gap,) = gaps(Prediction.of({"curve": [0.1, 0.7, 0.9]}), {}, None, came)  # straight lines between
    assert gap["text"] == (
        "The curve that you drew is 8.0 points off on average, most at epoch 2: "
        "you drew 70\u00a0%, it was 90\u00a0%."
    )
    assert not gap["right"]
    assert gap["came"] == [[0.0, 0.1], [0.25, 0.5], [0.5, 0.9], [0.75, 0.9], [1.0, 0.9]]
    (same,) = gaps(Prediction.of({"curve": [0.1, 0.5, 0.9, 0.9, 0.9]}), {}, None, came)
    assert same["right"]
    (never,) = gaps(Prediction(curve=[0.5, 0.5]), {}, None, [])
    assert "was not evaluated" in never["text"]
    with pytest.raises(ParameterError, match="at least two accuracies from 0 to 1"):
        Prediction.of({"curve": [0.5, 50]})


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("kind", "seen", "expected"),
    [("watchable", True, 20.0), ("10", True, None), ("fast", True, 0.0), ("watchable", False, 0.0)],
)
def test_a_run_that_is_watched_takes_its_time(
    kind: Any, seen: bool, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes twenty seconds, or a tenth of its own, and decides the same; a request is not kept waiting."""
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    brief = BRIEF.but(stop={"epochs": 6}, timing_only=True)
    job = Job(1, brief)
    paced, passed = pace.Pace(job, kind, lambda: seen), list[tuple[float, float]]()

    def keep(now_s: float) -> None:
        paced(now_s)
        passed.append((now_s, clock.now))

    job.control.pace = keep
    done = perform(job)
    assert done.log.digest() == run(brief).log.digest()
    own_s = done.summary()["time_s"]
    whole = own_s / 10 if expected is None else expected
    assert clock.now == pytest.approx(whole, rel=0.05)
    half_s = next(at_s for now_s, at_s in passed if now_s >= own_s / 2)
    assert half_s == pytest.approx(whole / 2, rel=0.1)  # evenly, from its begin to its end
    clock.now = 0.0
    job.control.stop()
    job.control.pace(1e6)
    assert clock.now == 0.0


def test_a_goal_is_checked_after_every_run(tmp_path: Path) -> None:
    goal = {"accuracy": 0.5, "within_s": 100.0, "keep": ("cluster",)}
    lab = Panel(BRIEF, folder=tmp_path, challenge=goal)
    try:
        assert lab.goal["text"] == "reach 50\u00a0% in 100 s without touching the cluster"
        lab.click(BRIEF.but(cluster={"workers": 2, "speed": [1, 1]}))
        assert lab.wait(120)
        assert (lab.goal["reached"], lab.goal["why"]) == (False, "run 1: the cluster was changed")
        lab.click(BRIEF)
        assert lab.wait(120)
        assert lab.goal["reached"]
        assert lab.goal["why"].startswith("run 2: after ")
    finally:
        lab.close()
    with pytest.raises(UnknownName, match="did you mean 'cluster'"):
        Lab(challenge={"accuracy": 0.9, "keep": ["clusters"]})
    with pytest.raises(ParameterError, match="Lab: expected an Experiment, got 'ssp'"):
        Lab("ssp")  # type: ignore[arg-type]


def test_runs_are_called_by_what_differs_and_equal_ones_are_recognised(panel: Panel) -> None:
    short = BRIEF.but(stop={"epochs": 1})
    for bound in (3, 10, 3):
        panel.click(short.but(strategy={"name": "ssp", "staleness_bound": bound}))
    assert panel.wait(120)
    assert [run["label"] for run in panel.runs] == ["ssp, bound 3", "ssp, bound 10", "ssp, bound 3"]
    assert [run["same_as"] for run in panel.runs] == ["run 1", "", ""]
    assert {run["backend"] for run in panel.runs} == {"simulated"}
    panel.wait(60)
    # two variants of a strategy have two colours: in the table of runs those of the charts
    assert panel.table["colours"] == {run["label"]: run["colour"] for run in panel.runs}
    assert len(set(panel.table["colours"].values())) == 2
    panel.say("settings", number=2)
    assert panel.experiment.strategy.consistency.staleness_bound == 10
    panel.say("python", number=2)
    assert "'staleness_bound': 10" in panel.last("python")["text"]
    panel.say("show", number=1)
    for beside, shown in ((2, ["run 1", "run 2"]), (1, ["run 1"])):  # a run beside itself is alone
        panel.sent.clear()
        panel.say("beside", number=beside)
        assert [film["about"]["key"] for film in panel.last("films")["films"]] == shown
    # and in the charts of the run that is watched, alone or beside another, whichever is first
    panel.say("show", number=2)
    for chart in ("val_accuracy", "staleness", "share"):
        assert colours_of(panel, chart) == {"ssp, bound 10": panel.table["colours"]["ssp, bound 10"]}
    panel.say("beside", number=1)
    assert colours_of(panel, "val_accuracy") == panel.table["colours"]


def colours_of(panel: Panel, chart: str) -> dict[str, str]:
    """The colour of each run in a chart, from its one scale of labels."""
    text = json.dumps(panel._figures.charts[chart].spec)
    (scale,) = set(re.findall(r'"color": \{[^{}]*"scale": (\{[^{}]*\})', text))
    found = json.loads(scale)
    return dict(zip(found["domain"], found["range"], strict=True))


def test_nothing_is_drawn_for_nobody(panel: Panel) -> None:
    panel.say("seen", view="a", on=False)
    epochs, later = set(), threading.Event()

    def hear(change: Any) -> None:
        word = change["new"].get("words", "").partition(",")[0]
        epochs.update({word} if word.startswith("epoch") else ())
        if len(epochs) > 1:
            later.set()

    panel.observe(hear, "status")
    panel.click(BRIEF.but(stop={"epochs": 100_000}))
    assert later.wait(60)  # the sentence goes on
    panel.say("stop")
    assert panel.wait(120)
    assert all(not message["live"] for message in panel.sent if message["kind"] == "films")
    # once, when it was over
    assert len([message for message in panel.sent if message["kind"] == "films"]) == 1
    panel.say("seen", view="a", on=True)
    assert panel._runner.view.is_seen
    assert sum(row["applied"] for row in rows(panel, "share")) == panel.finished[0].summary()["updates"]
    assert Recorded(panel.last("films")["films"][0]).spans == len(metrics.timeline(panel.finished[0].log))


def test_a_model_and_data_of_ones_own_run_in_the_panel() -> None:
    """As from a script; the page knows them by name, and another network can be picked and left again."""
    features = torch.linspace(-1, 1, 96).reshape(32, 3)
    own = Experiment(
        model=torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2)),
        data=(features, (features.sum(1) > 0).long()),
        loss=torch.nn.functional.cross_entropy,
        cluster={"workers": 2},
        batch_size=4,
        stop={"updates": 3},
    )
    panel = Lab(own)
    assert panel.form["domains"]["model"][0]["summary"] == "Yours: torch.nn.modules.container.Sequential."
    assert panel.form["domains"]["model"][0]["title"] == "yours: Sequential"
    assert "model=...,  # yours: torch.nn.modules.container.Sequential" in panel.python()
    panel.run()
    assert panel.wait(60)
    (ours,) = panel.runs
    assert ours["digest"] == run(own).log.digest()
    assert ours["about"] == "(X, y), Sequential, custom"
    panel.values = panel.values | {"model": {"name": "linear"}}
    assert panel.experiment.model.name == "linear"
    panel.values = panel.values | {"model": {"name": "own"}}
    assert panel.experiment.model is own.model
    panel.close()


def test_a_press_ends_a_simulated_run_and_reaches_a_live_one(panel: Panel) -> None:
    panel.pace = "watchable"  # it takes twenty seconds, so that it is under way
    panel.click(BRIEF)
    while (job := panel._runner.bridge.current) is None:  # till it is taken from the queue
        time.sleep(0.001)
    while panel._runner.view.shown_number != job.number or job.log is None or len(job.log) < 50:
        time.sleep(0.02)
    panel.say("fork", at=0.001, worker=1, kill=True)
    assert "the run stops" in panel.last("answer")["text"]
    assert panel.wait(60)
    forked, first = panel.runs
    assert (first["status"], forked["status"]) == ("stopped", "finished")
    assert forked["label"].endswith("worker 1 lost at 0.001 s")
    assert [film["about"]["key"] for film in panel.last("films")["films"]] == ["run 1", "run 2"]
    with pytest.raises(ParameterError, match="no run is running"):
        panel.press(0.1, worker=1, kill=True)

    live = Job(9, BRIEF.but(backend="dask"))
    change = [Fork(0, worker=2, kill=True), Fork(0, worker=2, back=True), Fork(0, worker=0, speed=0.5)]
    for each in change:
        press_live(live, each)
    assert live.control.take_presses() == [Press(2, "lost"), Press(2, "back"), Press(0, "speed", 0.5)]
    press_live(live, Fork(0, switch=True))
    assert len(live.control.take()) == 1
    for refused, why in (
        (Fork(0, worker=1, link=0.5), "throttled"),
        (Fork(0, strategy="asp"), "only switch"),
        (Fork(0, worker=1, speed=0), "speed: must be more than 0, got 0"),
    ):
        with pytest.raises(ParameterError, match=why):
            press_live(live, refused)
