"""Pushes: what became of each, how stale it was, and whose were used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from psbench.core.log import EventLog, Kind
from psbench.errors import DataError
from psbench.metrics.rows import Array, Rows, categorical, optional, pick, workers_of
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd

FATES = ("committed", "discarded", "buffered")


def pushes(log: EventLog) -> pd.DataFrame:
    """Return one row per push, in the order of arrival.

    Returns
    -------
    DataFrame
        `push` (id), `worker`, `time_s` (arrival), `base_version`, `samples`, `steps`, `bytes`, `compute_s`,
        `send_s`, `loss`, `fate` (committed, discarded or buffered), and for committed pushes `applied_s`,
        `version` (that it made) and `staleness` (versions); these are NA or NaN for the others.

    Raises
    ------
    DataError
        If the log is not one of a run: a push applied that never arrived, or two with the same id.
    """
    rows = log.rows()
    push = pick(rows, Kind.PUSH)
    apply = pick(rows, Kind.APPLY)
    applied = _index_of(push["id"], apply["id"])
    discarded = _index_of(push["id"], pick(rows, Kind.DISCARD)["id"])
    fate = np.full(len(push), 2)
    fate[applied], fate[discarded] = 0, 1
    version = np.full(len(push), -1, dtype=np.int64)
    version[applied] = apply["version"]
    applied_s = np.full(len(push), np.nan)
    applied_s[applied] = apply["time_s"]
    named = {"push": "id", "base_version": "version"}
    columns = (
        "push",
        "worker",
        "time_s",
        "base_version",
        "samples",
        "steps",
        "bytes",
        "compute_s",
        "send_s",
        "loss",
    )
    frame = table({name: np.ascontiguousarray(push[named.get(name, name)]) for name in columns})
    frame["fate"] = categorical(fate, FATES)
    frame["applied_s"] = applied_s
    missing = version < 0
    frame["version"] = optional(version, missing)
    frame["staleness"] = optional(version - 1 - push["version"], missing)
    return frame


def staleness(log: EventLog) -> pd.DataFrame:
    """Return the staleness of every committed push, in the order applied.

    Versions made between the push's base version and its own application; 0 is fresh.

    Returns
    -------
    DataFrame
        `time_s` (applied), `worker`, `version` (made), `staleness` (versions).
    """
    rows = log.rows()
    push, apply = pick(rows, Kind.PUSH), pick(rows, Kind.APPLY)
    base = push["version"][_index_of(push["id"], apply["id"])]
    return table(
        {
            "time_s": apply["time_s"],
            "worker": apply["worker"],
            "version": apply["version"],
            "staleness": apply["version"] - 1 - base,
        }
    )


def share_of_applied(log: EventLog) -> pd.DataFrame:
    """Return each worker's share of the applied pushes.

    Returns
    -------
    DataFrame
        One row for each worker that ever joined: `worker`, `pushes` (that arrived), `applied`, `samples`
        (in applied pushes), `share` (of all applied pushes, 0 to 1; NaN when none was).
    """
    rows = log.rows()
    workers = workers_of(rows)
    push, apply = pick(rows, Kind.PUSH), pick(rows, Kind.APPLY)
    applied = _per_worker(apply, workers)
    total = applied.sum()
    return table(
        {
            "worker": workers,
            "pushes": _per_worker(push, workers),
            "applied": applied,
            "samples": _per_worker(apply, workers, apply["samples"]),
            "share": applied / total if total else np.full(len(workers), np.nan),
        }
    )


def unused_workers(shares: pd.DataFrame) -> list[str]:
    """Return a warning for each worker of `share_of_applied` none of whose pushes was applied."""
    if not shares["applied"].sum():
        return []
    unused = shares.loc[shares["applied"] == 0, "worker"]
    return [f"worker {w}: none of its pushes was applied, so its shard was never learned" for w in unused]


def batch_sizes(log: EventLog) -> pd.DataFrame:
    """Return each worker's batch size where it changes, and where it was last seen.

    Returns
    -------
    DataFrame
        `time_s` (arrival of the push), `worker`, `batch_size` (samples a step).
    """
    push = pick(log.rows(), Kind.PUSH)
    push = push[np.argsort(push["worker"], kind="stable")]
    batch = push["samples"] / np.maximum(push["steps"], 1)
    worker = push["worker"]
    first = np.append(True, worker[1:] != worker[:-1])
    last = np.append(worker[1:] != worker[:-1], True)
    changed = np.append(True, batch[1:] != batch[:-1])
    keep = (first | last | changed)[: len(push)]
    columns = {"time_s": push["time_s"], "worker": worker, "batch_size": batch}
    return table({name: column[keep] for name, column in columns.items()})


def _per_worker(rows: Rows, workers: list[int], weights: Array | None = None) -> Array:
    counts = np.bincount(rows["worker"], weights=weights, minlength=max(workers, default=0) + 1)
    return counts[workers].astype(np.int64)


def _index_of(known: Array, wanted: Array) -> Array:
    """Return the position in `known` of each id of `wanted`."""
    order = np.argsort(known, kind="stable")
    ordered = known[order]
    if (ordered[1:] == ordered[:-1]).any():
        raise DataError("this log has two pushes with the same id: it is not the log of one run")
    place = np.searchsorted(ordered, wanted)
    lost = np.append(ordered, -1)[place] != wanted
    if lost.any():
        raise DataError(
            f"this log uses push {wanted[lost][0]}, which never arrived: is its beginning missing?"
        )
    return order[place]
