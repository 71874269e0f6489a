"""The panel without a browser: messages of the page in, traits and messages out."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt
import pytest
import torch

from psbench import charts, metrics
from psbench.core.log import EventLog, Kind
from psbench.errors import ParameterError, UnknownName
from psbench.experiment import Experiment
from psbench.metrics.growing import SpanTotals
from psbench.results.fork import common_prefix
from psbench.results.run import Run
from psbench.runs import run
from psbench.system.start_progress import StartProgress
from psbench_widgets import Lab
from psbench_widgets.check import as_python, as_values
from psbench_widgets.figures import Figures, Shown
from psbench_widgets.predictions import Prediction, gaps
from psbench_widgets.presets import PRESETS, Preset
from psbench_widgets.probe import probe, unanswered

BRIEF = Experiment(strategy="ssp", stop={"epochs": 2})


class Panel(Lab):
    """A panel that writes down what it sends."""

    def __init__(self, *arguments: Any, **values: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        super().__init__(*arguments, **values)

    def send(self, content: Any, buffers: Any = None) -> None:
        self.sent.append(json.loads(json.dumps(content)))

    def say(self, kind: str, **rest: Any) -> None:
        """Do what a click on the page does."""
        self._on_message(self, {"kind": kind, **rest}, [])

    def click(self, experiment: Experiment, **rest: Any) -> None:
        values = as_values(experiment)
        values["rest"] |= rest
        self.say("run", values=values)

    def last(self, kind: str) -> dict[str, Any]:
        return [message for message in self.sent if message["kind"] == kind][-1]


class Recorded:
    """What a message says of a run's spans."""

    def __init__(self, film: dict[str, Any]) -> None:
        packed = film["tables"]["spans"]["phase"]
        codes = base64.b64decode(packed["data"])
        self.spans = len(codes)
        self.phases = {film["phases"][code] for code in codes}


@pytest.fixture
def panel(tmp_path: Path) -> Iterator[Panel]:
    lab = Panel(BRIEF, folder=tmp_path / "runs")
    yield lab
    lab.close()
    assert [t.name for t in threading.enumerate() if t.name.startswith("psbench")] == []


def rows(panel: Panel, key: str) -> list[dict[str, Any]]:
    return panel._figures.charts[key].rows()


def test_a_press_runs_what_came_with_it(panel: Panel) -> None:
    panel.click(BRIEF.but(strategy="bsp", seed=5))
    assert panel.wait(120)
    line = panel.runs[0]
    assert (line["label"], line["seed"], line["status"]) == ("bsp", 5, "finished")
    assert panel.values["strategy"]["name"] == "bsp"
    assert panel.status["running"] is None
    assert panel.status["trouble"] == ""


def test_the_digest_is_that_of_the_script(panel: Panel, capsys: pytest.CaptureFixture[str]) -> None:
    panel.click(BRIEF)
    assert panel.wait(120)
    exec(as_python(BRIEF), {})
    assert capsys.readouterr().out.strip() == panel.runs[0]["digest"]


def test_charts_show_the_whole_log(panel: Panel) -> None:
    panel.click(BRIEF)
    assert panel.wait(120)
    done = panel.finished[0]
    assert (
        len([r for r in rows(panel, "train_loss") if r["train_loss"] is not None]) == done.summary()["steps"]
    )
    epochs = [e["epoch"] for e in done.log.evaluations()]
    assert [r["epoch"] for r in rows(panel, "val_accuracy")] == pytest.approx(epochs, rel=1e-5)
    assert sum(r["applied"] for r in rows(panel, "share")) == done.summary()["pushes"]["committed"]
    recorded = Recorded(panel.last("films")["films"][0])
    assert recorded.phases >= {"compute", "wait"}
    assert recorded.spans == len(metrics.timeline(done.log))
    assert {r["reason"] for r in rows(panel, "idle")} >= {"staleness bound"}
    assert max(r["value"] for r in rows(panel, "lead")) == done.summary()["clock_lead_max"] == 3


def test_a_switch_is_marked_in_every_curve(panel: Panel) -> None:
    switch = {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}}
    panel.click(BRIEF.but(strategy=switch))
    assert panel.wait(120)
    for key in ("val_accuracy", "val_loss", "train_loss"):
        assert [r["event"] for r in rows(panel, key) if r["event"]] == ["switch to asp"]


@pytest.mark.parametrize("name", ["ssp", "strategy_switch", "k_bsp"])
def test_chart_specifications_are_valid_vega_lite(panel: Panel, name: str) -> None:
    panel.click(BRIEF.but(strategy=name))
    assert panel.wait(120)
    drawn = [chart for chart in [*panel._figures.charts.values(), *panel._comparison.charts] if chart.spec]
    assert len(drawn) >= 15
    for chart in drawn:
        alt.Chart.from_dict(chart.spec, validate=True)
        assert json.loads(json.dumps(chart.rows(), allow_nan=False)) == chart.rows()


@pytest.mark.parametrize("x", list(charts.AXES))
def test_curves_are_drawn_against_any_axis(panel: Panel, x: str) -> None:
    panel.click(BRIEF)
    assert panel.wait(120)
    panel.say("axis", x=x)
    panel.wait(60)
    assert f'"field": "{x}"' in json.dumps(panel._figures.charts["val_loss"].spec)
    assert f'"field": "{x}"' in json.dumps(panel._comparison.charts[0].spec)
    assert all(x in row for row in rows(panel, "val_loss"))


def test_several_seeds_become_an_interval(panel: Panel) -> None:
    panel.click(BRIEF, seeds=3)
    assert panel.wait(120)
    assert sorted(line["seed"] for line in panel.runs) == [0, 1, 2]
    assert panel.table["rows"][0][1] == "3"
    assert "±" in " ".join(panel.table["rows"][0])
    assert any(row.get("val_accuracy_low") is not None for row in panel._comparison.charts[0].rows())


def test_two_strategies_are_compared(panel: Panel) -> None:
    for name in ("bsp", "asp"):
        panel.click(BRIEF.but(strategy=name))
    assert panel.wait(120)
    assert [row[0] for row in panel.table["rows"]] == ["bsp", "asp"]
    assert "speed-up" in panel.table["headings"]
    assert panel.table["colours"] == {run["label"]: run["colour"] for run in panel.runs}
    assert {row["label"] for row in panel._comparison.charts[0].rows()} == {"bsp", "asp"}
    panel.say("tick", number=1, on=False)
    panel.wait(60)
    assert [row[0] for row in panel.table["rows"]] == ["asp"]


def test_rename_remove_save_and_load(panel: Panel) -> None:
    panel.click(BRIEF)
    assert panel.wait(120)
    digest = panel.runs[0]["digest"]
    panel.say("rename", number=1, name="mine")
    panel.wait(60)
    assert panel.runs[0]["label"] == panel.table["rows"][0][0] == "mine"
    panel.say("save", folder=panel.folder)
    assert "saved" in panel.last("answer")["text"]
    panel.say("remove", number=1)
    panel.wait(60)
    assert (panel.runs, panel.table, panel.overlay) == ([], {}, [])
    panel.say("load", folder=panel.folder)
    panel.wait(60)
    assert panel.runs[0]["digest"] == digest
    assert Run.load(next(Path(panel.folder).iterdir())).log.digest() == digest


def test_loading_from_a_folder_without_runs_says_so(panel: Panel, tmp_path: Path) -> None:
    panel.say("load", folder=str(tmp_path / "nothing"))
    assert panel.last("answer")["wrong"]
    assert "no run" in panel.last("answer")["text"]


def test_the_report_is_written(panel: Panel) -> None:
    panel.say("report")
    assert "tick at least one" in panel.last("answer")["text"]
    panel.click(BRIEF)
    assert panel.wait(120)
    panel.say("report")
    assert (Path(panel.folder) / "report.html").read_text().startswith("<!")


def test_a_failing_run_shows_its_own_traceback_and_the_panel_goes_on(panel: Panel) -> None:
    def fails(job: Any) -> Run:
        raise ZeroDivisionError("in worker 3 at step 17")

    work, panel._bridge._work = panel._bridge._work, fails
    panel.click(BRIEF)
    assert panel.wait(60)
    assert panel.runs[0]["status"] == "failed"
    assert "in worker 3 at step 17" in panel.runs[0]["error"]
    panel._bridge._work = work
    panel.click(BRIEF)
    assert panel.wait(120)
    assert panel.runs[0]["status"] == "finished"


def test_while_processes_start_the_page_is_told_which_is_at_what(panel: Panel) -> None:
    """And a stop then is over at once, keeps nothing, and is no error."""
    seen, ended = threading.Event(), threading.Event()

    def starts(job: Any) -> Run:
        times = iter([0.0, 0.5, 0.5, 1.25, *[2.0] * 99])
        job.start = StartProgress(clock=lambda: next(times, 2.0))
        job.start.expect(["coordinator", "worker 0"])
        job.start.see(["tcp://a"])
        job.start.place({"coordinator": "tcp://a"})
        job.start.reach("coordinator", "torch loaded")
        seen.set()
        assert ended.wait(30)
        job.control.check()
        raise AssertionError("it was stopped")

    panel._bridge._work = starts
    shown = threading.Event()
    panel.observe(lambda change: shown.set() if change["new"].get("starting") else None, "status")
    panel.click(BRIEF)
    assert seen.wait(30)
    assert shown.wait(30)
    status = panel.status
    assert status["beginning"]  # the charts of the run before are put away
    assert status["starting"]["stages"] == ("process up", "torch loaded", "data read", "met")
    assert status["starting"]["rows"] == [
        ("coordinator", [0.5, 1.25, None, None]),
        ("worker 0", [None, None, None, None]),
    ]
    assert status["words"].startswith("starting 2 processes: 1 up, 1 with torch, 0 with data, 0 met")
    panel.say("stop")
    until = time.monotonic() + 30
    while panel.status["running"] is not None:
        assert time.monotonic() < until
        time.sleep(0.01)
    ended.set()
    assert panel.wait(30)
    line = panel.runs[0]
    assert (line["status"], line["error"], line["reason"]) == ("stopped", "", "before training began")


def test_a_diverged_run_is_kept_but_not_compared(panel: Panel) -> None:
    panel.click(BRIEF.but(optimizer={"name": "sgd", "lr": 1e12}, strategy="asp"))
    assert panel.wait(120)
    assert panel.runs[0]["status"] == "diverged"
    assert not panel.runs[0]["ticked"]
    assert "learning rate" in panel.runs[0]["reason"]


def test_stop_and_switch_reach_the_run(panel: Panel) -> None:
    long = BRIEF.but(strategy={"name": "strategy_switch", "rule": "manual"}, stop={"epochs": 100_000})
    panel.click(long)
    told = threading.Event()
    panel.observe(lambda change: told.set() if (change["new"].get("fraction") or 0) > 0 else None, "status")
    assert told.wait(60)
    assert "epoch" in panel.status["words"]
    assert panel.status["can_switch"]
    assert panel.status["echo"].startswith("strategy_switch · digits · mlp · c2")
    panel.say("switch")
    asp = threading.Event()
    panel.observe(lambda change: asp.set() if " asp: " in change["new"].get("words", "") else None, "status")
    assert asp.wait(60)
    panel.say("stop")
    assert panel.wait(60)
    assert panel.runs[0]["status"] == "stopped"
    assert panel.finished[0].summary()["switches"][0]["reason"] == "asked by hand"


def test_a_panel_that_nobody_shows_any_more_stops_its_runs(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psbench_widgets.view_lease.GRACE_S", 0.1)
    panel.click(BRIEF.but(stop={"epochs": 100_000}))
    panel.click(BRIEF)
    panel.say("bye")
    assert panel.last("who")
    assert panel.wait(60)
    assert [line["status"] for line in panel.runs] == ["cancelled", "stopped"]


def test_a_view_that_is_still_there_keeps_the_run(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psbench_widgets.view_lease.GRACE_S", 0.1)
    panel.click(BRIEF)
    panel.say("bye")
    panel.say("hello")
    assert panel.wait(120)
    assert panel.runs[0]["status"] == "finished"


def test_checking_answers_with_what_is_wrong_and_where(panel: Panel) -> None:
    values = as_values(BRIEF)
    panel.say("check", seq=4, values=values)
    assert panel.last("verdict")["errors"] == {}
    panel.wait(60)
    found = panel.last("probe")
    assert found["seq"] == 4
    assert len(found["label_counts"]) == 9
    assert "12 x 12" in found["disabled"]["model"]["lenet"]
    panel.say("check", seq=5, values=values | {"strategy": {"name": "ssp", "staleness_bound": -2}})
    assert "staleness_bound" in panel.last("verdict")["errors"]["strategy"]
    panel.say("run", values=values | {"strategy": {"name": "ssp", "staleness_bound": -2}})
    assert panel.last("answer")["wrong"]
    assert panel.runs == []


def test_missing_data_and_a_silent_scheduler_are_told_beside_their_controls(tmp_path: Path) -> None:
    missing = probe(BRIEF.but(data={"name": "folder", "path": str(tmp_path / "none")}))
    assert "none" in missing["errors"]["data"]
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe_socket.getsockname()[1]}"
        assert "nobody answers" in unanswered(address)
        probe_socket.listen()
        assert unanswered(address) == ""
    assert "tcp://host:8786" in unanswered("nonsense")


def test_run_says_what_is_wrong(panel: Panel) -> None:
    panel.values = panel.values | {"stop": {}}
    with pytest.raises(ParameterError, match="stop"):
        panel.run()


def test_a_message_that_makes_no_sense_changes_nothing(panel: Panel) -> None:
    for message in ({"kind": "nonsense"}, {"kind": "tick", "number": 99, "on": True}, "text", None):
        panel._on_message(panel, message, [])
    assert panel.runs == []
    assert panel.last("answer")["text"].startswith("there is no run 99")


def test_other_panels_are_left_alone_outside_a_notebook() -> None:
    first, second = Panel(BRIEF), Panel(BRIEF)
    second.close()
    first.click(BRIEF)
    assert first.wait(120)
    first.close()


def test_the_shown_experiment_can_be_set(panel: Panel) -> None:
    panel.experiment = BRIEF.but(strategy="bsp")
    assert panel.experiment.spec() == BRIEF.but(strategy="bsp").spec()
    assert panel.last("values")["values"]["strategy"]["name"] == "bsp"
    assert run(panel.experiment).log.digest() == run(BRIEF.but(strategy="bsp")).log.digest()


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
    assert panel.wait(120)
    first, other = panel.finished
    assert common_prefix(first.log, other.log) >= int((first.log.rows()["time_s"] < 0.25).sum())
    message = panel.last("films")
    assert [film["about"]["label"] for film in message["films"]] == ["ssp", "ssp: asp from 0.25 s on"]
    assert message["at"] == 0.25
    assert {row["label"] for row in rows(panel, "val_accuracy")} == {"ssp", "ssp: asp from 0.25 s on"}
    panel.say("fork", at=0.25, worker=99, kill=True)
    assert panel.last("answer")["text"] == "fork: there is no worker 99; the workers are 0 to 8"


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
    if preset.name == "slow_network":
        lasted = (shares["end_s"] - shares["start_s"]).groupby(shares["phase"].astype(str)).sum()
        assert (lasted["pull"] + lasted["send"]) / lasted.sum() > 0.3
    if preset.name == "dying_worker":
        assert len(log.of_kind(Kind.LEAVE)["row"]) == 1
        assert len(log.of_kind(Kind.JOIN)["row"]) == 5


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
    assert texts[1].startswith("You expected 1.2 times as fast as the run before; it was ")
    with pytest.raises(ParameterError, match="accuracy is from 0 to 1"):
        panel.predict(accuracy=95)


def test_a_drawn_curve_is_compared_with_the_one_that_came() -> None:
    came = [{"epoch": float(epoch), "val_accuracy": a} for epoch, a in enumerate((0.1, 0.5, 0.9, 0.9, 0.9))]
    (gap,) = gaps(Prediction.of({"curve": [0.1, 0.7, 0.9]}), {}, None, came)  # straight lines between
    assert gap["text"] == (
        "The curve that you drew is 8.0 points off on average, most at epoch 2: you drew 70 %, it was 90 %."
    )
    assert not gap["right"]
    assert gap["came"] == [[0.0, 0.1], [0.25, 0.5], [0.5, 0.9], [0.75, 0.9], [1.0, 0.9]]
    (same,) = gaps(Prediction.of({"curve": [0.1, 0.5, 0.9, 0.9, 0.9]}), {}, None, came)
    assert same["right"]
    (never,) = gaps(Prediction(curve=[0.5, 0.5]), {}, None, [])
    assert "was not evaluated" in never["text"]
    with pytest.raises(ParameterError, match="at least two accuracies from 0 to 1"):
        Prediction.of({"curve": [0.5, 50]})


def test_a_goal_is_checked_after_every_run(tmp_path: Path) -> None:
    goal = {"accuracy": 0.5, "within_s": 100.0, "keep": ("cluster",)}
    lab = Panel(BRIEF, folder=tmp_path, challenge=goal)
    try:
        assert lab.goal["text"] == "reach 50 % in 100 s without touching the cluster"
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
    panel.say("beside", number=2)
    assert [film["about"]["key"] for film in panel.last("films")["films"]] == ["run 1", "run 2"]


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
    assert panel._view.is_seen
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
