"""The report of a validation: its table, and of each strategy the timelines and quantiles of run and twin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psbench.charts import Figure, timeline_chart, window
from psbench.core.log import Kind
from psbench.errors import DataError
from psbench.metrics import timeline
from psbench.results.html import page
from psbench.results.run import Run
from psbench.system.files import atomic_write
from psbench.twin.exchanges import exchanges_of
from psbench.twin.validate import LiveAndTwin, Validation

#: quantiles of each distribution, and spans of each timeline
_QUANTILES, _SPANS = 40, 160
_HOW = "Points on the line: as often as long. Above it the twin's are longer."


def write_report(found: Validation, path: Path) -> Path:
    """Write the report as one HTML file, whole or not at all, and return its path."""
    reasons = sorted({reason for cell in found.cells for reason in cell.idle_by_reason})
    text = page(
        "twin.html",
        title="Live runs and their twins",
        abstract=[
            f"Load before: {found.load:.2f} a core; {found.seconds:.0f} s of live runs. Idle in points of a "
            "hundred, staleness as Wasserstein distance in versions."
        ],
        cells=(list(_HEADINGS), [_cells(cell, found) for cell in found.cells]),
        verdicts=[*found.verdicts(), *(f"not obtained: {n}: {why}" for n, why in found.failed.items())],
        replays=(["strategy", "error"], [[n, f"{error:+.3%}"] for n, error in found.replays.items()]),
        reasons=(
            ["strategy", *reasons],
            [
                [cell.name, *(f"{cell.idle_by_reason.get(reason, 0.0):+.1f}" for reason in reasons)]
                for cell in found.cells
            ],
        ),
        pairs={name: list(_figures(*pair)) for name, pair in found.pairs.items()},
    )
    with atomic_write(path) as file:
        file.write(text.encode())
    return path


_HEADINGS = (
    *("strategy", "part", "s an update, live", "twin", "error", "allowed", "noise", "to target"),
    *("idle", "staleness", "largest", "bytes", "in the band"),
)


def _cells(cell: LiveAndTwin, found: Validation) -> list[str]:
    target = "" if cell.target_error is None else f"{cell.target_error:+.1%}"
    return [
        *(cell.name, cell.part, f"{cell.live_s:.4g}", f"{cell.predicted_s:.4g}", f"{cell.error:+.1%}"),
        *(f"{found.allowed(cell):.1%}", f"{cell.noise:.1%}", target, f"{cell.idle_points:+.1f}"),
        *(f"{cell.staleness_distance:.2f}", f"{cell.staleness_max:+d}"),
        *("exact" if cell.bytes_equal else "differ", f"{cell.covered:.0%}"),
    ]


def _figures(live: Run, twin: Run) -> Iterator[Figure]:
    """Yield the timelines of a run and its twin over the same seconds, and quantiles against quantiles."""
    spans = [window(timeline(run.log), limit=_SPANS) for run in (live, twin)]
    end = min(float(each["end_s"].max()) for each in spans)
    for each, name in zip(spans, ("live", "twin"), strict=True):
        shown = each[each["start_s"] < end].assign(end_s=each["end_s"].clip(upper=end))
        yield Figure(timeline_chart(shown, f"the first {end:.2g} s, {name}"), shown)
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


def _distributions(run: Run) -> dict[str, NDArray[np.float64]]:
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
    """Draw the quantiles of `quantiles`, one panel for each distribution, with the line of equal ones."""
    scale = alt.Scale(zero=False, type="log")
    base = alt.Chart().encode(x=alt.X("live_s:Q", title="live (s)", scale=scale))
    points = base.mark_point(filled=True, size=24).encode(
        y=alt.Y("twin_s:Q", title="twin (s)", scale=scale),
        tooltip=[
            alt.Tooltip("what:N"),
            alt.Tooltip("share:Q", format=".0%"),
            alt.Tooltip("live_s:Q"),
            alt.Tooltip("twin_s:Q"),
        ],
    )
    equal = base.mark_line(strokeDash=[4, 3], color="gray").encode(y=alt.Y("live_s:Q", scale=scale))
    layers = alt.layer(equal, points).properties(width=150, height=130)
    return (
        layers.facet(column=alt.Column("what:N", title=None), data=table)
        .resolve_scale(x="independent", y="independent")
        .properties(title="quantiles", description="Quantiles of the twin against those of the live run")
    )
