"""What the panel costs beside a run and after it, how soon charts move, and events a second of the bridge.

Beside a run: CPU seconds of the panel's own thread while the run is under way, with messages packed as for a
page, added to those of the run; and of the whole process, in turns with the run alone, which also counts
what the run loses to the other thread, as exactly as the machine is quiet. After it: the last drawing and the
run's summary.
"""

from __future__ import annotations

import json
import statistics
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
REPEATS = 5
#: CPU seconds of the process while a run is under way, of the panel's thread meanwhile, and of it afterwards
Spent = tuple[float, float, float]


def run() -> Rows:
    """Measure runs of some 15 seconds whose gradients cost something, and whose do not, and the bridge."""
    cnn = Experiment(strategy="ssp", model="cnn", stop={"epochs": 30})
    mlp = Experiment(strategy="ssp", stop={"epochs": 200})
    return [
        *_overhead("CNN, SSP", cnn, 1.01),
        *_overhead("MLP on digits, SSP", mlp, 1.03),
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


class _Clock:
    """Reads the CPU clocks of the process and of the panel's thread when a run has ended."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._spent = lab, (0.0, 0.0, 0.0)
        runner = lab._runner
        show = runner.on_status

        def on_status(job: Job, status: JobStatus) -> None:
            process, thread = time.process_time(), time.thread_time()
            show(job, status)
            if status == "finished":
                self._spent = process, thread, time.thread_time() - thread

        runner.on_status = on_status  # type: ignore[method-assign]

    def spent(self) -> Spent:
        """Run the panel's experiment once and return what it and the panel's thread spent."""
        began = time.process_time()
        self._lab.run()
        self._lab._runner.bridge.wait()
        self._lab.wait()
        process, beside, after = self._spent  # the panel's thread begins with the run
        return process - began, beside, after


def _overhead(what: str, experiment: Experiment, towards: float) -> Rows:
    lab = _shown(experiment)
    clock = _Clock(lab)
    rounds: list[Spent] = []

    def watched() -> float:
        rounds.append(clock.spent())
        return rounds[-1][0]

    def alone() -> float:
        began = time.process_time()
        run_alone(experiment)
        return time.process_time() - began

    ours, other = in_turns([watched, alone], REPEATS)
    lab.close()
    beside, after = (statistics.median(each[place] for each in rounds[1:]) for place in (1, 2))
    run_s = statistics.median(process - own for process, own, _ in rounds[1:])
    counted = f"{beside:.3f} s CPU of the panel's thread", f"{run_s:.1f} s of the run"
    whole = f"{ours:.2f} s CPU in the panel", f"{other:.2f} s alone"
    words = "panel beside a run"
    return [
        Row(f"{words}: {what}", *counted, 1 + beside / run_s, towards, towards, lower_is_better=True),
        Row(f"{words}, whole process: {what}", *whole, ours / other, 1.05, towards, lower_is_better=True),
        Row(f"panel after a run: {what}", "last drawing, summary", "", after, unit="s CPU"),
    ]


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
