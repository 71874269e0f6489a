"""Updates of a model in shared memory that others have written over, over time."""

from __future__ import annotations

import altair as alt

from psbench.charts.colours import BLUE
from psbench.charts.names import TITLES
from psbench.charts.pieces import layered, tooltips
from psbench.charts.source import Data


def lost_updates_chart(data: Data, title: str = TITLES["lost_updates"]) -> alt.LayerChart:
    """Draw how many updates were written along a run, and how many of them were lost.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        As `metrics.lost_updates` returns it.
    """
    base = alt.Chart().encode(x=alt.X("time_s:Q", title="time (s)"))
    written = base.mark_area(opacity=0.25, color=BLUE, interpolate="step-after").encode(
        y=alt.Y("written_so_far:Q", title="updates")
    )
    lost = base.mark_line(color=BLUE, interpolate="step-after").encode(
        y=alt.Y("lost_so_far:Q"),
        tooltip=tooltips("time_s:Q .4g", "worker:O", "lost:Q .3g", "lost_so_far:Q .4g", "written_so_far:Q"),
    )
    return layered([written, lost], data, title, f"{title}: a line, and an area of all updates")
