"""Sequence diagram: workers and server as lines, messages as strokes between them."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from psbench import metrics
from psbench.arrays import Booleans, Doubles
from psbench.charts.colours import GREEN, PHASE_COLOURS
from psbench.charts.names import DOING, TITLES
from psbench.charts.pieces import layered, tooltips
from psbench.charts.source import Data
from psbench.core.log import EventLog, Kind

#: what is drawn, in the order of the legend, and its colour
PARTS = {
    "compute": PHASE_COLOURS["compute"],
    "send": PHASE_COLOURS["send"],
    "pull": PHASE_COLOURS["pull"],
    "wait": PHASE_COLOURS["wait"],
    "cancelled": PHASE_COLOURS["cancelled"],
    "lost": PHASE_COLOURS["cancelled"],
}
_LABEL = f"{DOING}[datum.label] || datum.label"
#: labels nearer than this share of the width would overlap
_NARROW = 0.04
_BAR = 0.26  # half the height of a bar, in lines
#: messages are strokes between two lines, what a worker does is a bar on its own
_LOOKS: dict[str, dict[str, Any]] = {
    "wait": {"strokeWidth": 15},
    "compute": {"strokeWidth": 15},
    "cancelled": {"strokeWidth": 5},
    "pull": {"strokeWidth": 1.5},
    "send": {"strokeWidth": 1.5},
    "lost": {"strokeWidth": 1.5, "strokeDash": [3, 3]},
}


def sequence_table(log: EventLog, stop_s: float) -> pd.DataFrame:
    """Return the marks of a sequence diagram, up to `stop_s`.

    Returns
    -------
    DataFrame
        `what` (one of `PARTS`, or "version"), `worker`, `from_s`, `to_s`, `y`, `y2` (lines: 0 is the server,
        worker w is w + 1), `note` (of a wait its reason, of a push what became of it, of a version its
        number), `label` (the number again, where there is room for it). A push that is discarded is "lost".

    Source
    ------
    The form of the diagrams in thesis Figs. 3.3 and 3.4.
    """
    spans = metrics.timeline(log).rename(columns={"phase": "what", "start_s": "from_s", "end_s": "to_s"})
    spans = spans[spans["from_s"] < stop_s]
    what = spans["what"].astype(str)
    line = spans["worker"] + 1.0
    up, down = what == "send", what == "pull"
    table = spans[["worker", "from_s", "to_s"]].assign(
        what=what,
        y=np.where(down, 0.0, np.where(up, line - _BAR, line)),
        y2=np.where(up, 0.0, np.where(down, line - _BAR, line)),
        note=spans["reason"].astype(str),
    )
    table = _with_fates(table, log)
    table["to_s"] = table["to_s"].clip(upper=stop_s)
    return pd.concat([table, _versions(log, stop_s)], ignore_index=True)


def _with_fates(table: pd.DataFrame, log: EventLog) -> pd.DataFrame:
    """Add to each push whether it was applied, and in which version."""
    pushes = metrics.pushes(log)
    found = {
        (worker, time_s): (str(fate), "" if pd.isna(version) else f"in version {version}, staleness {stale}")
        for worker, time_s, fate, version, stale in zip(
            *(pushes[name] for name in ("worker", "time_s", "fate", "version", "staleness")), strict=True
        )
    }
    sent = table["what"] == "send"
    keys = list(zip(table.loc[sent, "worker"], table.loc[sent, "to_s"], strict=True))
    fates = [found.get(key, ("under way", "")) for key in keys]
    table.loc[sent, "note"] = [said or fate for fate, said in fates]
    table.loc[sent, "what"] = ["lost" if fate == "discarded" else "send" for fate, _ in fates]
    return table


def _versions(log: EventLog, stop_s: float) -> pd.DataFrame:
    rows = log.of_kind(Kind.APPLY)
    made, first = np.unique(rows["version"], return_index=True)
    at = rows["time_s"][first]
    frame = pd.DataFrame({"what": "version", "worker": -1, "from_s": at, "to_s": at, "y": 0.0, "y2": 0.0})
    frame["note"] = [f"w{version}" for version in made.tolist()]
    frame = frame[frame["from_s"] < stop_s]
    named = _apart(frame["from_s"].to_numpy(), _NARROW * stop_s)
    return frame.assign(label=frame["note"].where(named, ""))


def _apart(at: Doubles, gap: float) -> Booleans:
    """Return a mask of the ordered positions that are at least `gap` after the last selected one.

    >>> _apart(np.array([0.0, 1.0, 1.5, 2.0]), 1.0).tolist()
    [True, True, False, True]
    """
    chosen, last = [], -np.inf
    for place in at.tolist():
        chosen.append(place - last >= gap)
        last = place if chosen[-1] else last
    return np.array(chosen, dtype=bool)


def sequence_chart(data: Data, num_workers: int, title: str = TITLES["sequence"]) -> alt.LayerChart:
    """Draw a sequence diagram.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        As `sequence_table` returns it.
    num_workers : int
    title : str
    """
    names = "['server', " + ", ".join(f"'worker {w}'" for w in range(num_workers)) + "]"
    axis = alt.Axis(
        grid=True,
        ticks=False,
        domain=False,
        values=list(range(num_workers + 1)),
        labelExpr=f"{names}[datum.value]",
        labelPadding=8,
    )
    seen = [what for what in PARTS if isinstance(data, str) or what in set(data["what"])]
    colour = alt.Color(
        "what:N",
        scale=alt.Scale(domain=seen, range=[PARTS[what] for what in seen]),
        legend=alt.Legend(title=None, symbolType="stroke", symbolStrokeWidth=5, labelExpr=_LABEL),
    )
    base = alt.Chart().encode(
        x=alt.X("from_s:Q", title="time (s)", axis=alt.Axis(grid=False), scale=alt.Scale(nice=False)),
        y=alt.Y(
            "y:Q",
            title=None,
            axis=axis,
            scale=alt.Scale(domain=[-0.7, num_workers + 0.4], reverse=True, nice=False, zero=False),
        ),
        tooltip=tooltips("what:N", "worker:O", "note:N", "from_s:Q .5~r"),
    )
    layers = [
        _only(base, what).mark_rule(**look).encode(x2=alt.X2("to_s:Q"), y2=alt.Y2("y2:Q"), color=colour)
        for what, look in _LOOKS.items()
        if what in seen
    ]
    version = _only(base, "version")
    layers.append(version.mark_point(filled=True, size=36, opacity=1, color=GREEN))
    layers.append(version.mark_text(dy=-11, fontWeight=600).encode(text=alt.Text("label:N")))
    # larger than the bar that it ends, which has its colour
    end = _only(base, "cancelled").transform_calculate(from_s="datum.to_s")
    cross = end.mark_point(shape="M-1,-1L1,1M1,-1L-1,1", size=140, strokeWidth=2.5)
    layers.append(cross.encode(color=colour))
    described = f"{title}: computing, waiting and messages of {num_workers} workers and the server"
    return layered(layers, data, title, described, 44 * (num_workers + 1))


def _only(base: alt.Chart, what: str) -> alt.Chart:
    chosen: alt.Chart = base.transform_filter(alt.datum.what == what)
    return chosen
