"""How speed grows with workers, servers and models: live and simulated, drawn in build/scaling.html.

It takes minutes, so it is not among the rows that run without a name.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import torch

from psbench.core.log import Kind
from psbench.experiment import Experiment
from tests.benchmarks.live import steps_a_second
from tests.benchmarks.measure import Row, Rows
from tests.benchmarks.simulated_events import seconds_a_row, workload

PICTURE = Path("build/scaling.html")
WORKERS, SERVERS, BATCH = (1, 2, 4, 8, 16), (1, 2, 4), 32
#: neurons of the hidden layers of an MLP on digits, for 0.1 to 25 million parameters
WIDTHS = {100_000: (1_300,), 1_000_000: (960, 960), 5_000_000: (2_190, 2_190), 25_000_000: (4_960, 4_960)}
SIMULATED = (10, 100, 1_000, 10_000)


def _live(workers: int, servers: int, hidden: tuple[int, ...], steps: int) -> float:
    placement = {"name": "parameter_server", "servers": servers}
    return steps_a_second(
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
    )


def _copies_a_second(parameters: int) -> float:
    """Return how many steps a second the copies of memory that a step needs would allow.

    Loading a model and sending a gradient each copy the vector into a socket and out of it, and the server
    adds it up: five passes, which the cores share.
    """
    vector, other = torch.zeros(parameters), torch.ones(parameters)
    began, repeats = time.perf_counter(), max(1, 50_000_000 // parameters)
    for _ in range(repeats):
        vector.copy_(other)
    return len(os.sched_getaffinity(0)) / (5 * (time.perf_counter() - began) / repeats)


def points() -> list[dict[str, Any]]:
    """Measure every point, and return them as rows of a table."""
    found: list[dict[str, Any]] = []
    limit = _copies_a_second(4_810)
    for servers in SERVERS:
        for workers in WORKERS:
            speed = _live(workers, servers, (64,), 400 * workers)
            found.append(_point("live steps/s by workers", workers, f"{servers} servers", speed))
    found += [_point("live steps/s by workers", n, "memory copies", limit) for n in (WORKERS[0], WORKERS[-1])]
    for parameters, hidden in WIDTHS.items():
        speed = _live(2, 1, hidden, max(20, 20_000_000 // parameters))
        found.append(_point("live steps/s by parameters", parameters, "2 workers", speed))
        limit = _copies_a_second(parameters)
        found.append(_point("live steps/s by parameters", parameters, "memory copies", limit))
    for strategy in ("asp", "bsp", "ssp"):
        for workers in SIMULATED:
            given = workload(strategy, workers, max(20_000, 10 * workers))
            cost = 1e6 * seconds_a_row(given)
            found.append(_point("simulated us a row by workers", workers, strategy, cost))
    return found


def _point(picture: str, x: float, line: str, y: float) -> dict[str, Any]:
    return {"picture": picture, "x": x, "line": line, "y": y}


def draw(table: pd.DataFrame) -> alt.Chart:
    """Return one picture of each kind, side by side, on logarithmic axes."""
    axis = alt.Scale(type="log")
    line = alt.Chart(table).mark_line(point=True)
    line = line.encode(
        alt.X("x:Q", scale=axis, title=None), alt.Y("y:Q", scale=axis, title=None), alt.Color("line:N")
    )
    faceted: alt.Chart = line.properties(width=280, height=220).facet("picture:N", columns=3)
    return faceted.resolve_scale(x="independent", y="independent", color="independent")


def run() -> Rows:
    """Measure, draw, and give the ends of each line."""
    table = pd.DataFrame(points())
    PICTURE.parent.mkdir(exist_ok=True)
    draw(table).save(str(PICTURE), inline=True)
    rows: Rows = []
    for (picture, line), part in table.groupby(["picture", "line"]):
        first, last = part.iloc[0], part.iloc[-1]
        ours, other = (f"{each.y:,.4g} at {each.x:,.0f}" for each in (last, first))
        rows.append(Row(f"{picture}: {line}", ours, other, last.y / first.y))
    return rows
