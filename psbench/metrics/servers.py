"""Utilisation of servers, and entries moved between them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from psbench.core.log import EventLog, Kind
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd

_LOAD = "server_load:"


def server_loads(log: EventLog) -> pd.DataFrame:
    """Return each server's busy time between consecutive measurements.

    Returns
    -------
    DataFrame
        `look` (from 1), `time_s`, `server`, `load_s`, `relative` (to the servers' mean at that look; 1 if
        none was busy). Empty if the load was not measured.
    """
    found = log.of_kind(Kind.MEASURED)
    seen = zip(found["time_s"].tolist(), (json.loads(log.text(n)) for n in found["text"]), strict=True)
    looks = [(at, _loads(facts)) for at, facts in seen if f"{_LOAD}0" in facts]
    rows = [
        (look, at, server, load, load * len(loads) / sum(loads) if sum(loads) else 1.0)
        for look, (at, loads) in enumerate(looks, start=1)
        for server, load in enumerate(loads)
    ]
    return table(rows, columns=["look", "time_s", "server", "load_s", "relative"])


def reassignments(log: EventLog, entry_bytes: int = 4) -> list[dict[str, Any]]:
    """Return the moves of entries between servers, with their times.

    Parameters
    ----------
    log : EventLog
    entry_bytes : int
        What is kept of an entry: the parameter, and what the optimizer remembers.

    Returns
    -------
    list of dict
        `time_s`, `version`, `moved` (entries), `bytes`, `entries` (by server, from then on), and the
        `imbalance` (busiest server over the mean) `before`, and `after` at the next look; None if there was
        none.
    """
    moved = log.of_kind(Kind.REASSIGN)
    if not len(moved["row"]):  # as in most runs, whose summaries need not look at loads
        return []
    worst = server_loads(log).groupby("look").agg(time_s=("time_s", "first"), worst=("relative", "max"))
    found = []
    for at, version, number in zip(moved["time_s"], moved["version"], moved["text"], strict=True):
        change = json.loads(log.text(number))
        before, after = worst[worst["time_s"] <= at]["worst"], worst[worst["time_s"] > at]["worst"]
        found.append(
            {
                "time_s": float(at),
                "version": int(version),
                "moved": change["moved"],
                "bytes": change["moved"] * entry_bytes,
                "entries": [sum(stop - start for start, stop in own) for own in change["ranges"]],
                "imbalance": {
                    "before": float(before.iloc[-1]) if len(before) else None,
                    "after": float(after.iloc[0]) if len(after) else None,
                },
            }
        )
    return found


def _loads(facts: dict[str, float]) -> list[float]:
    return [facts[f"{_LOAD}{server}"] for server in range(sum(name.startswith(_LOAD) for name in facts))]
