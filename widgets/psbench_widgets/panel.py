"""What a panel can do: run, predict, fork, stop, switch, compare, save, load, report."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from psbench import charts
from psbench.core.log import EventLog
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.results.comparison import Comparison
from psbench.results.run import Run
from psbench.runs.fork import Fork, fork
from psbench_widgets.bridge import Bridge, Job, Status
from psbench_widgets.check import as_python, as_values, check
from psbench_widgets.checker import Checker
from psbench_widgets.comparison_view import ComparisonView
from psbench_widgets.controls import form
from psbench_widgets.figures import Figures
from psbench_widgets.handout import write_handout
from psbench_widgets.kept_picture import KeptPicture
from psbench_widgets.latest_task import LatestTask
from psbench_widgets.messages import Handlers, dispatch
from psbench_widgets.names import change_name, fork_name
from psbench_widgets.notebook_cell import replace_panel_of_this_cell
from psbench_widgets.opening import EXPERIMENT as RECORDED
from psbench_widgets.opening import opening
from psbench_widgets.own_objects import own_parts
from psbench_widgets.pace import PACES, Kind, Pace
from psbench_widgets.page import PanelPage
from psbench_widgets.predictions import Challenge, Prediction
from psbench_widgets.presets import SITUATIONS, with_own_name
from psbench_widgets.pressing import press_live
from psbench_widgets.questions import Questions
from psbench_widgets.run_table import RunTable
from psbench_widgets.run_view import RunView
from psbench_widgets.sweep import machines_of, sweep
from psbench_widgets.view_lease import ViewLease

#: epochs of the panel's first experiment: long enough to watch, short enough to wait for
EPOCHS = 40


class Panel(PanelPage):
    """Everything that the buttons do, to be called; `Lab` adds what answers the page.

    Parameters
    ----------
    experiment, folder, renderer, challenge, pace
        See `Lab`.
    """

    def __init__(
        self,
        experiment: Experiment | None = None,
        *,
        folder: str | Path = "runs",
        renderer: str = "canvas",
        challenge: Challenge | Mapping[str, Any] | None = None,
        pace: Kind = "watchable",
    ) -> None:
        if pace not in PACES:
            raise ParameterError(f"pace: {pace!r} is none of {', '.join(PACES)}")
        first_sight = {} if experiment else dict(opening())
        # the machines of the recorded run, so that Run goes on with what was seen
        experiment = experiment or RECORDED.but(model="mlp", stop={"epochs": EPOCHS})
        self._own = own_parts(experiment)
        self._questions = Questions(experiment, challenge)
        self._guard = threading.RLock()
        self._figures = Figures(renderer)
        if first_sight:
            self._figures.open_with(first_sight.pop("trade"))
        self._table = RunTable()
        self._view = RunView(self._figures, lambda message: self.send(message))
        self._comparison = ComparisonView(self._table, self.show_comparison, self.show_error, renderer)
        self._lease = ViewLease()
        self._picture = KeptPicture(lambda kept: self.set_trait("kept", kept))
        self._sweep = LatestTask("psbench-sweep", self.show_error)
        self._pressed: tuple[Job, Fork] | None = None
        self._numbers = itertools.count(-1, -1)  # of loaded runs: negative, so that no job has the same
        self._bridge = Bridge(_PanelListener(self))
        self._checker = Checker(lambda message: self.send(message), self._figures.warm, self.show_error)
        super().__init__(
            kind="lab",
            form=form(self._own),
            values=as_values(experiment),
            axes=dict(charts.AXES),
            watch=self._figures.layout(),
            folder=str(folder),
            presets=[preset.plain() for preset in SITUATIONS.values()],
            goal=self._questions.plain(),
            opening=first_sight,
            pace=pace,
        )
        self._on_message = dispatch(self._handlers(), self.answer, self.show_error)
        self.on_msg(self._on_message)
        replace_panel_of_this_cell(self)

    def __repr__(self) -> str:
        """Return what a front end shows that has no widgets."""
        name = self.values.get("strategy", {}).get("name", "?")
        return f"<Lab: {name}, {len(self.runs)} runs; open the notebook in JupyterLab to see the panel>"

    def _ipython_display_(self) -> None:
        """Show the panel, and below it what the notebook keeps of it."""
        from IPython import display as ipython

        display: Any = ipython.display

        bundle: Any = self._repr_mimebundle_()
        data, options = bundle if isinstance(bundle, tuple) else (bundle, {})
        display(data, raw=True, metadata=options)
        self._picture.show()

    # ------------------------------------------------------------------ what the user may do

    @property
    def experiment(self) -> Experiment:
        """The experiment that the controls show.

        Raises
        ------
        ParameterError
            If it cannot be run; the message is the one beside the control.
        """
        result = check(self.values, self._own)
        if result.experiment is None:
            raise ParameterError("; ".join(result.errors.values()))
        return result.experiment

    @experiment.setter
    def experiment(self, experiment: Experiment) -> None:
        self._own |= own_parts(experiment)
        self.form = form(self._own)
        self.values = as_values(experiment)
        self.send({"kind": "values", "values": self.values})

    def run(self) -> list[Job]:
        """Queue what the panel shows, once for each seed, and return at once.

        Raises
        ------
        ParameterError
            If it cannot be run.
        """
        result = check(self.values, self._own)
        if result.experiment is None:
            raise ParameterError("; ".join(result.errors.values()))
        first = with_own_name(result.experiment)
        self.show_error("")
        return [self._bridge.submit(first.but(seed=first.seed + i)) for i in range(result.seeds)]

    def hold_back(self, jobs: Sequence[Job]) -> None:
        """Have simulated runs go at the page's pace for as long as a user sees it."""
        view = self._view
        for job in jobs:
            if job.experiment.backend == "simulated":
                job.control.pace = Pace(job, cast(Kind, self.pace), lambda: view.is_seen)

    def predict(self, **expected: Any) -> None:
        """Say what you expect of the next run; the panel shows afterwards how far off that was.

        Parameters
        ----------
        most_waiting : int or "nobody"
        accuracy : float, 0 to 1
        times_as_fast : float
            As the run before.
        """
        self._questions.prediction = Prediction.of(expected)

    def fork(self, number: int, at_s: float, **change: Any) -> Job:
        """Queue another future of a finished run, and show both; see `psbench.runs.fork.Fork`.

        Raises
        ------
        ParameterError
            If the run cannot be forked so.
        """
        entry = self._table[number]
        other = Fork(at_s, **change)
        experiment = fork(entry.experiment if entry.run is None else entry.run, other)
        forked = (*entry.name_parts, change_name(other))
        return self._bridge.submit(experiment, fork_name(*forked), (number, at_s), forked)

    def press(self, at_s: float, **change: Any) -> str:
        """Change one thing of the run under way; see `psbench.runs.fork.Fork`. Returns in words what follows.

        A live run does so now. A simulated one ends, and is simulated again with the change from `at_s` on.

        Raises
        ------
        ParameterError
            If there is no run under way, or that cannot be done to it.
        """
        job, other = self._bridge.current, Fork(at_s, **change)
        if job is None:
            raise ParameterError("press: no run is under way")
        if job.experiment.backend != "simulated":
            press_live(job, other)
            return f"asked for: {other.words().partition(' at ')[0].partition(' from ')[0]}"
        self._pressed = job, other
        self._bridge.stop(job)
        return "the run ends here, and is simulated again with the change"

    def _fork_pressed(self) -> None:
        """Go on from the run that was ended by a press, once it is over."""
        if self._pressed is None or not self._pressed[0].is_over:
            return
        (job, other), self._pressed = self._pressed, None
        if job.run is not None:
            end_s = float(job.run.log.rows()["time_s"][-1])
            self.fork(job.number, **vars(replace(other, at_s=min(other.at_s, end_s))))

    def stop(self, number: int | None = None) -> None:
        """Stop the run under way, or cancel one that is queued."""
        jobs = [job for job in (self._bridge.current, *self._bridge.queued) if job is not None]
        for job in jobs:
            if job.number == number or (number is None and job is self._bridge.current):
                self._bridge.stop(job)

    def switch(self, to: int | None = None) -> None:
        """Switch to the other strategy now."""
        self._bridge.switch(to)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all runs are over and shown; returns whether they are."""
        done = self._bridge.wait(timeout_s)
        self._checker.wait(timeout_s)
        self._comparison.wait(timeout_s)
        self._sweep.wait(timeout_s)
        return done

    @property
    def finished(self) -> list[Run]:
        """The ticked runs."""
        return [entry.run for entry in self._table.ticked() if entry.run is not None]

    def compare(self) -> Comparison | None:
        """Return the comparison of the ticked runs; None without any."""
        return self._comparison.compare()

    def save(self, folder: str | Path | None = None) -> list[Path]:
        """Write the ticked runs, each to a folder of its own."""
        return self._table.save(folder or self.folder)

    def load(self, folder: str | Path | None = None) -> None:
        """Read the runs that were saved in a folder."""
        self._table.load(folder or self.folder, lambda: next(self._numbers))
        self._publish_runs()

    def report(self, path: str | Path | None = None) -> Path:
        """Write a report of the ticked runs, one file that opens without internet.

        Raises
        ------
        ParameterError
            If no run is ticked.
        """
        comparison = self.compare()
        if comparison is None:
            raise ParameterError("report: tick at least one finished run")
        return comparison.report(Path(self.folder) / "report.html" if path is None else path)

    def export(self, path: str | Path | None = None) -> Path:
        """Write the ticked runs as one page with their timelines, to rewind without internet or a kernel.

        Raises
        ------
        ParameterError
            If no run is ticked.
        """
        entries = [entry for entry in self._table.ticked() if entry.run is not None]
        if not entries:
            raise ParameterError("export: tick at least one finished run")
        path = Path(self.folder) / "runs.html" if path is None else path
        return write_handout([e.run for e in entries if e.run], path, [e.label for e in entries])

    def yaml(self) -> str:
        """Return what the panel shows as YAML."""
        return self.experiment.to_yaml()

    def python(self) -> str:
        """Return what the panel shows as a script; see `check.as_python` for what repeats."""
        result = check(self.values, self._own)
        return as_python(self.experiment, result.seeds)

    def close(self) -> None:
        """Stop everything and take the panel away; no thread is left."""
        if hasattr(self, "_bridge"):
            self._bridge.close()
            self._checker.close()
            self._comparison.close()
            self._sweep.close()
            self._figures.close()
        super().close()

    def _handlers(self) -> Handlers:
        """Return what answers each kind of message of the page."""
        return {}

    # ------------------------------------------------------------------ what the page shows

    def _publish_runs(self) -> None:
        self.runs = self._table.plain()
        self._comparison.update_if_changed(unless=self._bridge.is_busy)

    def _judge(self, job: Job) -> None:
        """Compare a run that has ended with what was expected of it; show a fork beside its origin."""
        entry = self._table[job.number]
        if entry.run is None:
            return
        if job.fork_of is not None and job.fork_of[0] in self._table:
            number, at_s = job.fork_of
            self._view.show(self._table[number], entry, at_s)
        earlier = self._table.before(job.number)
        before = None if earlier is None else earlier.summary
        # what was expected was expected of the run, not of its fork
        summary = entry.summary if job.fork_of is None else None
        self.goal = self._questions.judge(job.number, entry.run, summary, before)

    def _sweep_bounds(self) -> None:
        """Play the bounds on the cluster of the run that is shown, behind its own point."""
        experiment, figures = self._view.experiment, self._figures
        if experiment is not None:
            machines = machines_of(experiment)
            self._sweep.ask(lambda: figures.show_sweep(sweep(machines), machines))

    def _keep_picture(self, job: Job) -> None:
        entry = self._table[job.number]
        if entry.run is not None:
            self._picture.update(entry.run, f"Run {job.number}: {entry.label}")

    def _show_said(self) -> None:
        """Show what a live run says of a press, or of a process that was lost."""
        job = self._bridge.current
        if job is not None and job.control.said:
            said, job.control.said = job.control.said, ""
            self.answer(said)

    def _publish_status(self) -> None:
        job = self._bridge.current
        running = self._view.progress(job) if job is not None else {}
        self.show_status(running, [queued.number for queued in self._bridge.queued])


class _PanelListener:
    """Hands on what the pump reports to the panel, which it does not keep alive."""

    def __init__(self, lab: Panel) -> None:
        self._lab = weakref.ref(lab)

    def on_rows(self, job: Job, log: EventLog, start: int, stop: int) -> None:
        if lab := self._lab():
            lab._view.read_rows(job, log, start, stop)

    def on_status(self, job: Job, status: Status) -> None:
        if lab := self._lab():
            lab._table.update(job, status)
            lab._view.finish(job)
            lab._judge(job)
            lab._publish_runs()
            lab._publish_status()
            lab._keep_picture(job)
            lab._fork_pressed()
            if job.is_over:
                lab._sweep_bounds()

    def on_tick(self) -> None:
        if lab := self._lab():
            lab._view.refresh()
            lab._publish_status()
            lab._show_said()
            lab._comparison.update_if_changed(unless=lab._bridge.is_busy)
            if lab._lease.has_expired:
                lab._bridge.stop_all()

    def on_trouble(self, text: str) -> None:
        if lab := self._lab():
            lab.show_error(text)
