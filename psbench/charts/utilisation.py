"""Charts of the activity of workers, servers and links over time."""

from __future__ import annotations

import altair as alt

from psbench.charts.colours import BLUE, GREEN, ORANGE, PHASE_COLOURS
from psbench.charts.names import TITLES
from psbench.charts.pieces import framed, tooltips
from psbench.charts.source import Data, source
from psbench.charts.ticks import time_axis, value_axis

#: series that count workers and cores, with their colours, and those that count bytes a second
WORK = {"computing": BLUE, "sending": ORANGE, "cpu_workers": GREEN, "cpu_servers": "#C2418A"}
TRAFFIC = {"up": PHASE_COLOURS["send"], "down": PHASE_COLOURS["pull"]}
_NAMES = {
    "sending": "sending or receiving",
    "cpu_workers": "CPU, workers",
    "cpu_servers": "CPU, server",
}


def utilisation_chart(data: Data, title: str = TITLES["utilisation"]) -> alt.Chart:
    """Draw how many workers compute and send, and how many cores live processes use, over time.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `time_s`, `width_s`, `series` (of `WORK`), `value`.
    title : str
    """
    return _steps(data, WORK, "workers, or cores", "~g", title)


def traffic_over_time_chart(data: Data, title: str = TITLES["traffic"]) -> alt.Chart:
    """Draw the bytes a second that travel up and down, over time.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `time_s`, `width_s`, `series` (of `TRAFFIC`), `value`.
    title : str
    """
    return _steps(data, TRAFFIC, "bytes a second", "~s", title)


def _steps(data: Data, colours: dict[str, str], y: str, form: str, title: str) -> alt.Chart:
    names = [_NAMES.get(name, name) for name in colours]
    known = {name for name in colours if isinstance(data, str) or name in set(data["series"])}
    shown = [name for name, series in zip(names, colours, strict=True) if series in known]
    scale = alt.Scale(domain=shown, range=[colours[series] for series in colours if series in known])
    words = "{" + ", ".join(f"{series!r}: {_NAMES.get(series, series)!r}" for series in colours) + "}"
    chart = (
        alt.Chart(source(data))
        .transform_calculate(look=f"{words}[datum.series]")
        .mark_line(interpolate="step", strokeWidth=1.5, clip=True)
        .encode(
            x=alt.X("time_s:Q", title="time", axis=time_axis(data, "time_s")),
            y=alt.Y("value:Q", title=y, axis=value_axis(form, tickCount=5)),
            color=alt.Color("look:N", scale=scale, legend=alt.Legend(title=None)),
            tooltip=tooltips("look:N", "time_s:Q .5~r", "width_s:Q .3~r", "value:Q .4~r"),
        )
    )
    return framed(chart, title, f"{title} over time: means of equal intervals")
