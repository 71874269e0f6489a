"""The report of a validation: its table, and each strategy's timelines and quantiles of run and twin."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from psbench.arrays import Doubles
from psbench.charts import Figure, timeline_chart, window
from psbench.core.log import Kind
from psbench.errors import DataError
from psbench.metrics import timeline
from psbench.percents import percent
from psbench.results.html import page
from psbench.results.run import Run
from psbench.system.files import write_text
from psbench.twin.exchanges import exchanges_of
from psbench.twin.validation import LiveAndTwin, Validation

#: quantiles of each distribution, and spans of each timeline
_QUANTILES, _SPANS = 40, 160
#: pixels of a panel of quantiles: two of them stand side by side in half of the page
_PANEL = 178, 92
_HOW = "On the line the distributions are equal; above it the twin's times are longer."


def write_report(found: Validation, path: Path) -> Path:
    """Write the report as one HTML file atomically, and return its path."""
    reasons = sorted({reason for cell in found.cells for reason in cell.idle_by_reason})
    text = page(
        "twin.html",
        title="Live runs and their twins",
        abstract=[
            f"Load before: {found.load:.2f} a core; {found.seconds:.0f} s of live runs; "
            f"{found.fit_in_words}. Waiting in points of a hundred, staleness as Wasserstein distance in "
            "versions."
        ],
        cells=(list(_HEADINGS), [_cells(cell, found) for cell in found.cells]),
        verdicts=[*found.verdicts(), *(f"not obtained: {n}: {why}" for n, why in found.failed.items())],
        replays=(
            ["strategy", "error"],
            [[n, percent(error, 3, "+")] for n, error in found.replays.items()],
        ),
        reasons=(
            ["strategy", *reasons],
            [
                [cell.name, *(f"{cell.idle_by_reason.get(reason, 0.0):+.1f}" for reason in reasons)]
                for cell in found.cells
            ],
        ),
        pairs={name: list(_figures(*pair)) for name, pair in found.pairs.items()},
    )
    return write_text(path, text)


_HEADINGS = (
    *("strategy", "part", "s an update, live", "twin", "error", "allowed", "noise", "to target"),
    *("waiting", "staleness", "largest", "bytes", "in the band"),
)


def _cells(cell: LiveAndTwin, found: Validation) -> list[str]:
    target = "" if cell.target_error is None else percent(cell.target_error, 1, "+")
    return [
        *(
            cell.name,
            cell.part,
            f"{cell.live_s:.4g}",
            f"{cell.predicted_s:.4g}",
            percent(cell.error, 1, "+"),
        ),
        *(
            percent(found.allowed(cell), 1),
            percent(cell.noise, 1),
            target,
            f"{cell.idle_points:+.1f}",
        ),
        *(f"{cell.staleness_distance:.2f}", f"{cell.staleness_max:+d}"),
        *("exact" if cell.bytes_equal else "differ", percent(cell.covered)),
    ]


def _figures(live: Run, twin: Run) -> Iterator[Figure]:
    """Yield the timelines of a run and its twin, and a quantile-quantile plot."""
    spans = [window(timeline(run.log), limit=_SPANS) for run in (live, twin)]
    end = min(float(each["end_s"].max()) for each in spans)
    named = [
        each[each["start_s"] < end].assign(worker=name + " " + each["worker"].astype(str))
        for each, name in zip(spans, ("live", "twin"), strict=True)
    ]
    both = pd.concat(named, ignore_index=True)
    both["end_s"] = both["end_s"].clip(upper=end)
    yield Figure(timeline_chart(both, f"the first {end:.2g} s"), both)
    table = quantiles(live, twin)
    yield Figure(quantile_chart(table), table, _HOW)


def quantiles(live: Run, twin: Run) -> pd.DataFrame:
    """Return the same quantiles of both runs' steps, messages and times between versions.

    Returns
    -------
    DataFrame
        `what`, `share` (0 to 1), `live_s`, `twin_s`.
    """
    both, shares = [_distributions(run) for run in (live, twin)], np.linspace(0.02, 0.98, _QUANTILES)
    frames = [
        pd.DataFrame(
            {"what": what, "share": shares}
            | {
                name: np.quantile(each[what], shares)
                for name, each in zip(("live_s", "twin_s"), both, strict=True)
            }
        )
        for what in both[0]
        if what in both[1]
    ]
    return pd.concat(frames, ignore_index=True)


def _distributions(run: Run) -> dict[str, Doubles]:
    made = run.log.of_kind(Kind.APPLY)
    times = made["time_s"][np.unique(made["version"], return_index=True)[1]]
    found = {"between versions": np.diff(times)} if len(times) > 1 else {}
    try:
        each = exchanges_of(run.log).settled()
    except DataError:  # workers that compute while they send
        return found
    parts = {"step": each.compute_s, "push": each.up_s, "answer": each.down_s}
    return found | {name: values for name, values in parts.items() if len(values)}


def quantile_chart(table: pd.DataFrame) -> Any:
    """Draw `quantiles`, one panel for each distribution, with the line of equality."""
    panels = [_panel(each, str(what)) for what, each in table.groupby("what", sort=False)]
    found: alt.ConcatChart = alt.concat(*panels, columns=2, spacing=14)
    return found.properties(
        title="quantiles", description="Quantiles of the twin against those of the live run"
    )


def _panel(rows: pd.DataFrame, what: str) -> alt.LayerChart:
    values = rows[["live_s", "twin_s"]].assign(share=rows["share"])
    values[["live", "twin"]] = 1e3 * values[["live_s", "twin_s"]]
    # of both axes the same, so that the line of equal ones is the diagonal
    low, high = float(values[["live", "twin"]].min().min()), float(values[["live", "twin"]].max().max())
    scale = alt.Scale(type="log", domain=[0.9 * low, 1.1 * high], nice=False)
    axis = alt.Axis(values=few_marks(low, high), format=".3~r", labelOverlap=True)
    x = alt.X("live:Q", title=f"{what}, live (ms)", scale=scale, axis=axis)
    tooltip = [
        alt.Tooltip("share:Q", format=".0%"),
        *(alt.Tooltip(f"{name}:Q", title=f"{name} (ms)", format=".4~r") for name in ("live", "twin")),
    ]
    base = alt.Chart().encode(x=x)
    y = alt.Y("twin:Q", title="twin (ms)", scale=scale, axis=axis)
    points = base.mark_point(filled=True, size=20).encode(y=y, tooltip=tooltip)
    line = pd.DataFrame({"live": [0.9 * low, 1.1 * high], "twin": [0.9 * low, 1.1 * high]})
    equal = alt.Chart(line).mark_line(strokeDash=[4, 3], color="gray", strokeWidth=1).encode(x=x, y=y)
    kept = values[["share", "live", "twin"]]
    return alt.LayerChart(layer=[equal, points], data=kept, width=_PANEL[0], height=_PANEL[1])


def few_marks(low: float, high: float) -> list[float]:
    """Return two to four legible ticks for the range of a logarithmic axis.

    >>> few_marks(0.3, 40.0), few_marks(41.0, 55.0)
    ([1.0, 10.0], [41.0, 55.0])
    """
    for steps in ((1,), (1, 5), (1, 2, 5)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [step * 10.0**power for power in powers for step in steps]
        found = [each for each in found if low <= each <= high]
        if len(found) >= 2:
            return found[:: -(-len(found) // 4)]
    return [float(f"{each:.2g}") for each in (low, high)]
