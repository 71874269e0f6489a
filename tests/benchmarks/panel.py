"""What the panel's charts cost a run, how soon they move, and how many events a second the bridge takes.

CPU seconds of a run in the panel until all is drawn that is drawn of it, with its messages packed as for a
page, over those of the run alone and its summary.
"""

from __future__ import annotations

import json
import time
from typing import Any

from psbench.core.log import EventLog, Kind
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run as run_alone
from psbench_widgets import Lab
from psbench_widgets.bridge import Bridge, Job, JobStatus
from tests.benchmarks.measure import Row, Rows, in_turns

EVENTS = 300_000
#: odd, and more than usual: the differences are small
REPEATS = 7


def run() -> Rows:
    """Measure a run whose gradients cost something, one whose gradients do not, and the bridge."""
    cnn = Experiment(strategy="ssp", model="cnn", stop={"epochs": 20})
    mlp = Experiment(strategy="ssp", stop={"epochs": 60})
    words = "overhead of live charts on a run"
    return [
        _overhead(f"{words}: CNN, SSP", cnn, 1.05, 1.01),
        _overhead(f"{words}: MLP on digits", mlp, 1.05, 1.01),
        _first_chart(mlp),
        _bridge(),
    ]


def _shown(experiment: Experiment) -> Lab:
    """Return a panel whose charts send their rows, as to a page."""
    lab = Lab(experiment)
    lab.send = _packed
    for chart in lab._figures.charts.values():
        chart._asked, chart.send = True, _packed
    lab._figures.warm(experiment)
    return lab


def _packed(content: Any, buffers: Any = None) -> None:
    """Do what sending a message costs the kernel most."""
    json.dumps(content).encode()


def _overhead(what: str, experiment: Experiment, at_least: float | None, towards: float | None) -> Row:
    lab = _shown(experiment)

    def watched() -> float:
        began = time.process_time()
        lab.run()
        lab._runner.bridge.wait()
        spent = time.process_time() - began
        lab.wait()
        return spent

    def alone() -> float:
        began = time.process_time()
        run_alone(experiment).summary()
        return time.process_time() - began

    ours, other = in_turns([watched, alone], REPEATS)
    lab.close()
    texts = f"{ours:.2f} s CPU in the panel", f"{other:.2f} s CPU alone"
    return Row(what, *texts, ours / other, at_least, towards, lower_is_better=True)


def _first_chart(experiment: Experiment) -> Row:
    lab = _shown(experiment)

    def moved() -> float:
        chart = lab._figures.charts["train_loss"]
        chart.clear()
        began = time.perf_counter()
        lab.run()
        while not chart.count():
            time.sleep(0.001)
        spent = time.perf_counter() - began
        lab.stop()
        lab.wait()
        return spent

    (seconds,) = in_turns([moved], 5)
    lab.close()
    what = "first rows of a chart after Run (kernel's side)"
    return Row(what, f"{seconds:.3f} s", "", seconds, 1.0, 0.3, "s", lower_is_better=True)


class _Count:
    """A listener that only counts."""

    def __init__(self) -> None:
        self.rows = 0

    def on_rows(self, job: Job, log: EventLog, start: int, stop: int) -> None:
        self.rows += len(log.rows(start, stop))

    def on_status(self, job: Job, status: JobStatus) -> None:
        """Take no notice."""

    def on_tick(self) -> None:
        """Take no notice."""

    def on_trouble(self, text: str) -> None:
        raise RuntimeError(text)


def _bridge() -> Row:
    def noted() -> float:
        count, took = _Count(), []

        def work(job: Job) -> Run:
            log = EventLog()
            took.append(_write(log, job.note))
            return Run(job.experiment, log, {"status": "finished"})

        bridge = Bridge(count, work)
        bridge.submit(Experiment())
        bridge.wait()
        if count.rows != EVENTS:
            raise RuntimeError(f"{EVENTS - count.rows} rows were lost")
        return EVENTS / took[0]

    ours, other = in_turns([noted, lambda: EVENTS / _write(EventLog(), lambda log: None)], 5)
    texts = f"{ours:,.0f} events/s", f"{other:,.0f} without it"
    return Row("bridge: events noted one by one, all told", *texts, ours, 20_000, unit="events/s")


def _write(log: EventLog, note: Any) -> float:
    began = time.perf_counter()
    for number in range(EVENTS):
        log.add(Kind.PUSH, number * 1e-4, worker=number % 9, id=number)
        note(log)
    return time.perf_counter() - began
