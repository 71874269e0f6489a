"""What is shown of a run under way: the sentence, the charts and the timeline stand at one moment."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

import psbench as ps
from psbench import metrics
from psbench.charts import TITLES
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.metrics.recording_reader import recording
from psbench.metrics.rows import end_of
from psbench.percents import UNIT
from psbench.progress import RunProgress
from psbench.runs.execution import run
from psbench.strategies import make_strategy
from psbench_widgets import run_view
from psbench_widgets.bridge import Job
from psbench_widgets.figures import FIGURES, Figures, Shown
from psbench_widgets.moment_tree import tree_at
from psbench_widgets.playback import _composition
from psbench_widgets.run_table import RunEntry
from psbench_widgets.run_view import RunView


@pytest.fixture(scope="module")
def done() -> Any:
    return run(Experiment(strategy="ssp", stop={"epochs": 3}))


def grow(done: Any, pieces: int, view: RunView) -> Any:
    """Write a run's log piece by piece, and yield after each, when its rows were told."""
    log, whole = EventLog(), done.log.rows()
    job = Job(1, done.experiment, status="running", meta=done.meta, began_s=0.0)
    for i in range(pieces):
        begin, end = (len(whole) * each // pieces for each in (i, i + 1))
        log.extend(whole[begin:end], done.log.texts[1:] if not i else ())
        view.read_rows(job, log, begin, end)
        yield log


def test_everything_advances_together(done: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    figures = Figures()
    view = RunView(figures, sent.append)
    monkeypatch.setattr(run_view, "LEAST_S", 0.0)
    shown = 0
    for i, log in enumerate(grow(done, 12, view)):
        # some are too soon after the last to be drawn, as if that had taken long
        view._affordable = float("inf") if i % 3 else 0.0
        view.refresh()
        assert view._progress is not None
        shown = max(shown, int(view._read == len(log)) * len(log))
        now = view._progress.now
        assert now == end_of(log.rows(0, shown))
        assert sent[-1]["films"][0]["end_s"] == now
        times = [row["time_s"] for row in figures.charts["train_loss"].rows()]
        pushed = log.rows(0, shown)
        assert times[-1] == pytest.approx(pushed["time_s"][pushed["kind"] == 2][-1], rel=1e-5)
        assert sum(row["applied"] for row in figures.charts["share"].rows()) == (pushed["kind"] == 9).sum()
    assert shown > 0
    figures.close()


def test_a_moment_that_is_asked_for_is_of_the_rows_so_far(done: Any) -> None:
    """Beyond what was read at first, too."""
    sent: list[dict[str, Any]] = []
    figures = Figures()
    view = RunView(figures, sent.append)
    for log in grow(done, 2, view):
        end_s = end_of(log.rows())
        view.show_moment(end_s)
        assert sent[-1]["films"][0]["end_s"] == end_s
    view._due = float("inf")  # as if the last drawing had been a moment ago
    for is_seen in (False, True):
        view.is_seen = is_seen
    view.refresh()
    assert view._read == len(log)  # who comes back sees the newest at once
    figures.close()


def test_the_tree_of_a_moment_is_of_the_gradients_applied_by_then(done: Any) -> None:
    sent: list[dict[str, Any]] = []
    view = RunView(Figures(), sent.append)
    for _ in grow(done, 1, view):
        view._job = None  # it is over
    whole = metrics.computation_tree(done.log, done.experiment.strategy).gradients
    at_s = float(whole["applied_s"].iloc[20])
    view.sum_up_to(at_s)
    tree = sent[-1]
    by_then = whole[whole["applied_s"] <= at_s]
    assert (tree["kind"], tree["why"], tree["applied"]) == ("tree", "", len(by_then))
    assert tree["gradients"]["node"] == by_then["node"].tolist()[-12:]
    assert tree["gradients"]["base"] == by_then["base"].tolist()[-12:]
    assert tree["radius"] == whole["distance"].max() > 0
    view.sum_up_to(0.0)
    assert sent[-1]["gradients"]["node"] == []
    assert "no server" in tree_at(done.log, make_strategy("d_psgd"), None)["why"]
    assert "more than" in tree_at([None] * 50_001, done.experiment.strategy, None)["why"]  # type: ignore[arg-type]


@pytest.mark.parametrize("cost_s", [0.02, 0.5])
def test_drawing_takes_its_share_of_the_time_and_no_more(
    done: Any, monkeypatch: pytest.MonkeyPatch, cost_s: float
) -> None:
    """The clock of a run of 100 s."""
    clock = {"now": 0.0, "spent": 0.0}
    monkeypatch.setattr(run_view.time, "process_time", lambda: clock["now"])
    monkeypatch.setattr(run_view.time, "perf_counter", lambda: clock["now"])
    monkeypatch.setattr(run_view.time, "thread_time", lambda: clock["spent"])
    figures, drawn = Figures(), list[float]()

    def slow(*arguments: Any, **options: Any) -> None:
        clock["spent"] += cost_s
        drawn.append(clock["now"])

    monkeypatch.setattr(figures, "refresh", slow)
    view = RunView(figures, lambda message: None)
    for _ in grow(done, 1000, view):
        view.refresh()
        clock["now"] += 0.1
    assert drawn[1] - drawn[0] <= run_view.SECOND_S + 0.11  # the first is not held against the rest for long
    # and is made up for after the second: beyond the share there is one drawing, whose time is not over yet
    assert 2 * cost_s <= clock["spent"] <= max(100 * run_view.SHARE + cost_s, 2 * cost_s)
    figures.close()


def test_a_log_that_goes_back_to_a_checkpoint_is_shown_from_its_beginning(
    done: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live run that loses a server is cut off there, and goes on otherwise."""
    monkeypatch.setattr(run_view, "LEAST_S", 0.0)
    sent: list[dict[str, Any]] = []
    figures = Figures()
    view, log = RunView(figures, sent.append), EventLog()
    job = Job(1, done.experiment, status="running", meta=done.meta, began_s=0.0)
    other = run(done.experiment.but(seed=1, stop={"epochs": 1})).log
    for begun in (done.log, other):
        log.truncate(0, 1)
        log.extend(begun.rows(), begun.texts[1:])
        view.read_rows(job, log, 0, len(log))
        view._affordable = 0.0
        view.refresh()
    assert view._progress is not None
    expected = RunProgress(done.experiment.stop, done.meta)
    expected.read(log, 0, len(log))
    assert (view._progress.samples, view._progress.updates) == (expected.samples, expected.updates)
    assert view._progress._clocks.of == expected._clocks.of
    rows = log.rows()
    assert sum(row["applied"] for row in figures.charts["share"].rows()) == (rows["kind"] == 9).sum()
    times = [row["time_s"] for row in figures.charts["train_loss"].rows()]
    assert times[-1] == pytest.approx(rows["time_s"][rows["kind"] == 2][-1], rel=1e-5)
    figures.close()


CHANGING = {
    "workers": 4,
    "speed": [1, 1, 0.5, 0.25],
    "failures": [{"worker": 1, "at_s": 0.3, "rejoin_s": 0.6}],
    "joins": [{"worker": 2, "at_s": 0.2}],
}


@pytest.mark.parametrize("strategy", ["ssp", {"name": "strategy_switch", "rule": {"name": "after"}}], ids=str)
def test_clocks_in_the_moving_picture_are_those_of_the_whole_log(
    strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_view, "LEAST_S", 0.0)
    monkeypatch.setattr(run_view, "NEWEST", 60)
    played = run(Experiment(strategy=strategy, cluster=CHANGING, stop={"epochs": 4}))
    sent: list[dict[str, Any]] = []
    figures = Figures()
    view = RunView(figures, sent.append)
    seen = 0
    for log in grow(played, 9, view):
        sent.clear()
        view._affordable = 0.0
        view.refresh()
        if not sent:
            continue
        seen += 1
        (film,) = sent[-1]["films"]
        assert newest(film["tables"], "clocks", "clock") == newest_of(recording(log).clocks, "clock")
        (*_, composition) = unpacked(film["tables"]["compositions"]["index"])
        assert composition == recording(log).compositions["index"][-1]
    assert seen > 5
    figures.close()


def unpacked(column: dict[str, str]) -> Any:
    return np.frombuffer(base64.b64decode(column["data"]), dtype=f"<{column['as']}").tolist()


def newest(tables: dict[str, Any], name: str, column: str) -> dict[int, int]:
    """Return the last value of each worker in a table as it is sent."""
    return dict(zip(unpacked(tables[name]["worker"]), unpacked(tables[name][column]), strict=True))


def newest_of(table: dict[str, Any], column: str) -> dict[int, int]:
    return dict(zip(table["worker"].tolist(), table[column].tolist(), strict=True))


#: charts that the panel does not draw as figures, and why
NOT_LIVE = {
    **dict.fromkeys(["timeline", "switch"], "the panel draws a timeline of its own (`js/timeline.js`)"),
    **dict.fromkeys(
        ["pareto_bytes", "pareto_silent_s", "pareto_joules", "pareto_cost"], "compare finished runs"
    ),
    **dict.fromkeys(["sequence", "tree"], "drawn only if asked for by name"),
    "optimal": "drawn for finished runs by `ps.optimal_time`, which measures their problem",
    "train_gradient_norm_sq": "evaluated only where the metric is asked for",
    **dict.fromkeys(
        ["gradient_spread", "gradient_lag"], "computed from the whole log, for runs without a server"
    ),
    "lost_updates": "computed from the whole log, for runs in shared memory",
    **dict.fromkeys(["servers", "server_load"], "computed from the whole log, for runs with servers"),
    "steps": "computed from the profile or from measurements at the end of a run",
    "consensus_distance": "measured only in runs whose workers have models of their own",
    "samples_per_s": "a curve for one's own tables; psbench draws it nowhere",
}


def test_every_chart_is_live_or_left_out_for_a_reason() -> None:
    live = {figure.key for figure in FIGURES}
    assert not live & {*NOT_LIVE}
    missing = ", ".join(sorted({*TITLES} - live - {*NOT_LIVE}))
    assert not missing, (
        f"draw {missing} in the panel (`FIGURES` in widgets/psbench_widgets/figures.py, from a table of "
        "psbench/charts/growing.py), or name it in `NOT_LIVE` with a reason"
    )
    assert {*NOT_LIVE} <= {*TITLES}


def test_servers_that_add_up_are_drawn_in_the_middle_and_not_as_a_ring() -> None:
    places: list[Any] = ["all_reduce", {"name": "summing_servers", "servers": 2}, "parameter_server"]
    drawn = [_composition(ps.strategies.bsp(placement=each)) for each in places]
    assert [(each["collective"], each["servers"]) for each in drawn] == [(True, 1), (False, 2), (False, 1)]
    peers = _composition(ps.strategies.d_psgd())  # has no server in the middle either
    assert (peers["collective"], peers["peers"], drawn[0]["peers"]) == (True, True, False)


def test_where_no_worker_waited_the_page_says_so(done: Any) -> None:
    """In the place of an empty axis: of a run without a wait, and before the first one."""
    figures = Figures()
    idle = figures.charts["idle"]
    assert (idle.state, idle.nothing) == ("empty", "")  # there is no run
    asp = run(Experiment(strategy="asp", stop={"updates": 20}, timing_only=True))
    figures.show(Shown("asp", asp.log, asp.meta))
    figures.refresh(final=True)
    assert (idle.state, idle.nothing, idle.note) == ("done", "No worker waited.", "whole run")
    figures.show(Shown("ssp", done.log, done.meta))
    figures.refresh(final=True)
    assert (idle.state, idle.nothing) == ("done", "")
    spans = metrics.timeline(done.log)
    first_s = float(spans.loc[spans["phase"] == "wait", "start_s"].min()) / 2
    for at_s, nothing in ((first_s, "No worker waited."), (None, "")):
        figures.until(at_s)
        assert (idle.state, idle.nothing) == ("done", nothing)
    figures.close()


def test_many_workers_are_drawn_in_tenths_from_least_to_most() -> None:
    """Worker 0 is the fastest, so that neither order is that of the numbers."""
    cluster = {"workers": 30, "speed": [3 - 0.08 * worker for worker in range(30)], "step_time": "constant"}
    many = run(Experiment(strategy="ssp", cluster=cluster, stop={"updates": 600}, timing_only=True))
    figures, tenths = Figures(), [f"{10 * i}-{10 * i + 10}{UNIT}" for i in range(10)]
    figures.show(Shown("ssp", many.log, many.meta))
    figures.refresh(final=True)
    pushed, fates, spent = (figures.charts[name] for name in ("share", "contributions", "time_use"))
    shares = {row["worker"]: row["share"] for row in pushed.rows()}
    used = {tenth: sum(r["gradients"] for r in fates.rows() if r["worker"] == tenth) for tenth in tenths}
    waits = {row["worker"]: row["fraction"] for row in spent.rows() if row["phase"] == "wait"}
    for found in (shares, used, waits):
        assert list(found) == tenths
        assert list(found.values()) == sorted(found.values())
        assert found[tenths[0]] < found[tenths[-1]]
    assert sum(used.values()) == metrics.contributions(many.log)["gradients"].sum()
    assert all("those that push least to those that push most" in each.note for each in (pushed, fates))
    assert "those that wait least to those that wait most" in spent.note
    figures.close()


def test_of_two_runs_the_nearer_instant_is_sought(done: Any) -> None:
    sent: list[dict[str, Any]] = []
    view = RunView(Figures(), sent.append)
    other = run(Experiment(strategy="bsp", stop={"epochs": 1}))
    view.show(*(RunEntry(i, each.experiment, "finished", run=each) for i, each in enumerate((done, other))))
    every = [each.recording().instants["update"] for each in view._shown]
    for own, others in (every, every[::-1]):
        at_s = float(own[3])
        for back, side in ((False, [t for t in others if t > at_s]), (True, [t for t in others if t < at_s])):
            view.seek("update", at_s, back)
            nearest = min([*side, own[2 if back else 4]], key=lambda time_s: abs(time_s - at_s))
            assert (sent[-1]["sought"], sent[-1]["at"]) == ("update", nearest)


def test_the_curve_of_all_bounds_is_behind_runs_on_its_own_machines_only() -> None:
    figures = Figures()
    one = Shown("ssp", EventLog(), {"strategy": "ssp", "dataset_size": 1})
    swept = {"label": ["ASP"], "per_100_s": [1.0], "staleness": [2.0], "order": [7]}
    figures.show(one, machines="these")
    figures.show_sweep(swept, "others")  # late: another run is shown by now
    assert figures._sweep == {}
    figures.show_sweep(swept, "these")
    figures.show(one, machines="these")
    assert figures._sweep == swept
    figures.show(one, machines="others")
    assert figures._sweep == {}
    figures.close()
