"""The panel: pick, run, watch, compare."""

from __future__ import annotations

import itertools
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import traitlets

from psbench import charts
from psbench.core.log import EventLog
from psbench.errors import ParameterError, PsbenchError
from psbench.experiment import Experiment
from psbench.progress import RunProgress, time_left
from psbench.results.comparison import Comparison
from psbench.results.run import Run
from psbench_widgets.bridge import Bridge, Job, Status
from psbench_widgets.check import as_python, as_values, check
from psbench_widgets.controls import form
from psbench_widgets.engine import Rendered
from psbench_widgets.figures import Figures, as_columns, static
from psbench_widgets.latest import Latest
from psbench_widgets.livechart import LiveChart
from psbench_widgets.probe import probe, warm_up
from psbench_widgets.shelf import Shelf

#: how long a panel that nobody shows any more lets its run go on: long enough to move a cell or open a view
GRACE_S = 5.0

#: epochs of the panel's first experiment: long enough to watch, short enough to wait for
EPOCHS = 40
#: and its strategy: one in which everybody waits, then nobody, so that both can be seen in one run
FIRST = {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.25}}

#: the panels by the cell that made them: a cell that is run again closes its earlier panel
_panels: dict[str, weakref.ref[Lab]] = {}


class Lab(Rendered):
    """A panel to pick, run, watch and compare experiments; the last expression of a cell shows it.

    Parameters
    ----------
    experiment : Experiment or None
        What the controls show at first; the defaults of `Experiment` if not given.
    folder : path
        Where runs and reports are written when a person asks for it.
    renderer : "canvas" or "svg"
        How charts are drawn; svg can be read by tests, canvas is quicker.

    Notes
    -----
    A run takes place in a background thread, so other cells may run meanwhile. Everything the buttons do
    can be called: `run`, `stop`, `switch`, `compare`, `save`, `load`, `report`.

    Examples
    --------
    >>> lab = Lab()
    >>> lab.close()
    """

    form = traitlets.Dict().tag(sync=True)
    values = traitlets.Dict().tag(sync=True)
    axes = traitlets.Dict().tag(sync=True)
    watch: Any = traitlets.List().tag(sync=True)
    overlay: Any = traitlets.List().tag(sync=True)
    runs: Any = traitlets.List().tag(sync=True)
    table = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    folder = traitlets.Unicode("runs").tag(sync=True)

    def __init__(
        self, experiment: Experiment | None = None, *, folder: str | Path = "runs", renderer: str = "canvas"
    ) -> None:
        experiment = experiment or Experiment(strategy=FIRST, stop={"epochs": EPOCHS})
        self._guard = threading.RLock()
        self._renderer = renderer
        self._figures = Figures(renderer)
        self._pool: list[LiveChart] = []
        self._shelf = Shelf()
        self._numbers = itertools.count(-1, -1)  # of runs that were loaded, so that they meet no job's
        self._target: float | None = None
        self._shown: Job | None = None
        self._account: RunProgress | None = None
        self._compared: list[tuple[int, str]] = []  # numbers and labels of the runs that the page compares
        self._trouble = ""
        self._left_s: float | None = None
        self._checks = 0
        self._bridge = Bridge(_Screen(self))
        self._prober = Latest("psbench-probe", self.complain)
        self._comparer = Latest("psbench-compare", self.complain)
        super().__init__(
            kind="lab",
            form=form(),
            values=as_values(experiment),
            axes=dict(charts.AXES),
            watch=self._figures.layout(),
            folder=str(folder),
        )
        self.on_msg(self._on_message)
        _replace_panel_of_this_cell(self)

    def __repr__(self) -> str:
        """Return what a front end shows that has no widgets."""
        name = self.values.get("strategy", {}).get("name", "?")
        return f"<Lab: {name}, {len(self.runs)} runs; open the notebook in JupyterLab to see the panel>"

    # ------------------------------------------------------------------ what a person may do

    @property
    def experiment(self) -> Experiment:
        """What the panel shows.

        Raises
        ------
        ParameterError
            If it cannot be run; the message is the one beside the control.
        """
        verdict = check(self.values)
        if verdict.experiment is None:
            raise ParameterError("; ".join(verdict.errors.values()))
        return verdict.experiment

    @experiment.setter
    def experiment(self, experiment: Experiment) -> None:
        self.values = as_values(experiment)
        self.send({"kind": "values", "values": self.values})

    def run(self) -> list[Job]:
        """Queue what the panel shows, once for each seed, and return at once.

        Raises
        ------
        ParameterError
            If it cannot be run.
        """
        verdict = check(self.values)
        if verdict.experiment is None:
            raise ParameterError("; ".join(verdict.errors.values()))
        first = verdict.experiment
        self._trouble = ""
        return [self._bridge.submit(first.but(seed=first.seed + i)) for i in range(verdict.seeds)]

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
        self._prober.wait(timeout_s)
        self._comparer.wait(timeout_s)
        return done

    @property
    def finished(self) -> list[Run]:
        """The ticked runs."""
        return [entry.run for entry in self._shelf.ticked() if entry.run is not None]

    def compare(self) -> Comparison | None:
        """Return the comparison of the ticked runs; None without any."""
        return self._shelf.compare(self._target)

    def save(self, folder: str | Path | None = None) -> list[Path]:
        """Write the ticked runs, each to a folder of its own."""
        return self._shelf.save(folder or self.folder)

    def load(self, folder: str | Path | None = None) -> None:
        """Read the runs that were saved in a folder."""
        self._shelf.load(folder or self.folder, lambda: next(self._numbers))
        self.tell_runs()

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
        path = Path(path) if path is not None else Path(self.folder) / "report.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        return comparison.report(path)

    def yaml(self) -> str:
        """Return what the panel shows as YAML."""
        return self.experiment.to_yaml()

    def python(self) -> str:
        """Return what the panel shows as a script: run, it gives the same digest."""
        verdict = check(self.values)
        return as_python(self.experiment, verdict.seeds)

    def close(self) -> None:
        """Stop everything and take the panel away; no thread is left."""
        if hasattr(self, "_bridge"):
            self._bridge.close()
            self._prober.close()
            self._comparer.close()
            self._figures.close()
            for chart in self._pool:
                chart.close()
        super().close()

    # ------------------------------------------------------------------ messages of the page

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "hello": self._hello,
            "bye": self._bye,
            "check": self._check,
            "run": self._press,
            "stop": lambda m: self.stop(m.get("number")),
            "switch": lambda m: self.switch(m.get("to")),
            "axis": self._axis,
            "target": self._aim,
            "tick": lambda m: self._change(self._shelf.tick, m["number"], bool(m["on"])),
            "rename": lambda m: self._change(self._shelf.rename, m["number"], str(m["name"])),
            "remove": lambda m: self._change(self._shelf.remove, m["number"]),
            "show": lambda m: self._show(m["number"]),
            "save": lambda m: self.answer("saved " + ", ".join(map(str, self.save(m.get("folder"))))),
            "load": lambda m: self.load(m.get("folder")),
            "report": lambda m: self.answer(f"wrote {self.report()}"),
        }
        handler = handlers.get(content.get("kind", "")) if isinstance(content, dict) else None
        if handler is None:
            return
        try:
            handler(content)
        except (PsbenchError, OSError) as error:
            self.answer(str(error), wrong=True)
        except Exception:  # a message must never print into somebody's cell
            self.complain(traceback.format_exc())

    def _hello(self, _message: dict[str, Any]) -> None:
        self._left_s = None

    def _bye(self, _message: dict[str, Any]) -> None:
        """Note that a view has gone; another that is still there will say hello."""
        self._left_s = time.monotonic()
        self.send({"kind": "who"})

    def _check(self, message: dict[str, Any]) -> None:
        verdict = check(message["values"])
        number = message.get("seq", 0)
        with self._guard:
            self._checks = max(self._checks, number)
            self.values = message["values"]
        self.send({"kind": "verdict", "seq": number, **verdict.plain()})
        if verdict.experiment is not None:
            self._prober.ask(lambda experiment=verdict.experiment: self._probe(number, experiment))  # type: ignore[misc]

    def _probe(self, number: int, experiment: Experiment) -> None:
        self.send({"kind": "probe", "seq": number, **probe(experiment)})
        self._figures.warm(experiment)
        warm_up()

    def _press(self, message: dict[str, Any]) -> None:
        """Run what came with the press: it is what the panel showed."""
        with self._guard:
            self.values = message["values"]
            jobs = self.run()
        self.answer(f"queued run {', '.join(str(job.number) for job in jobs)}")

    def _axis(self, message: dict[str, Any]) -> None:
        x = message["x"]
        if x not in charts.AXES:
            raise ParameterError(f"axis: {x!r} is none of {', '.join(charts.AXES)}")
        self._figures.axis(x)
        self._compare_soon()

    def _aim(self, message: dict[str, Any]) -> None:
        value = message.get("value")
        self._target = float(value) if value not in (None, "") else None
        self._compare_soon()

    def _change(self, action: Callable[..., None], *arguments: Any) -> None:
        action(*arguments)
        self.tell_runs()
        self._compare_soon()

    def _show(self, number: int) -> None:
        """Show a finished run in the charts again."""
        entry = self._shelf[number]
        if entry.run is None or self._bridge.current is not None:
            return
        with self._guard:
            self._shown = None
            self._figures.show(entry.run.experiment, entry.run.log, entry.run.meta, entry.label)
            self._figures.refresh(final=True)

    # ------------------------------------------------------------------ what the page is told

    def answer(self, text: str, wrong: bool = False) -> None:
        """Show a short line."""
        self.send({"kind": "answer", "text": text, "wrong": wrong})

    def complain(self, text: str) -> None:
        """Show a traceback that is nobody's run's."""
        self._trouble = text
        self.tell_status()

    def tell_runs(self) -> None:
        """Show the table of runs anew, and compare the ticked ones if they are others than before."""
        self.runs = self._shelf.plain()
        self._compare_if_changed()

    def _compare_if_changed(self) -> None:
        """Compare, once nothing runs: a dozen new charts would slow a run under way."""
        shown = [(entry.number, entry.label) for entry in self._shelf.ticked()]
        if shown != self._compared and self._bridge.current is None and not self._bridge.queued:
            self._compared = shown
            self._compare_soon()

    def tell_status(self) -> None:
        """Show what the run under way does."""
        job = self._bridge.current
        found: dict[str, Any] = {"running": None, "words": "", "trouble": self._trouble}
        found["queued"] = [queued.number for queued in self._bridge.queued]
        if job is not None:
            found |= self._progress(job)
        if found != self.status:
            self.status = found

    def _progress(self, job: Job) -> dict[str, Any]:
        experiment, account = job.experiment, self._account
        found = {
            "running": job.number,
            "echo": _echo(experiment),
            "can_switch": len(experiment.strategy.compositions) > 1,
            "fraction": None,
            "left": "",
            "words": _beginning(experiment),
        }
        if account is None or self._shown is not job:
            return found
        fraction = account.fraction()
        left = time_left(fraction, time.monotonic() - job.began_s)
        return found | {"words": account.words(experiment.backend), "fraction": fraction, "left": left}

    # ------------------------------------------------------------------ called by the pump

    def take_rows(self, job: Job, log: EventLog, start: int, stop: int) -> None:
        """Show what a job has done."""
        with self._guard:
            if self._shown is not job:
                self._shown = job
                self._account = RunProgress(job.experiment.stop, job.meta)
                self._figures.show(job.experiment, log, job.meta, str(job.experiment.strategy.name))
            if self._account is not None:
                self._account.read(log, start, stop)

    def take_status(self, job: Job, status: Status) -> None:
        """Show that a job began or ended."""
        if job.is_over and job.run is not None and self._shown is job:
            with self._guard:
                self._figures.refresh(final=True)
        self._shelf.note(job, status)
        self.tell_runs()
        self.tell_status()

    def tick(self) -> None:
        """Bring charts and status up to date; stop what nobody looks at any more."""
        with self._guard:
            self._figures.refresh()
        self.tell_status()
        self._compare_if_changed()
        if self._left_s is not None and time.monotonic() - self._left_s > GRACE_S:
            for job in self._bridge.queued:
                self._bridge.stop(job)
            self._bridge.stop()

    # ------------------------------------------------------------------ comparing

    def _compare_soon(self) -> None:
        self._comparer.ask(self._compare)

    def _compare(self) -> None:
        comparison = self.compare()
        if comparison is None:
            self.table, self.overlay = {}, []
            return
        headings, rows = comparison.cells()
        self.table = {
            "headings": headings,
            "rows": rows,
            "remarks": comparison.remarks,
            "target": comparison.target,
        }
        self._overlay(comparison)

    def _overlay(self, comparison: Comparison) -> None:
        labels = [label for label, runs in comparison.groups.items() for _ in runs]
        figures = charts.curves(comparison.runs, labels, comparison.strategies, self._figures.x)
        figures += charts.comparison_figures(comparison.groups, comparison.strategies)
        while len(self._pool) < len(figures):
            self._pool.append(LiveChart(renderer=self._renderer))
        for chart, figure in zip(self._pool, figures, strict=False):
            _fill(chart, figure)
        self.overlay = [{"uid": c.uid, "group": "compare"} for c in self._pool[: len(figures)]]


def _fill(chart: LiveChart, figure: charts.Figure) -> None:
    spec, rows = static(figure)
    title = charts.spec(figure.chart).get("title", "")
    text, remark = (title["text"], title.get("subtitle", "")) if isinstance(title, dict) else (title, "")
    chart.title, chart.note = text, " ".join(filter(None, (remark, figure.note)))
    if chart.spec != spec:
        chart.spec = spec
    chart.replace(as_columns(rows))
    chart.state = "done"


class _Screen:
    """What the pump tells, handed on to the panel, which it does not keep alive."""

    def __init__(self, lab: Lab) -> None:
        self._lab = weakref.ref(lab)

    def on_rows(self, job: Job, log: EventLog, start: int, stop: int) -> None:
        if lab := self._lab():
            lab.take_rows(job, log, start, stop)

    def on_status(self, job: Job, status: Status) -> None:
        if lab := self._lab():
            lab.take_status(job, status)

    def on_tick(self) -> None:
        if lab := self._lab():
            lab.tick()

    def on_trouble(self, text: str) -> None:
        if lab := self._lab():
            lab.complain(text)


def _beginning(experiment: Experiment) -> str:
    """Say what happens before the first event."""
    cluster = f", starting {experiment.num_workers} Dask workers" if experiment.backend == "dask" else ""
    return f"loading {experiment.data.name}{cluster}"


def _echo(experiment: Experiment) -> str:
    """Say what took effect, in one line."""
    parts = (experiment.data, experiment.model, experiment.cluster, experiment.sharding)
    names = [experiment.title, *(part.name for part in parts)]
    return " · ".join([*names, f"seed {experiment.seed}", experiment.backend])


def _replace_panel_of_this_cell(lab: Lab) -> None:
    """Close the panel that the same cell made when it was run before."""
    cell = _cell()
    if cell is None:
        return
    before = _panels.get(cell)
    old = before() if before is not None else None
    if old is not None:
        old.close()
    _panels[cell] = weakref.ref(lab)


def _cell() -> str | None:
    """Return the id of the cell that is being run, if a notebook is."""
    from IPython import get_ipython

    shell = get_ipython()
    parent = shell.get_parent() if shell is not None and hasattr(shell, "get_parent") else {}
    cell = parent.get("metadata", {}).get("cellId")
    return str(cell) if cell else None
