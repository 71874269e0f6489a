"""The panel without a browser: messages of the page in, traits and messages out."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import altair as alt
import pytest
from distributed import Client

from psbench import charts, metrics, submit
from psbench.errors import ParameterError
from psbench.results.run import Run
from psbench.runs.execution import run
from psbench.system.start_progress import StartProgress
from psbench_widgets.check import as_python, as_values
from psbench_widgets.probe import probe

from .panel import BRIEF, Panel, Recorded, rows


def test_a_press_runs_what_came_with_it(panel: Panel) -> None:
    panel.click(BRIEF.but(strategy="bsp", seed=5))
    assert panel.wait(120)
    line = panel.runs[0]
    assert (line["label"], line["seed"], line["status"]) == ("bsp", 5, "finished")
    assert panel.values["strategy"]["name"] == "bsp"
    assert panel.status["running"] is None
    assert panel.status["trouble"] == ""


def test_the_digest_is_that_of_the_script(brief: Panel, capsys: pytest.CaptureFixture[str]) -> None:
    exec(as_python(BRIEF), {})
    assert capsys.readouterr().out.strip() == brief.runs[0]["digest"]


def test_charts_show_the_whole_log(brief: Panel) -> None:
    done = brief.finished[0]
    assert (
        len([r for r in rows(brief, "train_loss") if r["train_loss"] is not None]) == done.summary()["steps"]
    )
    epochs = [e["epoch"] for e in done.log.evaluations()]
    assert [r["epoch"] for r in rows(brief, "val_accuracy")] == pytest.approx(epochs, rel=1e-5)
    assert sum(r["applied"] for r in rows(brief, "share")) == done.summary()["pushes"]["committed"]
    recorded = Recorded(brief.last("films")["films"][0])
    assert recorded.phases >= {"compute", "wait"}
    assert recorded.spans == len(metrics.timeline(done.log))
    assert {r["reason"] for r in rows(brief, "idle")} >= {"staleness bound"}
    assert max(r["value"] for r in rows(brief, "lead")) == done.summary()["clock_lead_max"] == 3


def test_a_switch_is_marked_in_every_curve(panel: Panel) -> None:
    switch = {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}}
    panel.click(BRIEF.but(strategy=switch))
    assert panel.wait(120)
    for key in ("val_accuracy", "val_loss", "train_loss"):
        assert [r["event"] for r in rows(panel, key) if r["event"]] == ["switch to asp"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["strategy_switch", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("ssp", "k_bsp"))]
)
def test_chart_specifications_are_valid_vega_lite(panel: Panel, name: str) -> None:
    panel.click(BRIEF.but(strategy=name))
    assert panel.wait(120)
    charts = [*panel._figures.charts.values(), *panel._runner.comparison.charts]
    drawn = [chart for chart in charts if chart.spec]
    assert len(drawn) >= 15
    for chart in drawn:
        alt.Chart.from_dict(chart.spec, validate=True)
        assert json.loads(json.dumps(chart.rows(), allow_nan=False)) == chart.rows()


@pytest.mark.by_day(1)
@pytest.mark.parametrize("x", list(charts.AXES))
def test_curves_are_drawn_against_any_axis(brief: Panel, x: str) -> None:
    brief.say("axis", x=x)
    brief.wait(60)
    assert f'"field": "{x}"' in json.dumps(brief._figures.charts["val_loss"].spec)
    assert f'"field": "{x}"' in json.dumps(brief._runner.comparison.charts[0].spec)
    assert all(x in row for row in rows(brief, "val_loss"))


def test_several_seeds_become_an_interval(panel: Panel) -> None:
    panel.click(BRIEF, seeds=3)
    assert panel.wait(120)
    assert sorted(line["seed"] for line in panel.runs) == [0, 1, 2]
    assert panel.table["rows"][0][1] == "3"
    assert "±" in " ".join(panel.table["rows"][0])
    assert any(row.get("val_accuracy_low") is not None for row in panel._runner.comparison.charts[0].rows())


def test_two_strategies_are_compared(panel: Panel) -> None:
    for name in ("bsp", "asp"):
        panel.click(BRIEF.but(strategy=name))
    assert panel.wait(120)
    assert [row[0] for row in panel.table["rows"]] == ["bsp", "asp"]
    assert "speed-up" in panel.table["headings"]
    assert panel.table["colours"] == {run["label"]: run["colour"] for run in panel.runs}
    assert {row["label"] for row in panel._runner.comparison.charts[0].rows()} == {"bsp", "asp"}
    panel.say("tick", number=1, on=False)
    panel.wait(60)
    assert [row[0] for row in panel.table["rows"]] == ["asp"]


def test_why_a_run_is_worse_is_answered_with_runs_that_open(panel: Panel) -> None:
    for name in ("asp", "bsp"):
        panel.click(BRIEF.but(strategy=name, stop={"epochs": 1}))
    assert panel.wait(120)
    panel.say("why", number=1, against=2, seeds=1)
    assert panel.why["state"] == "running"
    panel.say("why", number=2, against=1, seeds=1)
    assert "being answered" in panel.last("answer")["text"]
    assert panel.wait(120)
    assert panel.why["state"] == "answered"
    assert re.fullmatch(r"Why is asp (worse|better) than bsp\?", panel.why["question"])
    assert panel.why["sentence"].startswith("asp ends with a val_loss of ")
    headings, rows = panel.why["causes"]
    assert headings[1:] == ["share", "replaced alone", "replaced last"]
    assert rows[0][0] == "not explained by these causes"
    assert {"staleness", "amount"} <= {row[0] for row in rows}
    answer = panel._runner.explanation.answer
    assert bool(panel.why_charts) == answer.explains
    names = [row[0] for row in panel.why["runs"][1]]
    panel.say("why-open", place=names.index("asp, staleness of bsp, seed 0"))
    assert panel.runs[-1]["label"] == "asp, staleness of bsp, seed 0"
    assert not panel.runs[-1]["ticked"]
    assert panel.last("films")["films"][0]["about"]["key"] == f"run {panel.runs[-1]['number']}"
    assert panel.why["question"].replace("?", "") in panel.report().read_text()


def test_a_question_can_be_cancelled_and_what_cannot_be_asked_is_refused(panel: Panel) -> None:
    for name in ("asp", "d_psgd"):
        panel.click(BRIEF.but(strategy=name, stop={"epochs": 1}))
    assert panel.wait(120)
    panel.say("why", number=1, against=2)
    assert panel.wait(120)
    assert panel.why["state"] == "refused"
    assert "without a server" in panel.why["words"]
    panel.say("why", number=1, against=1)
    assert "two different runs" in panel.last("answer")["text"]
    panel.click(BRIEF.but(strategy="bsp", stop={"epochs": 1}))
    assert panel.wait(120)
    panel.say("why", number=1, against=3, seeds=50)
    panel.say("why-cancel")
    assert panel.wait(60)
    assert panel.why["state"] == "cancelled"


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
    for folder, says in ((tmp_path, "and contains none"), (tmp_path / "nothing", "there is no such")):
        panel.say("load", folder=str(folder))
        assert panel.last("answer")["wrong"]
        assert says in panel.last("answer")["text"]


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

    work, panel._runner.bridge._work = panel._runner.bridge._work, fails
    panel.click(BRIEF)
    assert panel.wait(60)
    assert panel.runs[0]["status"] == "failed"
    assert "in worker 3 at step 17" in panel.runs[0]["error"]
    panel._runner.bridge._work = work
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
        assert ended.wait(120)
        job.control.check()
        raise AssertionError("it was stopped")

    panel._runner.bridge._work = starts
    shown = threading.Event()
    panel.observe(lambda change: shown.set() if change["new"].get("starting") else None, "status")
    panel.click(BRIEF)
    assert seen.wait(120)
    assert shown.wait(120)
    status = panel.status
    assert status["beginning"]  # the charts of the run before are put away
    assert status["starting"]["stages"] == ("process up", "torch loaded", "data read", "met")
    assert status["starting"]["rows"] == [
        ("coordinator", [0.5, 1.25, None, None]),
        ("worker 0", [None, None, None, None]),
    ]
    assert status["words"].startswith("starting 2 processes: 1 up, 1 with torch, 0 with data, 0 met")
    panel.say("stop")
    until = time.monotonic() + 120
    while panel.status["running"] is not None:
        assert time.monotonic() < until
        time.sleep(0.01)
    ended.set()
    assert panel.wait(120)
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
    panel.observe(lambda change: asp.set() if ", asp" in change["new"].get("words", "") else None, "status")
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


def test_missing_data_and_a_silent_scheduler_show_beside_their_controls(tmp_path: Path) -> None:
    missing = probe(BRIEF.but(data={"name": "folder", "path": str(tmp_path / "none")}))
    assert "none" in missing["errors"]["data"]
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe_socket.getsockname()[1]}"
        live = BRIEF.but(backend="dask", scheduler=address)
        assert f"no Dask scheduler answers at {address!r}" in probe(live)["errors"]["rest"]
        probe_socket.listen()
        assert probe(live)["errors"] == {}


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


@pytest.mark.dask
@pytest.mark.slow
def test_detached_runs_of_the_cluster_are_listed_followed_and_left(panel: Panel, scheduler: str) -> None:
    panel.say("cluster")
    panel._runner.cluster.wait(60)
    assert panel.cluster["error"].startswith("scheduler: a detached run belongs to a running Dask cluster")
    spec = BRIEF.but(backend="dask", scheduler=scheduler, cluster={"workers": 1}, stop={"updates": 10**9})
    with Client(scheduler, set_as_default=False) as client:
        submitted = submit(spec, client=client, name="far")
        panel.experiment = spec
        panel.say("cluster")
        panel._runner.cluster.wait(60)
        assert [(run["name"], run["state"]) for run in panel.cluster["runs"]] == [("far", "running")]
        for number, (act, status) in enumerate((("leave", "cancelled"), ("stop", "stopped")), 1):
            panel.say("attach", name="far")
            until = time.monotonic() + 120
            while (job := panel._runner.bridge.current) is None or (job.number, job.seen > 0) != (
                number,
                True,
            ):
                assert time.monotonic() < until, (panel.status, panel.cluster)
                time.sleep(0.05)
            assert panel.runs[0]["detached"]
            panel.say(act, number=number)
            assert panel.wait(120)
            assert (panel.runs[0]["status"], panel.runs[0]["label"]) == (status, "far")
        assert submitted.wait().log.digest() == panel.finished[0].log.digest()
        submitted.forget()
    panel.say("attach", name="far")
    panel._runner.cluster.wait(60)
    assert "lists no detached run 'far'" in panel.cluster["error"]
