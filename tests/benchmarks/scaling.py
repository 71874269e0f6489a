"""How speed grows with workers, servers and models: live and simulated, drawn in build/scaling.html.

It takes minutes, so it is not among the rows that run without a name.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import psutil
import torch

from psbench.core.log import EventLog, Kind
from psbench.experiment import Experiment
from tests.benchmarks.live import cpu_s, steps_a_second
from tests.benchmarks.measure import Row, Rows
from tests.benchmarks.simulated_events import seconds_a_row, workload

PICTURE = Path("build/scaling.html")
_BY_WORKERS, _BY_PARAMETERS = "live steps/s by workers", "live steps/s by parameters"
_SIMULATED, _LIMIT = "simulated us a row by workers", "memory copies"
_CORES = len(os.sched_getaffinity(0))
#: seconds over which the cores' use is taken, and the share from which on they are what limits
_LEAST_S, _ALL_BUSY = 0.2, 0.85
_BYTES = ", with bytes and arithmetic, which grow as the model"
WORKERS, SERVERS, BATCH = (1, 2, 4, 8, 16), (1, 2, 4), 32
#: neurons of the hidden layers of an MLP on digits, for 0.1 to 25 million parameters
WIDTHS = {100_000: (1_300,), 1_000_000: (960, 960), 5_000_000: (2_190, 2_190), 25_000_000: (4_960, 4_960)}
#: workers of a simulated run, and the steps of each: enough that a run's beginning does not count
SIMULATED, STEPS = (10, 100, 1_000, 10_000), 50


def _live(workers: int, servers: int, hidden: tuple[int, ...], steps: int) -> tuple[float, float, float]:
    """Return the steps a second, and the shares of the cores that the run and all programs used meanwhile."""
    placement = {"name": "parameter_server", "servers": servers}
    busy = _Busy()
    speed = steps_a_second(
        Experiment(
            data="digits",
            model={"name": "mlp", "hidden": hidden},
            strategy={"name": "asp", "placement": placement},
            backend="dask",
            batch_size=workers * BATCH,
            cluster={"name": "homogeneous", "workers": workers},
            stop={"updates": steps},
            evaluate_every=1e9,
            optimizer={"name": "sgd", "lr": 0.01},
        ),
        Kind.PUSH,
        observer=busy.look,
    )
    return speed, busy.share, busy.share_of_all


class _Busy:
    """Which shares of the cores this program and all programs use between the first push and the last."""

    def __init__(self) -> None:
        self._first: tuple[float, float, float] | None = None
        self.share = self.share_of_all = math.nan  # until there are enough seconds to tell

    def look(self, log: EventLog) -> None:
        """Take note of the time and the CPU seconds; for an observer."""
        times = psutil.cpu_times()
        now = time.perf_counter(), cpu_s(), sum(times) - times.idle - times.iowait
        if self._first is None:
            self._first = now if len(log.of_kind(Kind.PUSH)) else None
        elif (passed := now[0] - self._first[0]) > _LEAST_S:
            own, everybodys = (n - before for n, before in zip(now[1:], self._first[1:], strict=True))
            self.share, self.share_of_all = own / passed / _CORES, everybodys / passed / _CORES


def _copies_a_second(parameters: int) -> float:
    """Return how many steps a second the copies of memory that a step needs would allow.

    Loading a model and sending a gradient each copy the vector into a socket and out of it, and the server
    adds it up: five passes, which the cores share.
    """
    vector, other = torch.zeros(parameters), torch.ones(parameters)
    began, repeats = time.perf_counter(), max(1, 50_000_000 // parameters)
    for _ in range(repeats):
        vector.copy_(other)
    return _CORES / (5 * (time.perf_counter() - began) / repeats)


def points() -> list[dict[str, Any]]:
    """Measure every point, and return them as rows of a table."""
    return [*_by_workers(), *_by_parameters(), *_simulated()]


def _by_workers() -> Iterator[dict[str, Any]]:
    for servers in SERVERS:
        for workers in WORKERS:
            yield _point(
                _BY_WORKERS, workers, f"servers: {servers}", *_live(workers, servers, (64,), 400 * workers)
            )
    limit = _copies_a_second(4_810)
    for workers in (WORKERS[0], WORKERS[-1]):
        yield _point(_BY_WORKERS, workers, _LIMIT, limit)


def _by_parameters() -> Iterator[dict[str, Any]]:
    for parameters, hidden in WIDTHS.items():
        steps = max(50, 100_000_000 // parameters)  # about a second or more
        yield _point(_BY_PARAMETERS, parameters, "2 workers", *_live(2, 1, hidden, steps))
        yield _point(_BY_PARAMETERS, parameters, _LIMIT, _copies_a_second(parameters))


def _simulated() -> Iterator[dict[str, Any]]:
    for strategy in ("asp", "bsp", "ssp"):
        for workers in SIMULATED:
            given = workload(strategy, workers, max(20_000, STEPS * workers))
            yield _point(_SIMULATED, workers, strategy, 1e6 * seconds_a_row(given))


def _point(
    picture: str, x: float, line: str, y: float, own: float = math.nan, everybodys: float = math.nan
) -> dict[str, Any]:
    return {"picture": picture, "x": x, "line": line, "y": y, "own": own, "everybodys": everybodys}


def bend(picture: str, part: pd.DataFrame) -> str:
    """Say where a line leaves what is ideal by a factor of two, and why.

    Ideal is a speed that grows as the number of workers, a cost that does not, and as many steps a second
    whatever the model's size.

    Parameters
    ----------
    part : table
        The points of one line by increasing x: x, y, and the shares of the cores, own and everybodys.
    """
    first = part.iloc[0]
    ideal = first.y * part.x / first.x if picture == _BY_WORKERS else first.y
    short = part.y / ideal if picture == _SIMULATED else ideal / part.y
    over = part[short > 2]
    if over.empty:
        return "does not bend"
    return f"bends before {over.x.iloc[0]:,.0f}: {_why(picture, over.iloc[0])}"


def _why(picture: str, at: Any) -> str:
    if picture == _SIMULATED:
        return "the heap is larger, and garbage is searched for among more objects"
    if math.isnan(at.everybodys):
        return "the run was too short to see what limits it"
    busy = f"{_CORES} cores are {at.everybodys:.0%} busy there, {at.own:.0%} with the run"
    if at.everybodys <= _ALL_BUSY:
        return f"processes wait for each other; {busy}"
    return busy + _BYTES * (picture == _BY_PARAMETERS)


def draw(table: pd.DataFrame) -> alt.Chart:
    """Return one picture of each kind, side by side, on logarithmic axes, under what bends where."""
    axis = alt.Scale(type="log")
    line = alt.Chart(table).mark_line(point=True)
    line = line.encode(
        alt.X("x:Q", scale=axis, title=None), alt.Y("y:Q", scale=axis, title=None), alt.Color("line:N")
    )
    faceted: Any = line.properties(width=280, height=220).facet("picture:N", columns=3)
    words = [f"{picture}, {name}: {said}" for (picture, name), said in _bends(table).items()]
    title = alt.TitleParams("How speed grows", subtitle=words)
    return faceted.properties(title=title).resolve_scale(
        x="independent", y="independent", color="independent"
    )


def _bends(table: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return what is said of each line, but of the limits."""
    lines = table[table.line != _LIMIT].groupby(["picture", "line"], sort=False)
    return {(picture, name): bend(picture, part) for (picture, name), part in lines}


def run() -> Rows:
    """Measure, draw, and give the ends of each line and where it bends."""
    table = pd.DataFrame(points())
    PICTURE.parent.mkdir(exist_ok=True)
    draw(table).save(str(PICTURE), inline=True)
    return [_row(table, picture, line, said) for (picture, line), said in _bends(table).items()]


def _row(table: pd.DataFrame, picture: str, line: str, said: str) -> Row:
    part = table[(table.picture == picture) & (table.line == line)]
    first, last = part.iloc[0], part.iloc[-1]
    ours, other = (f"{each.y:,.4g} at {each.x:,.0f}" for each in (last, first))
    return Row(f"{picture}, {line}; {said}", ours, other, last.y / first.y)
