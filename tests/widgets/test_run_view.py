"""What is shown of a run under way: the sentence, the charts and the timeline stand at one moment."""

from __future__ import annotations

from typing import Any

import pytest

from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.metrics.rows import end_of
from psbench.runs.execution import run
from psbench_widgets import run_view
from psbench_widgets.bridge import Job
from psbench_widgets.figures import Figures
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
    assert 3 * cost_s <= clock["spent"] <= 100 * run_view.SHARE + 2 * cost_s
    figures.close()
