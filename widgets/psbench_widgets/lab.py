"""The panel: configure, predict, run, rewind, fork, compare."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from psbench import charts
from psbench.core.user_object import Own
from psbench.errors import ParameterError, PsbenchError, in_short
from psbench.experiment import Experiment
from psbench.results.comparison import Comparison
from psbench.results.run import Run
from psbench.runs.fork import Fork
from psbench_widgets.bridge import Job
from psbench_widgets.check import as_python, as_values, check
from psbench_widgets.checker import Checker
from psbench_widgets.cluster_runs import found
from psbench_widgets.controls import form
from psbench_widgets.figures import Figures
from psbench_widgets.handout import write_handout
from psbench_widgets.notebook_cell import replace_panel_of_this_cell
from psbench_widgets.opening import EXPERIMENT as RECORDED
from psbench_widgets.opening import opening
from psbench_widgets.own_objects import own_parts
from psbench_widgets.pace import Pace, PaceName, check_pace
from psbench_widgets.page import PanelPage
from psbench_widgets.predictions import Challenge, Prediction
from psbench_widgets.presets import SITUATIONS, with_own_name
from psbench_widgets.questions import Questions
from psbench_widgets.runner import Runner

#: epochs of the panel's first experiment: long enough to watch, short enough to wait for
EPOCHS = 40


class Lab(PanelPage):
    """A panel to pick, run, watch and compare experiments; the last expression of a cell shows it.

    Parameters
    ----------
    experiment : Experiment or None
        What the controls show at first; the defaults of `Experiment` if not given.
    folder : path
        Where runs and reports are written when the user asks for it.
    renderer : "canvas" or "svg"
        How charts are drawn; svg can be read by tests, canvas is quicker.
    challenge : Challenge, mapping or None
        A goal that the panel checks after every run: an accuracy to reach (`accuracy`), perhaps in a time
        (`within_s`) and without touching some settings (`keep`).
    pace : "watchable", "10" or "fast"
        How fast a simulated run that is started on the page goes on while it is seen: it takes about twenty
        seconds; ten seconds of it pass in a second; or as fast as it can. `run` is never held back.

    Notes
    -----
    A run takes place in a background thread, so other cells may run meanwhile. Everything the buttons do
    can be called: `run`, `stop`, `switch`, `compare`, `explain`, `save`, `load`, `report`.

    Examples
    --------
    >>> lab = Lab()
    >>> lab.close()
    """

    def __init__(
        self,
        experiment: Experiment | None = None,
        *,
        folder: str | Path = "runs",
        renderer: str = "canvas",
        challenge: Challenge | Mapping[str, Any] | None = None,
        pace: PaceName = "watchable",
    ) -> None:
        check_pace(pace)
        if not isinstance(experiment, Experiment | None):
            raise ParameterError(f"Lab: expected an Experiment, got {in_short(experiment)}")
        first_sight = dict(opening())
        # the machines of the recorded run, so that Run goes on with what was seen
        experiment = experiment or RECORDED.but(model="mlp", stop={"epochs": EPOCHS})
        self._own, self._figures = own_parts(experiment), Figures(renderer)
        self._figures.open_with(first_sight.pop("trade"))
        questions = Questions(experiment, challenge)
        self._runner = Runner(self, self._figures, questions, renderer)
        self._checker = Checker(lambda message: self.send(message), self._figures.warm, self.show_error)
        super().__init__(
            kind="lab",
            form=form(self._own),
            values=as_values(experiment),
            axes=dict(charts.AXES),
            watch=self._figures.layout(),
            folder=str(folder),
            presets=[preset.plain() for preset in SITUATIONS.values()],
            goal=questions.plain(),
            opening=first_sight,
            pace=pace,
        )
        self._on_message = _Requests(self, self._runner, self._figures, self._checker, self._own)
        self.on_msg(self._on_message)
        replace_panel_of_this_cell(self)

    def __repr__(self) -> str:
        """Return a text for front ends without widgets."""
        name = self.values.get("strategy", {}).get("name", "?")
        return f"<Lab: {name}, {len(self.runs)} runs; open the notebook in JupyterLab to see the panel>"

    def _ipython_display_(self) -> None:
        """Show the panel, and below it the picture for the saved notebook."""
        from IPython import display as ipython

        display: Any = ipython.display

        bundle: Any = self._repr_mimebundle_()
        data, options = bundle if isinstance(bundle, tuple) else (bundle, {})
        display(data, raw=True, metadata=options)
        self._runner.picture.show()

    @property
    def experiment(self) -> Experiment:
        """The experiment that the controls show.

        Raises
        ------
        ParameterError
            If it cannot be run; the message is the one beside the control.
        """
        return self._picked()[0]

    @experiment.setter
    def experiment(self, experiment: Experiment) -> None:
        self._own |= own_parts(experiment)
        self.form = form(self._own)
        self.values = as_values(experiment)
        self.send({"kind": "values", "values": self.values})

    def run(self) -> list[Job]:
        """Queue the selected experiment, once for each seed, and return at once.

        Raises
        ------
        ParameterError
            If it cannot be run.
        """
        picked, seeds = self._picked()
        first = with_own_name(picked)
        self.show_error("")
        return [self._runner.bridge.submit(first.but(seed=first.seed + i)) for i in range(seeds)]

    def attach(self, name: str, *, client: Any) -> Job:
        """Show a detached run of a cluster in this panel; `stop`, `switch` and `press` control it.

        Closing the panel, or `leave`, leaves the run, which goes on. The panel lists the other runs of this
        cluster too.

        Parameters
        ----------
        name : str
        client : dask.distributed.Client

        Raises
        ------
        ParameterError
            If the cluster lists no such run.
        """
        self._runner.cluster.given = client
        return self._runner.follow(found(name, client))

    def _picked(self) -> tuple[Experiment, int]:
        """Return the selected experiment and the number of seeds."""
        result = check(self.values, self._own)
        if result.experiment is None:
            raise ParameterError("; ".join(result.errors.values()))
        return result.experiment, result.seeds

    def hold_back(self, jobs: Sequence[Job]) -> None:
        """Slow simulated runs down to the page's pace while a user sees the panel."""
        view = self._runner.view
        for job in jobs:
            if job.experiment.backend == "simulated":
                job.control.pace = Pace(job, cast(PaceName, self.pace), lambda: view.is_seen)

    def predict(self, **expected: Any) -> None:
        """Predict the next run; the panel shows the errors afterwards.

        Parameters
        ----------
        most_waiting : int or "nobody"
        accuracy : float, 0 to 1
        times_as_fast : float
            As the run before.
        """
        self._runner.questions.prediction = Prediction.of(expected)

    def fork(self, number: int, at_s: float, **change: Any) -> Job:
        """Queue another future of a finished run, and show both; see `psbench.runs.fork.Fork`.

        Raises
        ------
        ParameterError
            If the run cannot be forked so.
        """
        return self._runner.fork(number, Fork(at_s, **change))

    def press(self, at_s: float, **change: Any) -> str:
        """Change the running run; see `psbench.runs.fork.Fork`. Returns a sentence about the consequence.

        A live run does so now. A simulated one ends, and is simulated again with the change from `at_s` on.

        Raises
        ------
        ParameterError
            If there is no run under way, or that cannot be done to it.
        """
        return self._runner.press(Fork(at_s, **change))

    def stop(self, number: int | None = None) -> None:
        """Stop the running run, or cancel a queued one."""
        bridge = self._runner.bridge
        for job in bridge.jobs:
            if job.number == number or (number is None and job is bridge.current):
                bridge.stop(job)

    def leave(self, number: int | None = None) -> None:
        """Stop following a detached run, by default the running one; the run goes on.

        Raises
        ------
        ParameterError
            If there is none.
        """
        bridge = self._runner.bridge
        for job in bridge.jobs:
            if job.detached is not None and job.number == (number or job.number):
                bridge.leave(job)
                return
        raise ParameterError("no detached run is followed")

    def switch(self, to: int | None = None) -> None:
        """Switch to the other strategy now."""
        self._runner.bridge.switch(to)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all runs are finished and displayed; return whether they are."""
        done = self._runner.wait(timeout_s)
        self._checker.wait(timeout_s)
        return done

    @property
    def finished(self) -> list[Run]:
        """The ticked runs."""
        return [entry.run for entry in self._runner.table.ticked() if entry.run is not None]

    def compare(self) -> Comparison | None:
        """Return the comparison of the ticked runs; None without any."""
        return self._runner.comparison.compare()

    def explain(self, number: int, against: int, seeds: int = 5) -> None:
        """Begin to explain why a run of the table is worse than another; see `psbench.why`.

        Raises
        ------
        ParameterError
            If they are no two runs that are over, or another question is being answered.
        """
        self._runner.explanation.ask(number, against, seeds)

    def save(self, folder: str | Path | None = None) -> list[Path]:
        """Write the ticked runs, each to its own folder."""
        return self._runner.table.save(folder or self.folder)

    def load(self, folder: str | Path | None = None) -> None:
        """Read the runs that were saved in a folder."""
        self._runner.load(folder or self.folder)

    def report(self, path: str | Path | None = None) -> Path:
        """Write a report of the ticked runs, one file that opens without internet.

        It begins with the panel's last answer to why a run is worse, if there is one.

        Raises
        ------
        ParameterError
            If no run is ticked.
        """
        comparison = self.compare()
        if comparison is None:
            raise ParameterError("report: tick at least one finished run")
        answer = self._runner.explanation.answer
        return comparison.report(Path(self.folder) / "report.html" if path is None else path, answer)

    def export(self, path: str | Path | None = None) -> Path:
        """Write the ticked runs as one page with their timelines, to rewind without internet or a kernel.

        Raises
        ------
        ParameterError
            If no run is ticked.
        """
        entries = [entry for entry in self._runner.table.ticked() if entry.run is not None]
        if not entries:
            raise ParameterError("export: tick at least one finished run")
        path = Path(self.folder) / "runs.html" if path is None else path
        return write_handout([e.run for e in entries if e.run], path, [e.label for e in entries])

    def yaml(self) -> str:
        """Return the selected experiment as YAML."""
        return self.experiment.to_yaml()

    def python(self) -> str:
        """Return the selected experiment as a script; see `check.as_python` for its reproducibility."""
        return as_python(*self._picked())

    def close(self) -> None:
        """Stop everything and take the panel away; no thread is left."""
        if hasattr(self, "_checker"):
            self._runner.close()
            self._checker.close()
            self._figures.close()
        super().close()


#: what a message may say of a change, by the names of `psbench.runs.fork.Fork`
_CHANGES = ("strategy", "worker", "speed", "link", "kill", "back", "switch", "momentum")


class _Requests:
    """Answers the messages of a panel's page."""

    def __init__(
        self, lab: Lab, runner: Runner, figures: Figures, checker: Checker, own: Mapping[str, Own]
    ) -> None:
        self._lab, self._runner, self._figures, self._checker, self._own = lab, runner, figures, checker, own
        self._guard = threading.RLock()
        table, view = runner.table, runner.view
        self._handlers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "hello": lambda m: runner.lease.renew(),
            "bye": self._on_view_closed,
            "seen": self._on_seen,
            "check": self._on_check,
            "run": self._on_run,
            "stop": lambda m: lab.stop(m.get("number")),
            "leave": lambda m: lab.leave(m["number"]),
            "switch": lambda m: lab.switch(m.get("to")),
            "cluster": lambda m: runner.cluster.ask(lab.experiment),
            "attach": self._on_attach,
            "pace": self._on_pace,
            "axis": self._on_axis,
            "target": lambda m: runner.comparison.set_target(m.get("value")),
            "preset": lambda m: self._show_settings(SITUATIONS[m["name"]].experiment()),
            "predict": lambda m: lab.predict(**m["values"]),
            "film": lambda m: view.show_moment(m.get("at"), m.get("view", "")),
            "seek": lambda m: view.seek(m["step"], m["at"], bool(m.get("back")), m.get("view", "")),
            "moment": lambda m: view.sum_up_to(m.get("at"), m.get("since")),
            "fork": self._on_fork,
            "tick": lambda m: self._change(table.tick, m["number"], bool(m["on"])),
            "rename": lambda m: self._change(table.rename, m["number"], str(m["name"])),
            "remove": lambda m: self._change(table.remove, m["number"]),
            "show": self._on_show,
            "beside": self._on_beside,
            "settings": lambda m: self._show_settings(table[m["number"]].experiment),
            "python": self._on_python,
            "why": lambda m: lab.explain(m["number"], m["against"], m.get("seeds", 5)),
            "why-cancel": lambda m: runner.explanation.cancel(),
            "why-open": self._on_why_open,
            "save": lambda m: lab.answer("saved " + ", ".join(map(str, lab.save(m.get("folder"))))),
            "load": lambda m: lab.load(m.get("folder")),
            "report": lambda m: lab.answer(f"wrote {lab.report()}"),
            "export": lambda m: lab.answer(f"wrote {lab.export()}"),
        }

    def __call__(self, _widget: Any, content: Any, _buffers: Any) -> None:
        """Answer a message; the user's errors are shown in a line, and no failure prints into a cell."""
        handler = self._handlers.get(content.get("kind", "")) if isinstance(content, dict) else None
        if handler is None:
            return
        try:
            handler(content)
        except (PsbenchError, OSError) as error:
            self._lab.answer(str(error), True)
        except Exception:
            self._lab.show_error(traceback.format_exc())

    def _show_settings(self, experiment: Experiment) -> None:
        self._lab.experiment = experiment

    def _on_view_closed(self, _message: dict[str, Any]) -> None:
        self._runner.lease.view_closed()
        self._lab.send({"kind": "who"})  # a view that is still open answers "hello"

    def _on_seen(self, message: dict[str, Any]) -> None:
        self._runner.lease.see(message.get("view", ""), bool(message["on"]))
        self._runner.view.is_seen = self._runner.lease.is_seen

    def _on_check(self, message: dict[str, Any]) -> None:
        values = message["values"]
        with self._guard:
            self._lab.values = values
        self._checker.check(values, self._own, message.get("seq", 0), self._runner.view.experiment)

    def _on_run(self, message: dict[str, Any]) -> None:
        """Run the values sent with the button press."""
        with self._guard:
            self._lab.values = message["values"]
            if message.get("prediction"):
                self._lab.predict(**message["prediction"])
            self._lab.hold_back(jobs := self._lab.run())
        self._lab.answer(f"queued run {', '.join(str(job.number) for job in jobs)}")

    def _on_attach(self, message: dict[str, Any]) -> None:
        self._runner.cluster.find(message["name"], self._lab.experiment, self._runner.follow)

    def _on_fork(self, message: dict[str, Any]) -> None:
        number, under_way = self._runner.view.shown_number, self._runner.bridge.current
        given = {name: message[name] for name in _CHANGES if name in message}
        if "bound" in message:
            name = str(self._runner.table[number].experiment.strategy.name)
            given["strategy"] = {"name": name, "staleness_bound": message["bound"]}
        if under_way is not None and under_way.number == number:
            self._lab.answer(self._lab.press(float(message["at"]), **given))
            return
        job = self._lab.fork(number, float(message["at"]), **given)
        kept = ", momentum kept" if "strategy" in given and given.get("momentum", "keep") == "keep" else ""
        self._lab.answer(f"queued run {job.number}: {job.name}{kept}")

    def _on_pace(self, message: dict[str, Any]) -> None:
        self._lab.pace = check_pace(message["pace"])
        self._lab.hold_back(self._runner.bridge.jobs)

    def _on_axis(self, message: dict[str, Any]) -> None:
        x = message["x"]
        if x not in charts.AXES:
            raise ParameterError(f"axis: {x!r} is not one of {', '.join(charts.AXES)}")
        self._figures.axis(x)
        self._runner.comparison.axis = x
        self._runner.comparison.update()

    def _change(self, action: Callable[..., None], *arguments: Any) -> None:
        action(*arguments)
        self._runner.publish_runs()
        self._runner.comparison.update()

    def _on_show(self, message: dict[str, Any]) -> None:
        if self._runner.bridge.current is None:
            self._runner.view.show(self._runner.table[message["number"]])
            self._runner.sweep_bounds()

    def _on_why_open(self, message: dict[str, Any]) -> None:
        self._on_show({"number": self._runner.open_computed(message["place"])})

    def _on_beside(self, message: dict[str, Any]) -> None:
        view, table = self._runner.view, self._runner.table
        first, other = view.shown_number, message["number"]
        if first not in table or first == other:
            self._on_show(message)  # alone: the page waits for the run that it has announced
        elif self._runner.bridge.current is None:
            view.show(table[first], table[other])

    def _on_python(self, message: dict[str, Any]) -> None:
        entry = self._runner.table[message["number"]]
        self._lab.send({"kind": "python", "label": entry.label, "text": as_python(entry.experiment)})
