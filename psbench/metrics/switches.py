"""Changes of a run's strategy, and the values that the switch rule used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psbench.core.log import EventLog, Kind
from psbench.metrics.axes import Axes, AxisValues
from psbench.metrics.rows import Rows, pick, positions
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd

_RULE = re.compile(
    r"rule (?P<rule>\S+) value=(?P<value>\S+) threshold=(?P<threshold>\S+) epoch=(?P<epoch>\d+)"
)


def switches(log: EventLog, dataset_size: int, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the hand-overs of a run.

    Parameters
    ----------
    log : EventLog
    dataset_size : int, samples
    names : sequence of str
        What the compositions are called; without one its number is given.

    Returns
    -------
    list of dict
        `epoch` (samples applied over the size of the data), `time_s`, `version`, `bytes` (up and down, sent
        until then), `from`, `to`, `reason`, `cost_s` (of the hand-over itself).
    """
    rows = log.rows()
    if not len(positions(rows, Kind.HANDOVER)):  # as in most runs
        return []
    return switched(log, rows, Axes().read(rows), dataset_size, names)


def switched(
    log: EventLog, rows: Rows, at: AxisValues, dataset_size: int, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the hand-overs among rows of a log; see `switches`."""
    found = []
    for place in positions(rows, Kind.HANDOVER).tolist():
        row = rows[place]
        found.append(
            {
                "epoch": float(at.samples[place]) / dataset_size,
                "time_s": float(row["time_s"]),
                "version": int(row["version"]),
                "bytes": int(at.bytes[place]),
                "from": _name(names, int(row["steps"])),
                "to": _name(names, int(row["id"])),
                "reason": log.text(int(row["text"])),
                "cost_s": float(row["compute_s"]),
            }
        )
    return found


def rule_values(log: EventLog) -> pd.DataFrame:
    """Return the values that the switch rule computed, from its notes.

    Returns
    -------
    DataFrame
        `time_s`, `rule`, `epoch`, `value`, `threshold`; empty if the rule computes nothing.
    """
    notes = pick(log.rows(), Kind.NOTE)
    found = []
    for time_s, number in zip(notes["time_s"].tolist(), notes["text"].tolist(), strict=True):
        match = _RULE.fullmatch(log.text(number))
        if match:
            found.append(
                (time_s, match["rule"], int(match["epoch"]), float(match["value"]), float(match["threshold"]))
            )
    return table(found, columns=["time_s", "rule", "epoch", "value", "threshold"])


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else f"composition {index}"
