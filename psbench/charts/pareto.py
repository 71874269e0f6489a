"""Cost and benefit: bytes, seconds without computation, energy, or money, against the final loss.

Where all runs have the same target of another metric, it is against that metric, by its direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import pandas as pd

from psbench import metrics
from psbench.arrays import Doubles
from psbench.charts.colours import looks
from psbench.charts.names import TITLES
from psbench.charts.pieces import layered, look_scale, tooltips
from psbench.charts.source import labels_in
from psbench.charts.tables import sent_bytes
from psbench.charts.ticks import value_axis
from psbench.core.target import Target
from psbench.metrics.record import RunRecord

#: what is spent, by column: axis title and number format
_COSTS = {
    "bytes": ("bytes sent", "~s"),
    "silent_s": ("seconds in which no worker computes", "~r"),
    "joules": ("energy (J)", "~s"),
    "cost": ("cost", "~r"),
}


def pareto_table(groups: Mapping[str, Sequence[RunRecord]]) -> pd.DataFrame:
    """Return for each label its means over seeds, and whether it is on the Pareto front.

    Returns
    -------
    DataFrame
        `label`, `bytes` (up and down), `silent_s` (seconds in which no worker computes), `joules` and `cost`
        (if all clusters have watts, or prices), `loss` (validation, or training where nothing is held back),
        and `front_bytes` and so on: whether no label has less of that at no greater loss. Labels without a
        finite loss are left out. Of runs with a common target of another metric, that metric by its name
        (`val_f1`), in the place of the loss.
    """
    target = common_target([run for runs in groups.values() for run in runs])
    what = "loss" if target is None else target.column
    spent = {
        label: [metrics.energy_totals(run.log, run.meta) for run in runs] for label, runs in groups.items()
    }
    priced = [
        name for name in ("joules", "cost") if all(name in each for own in spent.values() for each in own)
    ]
    rows = [
        {
            "label": label,
            "bytes": float(np.mean([sum(sent_bytes(run).values()) for run in runs])),
            "silent_s": float(np.mean([metrics.seconds_without_computing(run.log) for run in runs])),
            **{name: float(np.mean([each[name] for each in spent[label]])) for name in priced},
            what: float(np.mean([_last(run, target) for run in runs])),
        }
        for label, runs in groups.items()
    ]
    found = pd.DataFrame(rows)
    table: pd.DataFrame = found[np.isfinite(found[what])].reset_index(drop=True)
    better = -table[what] if target is not None and target.at_most is None else table[what]
    for cost in costs_in(table):
        table[f"front_{cost}"] = _is_on_front(table[cost].to_numpy(), better.to_numpy())
    return table


def costs_in(table: pd.DataFrame) -> list[str]:
    """Return the columns of a table of `pareto_table` that have a Pareto front."""
    return [name for name in _COSTS if name in table]


def pareto_chart(table: pd.DataFrame, cost: str, among: Sequence[str]) -> alt.LayerChart:
    """Draw a point for each label, and the Pareto front.

    Parameters
    ----------
    table : DataFrame
        Of `pareto_table`.
    cost : str
        One of `costs_in(table)`.
    among : sequence of str
        All labels of the page, for colours and shapes.
    """
    title, form = _COSTS[cost]
    found = looks(labels_in(table, None), among)
    scale = alt.Scale(type="log") if (table[cost] > 0).all() else alt.Scale(type="symlog")
    x = alt.X(f"{cost}:Q", title=title, scale=scale, axis=alt.Axis(format=form, tickCount=6))
    what = next(
        name for name in map(str, table) if name not in ("label", *_COSTS) and not name.startswith("front_")
    )
    end = f"{what.removeprefix('val_')} at the end"
    axis = value_axis("~%" if what.endswith("accuracy") else "~r")
    y = alt.Y(f"{what}:Q", title=end, scale=alt.Scale(zero=False), axis=axis)
    base = alt.Chart().encode(x=x, y=y)
    line = (
        base.transform_filter(f"datum.front_{cost}")
        .mark_line(interpolate="step-after", color="#7B8087", strokeDash=[4, 3])
        .encode(order=alt.Order(f"{cost}:Q"))
    )
    points = base.mark_point(filled=True, size=110, opacity=1).encode(
        color=alt.Color("label:N", legend=alt.Legend(title=None), scale=look_scale(found)),
        shape=alt.Shape("label:N", legend=alt.Legend(title=None), scale=look_scale(found, "shape")),
        tooltip=tooltips("label:N", f"{cost}:Q {form}", f"{what}:Q .4g"),
    )
    name = TITLES[f"pareto_{cost}"].replace("loss", what.removeprefix("val_"))
    described = f"{name}: a point for each strategy, and the Pareto front"
    return layered([line, points], table, name, described, 220)


def common_target(runs: Sequence[RunRecord]) -> Target | None:
    """Return the target that all runs were to reach; None without one, and if it is of the loss."""
    # a run that is not over is a record without its experiment
    experiments = [getattr(run, "experiment", None) for run in runs]
    targets = [None if each is None else each.stop.aim for each in experiments]
    only: Target | None = targets[0] if len({str(each) for each in targets}) == 1 else None
    return None if only is None or only.bare == "loss" else only


def _is_on_front(cost: Doubles, loss: Doubles) -> list[bool]:
    """Return for each label whether it lies on the Pareto front of cost and loss.

    >>> _is_on_front(np.array([1.0, 1.0, 2.0, 0.5]), np.array([0.5, 0.6, 0.5, 0.7]))
    [True, False, False, True]
    """
    found = []
    for mine, own in zip(cost, loss, strict=True):
        beaten = (cost <= mine) & (loss <= own) & ((cost < mine) | (loss < own))
        found.append(not bool(beaten.any()))
    return found


def _last(run: RunRecord, target: Target | None) -> float:
    evaluated = metrics.evaluations(run.log)
    for name in ("val_loss", "train_loss") if target is None else (target.column,):
        if name in evaluated and len(known := evaluated[name].dropna()):
            return float(known.iloc[-1])
    return float("nan")
