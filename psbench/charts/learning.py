"""Figures of accuracy and loss; virtual and wall-clock seconds never share an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from psbench.charts import tables
from psbench.charts.curves import AXES, axes_of, axis_of, curve, with_seeds
from psbench.charts.figure import Figure
from psbench.metrics import clock_of
from psbench.metrics.record import RunRecord
from psbench.system.private_apis import unchecked


@unchecked()
def curves(
    runs: Sequence[RunRecord],
    labels: Sequence[str],
    x: str = "time_s",
) -> list[Figure]:
    """Return the figures of accuracy and loss; runs with the same label are seeds of one.

    Parameters
    ----------
    runs, labels : sequences of the same length
    x : one of `AXES`, or "time" or "samples"

    Notes
    -----
    Of runs on several clocks (simulated and live) each figure against time comes once for each clock, and
    one against anything else has no time to choose from.
    """
    x, names = axis_of(x), list(dict.fromkeys(labels))
    clocks = list(dict.fromkeys(clock_of(run.meta) for run in runs))
    if len(clocks) == 1 or x != "time_s":
        return _figures(runs, labels, _Drawing(names, x, clocks))
    of_each = []
    for clock in clocks:
        own = [(run, label) for run, label in zip(runs, labels, strict=True) if clock_of(run.meta) == clock]
        drawing = _Drawing(names, x, [clock], apart=True)
        of_each.append(_figures([run for run, _ in own], [label for _, label in own], drawing))
    order = list(dict.fromkeys(figure.name for figures in of_each for figure in figures))
    return [figure for name in order for figures in of_each for figure in figures if figure.name == name]


@dataclass(frozen=True)
class _Drawing:
    """Colours and dashes of a comparison's curves; all labels have one, even if a figure omits some.

    `apart` says that other runs of the comparison are drawn against another clock.
    """

    labels: list[str]
    x: str
    clocks: list[str]
    apart: bool = False

    def draw(
        self, table: pd.DataFrame, marks: pd.DataFrame, y: str, shown: Sequence[str], note: str
    ) -> Figure:
        """Return the figure of one value."""
        both = pd.concat([table.astype(object), marks.astype(object)], ignore_index=True)
        axes = axes_of(self.clocks)
        chart = curve(both, y, self.x, labels=self.labels, shown=shown, axes=axes)
        if self.apart:
            chart.title = f"{chart.title}, {self.clocks[0]} time"
        return Figure(chart, table, note, y)


def _figures(runs: Sequence[RunRecord], labels: Sequence[str], drawing: _Drawing) -> list[Figure]:
    raw = pd.concat(
        [tables.evaluation_table(r, n, i) for i, (r, n) in enumerate(zip(runs, labels, strict=True))]
    )
    values = [name for name in tables.evaluated_columns(raw) if raw[name].notna().any()]
    table = with_seeds(raw, values) if len(raw) else raw
    marks = _switch_marks(runs, labels, drawing.x)
    shown = list(dict.fromkeys(labels))
    figures = []
    for y in values:
        own = table[[c for c in table if c in ("label", "n", *AXES, y, f"{y}_low", f"{y}_high")]]
        figures.append(drawing.draw(own, marks, y, shown, _note(own, y, marks)))
    if "train_loss" not in values:
        figures += _training(runs, labels, marks, drawing)
    return figures


def _note(table: pd.DataFrame, y: str, marks: pd.DataFrame) -> str:
    """Return a note on how to read the intervals and switches of several seeds."""
    if f"{y}_low" not in table or not table[f"{y}_low"].notna().any():
        return ""
    switches = ", and a dashed line for each seed that switched" if marks["is_repeated"].any() else ""
    return f"Means over seeds, with 95 % intervals as bands{switches}."


def _training(
    runs: Sequence[RunRecord], labels: Sequence[str], marks: pd.DataFrame, drawing: _Drawing
) -> list[Figure]:
    """Return the training loss from the pushes, of the first run of each label, with that run's switches."""
    shown = list(dict.fromkeys(labels))
    table = tables.stacked([tables.training_table(runs[labels.index(name)], name) for name in shown])
    note = "Mean over the samples pushed in the last quarter of an epoch; one seed."
    own = marks[marks["seed"] == 0].assign(is_repeated=False)
    return [] if table.empty else [drawing.draw(table, own, "train_loss", shown, note)]


def distance_curve(
    runs: Sequence[RunRecord], labels: Sequence[str], x: str, among: Sequence[str] | None = None
) -> list[Figure]:
    """Return the distance between the classes trained on and the data, for the first run of each label.

    A figure for each clock, as `curves`; `among` are all labels of the page.
    """
    names, first = (
        list(among or dict.fromkeys(labels)),
        dict(zip(reversed(labels), reversed(runs), strict=True)),
    )
    x, note = axis_of(x), "Total variation distance, after every n gradients of n workers."
    clocks = list(dict.fromkeys(clock_of(run.meta) for run in first.values()))
    together = len(clocks) == 1 or x != "time_s"
    figures = []
    for own in [clocks] if together else [[clock] for clock in clocks]:
        shown = [name for name in dict.fromkeys(labels) if clock_of(first[name].meta) in own]
        table = tables.stacked([tables.distance_table(first[name], name) for name in shown])
        marks = _switch_marks([first[name] for name in shown], shown, x)
        drawing = _Drawing(names, x, own, apart=not together)
        figures += [] if table.empty else [drawing.draw(table, marks, "class_distance", shown, note)]
    return figures


def _switch_marks(runs: Sequence[RunRecord], labels: Sequence[str], x: str) -> pd.DataFrame:
    """Return the switches of runs: a switch's columns, `seed` (from 0 for each label) and `is_repeated`.

    Words are written once for the same switch of several seeds, where the first of them is on the axis: the
    others are repeated.
    """
    seeds = [labels[:number].count(label) for number, label in enumerate(labels)]
    of_each = [
        tables.switch_table(run, label).assign(seed=seed)
        for run, label, seed in zip(runs, labels, seeds, strict=True)
    ]
    found = tables.stacked(of_each).rename_axis("number").reset_index()
    first = found.sort_values(x, kind="stable").duplicated(["label", "number", "event"])
    return found.assign(is_repeated=first).drop(columns="number")
