"""The panel without a browser, which writes down what it sends."""

from __future__ import annotations

import base64
import json
from typing import Any

from psbench.experiment import Experiment
from psbench_widgets import Lab
from psbench_widgets.check import as_values

BRIEF = Experiment(strategy="ssp", stop={"epochs": 2})


class Panel(Lab):
    """A panel that writes down what it sends."""

    def __init__(self, *arguments: Any, **values: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        super().__init__(*arguments, **{"pace": "fast", **values})

    def send(self, content: Any, buffers: Any = None) -> None:
        self.sent.append(json.loads(json.dumps(content)))

    def say(self, kind: str, **rest: Any) -> None:
        """Do what a click on the page does."""
        self._on_message(self, {"kind": kind, **rest}, [])

    def click(self, experiment: Experiment, **rest: Any) -> None:
        values = as_values(experiment)
        values["rest"] |= rest
        self.say("run", values=values)

    def last(self, kind: str) -> dict[str, Any]:
        return [message for message in self.sent if message["kind"] == kind][-1]


class Recorded:
    """What a message says of a run's spans."""

    def __init__(self, film: dict[str, Any]) -> None:
        packed = film["tables"]["spans"]["phase"]
        codes = base64.b64decode(packed["data"])
        self.spans = len(codes)
        self.phases = {film["phases"][code] for code in codes}


def rows(panel: Panel, key: str) -> list[dict[str, Any]]:
    return panel._figures.charts[key].rows()
