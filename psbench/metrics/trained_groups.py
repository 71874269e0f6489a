"""Groups of samples, such as classes: how often a model was trained on each, and the distance to the data.

A log says how much of each worker's shard was used, and a run's facts how the samples of a shard divide into
groups. A mini-batch counts as its worker's shard on average; `psbench.recount` counts the samples themselves.
With a selection by neighbourhood each push reports how many samples of each it was computed from, so that
shares by neighbourhood are exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from psbench.arrays import Array, Doubles
from psbench.core.log import EventLog, Kind
from psbench.core.selection import REPORTED, SUMS
from psbench.errors import DataError, UnknownName
from psbench.metrics.axes import Axes, AxisValues
from psbench.metrics.contributions import is_used
from psbench.metrics.rows import Rows, positions
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd

#: rows whose samples are looked at together; bounds memory
_PIECE = 4096
#: a distance that sums of equal shares may have by rounding
_ROUNDING = 1e-12
#: what a push reports of a neighbourhood, before its number
_SAMPLES = f"{REPORTED}{SUMS[0]}:"


class Groups(NamedTuple):
    """A partition of the training samples.

    Attributes
    ----------
    names : list of str
    of_shards : float64 array, (num_workers, num_groups)
        The share of each group in each worker's shard; rows sum to 1.
    whole : float64 array, (num_groups,)
        The share of each group in the data.
    are_reported : bool
        Whether pushes report the samples of each group.
    """

    names: list[str]
    of_shards: Doubles
    whole: Doubles
    are_reported: bool = False

    @classmethod
    def of_counts(cls, names: list[str], shards: Any, whole: Any, are_reported: bool = False) -> Groups:
        """Return groups with these numbers of samples in each shard and in the whole data."""
        counts, total = np.asarray(shards, dtype=float), np.asarray(whole, dtype=float)
        of_each = np.maximum(counts.sum(axis=1, keepdims=True), 1.0)  # an empty shard has no shares
        return cls(list(names), counts / of_each, total / max(total.sum(), 1.0), are_reported)


def _classes(meta: Mapping[str, Any]) -> Groups | None:
    """Return the classes, if a run's facts have their counts (timing-only runs read no data)."""
    counts, whole = meta.get("label_counts"), meta.get("class_counts")
    if not (counts and whole):
        return None
    own = meta.get("neighbourhoods") or {}
    are_reported = (own.get("names"), own.get("shards")) == (meta["classes"], counts)
    return Groups.of_counts(meta["classes"], counts, whole, are_reported)


def _neighbourhoods(meta: Mapping[str, Any]) -> Groups | None:
    """Return the neighbourhoods of the run's selection, if it has some."""
    found = meta.get("neighbourhoods")
    return Groups.of_counts(found["names"], found["shards"], found["whole"], True) if found else None


#: the partitions that a run's facts may describe, by name
GROUPINGS: dict[str, Callable[[Mapping[str, Any]], Groups | None]] = {
    "class": _classes,
    "neighbourhood": _neighbourhoods,
}


def groups_of(meta: Mapping[str, Any], by: str = "class") -> Groups | None:
    """Return the groups of a run's samples; None if its metadata do not describe them.

    Raises
    ------
    UnknownName
        If there is no such partition.
    """
    if by not in GROUPINGS:
        raise UnknownName("partition of samples", by, GROUPINGS)
    return GROUPINGS[by](meta)


def distance(shares: Array, whole: Array) -> Doubles:
    """Return the total variation distance between distributions.

    >>> float(distance(np.array([0.75, 0.25]), np.array([0.5, 0.5])))
    0.25
    """
    found: Doubles = np.abs(shares - whole).sum(axis=-1) / 2
    return np.where(found > _ROUNDING, found, 0.0)


def trained_groups(log: EventLog, meta: Mapping[str, Any], by: str = "class") -> pd.DataFrame:
    """Return the number of trained samples of each group.

    Parameters
    ----------
    log : EventLog
    meta : mapping
        The run's facts.
    by : "class" or "neighbourhood"
        The latter are those of the run's selection.

    Returns
    -------
    DataFrame
        `group`, `samples` (in gradients that were used), `share` (of these, 0 to 1), `whole` (the group's
        share of the training data). Empty where the facts do not describe the groups, or nothing was used.
    """
    columns = ("group", "samples", "share", "whole")
    groups = groups_of(meta, by)
    if groups is None:
        return table([], columns=columns)
    found = TrainedGroups(groups)
    found.read(log, log.rows(), None)
    return table(found.columns(), columns=columns)


def group_distance(log: EventLog, meta: Mapping[str, Any], by: str = "class") -> pd.DataFrame:
    """Return the distance between the groups trained on so far and the data, along a run.

    Returns
    -------
    DataFrame
        `time_s`, `epoch`, `updates`, `bytes` and `class_distance`: total variation, 0 to 1, after every so
        many gradients as there are workers. Empty as `trained_groups` is.
    """
    groups = groups_of(meta, by)
    rows = log.rows()
    at = Axes().read(rows)
    if groups is None:
        groups = Groups([], np.zeros((0, 0)), np.zeros(0))
    found = TrainedGroups(groups).read(log, rows, at)
    found["epoch"] = found["epoch"] / meta["dataset_size"]
    return table(found | {f"{by}_distance": found.pop("distance")})


def class_distance(log: EventLog, meta: Mapping[str, Any]) -> float | None:
    """Return the final distance between the classes trained on and the data; None if unknown."""
    groups = groups_of(meta)
    if groups is None:
        return None
    found = TrainedGroups(groups)
    found.read(log, log.rows(), None)
    return found.distance


class TrainedGroups:
    """Trained samples of each group, along a growing log."""

    def __init__(self, groups: Groups) -> None:
        self.groups, self._workers = groups, len(groups.of_shards)
        self._samples = np.zeros(self._workers)  # used, by the shard that they are of
        self._reported = np.zeros(len(groups.names))  # used, of pushes that report the groups
        self._count = 0  # gradients used
        self._texts: dict[int, int] = {}  # of each push, where they report groups
        self._shared: dict[int, Mapping[str, Any]] = {}  # what others share with a worker for its steps

    def read(self, log: EventLog, rows: Rows, at: AxisValues | None) -> dict[str, Array]:
        """Read new rows; return their axis positions, with the `distance` there (none without `at`).

        `epoch` is in samples: the size of the data is not known here.
        """
        place = positions(rows, Kind.APPLY, Kind.RELEASE)
        used = rows[place]
        place = place[(used["samples"] > 0) & ((used["kind"] == Kind.RELEASE) | is_used(used))]
        parts: list[tuple[Array, Array]] = [(place[:0], np.zeros(0))]
        by_shard = self._shards(log, rows)
        self._note(rows)
        for begin in range(0, len(place) if self._workers else 0, _PIECE):
            parts.append(self._read_piece(log, place[begin : begin + _PIECE], rows, by_shard))
        shown, distances = (np.concatenate(each) for each in zip(*parts, strict=True))
        if at is None:
            return {}
        axes = {"time_s": rows["time_s"][shown], "epoch": at.samples[shown]}
        return axes | {"updates": at.version[shown], "bytes": at.bytes[shown], "distance": distances}

    def _read_piece(
        self, log: EventLog, place: Array, rows: Rows, by_shard: Mapping[int, Mapping[int, int]]
    ) -> tuple[Array, Array]:
        own = np.zeros((len(place), self._workers))
        own[np.arange(len(place)), rows["worker"][place]] = rows["samples"][place]
        for number, row in enumerate(place.tolist()) if by_shard else ():
            for shard, samples in by_shard.get(row, {}).items():
                own[number, rows["worker"][row]] -= samples
                own[number, shard] += samples
        reported = self._reports(log, rows[place])
        own[reported.any(axis=1)] = 0
        until = self._samples + np.cumsum(own, axis=0)
        until_reported = self._reported + np.cumsum(reported, axis=0)
        shown = np.flatnonzero((self._count + 1 + np.arange(len(place))) % self._workers == 0)
        self._samples, self._reported = until[-1], until_reported[-1]
        self._count += len(place)
        of_groups = until[shown] @ self.groups.of_shards + until_reported[shown]
        shares = of_groups / np.maximum(of_groups.sum(axis=1, keepdims=True), 1e-300)
        return place[shown], distance(shares, self.groups.whole)

    def _note(self, rows: Rows) -> None:
        """Take note of the reports of new pushes."""
        if self.groups.are_reported:
            pushes = rows[positions(rows, Kind.PUSH)]
            self._texts.update(zip(pushes["id"].tolist(), pushes["text"].tolist(), strict=True))

    def _reports(self, log: EventLog, used: Rows) -> Doubles:
        """Return how many samples of each group used pushes were computed from; 0 where they do not say."""
        found = np.zeros((len(used), len(self.groups.names)))
        for place, row in enumerate(used) if self.groups.are_reported else ():
            if row["kind"] != Kind.APPLY:
                continue
            for name, samples in json.loads(log.text(self._texts[int(row["id"])]) or "{}").items():
                if name.startswith(_SAMPLES):
                    found[place, int(name.removeprefix(_SAMPLES))] = samples
        return found

    def _shards(self, log: EventLog, rows: Rows) -> dict[int, dict[int, int]]:
        """Return, for each row of steps with data injection, the number of samples from each other worker."""
        releases = positions(rows, Kind.RELEASE)
        shares = [n for n in np.unique(rows["text"][releases]).tolist() if '"injection"' in log.text(n)]
        if not (shares or self._shared):
            return {}
        orders = {number: json.loads(log.text(number))["injection"] for number in shares}
        found: dict[int, dict[int, int]] = {}
        for place in positions(rows, Kind.RELEASE, Kind.APPLY, Kind.HANDOVER).tolist():
            row = rows[place]
            if row["kind"] == Kind.HANDOVER:
                self._shared.clear()
                continue
            worker, shared = int(row["worker"]), self._shared.get(int(row["worker"]))
            if shared and max(shared["workers"], default=0) >= self._workers:
                raise DataError(f"this log has samples of worker {max(shared['workers'])} of {self._workers}")
            if shared and row["samples"] > 0:
                steps = max(int(row["steps"]), 1)
                found[place] = dict.fromkeys(shared["workers"], shared["each"] * steps)
            if row["kind"] == Kind.RELEASE and row["id"] == 0 and int(row["text"]) in orders:
                self._shared[worker] = orders[int(row["text"])]
        return found

    def count_from(self, earlier: TrainedGroups) -> None:
        """Subtract the counts of an earlier state of the same log."""
        self._samples = self._samples - earlier._samples
        self._reported = self._reported - earlier._reported

    @property
    def _of_groups(self) -> Doubles:
        found: Doubles = self._samples @ self.groups.of_shards + self._reported
        return found

    @property
    def shares(self) -> Doubles | None:
        """The share of each group in the trained samples; None before the first."""
        of_groups = self._of_groups
        return of_groups / of_groups.sum() if of_groups.sum() > 0 else None

    @property
    def distance(self) -> float | None:
        """The distance between these shares and the shares of the data."""
        shares = self.shares
        return None if shares is None else float(distance(shares, self.groups.whole))

    def columns(self) -> dict[str, Any]:
        """Return the columns of `trained_groups`; empty if nothing was used."""
        shares = self.shares
        if shares is None:
            return {name: [] for name in ("group", "samples", "share", "whole")}
        samples, whole = self._of_groups, self.groups.whole
        return {"group": self.groups.names, "samples": samples, "share": shares, "whole": whole}
