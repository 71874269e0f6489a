"""Pushes: outcome, staleness, and share of each worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.arrays import Array
from psbench.core.log import EventLog, Kind
from psbench.errors import DataError
from psbench.metrics.rows import Rows, categorical, optional, pick, workers_of
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd

#: in the place of the base version of a push that has not arrived
_NEVER = np.iinfo(np.int64).min
FATES = ("committed", "discarded", "buffered")
#: by column of `pushes`, that of a push's row
_COLUMNS = {
    **{"push": "id", "worker": "worker", "time_s": "time_s", "base_version": "version"},
    **{name: name for name in ("samples", "steps", "bytes", "compute_s", "send_s", "loss")},
}


def pushes(log: EventLog) -> pd.DataFrame:
    """Return one row per push, in the order of arrival.

    Returns
    -------
    DataFrame
        `push` (id), `worker`, `time_s` (arrival), `base_version`, `samples`, `steps`, `bytes`, `compute_s`,
        `send_s`, `loss`, `fate` (committed, discarded or buffered), and for committed pushes `applied_s`,
        `version` (that it made; without a server, of its worker) and `staleness` (versions); these are NA or
        NaN for the others.

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
    version = np.zeros(len(push), dtype=np.int64)
    version[applied] = apply["version"]
    applied_s = np.full(len(push), np.nan)
    applied_s[applied] = apply["time_s"]
    frame = table({name: np.ascontiguousarray(push[column]) for name, column in _COLUMNS.items()})
    frame["fate"] = categorical(fate, FATES)
    frame["applied_s"] = applied_s
    missing = np.isnan(applied_s)
    frame["version"] = optional(version, missing)
    frame["staleness"] = optional(version - 1 - push["version"], missing)
    return frame


def staleness(log: EventLog) -> pd.DataFrame:
    """Return the staleness of every committed push, in the order applied.

    Versions made between the push's base version and its own application; 0 is fresh. Without a server it
    is versions of the worker's own model, which others have mixed with theirs meanwhile.

    Returns
    -------
    DataFrame
        `time_s` (applied), `worker`, `version` (made), `staleness` (versions).
    """
    rows = log.rows()
    apply = pick(rows, Kind.APPLY)
    columns = {name: apply[name] for name in ("time_s", "worker", "version")}
    return table(columns | {"staleness": Staleness().read(rows)})


class Staleness:
    """The staleness of committed pushes along a growing log."""

    def __init__(self) -> None:
        self._bases = np.zeros(0, dtype=np.int64)  # version that each push started from, by its number

    def read(self, rows: Rows) -> Array:
        """Return the staleness of the pushes applied in new rows, in the order applied.

        Raises
        ------
        DataError
            If a push is applied that never arrived.
        """
        push, apply = pick(rows, Kind.PUSH), pick(rows, Kind.APPLY)
        most = int(max(push["id"].max(initial=-1), apply["id"].max(initial=-1))) + 1
        if most > len(self._bases):
            self._bases = np.concatenate([self._bases, np.full(most, _NEVER)])
        self._bases[push["id"]] = push["version"]
        base = self._bases[apply["id"]]
        if (base == _NEVER).any():
            raise _never_arrived(int(apply["id"][base == _NEVER][0]))
        found: Array = apply["version"] - 1 - base
        return found


def share_of_applied(log: EventLog) -> pd.DataFrame:
    """Return each worker's share of the applied pushes.

    Returns
    -------
    DataFrame
        One row for each worker that ever joined: `worker`, `pushes` (that arrived), `applied`, `samples`
        (in applied pushes), `share` (of all applied pushes, 0 to 1; NaN when none was).
    """
    return table(applied_columns(log.rows()))


def applied_columns(rows: Rows) -> dict[str, Any]:
    """Return the columns of `share_of_applied`."""
    counts = PushCounts()
    counts.read(rows)
    return counts.columns(workers_of(rows))


class PushCounts:
    """Numbers of pushes of each worker that arrived and were applied, along a growing log."""

    def __init__(self) -> None:
        self._counts = np.zeros((3, 0), dtype=np.int64)  # pushes, applied, samples applied; by worker

    def read(self, rows: Rows) -> None:
        """Count new rows."""
        push, apply = pick(rows, Kind.PUSH), pick(rows, Kind.APPLY)
        most = int(max(push["worker"].max(initial=0), apply["worker"].max(initial=0))) + 1
        self._reach(most)
        for place, (part, weights) in enumerate(((push, None), (apply, None), (apply, apply["samples"]))):
            self._counts[place] += np.bincount(
                part["worker"], weights=weights, minlength=self._counts.shape[1]
            ).astype(np.int64)

    def _reach(self, workers: int) -> None:
        more = max(workers - self._counts.shape[1], 0)
        self._counts = np.pad(self._counts, ((0, 0), (0, more)))

    def subtract(self, earlier: PushCounts) -> None:
        """Subtract the counts of an earlier state of the same log."""
        self._counts[:, : earlier._counts.shape[1]] -= earlier._counts

    def columns(self, workers: Sequence[int]) -> dict[str, Any]:
        """Return the columns of `share_of_applied` for these workers."""
        self._reach(max(workers, default=0) + 1)
        pushed, applied, samples = self._counts[:, list(workers)]
        total = applied.sum()
        share = applied / total if total else np.full(len(workers), np.nan)
        counts = {"pushes": pushed, "applied": applied, "samples": samples}
        return {"worker": list(workers), **counts, "share": share}


def batch_sizes(log: EventLog) -> pd.DataFrame:
    """Return each worker's batch size at every change, and at its last push.

    Returns
    -------
    DataFrame
        `time_s` (arrival of the push), `worker`, `batch_size` (samples a step).
    """
    sizes = BatchSizes()
    sizes.read(log.rows())
    return table(sizes.seen(), columns=("time_s", "worker", "batch_size"))


class BatchSizes:
    """The workers' batch sizes along a growing log.

    Attributes
    ----------
    changes : list of (seconds, worker, samples a step)
        Where a batch size was seen first, or changed.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, float]] = {}  # of each worker: time and batch size
        self.changes: list[tuple[float, int, float]] = []

    def read(self, rows: Rows) -> None:
        """Count the pushes among new rows."""
        push = pick(rows, Kind.PUSH)
        push = push[np.argsort(push["worker"], kind="stable")]
        size, worker = push["samples"] / np.maximum(push["steps"], 1), push["worker"]
        first = np.append(True, worker[1:] != worker[:-1])[: len(push)]
        last = np.append(first[1:], True)[: len(push)]
        changed = np.append(True, size[1:] != size[:-1])[: len(push)] & ~first
        for place in np.flatnonzero(first | changed).tolist():
            row = float(push["time_s"][place]), int(worker[place]), float(size[place])
            if changed[place] or self._last.get(row[1], (0.0, None))[1] != row[2]:
                self.changes.append(row)
        for place in np.flatnonzero(last).tolist():
            self._last[int(worker[place])] = float(push["time_s"][place]), float(size[place])

    def seen(self, most: int | None = None) -> list[tuple[float, int, float]]:
        """Return the rows of `batch_sizes`, by worker, then by time; of very many rows an even sample."""
        step = 1 if most is None else len(self.changes) // most + 1
        last = [(time_s, worker, size) for worker, (time_s, size) in self._last.items()]
        return sorted({*self.changes[::step], *last}, key=lambda row: (row[1], row[0]))


def _index_of(known: Array, wanted: Array) -> Array:
    """Return the position in `known` of each id of `wanted`."""
    if len(np.unique(known)) < len(known):
        raise DataError("this log has two pushes with the same id: it is not the log of one run")
    if (lost := ~np.isin(wanted, known)).any():
        raise _never_arrived(int(wanted[lost][0]))
    order = np.argsort(known)
    return order[np.searchsorted(known, wanted, sorter=order)]


def _never_arrived(push: int) -> DataError:
    return DataError(f"this log uses push {push}, which never arrived: is its beginning missing?")
