"""Charts of the activity of workers, servers and links over time."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from psbench.charts.colours import BLUE, GREEN, ORANGE, PHASE_COLOURS
from psbench.charts.names import TITLES
from psbench.charts.pieces import framed, tooltips
from psbench.charts.source import Data, labels_in, source
from psbench.charts.ticks import time_axis, value_axis

#: series that count workers and cores, with their colours, and those that count bytes a second
WORK = {"computing": BLUE, "sending": ORANGE, "cpu_workers": GREEN, "cpu_servers": "#C2418A"}
TRAFFIC = {"up": PHASE_COLOURS["send"], "down": PHASE_COLOURS["pull"]}
_NAMES = {
    "sending": "sending or receiving",
    "cpu_workers": "CPU, workers",
    "cpu_servers": "CPU, server",
}


def utilisation_chart(
    data: Data, series: Sequence[str] | None = None, title: str = TITLES["utilisation"]
) -> alt.Chart:
    """Draw how many workers compute and send, and how many cores live processes use, over time.

    Parameters
    ----------
    data : DataFrame or name of a streamed data set
        Columns `time_s`, `width_s`, `series` (of `WORK`), `value`.
    series : sequence of str, optional
        Those that streamed data have; by default all.
    title : str
    """
    if series is None:
        series = [*WORK] if isinstance(data, str) else labels_in(data, None, "series")
    shown = {name: colour for name, colour in WORK.items() if name in series}
    return _steps(data, shown, "workers, or cores", "~r", title)


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
    scale = alt.Scale(domain=[_NAMES.get(name, name) for name in colours], range=[*colours.values()])
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
