"""The comparison of the ticked runs: its table and its charts on the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psbench import charts
from psbench.results.comparison import Comparison
from psbench_widgets.latest_task import LatestTask
from psbench_widgets.livechart import LiveChart
from psbench_widgets.run_table import RunTable
from psbench_widgets.static_picture import as_columns, static, titles


class ComparisonView:
    """Compares the ticked runs in its own thread, because that takes longer than a button press may.

    Parameters
    ----------
    runs : RunTable
    publish : callable
        Called with the table and the list of charts whenever they are new.
    on_error : callable
        Called with the traceback of a comparison that failed.
    renderer : "canvas" or "svg"
    """

    def __init__(
        self,
        runs: RunTable,
        publish: Callable[[dict[str, Any], list[dict[str, Any]]], None],
        on_error: Callable[[str], None],
        renderer: str,
    ) -> None:
        self._runs, self._publish, self._renderer = runs, publish, renderer
        self._task = LatestTask("psbench-compare", on_error)
        self._compared: list[tuple[int, str]] = []  # numbers and labels that the page compares
        self.charts: list[LiveChart] = []
        self.target: float | None = None
        self.axis = "time_s"

    def compare(self) -> Comparison | None:
        """Return the comparison of the ticked runs; None without any."""
        return self._runs.compare(self.target)

    def update(self) -> None:
        """Compare soon."""
        self._task.ask(self._update)

    def update_if_changed(self, unless: bool = False) -> None:
        """Compare soon if the ticked runs or their names have changed.

        Not while a run is under way, which a dozen new charts would slow down (`unless`).
        """
        ticked = [(entry.number, entry.label) for entry in self._runs.ticked()]
        if ticked != self._compared and not unless:
            self._compared = ticked
            self.update()

    def set_target(self, value: Any) -> None:
        """Compare by the time to this validation accuracy; None or an empty text is the default target."""
        self.target = float(value) if value not in (None, "") else None
        self.update()

    def wait(self, timeout_s: float | None = None) -> None:
        self._task.wait(timeout_s)

    def close(self) -> None:
        """Stop comparing and close the charts' channels to the page."""
        self._task.close()
        for chart in self.charts:
            chart.close()

    def _update(self) -> None:
        comparison = self.compare()
        if comparison is None:
            self._publish({}, [])
            return
        headings, rows = comparison.cells()
        table = {
            "headings": headings,
            "rows": rows,
            "remarks": comparison.remarks,
            "target": comparison.target if isinstance(comparison.target, float) else None,
            "colours": _colours(comparison),
        }
        self._publish(table, self._draw(comparison))

    def _draw(self, comparison: Comparison) -> list[dict[str, Any]]:
        """Fill the charts, which are kept for the next comparison, and return which are in use."""
        labels = [label for label, runs in comparison.groups.items() for _ in runs]
        figures = charts.curves(comparison.runs, labels, self.axis)
        figures += charts.comparison_figures(comparison.groups)
        while len(self.charts) < len(figures):
            self.charts.append(LiveChart(renderer=self._renderer))
        for chart, figure in zip(self.charts, figures, strict=False):
            _fill(chart, figure)
        return [{"uid": chart.uid, "group": "compare"} for chart in self.charts[: len(figures)]]


def _colours(comparison: Comparison) -> dict[str, str]:
    found = charts.looks(comparison.groups)
    return {label: look.colour for label, look in found.items()}


def _fill(chart: LiveChart, figure: charts.Figure) -> None:
    spec, rows = static(figure)
    chart.title, chart.note = titles(figure)
    if chart.spec != spec:
        chart.spec = spec
    chart.replace(as_columns(rows))
    chart.state = "done"
