"""The runs of a panel, and their display on its page."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from psbench.core.log import EventLog
from psbench.errors import ParameterError
from psbench.runs.fork import Fork, fork
from psbench_widgets.bridge import Bridge, Job, JobStatus
from psbench_widgets.cluster_runs import ClusterRuns
from psbench_widgets.comparison_view import ComparisonView
from psbench_widgets.explanation import Explanation
from psbench_widgets.fault_controls import press_live
from psbench_widgets.figures import Figures
from psbench_widgets.latest_task import LatestTask
from psbench_widgets.names import change_name, fork_name
from psbench_widgets.page import PanelPage
from psbench_widgets.questions import Questions
from psbench_widgets.run_table import RunTable
from psbench_widgets.run_view import RunView
from psbench_widgets.saved_output import SavedOutput
from psbench_widgets.sweep import machines_of, sweep
from psbench_widgets.view_lease import ViewLease

if TYPE_CHECKING:
    from psbench.detached import DetachedRun


class Runner:
    """Executes the panel's requests: receives the pump's reports, and shows them on the page."""

    def __init__(self, page: PanelPage, figures: Figures, questions: Questions, renderer: str) -> None:
        self._page, self._figures, self.questions = page, figures, questions
        self.table = RunTable()
        self.view = RunView(figures, lambda message: page.send(message), self.table.labels)
        self.comparison = ComparisonView(self.table, page.show_comparison, page.show_error, renderer)
        self.explanation = Explanation(self.table, page.show_explanation, page.show_error, renderer)
        self.lease = ViewLease()
        self.picture = SavedOutput(lambda output: page.set_trait("saved_output", output))
        self.bridge = Bridge(self)
        #: a run that ends for a change of it, and the change
        self._pressed: tuple[Job, Fork] | None = None
        self._numbers = itertools.count(-1, -1)  # of loaded runs: negative, so that no job has the same
        self._sweep = LatestTask("psbench-sweep", page.show_error)
        self.cluster = ClusterRuns(lambda state: page.set_trait("cluster", state), page.show_error)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until all runs are finished and displayed; return whether they are finished."""
        self.cluster.wait(timeout_s)
        done = self.bridge.wait(timeout_s)
        self.comparison.wait(timeout_s)
        self.explanation.wait(timeout_s)
        self._sweep.wait(timeout_s)
        return done

    def close(self) -> None:
        """End them; no thread is left."""
        self.bridge.close()
        self.comparison.close()
        self.explanation.close()
        self._sweep.close()
        self.cluster.close()

    def follow(self, run: DetachedRun) -> Job:
        """Queue a detached run to follow, which has an experiment."""
        assert run.experiment is not None
        return self.bridge.submit(run.experiment, run.name, detached=run)

    def load(self, folder: str | Path) -> None:
        """Read the runs that were saved in a folder."""
        self.table.load(folder, lambda: next(self._numbers))
        self.publish_runs()

    def open_computed(self, place: int) -> int:
        """Add a run that an explanation rests on to the table, and return its number there."""
        name, run = self.explanation.computed(place)
        entry = self.table.add(run, next(self._numbers), name)
        entry.ticked = False  # it is no run of a strategy, which others are compared with
        self.publish_runs()
        return entry.number

    def fork(self, number: int, other: Fork) -> Job:
        """Queue another future of a finished run."""
        entry = self.table[number]
        experiment = fork(entry.experiment if entry.run is None else entry.run, other)
        forked = (*entry.name_parts, change_name(other))
        return self.bridge.submit(experiment, fork_name(*forked), (number, other.at_s), forked)

    def press(self, other: Fork) -> str:
        """Change the running run, and return a sentence about the consequence; see `Lab.press`."""
        job = self.bridge.current
        if job is None:
            raise ParameterError("no run is running")
        if job.experiment.backend != "simulated":
            press_live(job, other)
            return f"asked for: {other.words().partition(' at ')[0].partition(' from ')[0]}"
        self._pressed = job, other
        self.bridge.stop(job)
        return "the run stops, and is simulated again with the change"

    def on_rows(self, job: Job, log: EventLog, start: int, stop: int) -> None:
        """Handle new rows; see `RunView.read_rows`."""
        self.view.read_rows(job, log, start, stop)

    def on_status(self, job: Job, status: JobStatus) -> None:
        """Show a run's new status, and its consequences."""
        self.table.update(job, status)
        self.view.finish(job)
        self._judge(job)
        self.publish_runs()
        self._publish_status()
        self._keep_picture(job)
        self._fork_pressed()
        if job.is_over:
            self.sweep_bounds()

    def on_tick(self) -> None:
        """Update the page from the running run; stop the run if no page is left."""
        self.view.refresh()
        self._publish_status()
        self._show_said()
        self.comparison.update_if_changed(unless=self.bridge.is_busy)
        if self.lease.has_expired:
            self.bridge.stop_all()

    def on_trouble(self, text: str) -> None:
        """Show the traceback of a failure of the panel itself."""
        self._page.show_error(text)

    def publish_runs(self) -> None:
        """Show the table of runs, and their comparison."""
        self._page.runs = self.table.plain()
        self.comparison.update_if_changed(unless=self.bridge.is_busy)

    def sweep_bounds(self) -> None:
        """Run all bounds on the cluster of the displayed run, and draw them behind its point."""
        experiment, figures = self.view.experiment, self._figures
        if experiment is not None:
            machines, gradients = machines_of(experiment), self.view.gradients
            self._sweep.ask(lambda: figures.show_sweep(sweep(machines, gradients), machines))

    def _judge(self, job: Job) -> None:
        """Compare a finished run with its predictions; show a fork beside its origin."""
        table = self.table
        entry = table[job.number]
        if entry.run is None:
            return
        if job.fork_of is not None and job.fork_of[0] in table:
            number, at_s = job.fork_of
            self.view.show(table[number], entry, at_s)
        earlier = table.before(job.number)
        before = None if earlier is None else earlier.summary
        # what was expected was expected of the run, not of its fork
        summary = entry.summary if job.fork_of is None else None
        self._page.goal = self.questions.judge(job.number, entry.run, summary, before)

    def _fork_pressed(self) -> None:
        """Run the fork of a run that was stopped for a change, once it has ended."""
        if self._pressed is None or not self._pressed[0].is_over:
            return
        (job, other), self._pressed = self._pressed, None
        if job.run is not None:
            end_s = float(job.run.log.rows()["time_s"][-1])
            self.fork(job.number, replace(other, at_s=min(other.at_s, end_s)))

    def _keep_picture(self, job: Job) -> None:
        entry = self.table[job.number]
        if entry.run is not None:
            self.picture.update(entry.run, f"Run {job.number}: {entry.label}")

    def _show_said(self) -> None:
        """Show a live run's message about an injected fault, or about a lost process."""
        job = self.bridge.current
        if job is not None and job.control.said:
            said, job.control.said = job.control.said, ""
            self._page.answer(said)

    def _publish_status(self) -> None:
        job = self.bridge.current
        running = self.view.progress(job) if job is not None else {}
        self._page.show_status(running, [queued.number for queued in self.bridge.queued])
