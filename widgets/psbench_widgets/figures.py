"""The charts of a run under way: psbench's own, given rows as the log grows.

Each figure is a chart of `psbench.charts` drawn over a named data set, and the table that fills it. A
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

#: a refresh that took t of the processor's time is not repeated for this many t, the curves (False) and
#: the slow figures (True) each in their own turn: together at most a twentieth of one core's time
PATIENCE = {False: 28, True: 70}
#: spans in the moving window of the timeline: about as many as can be told apart at its width
SPANS = 260
#: points of a curve beyond which it is thinned to `charts.POINTS`
LONGEST = 4 * charts.POINTS


@dataclass
class Sight:
    """What the figures are drawn from: a run that may still be under way.

    `spans` are those of the timeline, computed once for all figures of a refresh.
    """

    run: Run
    label: str
    spans: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def strategy(self) -> str:
        """The strategy's name, which gives the colour."""
        return str(self.run.meta.get("strategy") or self.label)


Table = Callable[[Sight], pd.DataFrame]
Spec = Callable[..., Any]


@dataclass(frozen=True)
class Plan:
    """One figure: its group on the page, its chart, and its table.

    `grows` says that rows are only ever added; the others are replaced at each refresh. `slow` ones are
    refreshed apart from the curves, because they look at the whole log.
    """

    key: str
    group: str
    title: str
    spec: Spec
    table: Table
    note: str = ""
    grows: bool = False
    slow: bool = True
    wide: bool = False


def _curve(y: str) -> Spec:
    def spec(sight: Sight, _: pd.DataFrame, x: str = "time_s") -> Any:
        chart = charts.curve("source", y, x, labels=[sight.label], strategies=[sight.strategy], height=190)
        return _without_legend(_bare(chart))

    return spec


def _evaluated(y: str) -> Table:
    def table(sight: Sight) -> pd.DataFrame:
        frame = tables.evaluation_table(sight.run, sight.label)
        return frame[["label", *charts.AXES, y]] if y in frame else pd.DataFrame()

    return table


def _training(sight: Sight) -> pd.DataFrame:
    return tables.training_table(sight.run, sight.label)


def _recent(sight: Sight) -> pd.DataFrame:
    """Return the last spans, all workers cut at the same moment."""
    spans = sight.spans
    if spans.empty:
        return spans
    starts = np.sort(spans["start_s"].to_numpy())
    return charts.window(spans, float(starts[-min(len(starts), SPANS)]), SPANS)


def _idle(sight: Sight) -> pd.DataFrame:
    return metrics.idle(sight.run.log, sight.spans)[["worker", "reason", "fraction"]]


def _counts(quantity: str) -> Table:
    def table(sight: Sight) -> pd.DataFrame:
        measure = metrics.staleness if quantity == "staleness" else metrics.clock_lead
        return charts.counts(measure(sight.run.log)[quantity].to_numpy(), sight.label)

    return table


def _histogram(quantity: str) -> Spec:
    return lambda sight, _: charts.histogram(
        "source", quantity, labels=[sight.label], strategies=[sight.strategy]
    )


def _traffic(sight: Sight) -> pd.DataFrame:
    total = metrics.total_bytes(sight.run.log)
    return pd.DataFrame({"label": sight.label, "direction": list(total), "bytes": list(total.values())})


def _rule(sight: Sight) -> pd.DataFrame:
    """Return what the rule computed; nothing if it computes nothing, though it may have switched."""
    table = tables.rule_table(sight.run)
    return table if table["value"].notna().any() else pd.DataFrame()


def _labels(sight: Sight) -> pd.DataFrame:
    found = tables.label_table(sight.run)
    return pd.DataFrame() if found is None else found


PLANS = (
    Plan(
        *("val_accuracy", "learn", "Validation accuracy", _curve("val_accuracy"), _evaluated("val_accuracy")),
        grows=True,
        slow=False,
    ),
    Plan(
        *("train_loss", "learn", "Training loss", _curve("train_loss"), _training),
        note="mean over the last quarter of an epoch",
        grows=True,
        slow=False,
    ),
    Plan(
        *("val_loss", "learn", "Validation loss", _curve("val_loss"), _evaluated("val_loss")),
        grows=True,
        slow=False,
    ),
    Plan(
        *("timeline", "workers", "What each worker does"),
        lambda sight, _: charts.timeline_chart("source"),
        _recent,
        note="point at a wait to see why, and for whom",
        wide=True,
    ),
    Plan(
        *("time_use", "workers", "Where the time goes"),
        lambda sight, _: charts.time_use_chart("source"),
        lambda sight: tables.worker_time_table(sight.spans),
    ),
    Plan(
        *("idle", "workers", "Waiting, by reason"),
        lambda sight, table: charts.idle_chart("source", reasons=sorted(set(table["reason"]))),
        _idle,
    ),
    Plan(
        *("share", "workers", "Whose pushes were applied"),
        lambda sight, _: charts.share_chart("source", labels=[sight.label], strategies=[sight.strategy]),
        lambda sight: tables.share_table(sight.run, sight.label)[
            ["label", "worker", "applied", "share", "equal"]
        ],
        note="dashed: an equal share",
    ),
    Plan(
        *("staleness", "updates", "Staleness"),
        _histogram("staleness"),
        _counts("staleness"),
        note="0 is fresh",
    ),
    Plan(*("lead", "updates", "Clock lead"), _histogram("lead"), _counts("lead"), note="what SSP bounds"),
    Plan(
        *("traffic", "updates", "Bytes sent"),
        lambda sight, _: charts.traffic_chart("source"),
        _traffic,
    ),
    Plan(
        *("batch_size", "updates", "Batch size of each worker"),
        lambda sight, _: charts.batch_size_chart("source"),
        lambda sight: metrics.batch_sizes(sight.run.log),
    ),
    Plan(
        *("rule", "updates", "What the switch rule saw"),
        lambda sight, _: charts.rule_chart("source"),
        _rule,
        note="dashed: its threshold",
    ),
    Plan(
        *("labels", "data", "Who trains on which labels"),
        lambda sight, _: charts.label_chart("source"),
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
            plan.key: LiveChart(title=plan.title, note=plan.note, renderer=renderer) for plan in PLANS
        }
        self._sent: dict[str, int] = {}
        self._marked: dict[str, int] = {}
        self._shapes: dict[str, Any] = {}
        self._made: dict[Any, dict[str, Any]] = {}
        self._due = {False: 0.0, True: 0.0}
        self._sight: Sight | None = None
        self.x = "time_s"

    def layout(self) -> list[dict[str, Any]]:
        """Return where each chart stands on the page."""
        return [
            {"uid": self.charts[plan.key].uid, "key": plan.key, "group": plan.group, "wide": plan.wide}
            for plan in PLANS
        ]

    def show(self, experiment: Experiment, log: EventLog, meta: dict[str, Any], label: str) -> None:
        """Begin to show another run."""
        self._sight = Sight(Run(experiment, log, meta), label)
        self._sent.clear()
        self._shapes.clear()
        self._marked.clear()
        self._due = {False: 0.0, True: 0.0}
        for chart in self.charts.values():
            chart.clear()
            chart.state = "empty"
        self._draw_curves()

    def axis(self, x: str) -> None:
        """Draw the curves against another axis, with the rows they have."""
        self.x = x
        if self._sight is not None:
            self._draw_curves()

    def _draw_curves(self) -> None:
        assert self._sight is not None
        for plan in PLANS:
            if plan.grows:
                self.charts[plan.key].spec = self._spec(plan, self._sight, pd.DataFrame(), self.x)

    def _spec(self, plan: Plan, sight: Sight, table: pd.DataFrame, *about: Any) -> dict[str, Any]:
        """Return a specification, made once for all runs that look alike: Altair takes a while over each."""
        key = (plan.key, sight.label, sight.strategy, about)
        if key not in self._made:
            self._made[key] = _bare(
                plan.spec(sight, table, *about) if plan.grows else plan.spec(sight, table)
            )
        return self._made[key]

    def warm(self, experiment: Experiment) -> None:
        """Make the specifications of a run that will probably come, so that its charts move at once.

        While nothing is shown the page already draws them, empty and hidden.
        """
        name = str(experiment.strategy.name)
        sight = Sight(Run(experiment, EventLog(), {"strategy": name}), name)
        for plan in PLANS:
            if plan.key == "idle":
                continue
            spec = self._spec(plan, sight, pd.DataFrame(), self.x if plan.grows else ())
            if self._sight is None:
                self.charts[plan.key].spec = spec

    def refresh(self, final: bool = False) -> None:
        """Bring the charts up to the log, as far as their turn has come; all of them if `final`."""
        if self._sight is None or not len(self._sight.run.log):
            return
        for slow in (False, True):
            if not final and time.perf_counter() < self._due[slow]:
                continue
            began = time.thread_time()  # not the clock, which also counts what the run takes meanwhile
            self._refresh(slow, final)
            self._due[slow] = time.perf_counter() + PATIENCE[slow] * (time.thread_time() - began)

    def _refresh(self, slow: bool, final: bool) -> None:
        sight = self._sight
        assert sight is not None
        rows = sight.run.log.rows()
        if slow:
            if not (rows["kind"] == Kind.PUSH).any():
                return
            sight.spans = metrics.timeline(sight.run.log)
        for plan in PLANS:
            if plan.slow == slow:
                self._fill(plan, sight, final)

    def _fill(self, plan: Plan, sight: Sight, final: bool) -> None:
        table = plan.table(sight)
        chart = self.charts[plan.key]
        if not table.empty:
            if plan.grows:
                self._append(plan.key, table.assign(event=None), self._marks(sight))
            else:
                self._redraw(plan, sight, table)
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

    def _redraw(self, plan: Plan, sight: Sight, table: pd.DataFrame) -> None:
        """Make the specification if this is the first table, or if what its scales name has changed."""
        shape = tuple(sorted(set(table["reason"].astype(str)))) if plan.key == "idle" else ()
        if self._shapes.get(plan.key) != shape:
            self._shapes[plan.key] = shape
            self.charts[plan.key].spec = self._spec(plan, sight, table, shape)

    def _marks(self, sight: Sight) -> pd.DataFrame:
        """Return the switches as rows of a curve."""
        return tables.switch_table(sight.run, sight.label)

    def close(self) -> None:
        """Close the charts' channels to the page."""
        for chart in self.charts.values():
            chart.close()


def static(figure: charts.Figure) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a finished figure's specification with its data named "source", and the data."""
    spec = _bare(figure.chart)
    inside: dict[str, Any] = spec.pop("datasets", {})  # Altair names inline data by its digest
    rows = inside.get(spec["data"].get("name", ""), spec["data"].get("values", []))
    return spec | {"data": {"name": "source"}}, rows


def as_columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns; what a row lacks is None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _without_legend(spec: dict[str, Any]) -> dict[str, Any]:
    """Take the legends away: with one line they say nothing, and the panel says which run it is."""
    for layer in spec["layer"]:
        for name in {"color", "strokeDash"} & layer["encoding"].keys():
            layer["encoding"][name] |= {"legend": None}
    return spec


def _bare(chart: Any) -> dict[str, Any]:
    """Return a chart's specification without its title, which the page shows itself."""
    found = chart if isinstance(chart, dict) else charts.spec(chart)
    found.pop("title", None)
    found.pop("$schema", None)
    return found


def _stack(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Put tables with the same columns below each other; objects, so that empty columns keep no type."""
    return pd.concat([part.astype(object) for part in parts], ignore_index=True)


def _columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    return as_columns(charts.records(table)) if len(table) else {}
