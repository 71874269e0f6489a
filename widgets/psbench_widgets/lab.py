"""The panel: pick, predict, run, rewind, ask what if, compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psbench import charts
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench_widgets.check import as_python
from psbench_widgets.messages import Handlers
from psbench_widgets.pace import PACES
from psbench_widgets.panel import Panel
from psbench_widgets.presets import SITUATIONS


class Lab(Panel):
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
    can be called: `run`, `stop`, `switch`, `compare`, `save`, `load`, `report`.

    Examples
    --------
    >>> lab = Lab()
    >>> lab.close()
    """

    def _handlers(self) -> Handlers:
        return {
            "hello": lambda m: self._lease.renew(),
            "bye": self._on_view_closed,
            "seen": self._on_seen,
            "check": self._on_check,
            "run": self._on_run,
            "stop": lambda m: self.stop(m.get("number")),
            "switch": lambda m: self.switch(m.get("to")),
            "pace": self._on_pace,
            "axis": self._on_axis,
            "target": lambda m: self._comparison.set_target(m.get("value")),
            "preset": lambda m: self._show_settings(SITUATIONS[m["name"]].experiment()),
            "predict": lambda m: self.predict(**m["values"]),
            "film": lambda m: self._view.show_moment(m.get("at"), m.get("view", "")),
            "seek": self._on_seek,
            "moment": lambda m: self._view.sum_up_to(m.get("at"), m.get("since")),
            "fork": self._on_fork,
            "tick": lambda m: self._change(self._table.tick, m["number"], bool(m["on"])),
            "rename": lambda m: self._change(self._table.rename, m["number"], str(m["name"])),
            "remove": lambda m: self._change(self._table.remove, m["number"]),
            "show": self._on_show,
            "beside": self._on_beside,
            "settings": lambda m: self._show_settings(self._table[m["number"]].experiment),
            "python": self._on_python,
            "save": lambda m: self.answer("saved " + ", ".join(map(str, self.save(m.get("folder"))))),
            "load": lambda m: self.load(m.get("folder")),
            "report": lambda m: self.answer(f"wrote {self.report()}"),
            "export": lambda m: self.answer(f"wrote {self.export()}"),
        }

    def _show_settings(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def _on_view_closed(self, _message: dict[str, Any]) -> None:
        self._lease.view_closed()
        self.send({"kind": "who"})  # a view that is still open answers "hello"

    def _on_seen(self, message: dict[str, Any]) -> None:
        self._lease.see(message.get("view", ""), bool(message["on"]))
        self._view.is_seen = self._lease.is_seen

    def _on_check(self, message: dict[str, Any]) -> None:
        with self._guard:
            self.values = message["values"]
        self._checker.check(message["values"], self._own, message.get("seq", 0), self._view.experiment)

    def _on_run(self, message: dict[str, Any]) -> None:
        """Run what came with the press: it is what the panel showed."""
        with self._guard:
            self.values = message["values"]
            if message.get("prediction"):
                self.predict(**message["prediction"])
            self.hold_back(jobs := self.run())
        self.answer(f"queued run {', '.join(str(job.number) for job in jobs)}")

    def _on_seek(self, message: dict[str, Any]) -> None:
        self._view.seek(message["step"], message["at"], bool(message.get("back")), message.get("view", ""))

    def _on_fork(self, message: dict[str, Any]) -> None:
        number = self._view.shown_number
        given = {
            name: message[name]
            for name in ("strategy", "worker", "speed", "link", "kill", "back", "switch", "momentum")
            if name in message
        }
        if "bound" in message:
            name = str(self._table[number].experiment.strategy.name)
            given["strategy"] = {"name": name, "staleness_bound": message["bound"]}
        under_way = self._bridge.current
        if under_way is not None and under_way.number == number:
            self.answer(self.press(float(message["at"]), **given))
            return
        job = self.fork(number, float(message["at"]), **given)
        kept = ", momentum kept" if "strategy" in given and given.get("momentum", "keep") == "keep" else ""
        self.answer(f"queued run {job.number}: {job.name}{kept}")

    def _on_pace(self, message: dict[str, Any]) -> None:
        if message["pace"] not in PACES:
            raise ParameterError(f"pace: {message['pace']!r} is none of {', '.join(PACES)}")
        self.pace = message["pace"]
        self.hold_back([job for job in (self._bridge.current, *self._bridge.queued) if job is not None])

    def _on_axis(self, message: dict[str, Any]) -> None:
        x = message["x"]
        if x not in charts.AXES:
            raise ParameterError(f"axis: {x!r} is none of {', '.join(charts.AXES)}")
        self._figures.axis(x)
        self._comparison.axis = x
        self._comparison.update()

    def _change(self, action: Callable[..., None], *arguments: Any) -> None:
        action(*arguments)
        self._publish_runs()
        self._comparison.update()

    def _on_show(self, message: dict[str, Any]) -> None:
        if self._bridge.current is None:
            self._view.show(self._table[message["number"]])
            self._sweep_bounds()

    def _on_beside(self, message: dict[str, Any]) -> None:
        first, other = self._view.shown_number, message["number"]
        if self._bridge.current is None and first in self._table and first != other:
            self._view.show(self._table[first], self._table[other])

    def _on_python(self, message: dict[str, Any]) -> None:
        entry = self._table[message["number"]]
        self.send({"kind": "python", "label": entry.label, "text": as_python(entry.experiment)})
