"""What communication buys: bytes, or seconds in which no worker computes, against the loss at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import pandas as pd

from psbench import metrics
from psbench.charts.colours import looks
from psbench.charts.names import TITLES
from psbench.charts.source import labels_of, source
from psbench.metrics.record import RunRecord

#: what is spent, by column: axis title and number format
_COSTS = {"bytes": ("bytes sent", "~s"), "silent_s": ("seconds in which no worker computes", "~r")}


def pareto_table(groups: Mapping[str, Sequence[RunRecord]]) -> pd.DataFrame:
    """Return for each label its means over seeds, and whether no other is better in one and as good in both.

    Returns
    -------
    DataFrame
        `label`, `bytes` (up and down), `silent_s` (seconds in which no worker computes), `loss` (validation,
        or training where nothing is held back), and `front_bytes` and `front_silent_s`: whether no label has
        less of that at no greater loss. Labels without a finite loss are left out.
    """
    rows = [
        {
            "label": label,
            "bytes": float(np.mean([_bytes(run) for run in runs])),
            "silent_s": float(np.mean([metrics.seconds_without_computing(run.log) for run in runs])),
            "loss": float(np.mean([_loss(run) for run in runs])),
        }
        for label, runs in groups.items()
    ]
    found = pd.DataFrame(rows)
    table: pd.DataFrame = found[np.isfinite(found["loss"])].reset_index(drop=True)
    for cost in _COSTS:
        table[f"front_{cost}"] = [_is_on_front(table, row, cost) for row in table.to_dict("records")]
    return table


def pareto_chart(table: pd.DataFrame, cost: str, strategies: Sequence[str]) -> alt.LayerChart:
    """Draw a point for each label, and the front: what no other label beats in both.

    Parameters
    ----------
    table : DataFrame
        Of `pareto_table`.
    cost : "bytes" or "silent_s"
    strategies : sequence of str
        Of each label, for its colour and shape.
    """
    title, form = _COSTS[cost]
    labels = labels_of(table, None)
    found = looks(labels, strategies)
    scale = alt.Scale(type="log") if (table[cost] > 0).all() else alt.Scale(type="symlog")
    x = alt.X(f"{cost}:Q", title=title, scale=scale, axis=alt.Axis(format=form, tickCount=6))
    y = alt.Y("loss:Q", title="loss at the end", scale=alt.Scale(zero=False))
    base = alt.Chart().encode(x=x, y=y)
    line = (
        base.transform_filter(f"datum.front_{cost}")
        .mark_line(interpolate="step-after", color="#7B8087", strokeDash=[4, 3])
        .encode(order=alt.Order(f"{cost}:Q"))
    )
    points = base.mark_point(filled=True, size=110, opacity=1).encode(
        color=alt.Color(
            "label:N",
            legend=alt.Legend(title=None),
            scale=alt.Scale(domain=labels, range=[found[label].colour for label in labels]),
        ),
        shape=alt.Shape(
            "label:N",
            legend=alt.Legend(title=None),
            scale=alt.Scale(domain=labels, range=[found[label].shape for label in labels]),
        ),
        tooltip=[
            alt.Tooltip("label:N"),
            alt.Tooltip(f"{cost}:Q", format=form),
            alt.Tooltip("loss:Q", format=".4g"),
        ],
    )
    name = f"pareto_{cost}"
    return alt.LayerChart(
        layer=[line, points],
        data=source(table),
        width="container",
        height=220,
        title=TITLES[name],
        description=f"{TITLES[name]}: a point for each strategy, and those that no other beats in both",
    )


def _is_on_front(table: pd.DataFrame, row: Mapping[object, float], cost: str) -> bool:
    """Whether no label is as good in cost and loss and better in one."""
    as_good = (table[cost] <= row[cost]) & (table["loss"] <= row["loss"])
    better = (table[cost] < row[cost]) | (table["loss"] < row["loss"])
    return not bool((as_good & better).any())


def _bytes(run: RunRecord) -> int:
    return sum(metrics.total_bytes(run.log, bool(run.meta.get("unanswered"))).values())


def _loss(run: RunRecord) -> float:
    evaluated = metrics.evaluations(run.log)
    for name in ("val_loss", "train_loss"):
        if name in evaluated and len(known := evaluated[name].dropna()):
            return float(known.iloc[-1])
    return float("nan")
