"""Content of the panel's page, as synchronised traits."""

from __future__ import annotations

from typing import Any

import traitlets

from psbench_widgets.frontend import FrontendWidget


class PanelPage(FrontendWidget):
    """The traits of the panel, and the short messages that it sends to its page."""

    form = traitlets.Dict().tag(sync=True)
    values = traitlets.Dict().tag(sync=True)
    axes = traitlets.Dict().tag(sync=True)
    watch: Any = traitlets.List().tag(sync=True)
    overlay: Any = traitlets.List().tag(sync=True)
    runs: Any = traitlets.List().tag(sync=True)
    table = traitlets.Dict().tag(sync=True)
    #: the answer to "Why is this run worse?", and its chart
    why = traitlets.Dict().tag(sync=True)
    why_charts: Any = traitlets.List().tag(sync=True)
    #: the detached runs of the panel's cluster
    cluster = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    presets: Any = traitlets.List().tag(sync=True)
    pace = traitlets.Unicode("watchable").tag(sync=True)
    goal = traitlets.Dict().tag(sync=True)
    folder = traitlets.Unicode("runs").tag(sync=True)
    opening = traitlets.Dict().tag(sync=True)
    #: the static picture that the notebook saves for readers without a kernel: data and metadata of an output
    saved_output = traitlets.Dict().tag(sync=True)

    _error = ""

    def answer(self, text: str, wrong: bool = False) -> None:
        """Show a short line."""
        self.send({"kind": "answer", "text": text, "wrong": wrong})

    def show_error(self, text: str) -> None:
        """Show the traceback of a failure of the panel itself; an empty text removes it."""
        self._error = text
        self.status = self.status | {"trouble": text}

    def show_status(self, running: dict[str, Any], queued: list[int]) -> None:
        """Show the running run's status (empty if there is none), and the queued runs."""
        idle = {"running": None, "words": "", "trouble": self._error, "queued": queued}
        status = idle | running
        if status != self.status:
            self.status = status

    def show_comparison(self, table: dict[str, Any], overlay: list[dict[str, Any]]) -> None:
        """Show the table and the charts of a comparison; both empty if no run is ticked."""
        self.table, self.overlay = table, overlay

    def show_explanation(self, why: dict[str, Any], charts: list[dict[str, Any]]) -> None:
        """Show the state of the question why a run is worse, with the charts of its answer."""
        self.why, self.why_charts = why, charts
