"""The charts of a run under way: psbench's own, given rows as the log grows.

Each figure is a chart of `psbench.charts` drawn over a named data set, and the table that fills it. All
figures of a refresh are made from one copy of the log, so that they stand at the same moment of the run. A
refresh that takes long is done seldom, so that charts never take more than a small share of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from psbench import charts, metrics
from psbench.charts import tables
from psbench.core.log import EventLog, Kind
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench_widgets.livechart import LiveChart
from psbench_widgets.still import as_columns, bare

#: a refresh that took t of the processor's time is not repeated for this many t: at most a twentieth of one
#: core's time
PATIENCE = 20
#: of a curve, pixels: so that one fits on the screen together with the timeline
HEIGHT = 150
#: points of a curve beyond which it is thinned to `charts.POINTS`
LONGEST = 4 * charts.POINTS


@dataclass
class FigureInput:
    """What the figures are drawn from: a run that may still be under way.

    `spans` are those of the timeline, computed once for all figures of a refresh; `beside` is another run,
    which is over, whose curves are drawn beside this one's.
    """

    run: Run
    label: str
    spans: pd.DataFrame = field(default_factory=pd.DataFrame)
    beside: FigureInput | None = None

    @property
    def labels(self) -> list[str]:
        """What the curves are called."""
        return [self.label, *([self.beside.label] if self.beside else [])]

    @property
    def strategies(self) -> list[str]:
        """The strategies of the curves."""
        return [self.strategy, *([self.beside.strategy] if self.beside else [])]

    @property
    def strategy(self) -> str:
        """The strategy's name, which gives the colour."""
        return str(self.run.meta.get("strategy") or self.label)


MakeTable = Callable[[FigureInput], pd.DataFrame]
MakeChart = Callable[..., Any]


@dataclass(frozen=True)
class FigureSpec:
    """One figure: its group on the page, its chart, and its table.

    `key` is the name of the chart (`charts.TITLES`). `grows` says that rows are only ever added; the others
    are replaced at each refresh.
    """

    key: str
    group: str
    make_chart: MakeChart
    make_table: MakeTable
    note: str = ""
    grows: bool = False
    wide: bool = False

    @property
    def title(self) -> str:
        """What stands above the chart."""
        return charts.TITLES[self.key]


def _curve(y: str) -> MakeChart:
    def spec(shown: FigureInput, _: pd.DataFrame, x: str = "time_s") -> Any:
        chart = charts.curve("source", y, x, labels=shown.labels, strategies=shown.strategies, height=HEIGHT)
        return bare(chart) if shown.beside else _without_legend(bare(chart))

    return spec


def _evaluated(y: str) -> MakeTable:
    def table(shown: FigureInput) -> pd.DataFrame:
        frame = tables.evaluation_table(shown.run, shown.label)
        return frame[["label", *charts.AXES, y]] if y in frame else pd.DataFrame()

    return table


def _training(shown: FigureInput) -> pd.DataFrame:
    return tables.training_table(shown.run, shown.label)


def _idle(shown: FigureInput) -> pd.DataFrame:
    return tables.waiting_table(shown.run.log, shown.spans)


def _counts(quantity: str) -> MakeTable:
    def table(shown: FigureInput) -> pd.DataFrame:
        measure = metrics.staleness if quantity == "staleness" else metrics.clock_lead
        return charts.counts(measure(shown.run.log)[quantity].to_numpy(), shown.label)

    return table


def _histogram(quantity: str) -> MakeChart:
    return lambda shown, _: charts.histogram(
        "source", quantity, labels=[shown.label], strategies=[shown.strategy]
    )


def _traffic(shown: FigureInput) -> pd.DataFrame:
    total = metrics.total_bytes(shown.run.log)
    return pd.DataFrame({"label": shown.label, "direction": list(total), "bytes": list(total.values())})


def _rule(shown: FigureInput) -> pd.DataFrame:
    """Return what the rule computed; nothing if it computes nothing, though it may have switched."""
    table = tables.rule_table(shown.run)
    return table if table["value"].notna().any() else pd.DataFrame()


def _labels(shown: FigureInput) -> pd.DataFrame:
    found = tables.label_table(shown.run)
    return pd.DataFrame() if found is None else found


FIGURES = (
    FigureSpec(
        *("val_accuracy", "first", _curve("val_accuracy"), _evaluated("val_accuracy")),
        grows=True,
    ),
    FigureSpec(
        *("train_accuracy", "learn", _curve("train_accuracy"), _evaluated("train_accuracy")),
        grows=True,
    ),
    FigureSpec(
        *("train_loss", "learn", _curve("train_loss"), _training),
        note="mean over the last quarter of an epoch",
        grows=True,
    ),
    FigureSpec(
        *("val_loss", "learn", _curve("val_loss"), _evaluated("val_loss")),
        grows=True,
    ),
    FigureSpec(
        *("time_use", "workers"),
        lambda shown, _: charts.time_use_chart("source"),
        lambda shown: tables.worker_time_table(shown.spans),
    ),
    FigureSpec(
        *("idle", "workers"),
        lambda shown, table: charts.idle_chart("source", reasons=sorted(set(table["reason"]))),
        _idle,
    ),
    FigureSpec(
        *("share", "workers"),
        lambda shown, _: charts.share_chart("source", labels=[shown.label], strategies=[shown.strategy]),
        lambda shown: tables.share_table(shown.run, shown.label)[
            ["label", "worker", "applied", "share", "equal"]
        ],
        note="dashed: an equal share",
    ),
    FigureSpec(
        *("staleness", "updates"),
        _histogram("staleness"),
        _counts("staleness"),
        note="0 is fresh",
    ),
    FigureSpec(*("lead", "updates"), _histogram("lead"), _counts("lead"), note="what SSP bounds"),
    FigureSpec(
        *("bytes", "updates"),
        lambda shown, _: charts.traffic_chart("source"),
        _traffic,
    ),
    FigureSpec(
        *("batch_size", "updates"),
        lambda shown, _: charts.batch_size_chart("source"),
        lambda shown: metrics.batch_sizes(shown.run.log),
    ),
    FigureSpec(
        *("rule", "updates"),
        lambda shown, _: charts.rule_chart("source"),
        _rule,
        note="dashed: its threshold",
    ),
    FigureSpec(
        *("labels", "data"),
        lambda shown, _: charts.label_chart("source"),
        _labels,
    ),
)


class Figures:
    """The live charts of one panel: they show one run at a time.

    Parameters
    ----------
    renderer : "canvas" or "svg"
    """

    def __init__(self, renderer: str = "canvas") -> None:
        self.charts = {
            figure.key: LiveChart(title=figure.title, note=figure.note, renderer=renderer)
            for figure in FIGURES
        }
        self._sent: dict[str, int] = {}
        self._marked: dict[str, int] = {}
        self._shapes: dict[str, Any] = {}
        self._made: dict[Any, dict[str, Any]] = {}
        self._due = 0.0
        self._input: FigureInput | None = None
        self._log = EventLog()  # of the run, which may still write to it
        self.x = "time_s"

    def layout(self) -> list[dict[str, Any]]:
        """Return where each chart stands on the page."""
        return [
            {
                "uid": self.charts[figure.key].uid,
                "key": figure.key,
                "group": figure.group,
                "wide": figure.wide,
            }
            for figure in FIGURES
        ]

    def show(
        self,
        experiment: Experiment,
        log: EventLog,
        meta: dict[str, Any],
        label: str,
        beside: FigureInput | None = None,
    ) -> None:
        """Begin to show another run, perhaps with the curves of one that is over beside its own."""
        self._log = log
        self._input = FigureInput(Run(experiment, EventLog(), meta), label, beside=beside)
        self._sent.clear()
        self._shapes.clear()
        self._marked.clear()
        self._due = 0.0
        for chart in self.charts.values():
            chart.clear()
            chart.state = "empty"
        self._draw_curves()

    def axis(self, x: str) -> None:
        """Draw the curves against another axis, with the rows they have."""
        self.x = x
        if self._input is not None:
            self._draw_curves()

    def _draw_curves(self) -> None:
        assert self._input is not None
        for figure in FIGURES:
            if figure.grows:
                self.charts[figure.key].spec = self._spec(figure, self._input, pd.DataFrame(), self.x)

    def _spec(
        self, figure: FigureSpec, shown: FigureInput, table: pd.DataFrame, *about: Any
    ) -> dict[str, Any]:
        """Return a specification, made once for all runs that look alike: Altair takes a while over each."""
        key = (figure.key, *shown.labels, *shown.strategies, about)
        if key not in self._made:
            self._made[key] = bare(
                figure.make_chart(shown, table, *about) if figure.grows else figure.make_chart(shown, table)
            )
        return self._made[key]

    def warm(self, experiment: Experiment) -> None:
        """Make the specifications of a run that will probably come, so that its charts move at once.

        While nothing is shown the page already draws them, empty and hidden.
        """
        name = str(experiment.strategy.name)
        shown = FigureInput(Run(experiment, EventLog(), {"strategy": name}), name)
        for figure in FIGURES:
            if figure.key == "idle":
                continue
            spec = self._spec(figure, shown, pd.DataFrame(), self.x if figure.grows else ())
            if self._input is None:
                self.charts[figure.key].spec = spec

    def refresh(self, final: bool = False) -> None:
        """Bring the charts up to the log, if it is time for it or `final`: all of them to the same moment."""
        if self._input is None or not len(self._log) or (not final and time.perf_counter() < self._due):
            return
        began = time.thread_time()  # not the clock, which also counts what the run takes meanwhile
        _catch_up(self._input.run.log, self._log)
        has_pushes = bool((self._input.run.log.rows()["kind"] == Kind.PUSH).any())
        if has_pushes:
            self._input.spans = metrics.timeline(self._input.run.log)
        for figure in FIGURES:
            if has_pushes or figure.grows:
                self._fill(figure, self._input, final)
        self._due = time.perf_counter() + PATIENCE * (time.thread_time() - began)

    def until(self, at_s: float | None) -> None:
        """Draw what is a sum or a count up to a moment of the run; up to its end if that is None.

        Curves stay as they are: the page marks the moment in them.
        """
        if self._input is None or not len(self._log):
            return
        whole, now = self._log.rows(), EventLog()
        stop = len(whole) if at_s is None else int(np.searchsorted(whole["time_s"], at_s, side="right"))
        now.extend(whole[:stop], self._log.texts[1:])
        run = Run(self._input.run.experiment, now, self._input.run.meta)
        shown = FigureInput(run, self._input.label, metrics.timeline(now))
        if (whole["kind"][:stop] == Kind.PUSH).any():
            for figure in FIGURES:
                if not figure.grows:
                    self._fill(figure, shown, final=True)

    def _fill(self, figure: FigureSpec, shown: FigureInput, final: bool) -> None:
        table = figure.make_table(shown)
        if shown.beside is not None and figure.grows:
            table = _stack([figure.make_table(shown.beside), table])
        chart = self.charts[figure.key]
        if not table.empty:
            if figure.grows:
                self._append(figure.key, table.assign(event=None), self._marks(shown))
            else:
                self._redraw(figure, shown, table)
                chart.replace(_columns(table))
        chart.state = "done" if final else "live" if len(table) else "empty"

    def _append(self, key: str, table: pd.DataFrame, marks: pd.DataFrame) -> None:
        """Add the rows that are new, and a row for each new switch; thin the line when it gets long."""
        chart, sent, marked = self.charts[key], self._sent.get(key, 0), self._marked.get(key, 0)
        new = [table.iloc[sent:], marks.reindex(columns=table.columns).iloc[marked:]]
        if chart.count() + len(new[0]) > LONGEST:
            every = [charts.thin(table), marks.reindex(columns=table.columns)]
            chart.replace(_columns(_stack(every)))
        elif len(new[0]) + len(new[1]):
            chart.append(_columns(_stack(new)))
        self._sent[key], self._marked[key] = len(table), len(marks)

    def _redraw(self, figure: FigureSpec, shown: FigureInput, table: pd.DataFrame) -> None:
        """Make the specification if this is the first table, or if what its scales name has changed."""
        shape = tuple(sorted(set(table["reason"].astype(str)))) if figure.key == "idle" else ()
        if self._shapes.get(figure.key) != shape:
            self._shapes[figure.key] = shape
            self.charts[figure.key].spec = self._spec(figure, shown, table, shape)

    def _marks(self, shown: FigureInput) -> pd.DataFrame:
        """Return the switches as rows of a curve."""
        found = tables.switch_table(shown.run, shown.label)
        if shown.beside is None:
            return found
        return pd.concat([found, tables.switch_table(shown.beside.run, shown.beside.label)])

    def close(self) -> None:
        """Close the charts' channels to the page."""
        for chart in self.charts.values():
            chart.close()


def _catch_up(copy: EventLog, log: EventLog) -> None:
    """Append to a copy what the log, which may grow meanwhile, has more than it."""
    rows = log.rows(len(copy))  # before the texts, so that those the rows name are there
    copy.extend(rows, log.texts[len(copy.texts) :])


def _without_legend(spec: dict[str, Any]) -> dict[str, Any]:
    """Take the legends away: with one line they say nothing, and the panel says which run it is."""
    for layer in spec["layer"]:
        for name in {"color", "strokeDash"} & layer["encoding"].keys():
            layer["encoding"][name] |= {"legend": None}
    return spec


def _stack(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Put tables with the same columns below each other; objects, so that empty columns keep no type."""
    return pd.concat([part.astype(object) for part in parts], ignore_index=True)


def _columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    return as_columns(charts.records(table)) if len(table) else {}
