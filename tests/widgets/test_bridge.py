"""The bridge: order kept, nothing lost, threads gone, a failure that leaves it alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from psbench.core.log import EventLog, Kind
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench_widgets.bridge import Bridge, Job, JobStatus

#: seconds in which a thread answers on however busy a machine
LONG_S = 240


class Ear:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.ids: dict[int, list[int]] = {}
        self.told: list[tuple[int, str]] = []
        self.threads: set[str] = set()
        self.trouble: list[str] = []
        self.ticks = 0

    def on_rows(self, job: Job, log: EventLog, start: int, stop: int) -> None:
        self.threads.add(threading.current_thread().name)
        self.ids.setdefault(job.number, []).extend(log.rows(start, stop)["id"].tolist())

    def on_status(self, job: Job, status: JobStatus) -> None:
        self.threads.add(threading.current_thread().name)
        self.told.append((job.number, status))

    def on_tick(self) -> None:
        self.ticks += 1

    def on_trouble(self, text: str) -> None:
        self.trouble.append(text)


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def experiment() -> Experiment:
    return Experiment(stop={"epochs": 1})


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("psbench")] == []


def write(job: Job, log: EventLog, numbers: range) -> None:
    for number in numbers:
        log.add(Kind.PUSH, number * 1e-4, worker=number % 9, id=number)
        job.note(log)


def over(job: Job, log: EventLog) -> Run:
    return Run(job.experiment, log, {"status": "stopped" if job.control.stopping else "finished"})


def test_twenty_thousand_rows_in_order_and_complete(ear: Ear, experiment: Experiment) -> None:
    def work(job: Job) -> Run:
        log = EventLog()
        for part in range(20):  # the pump reads while rows are written, and at least once after each part
            write(job, log, range(part * 1000, (part + 1) * 1000))
            ticks = ear.ticks
            while ear.ticks == ticks:
                time.sleep(0.001)
        return over(job, log)

    bridge = Bridge(ear, work, interval_s=0.005)
    bridge.submit(experiment)
    assert bridge.wait(LONG_S)
    assert ear.ids[1] == list(range(20_000))
    assert ear.told == [(1, "queued"), (1, "running"), (1, "finished")]
    assert ear.threads == {"psbench-pump"}
    assert ear.ticks >= 20
    assert ear.trouble == []


def test_rows_of_the_log_arrive_before_the_outcome(ear: Ear, experiment: Experiment) -> None:
    def work(job: Job) -> Run:
        log = EventLog()
        write(job, log, range(500))
        return over(job, log)

    seen: list[int] = []
    told = ear.on_status

    def on_status(job: Job, status: JobStatus) -> None:
        told(job, status)
        seen.append(len(ear.ids.get(job.number, [])))

    ear.on_status = on_status  # type: ignore[method-assign]
    bridge = Bridge(ear, work)
    for _ in range(5):
        bridge.submit(experiment)
    assert bridge.wait(LONG_S)
    ends = [rows for (_, status), rows in zip(ear.told, seen, strict=True) if status == "finished"]
    assert ends == [500] * 5
    # one after the other, each in the order of a job's life
    assert [n for n, status in ear.told if status == "running"] == [1, 2, 3, 4, 5]


def test_a_failing_run_shows_its_traceback_and_the_next_one_runs(ear: Ear, experiment: Experiment) -> None:
    def work(job: Job) -> Run:
        if job.number == 1:
            raise ZeroDivisionError("in worker 3")
        return over(job, EventLog())

    bridge = Bridge(ear, work)
    first, second = bridge.submit(experiment), bridge.submit(experiment)
    assert bridge.wait(LONG_S)
    assert (first.status, second.status) == ("failed", "finished")
    assert "in worker 3" in first.error
    assert "in work" in first.error  # the run's own traceback, down to its line
    assert second.error == ""


def test_stop_ends_what_runs_and_cancels_what_waits(ear: Ear, experiment: Experiment) -> None:
    started = threading.Event()

    def work(job: Job) -> Run:
        started.set()
        while not job.control.stopping:
            time.sleep(0.005)
        return over(job, EventLog())

    bridge = Bridge(ear, work)
    running, waiting = bridge.submit(experiment), bridge.submit(experiment)
    assert started.wait(LONG_S)
    bridge.stop(waiting)
    assert waiting.status == "cancelled"
    bridge.stop()
    assert bridge.wait(LONG_S)
    assert running.status == "stopped"


def test_a_run_that_is_stopped_while_it_starts_ends_without_an_error(
    ear: Ear, experiment: Experiment
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(job: Job) -> Run:
        if job.number == 1:
            begun.set()
            assert ended.wait(LONG_S)  # what takes its time to end, as processes do
            job.control.check()
        return over(job, EventLog())

    bridge = Bridge(ear, work)
    first, second = bridge.submit(experiment), bridge.submit(experiment)
    assert begun.wait(LONG_S)
    bridge.stop()
    assert (first.status, first.error, bridge.current) == ("stopped", "", None)
    assert second.status == "queued"  # until nothing of the first is left
    ended.set()
    assert bridge.wait(LONG_S)
    assert (first.status, first.error, first.run) == ("stopped", "", None)
    assert [told for told in ear.told if told[0] == 1][-1] == (1, "stopped")
    assert second.status == "finished"


def test_a_failure_during_a_stop_is_shown(ear: Ear, experiment: Experiment) -> None:
    def work(job: Job) -> Run:
        job.note(EventLog())
        while not job.control.stopping:
            time.sleep(0.005)
        raise ZeroDivisionError("while it stopped")

    bridge = Bridge(ear, work)
    job = bridge.submit(experiment)
    while job.log is None:
        time.sleep(0.005)
    bridge.stop()
    assert bridge.wait(LONG_S)
    assert job.status == "failed"
    assert "while it stopped" in job.error


def test_close_stops_everything_and_leaves_no_thread(ear: Ear, experiment: Experiment) -> None:
    def work(job: Job) -> Run:
        while not job.control.stopping:
            time.sleep(0.005)
        return over(job, EventLog())

    bridge = Bridge(ear, work)
    jobs = [bridge.submit(experiment) for _ in range(3)]
    assert bridge.close(LONG_S)
    assert bridge.threads == []
    assert all(job.is_over for job in jobs)
    with pytest.raises(RuntimeError, match="closed"):
        bridge.submit(experiment)


def test_a_listener_that_fails_does_not_end_the_run(ear: Ear, experiment: Experiment) -> None:
    def broken() -> None:
        raise KeyError("a chart")

    ear.on_tick = broken  # type: ignore[method-assign]
    bridge = Bridge(ear, lambda job: over(job, EventLog()))
    job = bridge.submit(experiment)
    assert bridge.wait(LONG_S)
    assert job.status == "finished"
    assert any("a chart" in text for text in ear.trouble)


def test_a_real_run_is_shown_whole(ear: Ear, experiment: Experiment) -> None:
    bridge = Bridge(ear)
    job = bridge.submit(experiment)
    assert bridge.wait(LONG_S)
    assert job.status == "finished", job.error
    assert job.run is not None
    np.testing.assert_array_equal(ear.ids[1], job.run.log.rows()["id"])
    assert job.meta["dataset_size"] == job.run.meta["dataset_size"]


def test_a_log_that_goes_back_is_sent_from_its_beginning(ear: Ear, experiment: Experiment) -> None:
    """A live run that loses a server is cut off at a checkpoint, and goes on otherwise."""
    seen = threading.Event()

    def work(job: Job) -> Run:
        log = EventLog()
        write(job, log, range(30))
        assert seen.wait(LONG_S)
        log.truncate(10, 1)
        write(job, log, range(100, 110))
        return over(job, log)

    def heard(job: Job, log: EventLog, start: int, stop: int) -> None:
        ear.ids.setdefault(job.number, []).extend(log.rows(start, stop)["id"].tolist())
        if len(ear.ids[job.number]) >= 30:
            seen.set()

    ear.on_rows = heard  # type: ignore[method-assign]
    bridge = Bridge(ear, work)
    bridge.submit(experiment)
    bridge.wait()
    bridge.close()
    assert ear.trouble == []
    assert ear.ids[1][:30] == list(range(30))
    assert ear.ids[1][-20:] == [*range(10), *range(100, 110)]


class OfACluster:
    """A detached run that goes on until it is stopped."""

    name, facts = "distant", {"dataset_size": 10, "num_workers": 2}

    def __init__(self) -> None:
        self.log, self.asked = EventLog(), list[str]()

    def wait(self, observer: Callable[[EventLog], None]) -> Run:
        while "stop" not in self.asked:
            self.log.add(Kind.HOLD, 0.5, id=len(self.log))
            observer(self.log)
            time.sleep(0.002)
        return Run(Experiment(), self.log, {"status": "stopped"})

    def stop(self) -> None:
        self.asked.append("stop")

    def switch(self, to: int | None) -> None:
        self.asked.append(f"switch to {to}")


@pytest.mark.parametrize("is_left", [False, True])
def test_a_run_of_a_cluster_is_controlled_and_is_left_with_the_panel(
    is_left: bool, ear: Ear, experiment: Experiment
) -> None:
    bridge, run = Bridge(ear, interval_s=0.01), OfACluster()
    job = bridge.submit(experiment, detached=run)
    while not ear.ids.get(job.number):
        time.sleep(0.005)
    bridge.switch(1)
    while not run.asked:
        time.sleep(0.005)
    if not is_left:
        bridge.stop(job)
        assert bridge.wait(LONG_S)
    assert bridge.close(LONG_S)
    assert run.asked == ["switch to 1"] + ([] if is_left else ["stop"])
    assert ear.told[-1] == (job.number, "cancelled" if is_left else "stopped")
    rows = ear.ids[job.number]
    assert rows == list(range(len(rows)))
    assert job.meta["num_workers"] == 2
