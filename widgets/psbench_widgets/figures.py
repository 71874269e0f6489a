"""The charts of a running run: psbench's own, fed with rows as the log grows.

Each figure is a chart of `psbench.charts` drawn over a named data set. What fills it is made from the new
rows of the log alone (`psbench.charts.growing`), for all figures from the same rows, so that they stand at
the same moment of the run. A chart is sent what is new in it; where nothing has changed, nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np

from psbench import charts
from psbench.charts import tables
from psbench.charts.growing import Columns, GrowingTables
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.percents import UNIT
from psbench.system.private_apis import unchecked
from psbench_widgets.livechart import LiveChart
from psbench_widgets.static_picture import as_columns, bare

#: of a curve, pixels: so that one fits on the screen together with the timeline, or with those of two runs
HEIGHT, BESIDE_HEIGHT = 150, 100
#: more workers than this are drawn as so many groups of them, sorted by waiting
MANY, GROUPS = 25, 10


@dataclass
class Shown:
    """The displayed run, which may still be running: its label, its facts, and its tables.

    `among` are the labels of all runs of the page, so that each has one colour everywhere.
    """

    label: str
    log: EventLog
    meta: Mapping[str, Any]
    among: Sequence[str] = ()
    tables: GrowingTables = field(init=False)
    rows: int = 0

    def __post_init__(self) -> None:
        self.tables = GrowingTables(self.label, self.meta)

    def read(self, stop: int) -> None:
        """Read the log's rows up to `stop`."""
        self.tables.read(self.log, self.rows, stop)
        self.rows = stop


#: said where the curve of all bounds is drawn
SWEPT = "grey: SSP with each bound on this cluster"


@dataclass(frozen=True)
class FigureSpec:
    """One figure: its group on the page, and its chart, made for the runs that are shown.

    `key` is the name of the chart (`charts.TITLES`). `is_curve` says that rows are only ever added, and that
    it is drawn against a chosen axis; the others are replaced when they change. `names_runs` says that the
    chart has a run's name or colour in it. `nothing` is said where a run has no row of it.
    """

    key: str
    group: str
    make_chart: Callable[..., Any]
    note: str = ""
    is_curve: bool = False
    names_runs: bool = False
    nothing: str = ""

    @property
    def title(self) -> str:
        """The title of the chart."""
        return charts.TITLES[self.key]


def _curve(y: str, group: str, note: str = "") -> FigureSpec:
    def make(shown: list[Shown], x: str) -> Any:
        drawn = [each.label for each in shown]
        height = BESIDE_HEIGHT if group == "first" and len(shown) > 1 else HEIGHT
        chart = charts.curve("source", y, x, labels=_among(shown), shown=drawn, height=height)
        spec = bare(chart)
        return spec if group != "first" else _without_axis_titles(spec)

    return FigureSpec(y, group, make, note, is_curve=True, names_runs=True)


def _histogram(quantity: str, note: str) -> FigureSpec:
    def make(shown: list[Shown], *_: Any) -> Any:
        return charts.histogram("source", quantity, labels=[shown[0].label], among=_among(shown))

    return FigureSpec(quantity, "updates", make, note, names_runs=True)


TRADE = FigureSpec(
    "trade",
    "first",
    lambda *_: charts.trade_chart("source").properties(height=HEIGHT),
    note="lower: fresher gradients; left: faster",
)
FIGURES = (
    _curve("val_accuracy", "first"),
    _curve("train_accuracy", "learn"),
    _curve("train_loss", "learn", "mean over the last quarter of an epoch"),
    _curve("val_loss", "learn"),
    FigureSpec("time_use", "workers", lambda _, *names: charts.time_use_chart("source", phases=names)),
    FigureSpec(
        "idle",
        "workers",
        lambda _, *why: charts.idle_chart("source", reasons=why),
        nothing=charts.NO_WAIT,
    ),
    FigureSpec("utilisation", "workers", lambda _, *names: charts.utilisation_chart("source", names)),
    FigureSpec("traffic", "updates", lambda *_: charts.traffic_over_time_chart("source")),
    FigureSpec(
        "share",
        "workers",
        lambda shown, *_: charts.share_chart("source", labels=[shown[0].label], among=_among(shown)),
        note="dashed: an equal share",
        names_runs=True,
    ),
    FigureSpec(
        "contributions",
        "updates",
        lambda _, *fates: charts.contribution_chart("source", fates=fates),
        note="blue: used, lighter is older; violet: never used",
    ),
    TRADE,
    _histogram("staleness", "0 is fresh"),
    _histogram("lead", "what SSP bounds"),
    FigureSpec("bytes", "updates", lambda *_: charts.traffic_chart("source")),
    FigureSpec("batch_size", "updates", lambda *_: charts.batch_size_chart("source")),
    FigureSpec("rule", "updates", lambda *_: charts.rule_chart("source"), note="dashed: its threshold"),
    _curve("class_distance", "data"),
    FigureSpec(
        "trained", "data", lambda *_: charts.trained_chart("source"), note="orange: its share of the data"
    ),
    FigureSpec(
        "neighbourhoods",
        "data",
        lambda *_: charts.trained_chart("source", groups="neighbourhood"),
        note="orange: its share of the data",
    ),
    FigureSpec("labels", "data", lambda *_: charts.label_chart("source")),
)


#: charts whose specification has the values of a column, and which: what is stacked, or in the legend
_LISTED = {"time_use": "phase", "idle": "reason", "contributions": "fate", "utilisation": "series"}


class Figures:
    """The live charts of one panel, for one run at a time, or for two side by side.

    Parameters
    ----------
    renderer : "canvas" or "svg"
    """

    def __init__(self, renderer: str = "canvas") -> None:
        self.charts = {
            figure.key: LiveChart(title=figure.title, note=figure.note, renderer=renderer)
            for figure in FIGURES
        }
        self._shown: list[Shown] = []
        self._marked: dict[str, int] = {}  # switches that a curve has been sent
        self._sent: dict[str, Columns] = {}  # what the others have been sent
        self._about: dict[str, Any] = {}  # what the specifications of the others depend on
        self._made: dict[Any, dict[str, Any]] = {}
        self.x = "time_s"
        self._sweep: Columns = {}
        self._swept = self._machines = ""  # what the sweep is of, and what is shown
        self._span = "whole run"

    def layout(self) -> list[dict[str, Any]]:
        """Return the position of each chart on the page."""
        return [
            {"uid": self.charts[figure.key].uid, "key": figure.key, "group": figure.group}
            for figure in FIGURES
        ]

    def show(self, *shown: Shown, machines: str = "") -> None:
        """Show another run; the curves of a second, finished one are drawn beside its own.

        A sweep that was of other machines is not shown behind it; see `sweep.machines_of`.
        """
        self._shown = list(shown)
        self._machines = machines
        if machines != self._swept:
            self._sweep = {}
        self._marked.clear()
        self._sent.clear()
        self._about.clear()
        for chart in self.charts.values():
            chart.clear()
            chart.state, chart.nothing = "empty", ""
        self._draw_curves()
        for beside in shown[1:]:
            beside.read(len(beside.log))
            beside.tables.end()

    def open_with(self, trade: Columns) -> None:
        """Draw the cost and benefit of waiting in the recorded run that a panel opens with."""
        chart = self.charts["trade"]
        chart.spec, chart.note = self._spec(TRADE, []), f"whole run; {SWEPT}; {TRADE.note}"
        chart.replace(trade)
        chart.state = "done"

    def show_sweep(self, columns: Columns, machines: str) -> None:
        """Draw the runs of all bounds behind a run's point, if that run is still displayed."""
        if machines != self._machines:
            return
        self._sweep, self._swept = columns, machines
        if self._shown and self._shown[0].rows:
            self._replace(TRADE, self._shown[0].tables)
            self._say_span(self._span)

    def axis(self, x: str) -> None:
        """Draw the curves against another axis, with the rows they have."""
        self.x = x
        if self._shown:
            self._draw_curves()

    def _draw_curves(self) -> None:
        for figure in FIGURES:
            if figure.is_curve:
                self.charts[figure.key].spec = self._spec(figure, self._shown, self.x)

    def _spec(self, figure: FigureSpec, shown: list[Shown], *about: Any) -> dict[str, Any]:
        """Return a specification, cached because Altair takes a while to create one."""
        places = {label: place for place, label in enumerate(_among(shown))}
        who = ((each.label, places[each.label]) for each in shown) if figure.names_runs else ()
        key = (figure.key, *who, about)
        if key not in self._made:
            with unchecked():
                self._made[key] = bare(figure.make_chart(shown, *about))
        return self._made[key]

    def warm(self, experiment: Experiment) -> None:
        """Create the chart specifications of an expected run in advance, so that its charts start at once.

        While nothing is shown the page already draws them, empty and hidden.
        """
        name = str(experiment.strategy.name)
        shown = Shown(name, EventLog(), {"strategy": name, "dataset_size": 1})
        for figure in FIGURES:
            if figure.key in _LISTED:
                continue
            spec = self._spec(figure, [shown], *([self.x] if figure.is_curve else []))
            if not self._shown:
                self.charts[figure.key].spec = spec

    def _say_span(self, words: str) -> None:
        """Mark the displayed part of the run in each chart over time; with two runs, name the run."""
        self._span = words
        whose = f"{self._shown[0].label}, " if len(self._shown) > 1 else ""
        whole = "so far" if words == "so far" else "whole run"
        for figure in FIGURES:
            if figure.key == "labels":
                continue
            chart = self.charts[figure.key]
            is_whole = figure.is_curve or (figure is TRADE and words.startswith("up to"))
            chart.nothing = "" if chart.count() else figure.nothing
            none = "" if chart.count() or figure.nothing else ": none"
            span = whole if is_whole else f"{whose}{words}{none}"
            if isinstance(next(iter(self._sent.get(figure.key, {}).get("worker", ())), None), str):
                pushes = figure.key in ("share", "contributions")
                least, most = ("push least", "push most") if pushes else ("wait least", "wait most")
                span += f"; tenths of the workers, from those that {least} to those that {most}"
            swept = SWEPT if figure.key == "trade" and self._sweep else ""
            chart.note = "; ".join(filter(None, (span, swept, figure.note)))

    def refresh(self, stop: int | None = None, final: bool = False) -> None:
        """Update all charts to row `stop` of the log (by default its end)."""
        if not self._shown or not len(self._shown[0].log):
            return
        first = self._shown[0]
        first.read(len(first.log) if stop is None else stop)
        if final:
            first.tables.end()
        for figure in FIGURES:
            if figure.is_curve:
                self._extend(figure.key)
            else:
                self._replace(figure, first.tables)
            chart = self.charts[figure.key]
            is_empty = not chart.count() and not (figure.nothing and first.tables.has_pushes)
            state = "empty" if is_empty else "done" if final else "live"
            if chart.state != state:
                chart.state = state
        self._say_span("whole run" if final else "so far")

    def until(self, at_s: float | None, since_s: float | None = None) -> None:
        """Draw sums and counts up to a moment of the run (None: its end), or between two moments.

        Curves stay as they are: the page marks the moment, or the span of time, in them. So does the run's
        point among all bounds up to a moment: theirs are of whole runs.
        """
        if not self._shown:
            return
        first = self._shown[0]
        times = first.log.rows()["time_s"]

        def read_to(time_s: float) -> Shown:
            found = Shown(first.label, first.log, first.meta, first.among)
            found.read(int(np.searchsorted(times, time_s, side="right")))
            return found

        now = read_to(np.inf if at_s is None else at_s)
        if since_s is not None:
            now.tables.count_from(read_to(since_s).tables)
        for figure in FIGURES:
            if not figure.is_curve:
                is_point = figure is TRADE and since_s is None
                self._replace(figure, first.tables if is_point else now.tables)
        is_whole = since_s is None and (at_s is None or at_s >= float(times[-1]))
        begin = "up to" if since_s is None else f"{since_s:.4g} to"
        self._say_span("whole run" if is_whole else f"{begin} {at_s:.4g} s")

    def _extend(self, key: str) -> None:
        """Add a curve's new points and switches, or all of them if it was thinned."""
        chart, each = self.charts[key], [shown.tables.curves for shown in self._shown]
        if not any(len(curves.lines[key]) for curves in each):
            return
        news = [curves.lines[key].news() for curves in each]
        marks = [mark for curves in each for mark in curves.marks]
        if any(thinned for thinned, _ in news):
            points = [curves.lines[key].columns for curves in each]
            chart.replace(_rows(key, points, marks))
        else:
            fresh = marks[self._marked.get(key, 0) :]
            points = [columns for _, columns in news]
            if (columns := _rows(key, points, fresh))["label"]:
                chart.append(columns)
        self._marked[key] = len(marks)

    def _replace(self, figure: FigureSpec, now: GrowingTables) -> None:
        """Redraw sums or counts if they have changed."""
        if figure.key == "labels" and "labels" in self._sent:
            return  # known from the beginning
        found = _labels(self._shown[0].meta) if figure.key == "labels" else now.totals(figure.key)
        columns = {name: charts.plain(values) for name, values in found.items()}
        if figure.key in ("time_use", "idle"):
            columns = in_groups(columns, "phase" if figure.key == "time_use" else "reason")
        elif figure.key == "trade" and columns:
            columns = with_sweep(columns, self._sweep)
        elif figure.key == "share":
            columns = shares_in_groups(columns)
        elif figure.key == "contributions":
            columns = fates_in_groups(columns)
        elif figure.key == "batch_size":
            columns = of_some(columns)
        if columns == self._sent.get(figure.key, {}):
            return
        self._sent[figure.key] = columns
        if not columns:  # there was none of it yet: not what there was later
            self.charts[figure.key].replace({})
            return
        listed = _LISTED.get(figure.key)
        about = tuple(sorted(set(columns[listed]))) if listed else ()
        if self._about.get(figure.key) != about:
            self._about[figure.key] = about
            self.charts[figure.key].spec = self._spec(figure, self._shown, *about)
        self.charts[figure.key].replace(columns)

    def close(self) -> None:
        """Close the charts' channels to the page."""
        for chart in self.charts.values():
            chart.close()


def _among(shown: list[Shown]) -> list[str]:
    """Return the labels of all runs of the page, with those that are new to it at the end."""
    return list(
        dict.fromkeys([*(label for each in shown for label in each.among), *(e.label for e in shown)])
    )


def _rows(key: str, points: list[Columns], marks: list[dict[str, Any]]) -> Columns:
    """Return the points of curves, stacked, followed by the switches."""
    names = "label", *charts.AXES, key
    stacked: Columns = {name: [value for each in points for value in each.get(name, ())] for name in names}
    stacked["event"] = [None] * len(stacked["label"])
    for name, column in stacked.items():
        column += charts.plain([mark.get(name) for mark in marks])
    return stacked


def in_groups(columns: Columns, by: str) -> Columns:
    """Return shares by worker as they are, or, of many workers, the means of groups sorted by waiting.

    The groups are equally large: the chart is the distribution of what it shows, and of one screen.
    """
    workers = list(dict.fromkeys(columns.get("worker", ())))
    if len(workers) <= MANY:
        return columns
    table: dict[Any, dict[Any, float]] = {worker: {} for worker in workers}
    for worker, what, fraction in zip(columns["worker"], columns[by], columns["fraction"], strict=True):
        table[worker][what] = fraction or 0.0
    kinds = list(dict.fromkeys(columns[by]))
    waits = {
        worker: sum(v for k, v in own.items() if by == "reason" or k == "wait")
        for worker, own in table.items()
    }
    order = sorted(workers, key=lambda worker: waits[worker])
    found: Columns = {"worker": [], by: [], "fraction": []}
    for number, group in enumerate(np.array_split(np.array(order), GROUPS)):
        for kind in kinds:
            found["worker"].append(_tenth(number))
            found[by].append(kind)
            found["fraction"].append(float(np.mean([table[each].get(kind, 0.0) for each in group.tolist()])))
    return found


def shares_in_groups(columns: Columns) -> Columns:
    """Return each worker's share of the pushes, or for many workers the means of tenths by share."""
    if len(columns.get("worker", ())) <= MANY:
        return columns
    order = np.array_split(np.argsort(columns["share"], kind="stable"), GROUPS)
    found: Columns = {"worker": [_tenth(number) for number in range(GROUPS)]}
    for name in ("share", "applied", "equal"):
        found[name] = [float(np.mean(np.array(columns[name])[group])) for group in order]
    return {"label": [columns["label"][0]] * GROUPS, **found}


def fates_in_groups(columns: Columns) -> Columns:
    """Return gradients by worker and fate; many workers are grouped into tenths by number."""
    workers = list(dict.fromkeys(columns.get("worker", ())))
    if len(workers) <= MANY:
        return columns
    totals = dict.fromkeys(workers, 0)
    for worker, gradients in zip(columns["worker"], columns["gradients"], strict=True):
        totals[worker] += gradients
    order = sorted(workers, key=lambda worker: totals[worker])
    tenth = {
        worker: _tenth(number)
        for number, group in enumerate(np.array_split(np.array(order), GROUPS))
        for worker in group.tolist()
    }
    found: dict[tuple[str, str], list[float]] = {}
    rows = zip(*(columns[name] for name in ("worker", "fate", "gradients", "share")), strict=True)
    for worker, fate, gradients, share in rows:
        sums = found.setdefault((tenth[worker], fate), [0, 0.0])
        sums[0], sums[1] = sums[0] + gradients, sums[1] + share
    keys = sorted(found)
    return {
        "worker": [key[0] for key in keys],
        "fate": [key[1] for key in keys],
        "gradients": [found[key][0] for key in keys],
        "share": [found[key][1] for key in keys],
    }


def of_some(columns: Columns) -> Columns:
    """Return the rows of all workers, or of an even sample if there are many."""
    workers = list(dict.fromkeys(columns.get("worker", ())))
    kept = set(workers[:: -(-len(workers) // MANY)] if workers else ())
    here = [worker in kept for worker in columns.get("worker", ())]
    return {name: list(compress(values, here)) for name, values in columns.items()}


def _tenth(number: int) -> str:
    return f"{100 * number // GROUPS}-{100 * (number + 1) // GROUPS}{UNIT}"


def with_sweep(own: Columns, swept: Columns) -> Columns:
    """Return a run's point, labelled "this run", and the points of the bounds behind it, with their names."""
    of_run = {**own, "label": ["this run"], "order": [None]}
    points = {name: [*swept.get(name, ()), *values] for name, values in of_run.items()}
    return points | charts.names_of_points(points)


def _labels(meta: Mapping[str, Any]) -> Columns:
    found = tables.label_table(meta)
    return {} if found is None else as_columns(charts.records(found))


def _without_axis_titles(spec: dict[str, Any]) -> dict[str, Any]:
    """Remove the titles of the axes: the chart's heading and its axis selector show them."""
    for layer in spec["layer"]:
        for axis in {"x", "y"} & layer["encoding"].keys():
            if "value" not in layer["encoding"][axis]:  # a place in pixels has no axis
                layer["encoding"][axis] |= {"title": None}
    return spec
