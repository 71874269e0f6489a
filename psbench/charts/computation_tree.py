"""The computation tree of a run: where each gradient was taken, and where it was applied."""

from __future__ import annotations

import altair as alt
import pandas as pd

from psbench.charts.colours import BLUE, GREY
from psbench.charts.names import TITLES
from psbench.charts.pieces import layered, tooltips
from psbench.metrics.computation_tree import ComputationTree

#: gradients that are drawn; more cannot be followed
NODES = 24


def tree_table(tree: ComputationTree, first: int = 0, nodes: int = NODES) -> pd.DataFrame:
    """Return the gradients that lead away from `nodes` nodes of the main branch, from node `first` on.

    Returns
    -------
    DataFrame
        `node`, `worker`, `version`, `step`, `base`, `distance`, as in `ComputationTree.gradients`.
    """
    columns = ["node", "worker", "version", "step", "base", "distance"]
    return tree.gradients[columns].iloc[first : first + nodes].reset_index(drop=True)


def tree_chart(table: pd.DataFrame, title: str = TITLES["tree"]) -> alt.LayerChart:
    """Draw a piece of a computation tree.

    The main branch is the line at the top, with a dot for each gradient applied. Each gradient is a line in
    its worker's row, from the node whose model the worker had to the node at which it is applied: its length
    is its distance, and a line without length is a gradient taken where it is applied.

    Parameters
    ----------
    table : DataFrame
        As `tree_table` returns it.
    """
    workers = sorted(table["worker"].unique().tolist())
    names = ["main branch", *(f"worker {worker}" for worker in workers)]
    place = {worker: 1 + number for number, worker in enumerate(workers)}
    nodes = [int(table["base"].min()), int(table["node"].max()) + 1] if len(table) else [0, 1]
    data = table.assign(y=table["worker"].map(place), top=0, first=nodes[0], last=nodes[1])
    axis = alt.Axis(
        values=list(range(len(names))),
        labelExpr="[" + ", ".join(f"'{name}'" for name in names) + "][datum.value]",
        grid=False,
        ticks=False,
        domain=False,
        labelPadding=8,
    )
    rows = alt.Scale(domain=[-0.5, len(names) - 0.5], reverse=True, nice=False, zero=False)

    def across(field: str) -> alt.X:
        axis = alt.Axis(grid=False, format="d", tickMinStep=1)
        scale = alt.Scale(domain=nodes, nice=False, zero=False)
        return alt.X(field, title="gradients applied", axis=axis, scale=scale)

    def down(field: str) -> alt.Y:
        return alt.Y(field, title=None, axis=axis, scale=rows)

    base = alt.Chart().encode(
        tooltip=tooltips("node:Q", "worker:O", "base:Q", "step:Q", "distance:Q", "version:Q")
    )
    colour = alt.Color(
        "distance:Q",
        title="distance",
        scale=alt.Scale(range=["#8FB3D4", "#08306B"], domainMin=0),
        legend=alt.Legend(format="d", tickMinStep=1),
    )
    to_lane = {"y": down("top:Q"), "y2": alt.Y2("y:Q")}
    layers = [
        base.mark_rule(strokeWidth=2, color=GREY).encode(
            x=across("first:Q"), x2=alt.X2("last:Q"), y=down("top:Q")
        ),
        # down where the worker was sent the model, along until the gradient is applied, and up again
        base.mark_rule(color=GREY, strokeDash=[2, 2]).encode(x=across("base:Q"), **to_lane),
        base.mark_rule(strokeWidth=1).encode(x=across("node:Q"), color=colour, **to_lane),
        base.mark_rule(strokeWidth=5).encode(
            x=across("base:Q"), x2=alt.X2("node:Q"), y=down("y:Q"), color=colour
        ),
        base.mark_circle(size=70, opacity=1).encode(x=across("node:Q"), y=down("y:Q"), color=colour),
        base.mark_circle(size=50, opacity=1, color=BLUE).encode(x=across("node:Q"), y=down("top:Q")),
    ]
    described = f"{title}: {len(table)} gradients of {len(workers)} workers, each from where it was taken"
    return layered(layers, data, title, described, 40 * len(names))
