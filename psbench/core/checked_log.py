"""Validation of a log from a file: only rows that a run can write are accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, TypeAdapter, ValidationError, model_validator

from psbench.arrays import Array, Booleans
from psbench.core.log import EventLog, Kind
from psbench.core.specification import problem
from psbench.errors import DataError

#: rows that say whether a worker is there, and rows of workers that are
_COMES, _GOES = (Kind.JOIN, Kind.READMIT), (Kind.LEAVE, Kind.DROP)
_PRESENT = (Kind.PUSH, Kind.RELEASE)
#: pushes of a worker that a run which is resumed may have numbered without having logged them
_UNLOGGED = 4
#: counts in the statistics of a chunk of data; no count is larger
_COUNTS, _LARGEST = {"chunk_steps", "next_samples"}, 2**53
#: a whole number that no float has
_ENDLESS = re.compile(r"\d{300}")
#: seconds; a run of three hundred years is none
_LAST_S = 1e10


class _Text(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, defer_build=True)


class _Injection(_Text):
    workers: list[NonNegativeInt]
    each: NonNegativeInt


class _Orders(_Text):
    samples: NonNegativeInt | None = None
    injection: _Injection | None = None


class _Mixing(_Text):
    sent: bool
    steps_first: bool
    rows: dict[str, dict[str, float]]

    @model_validator(mode="after")
    def _numbered(self) -> _Mixing:
        if not all(name.isdecimal() for row in (self.rows, *self.rows.values()) for name in row):
            raise ValueError("its workers are not numbers")
        if not all(self.rows.values()):
            raise ValueError("a worker mixes no model")
        return self


class _Reassigned(_Text):
    moved: NonNegativeInt
    ranges: list[list[tuple[NonNegativeInt, NonNegativeInt]]]


class _Resumed(_Text):
    spared: list[NonNegativeInt]
    epochs: tuple[float | None, float | None]
    again: list[NonNegativeInt] = []


def _check_chunk(stats: dict[str, float]) -> None:
    """Reject statistics of a chunk without their companion statistics."""
    needed = {"compute_s", "test_loss"} if {"chunk_steps", "test_loss"} & stats.keys() else set()
    if missing := needed - stats.keys():
        raise ValueError(f"{min(missing)} is missing")
    for name in _COUNTS & stats.keys():
        if not 0 <= stats[name] <= _LARGEST:
            raise ValueError(f"{name} is not a count")


def _check_mixed(mixing: _Mixing, num_workers: int) -> None:
    """Reject a mixing of unknown workers."""
    names = {*mixing.rows, *(name for row in mixing.rows.values() for name in row)}
    if late := [name for name in names if int(name) >= num_workers]:
        raise ValueError(f"worker {min(late)} is beyond {num_workers - 1}")


#: what texts of rows consist of that are no plain words; an empty text is none
_TEXTS: dict[Kind, Any] = {
    Kind.PUSH: dict[str, float],
    Kind.VOTE: float,
    Kind.REPORT: dict[str, float],
    Kind.MEASURED: dict[str, Any],
    Kind.EVALUATED: dict[str, float | None],
    Kind.RELEASE: _Orders,
    Kind.TELL: dict[str, Any],
    Kind.MIX: _Mixing,
    Kind.REASSIGN: _Reassigned,
    Kind.RESUME: _Resumed,
}
#: kinds whose rows have a text
_NEEDED = {Kind.MEASURED, Kind.EVALUATED, Kind.MIX, Kind.REASSIGN, Kind.RESUME}


@cache
def _adapter(kind: Kind) -> TypeAdapter[Any]:
    return TypeAdapter(_TEXTS[kind])


def check_log(path: Path, log: EventLog, num_workers: int) -> None:
    """Reject rows that no run writes.

    Parameters
    ----------
    path : Path
        Where they were read, for messages.
    log : EventLog
    num_workers : int
        Of the experiment.

    Raises
    ------
    DataError
        Naming the first row that is wrong.
    """
    for check in (_wrong_columns, _wrong_pushes, _wrong_presence, _wrong_texts, _wrong_mixing):
        for row, what in check(log, log.rows(), num_workers):
            raise DataError(f"{path}: row {row} of its log has {what}")


def _first(faults: Booleans, what: str, rows: Array | None = None) -> Iterator[tuple[int, str]]:
    """Yield the row and description of the first fault, if any."""
    if faults.any():
        at = int(faults.argmax())
        yield at if rows is None else int(rows[at]), what


def _wrong_columns(log: EventLog, rows: Any, num_workers: int) -> Iterator[tuple[int, str]]:
    times = rows["time_s"]
    yield from _first(~((times >= 0) & (times <= _LAST_S)), "a time that is negative or not a number")
    yield from _first(rows["kind"] > max(Kind), "an unknown kind of event")
    yield from _first(rows["worker"] >= num_workers, f"a worker beyond {num_workers - 1}")
    yield from _first(rows["text"] >= len(log.texts), "a reference to a missing text")
    yield from _first(rows["samples"] < 0, "a number of samples below 0")
    for name in ("compute_s", "send_s"):
        yield from _first(~(rows[name] >= 0) & (rows["kind"] == Kind.PUSH), f"a {name} that is negative")


def _wrong_pushes(log: EventLog, rows: Any, num_workers: int) -> Iterator[tuple[int, str]]:
    """Yield the first push with an invalid number, or one that is used before it arrives."""
    place = np.flatnonzero(rows["kind"] == Kind.PUSH)
    numbers = rows["id"][place]
    resumed = int(np.count_nonzero(rows["kind"] == Kind.RESUME))
    # arrays are made for all numbers up to the last
    most = len(rows) + _UNLOGGED * num_workers * (1 + resumed)
    outside = (numbers < 0) | (numbers >= most)
    yield from _first(outside, f"a push whose number is not from 0 to {most - 1}", place)
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    twice = np.zeros(len(place), dtype=bool)
    twice[order[1:]] = ordered[1:] == ordered[:-1]
    yield from _first(twice, "a duplicate push number", place)
    used = np.flatnonzero(np.isin(rows["kind"], (Kind.APPLY, Kind.DISCARD)))
    if not len(used):
        return
    wanted = rows["id"][used]
    at = np.minimum(np.searchsorted(ordered, wanted), max(len(ordered) - 1, 0))
    came = np.full(len(used), len(rows)) if not len(ordered) else place[order[at]]
    unknown = np.ones(len(used), bool) if not len(ordered) else ordered[at] != wanted
    yield from _first(unknown | (came > used), "the use of a push that has not arrived", used)
    applied = rows["kind"][used] == Kind.APPLY
    newer = rows["version"][came] >= rows["version"][used]
    yield from _first(applied & newer, "the use of a push that began with a later version", used)


def _wrong_presence(log: EventLog, rows: Any, num_workers: int) -> Iterator[tuple[int, str]]:
    """Yield a push or release of an absent worker, or a second join of a present one."""
    place = np.flatnonzero(np.isin(rows["kind"], (*_COMES, *_GOES, *_PRESENT)))
    place = place[np.argsort(rows["worker"][place], kind="stable")]
    kind, worker = rows["kind"][place], rows["worker"][place]
    changes = ~np.isin(kind, _PRESENT)
    # of each row, the last one so far that changes who is there
    last = np.maximum.accumulate(np.where(changes, np.arange(len(place)), -1))
    known = (last >= 0) & (worker[last] == worker)
    is_there = known & np.isin(kind[last], _COMES)
    was_there = np.append(False, is_there[:-1]) & np.append(False, worker[1:] == worker[:-1])
    faults = (
        (~changes & ~is_there, "a push or release of an absent worker"),
        (np.isin(kind, _COMES) & was_there, "a join of a worker that is already present"),
    )
    for wrong, what in faults:
        if wrong.any():
            yield int(place[wrong].min()), what


def _wrong_texts(log: EventLog, rows: Any, num_workers: int) -> Iterator[tuple[int, str]]:
    """Yield a text that is not of the form that rows of its kind have."""
    both = (rows["kind"].astype(np.int64) << 32) | rows["text"]
    found, places = np.unique(both, return_index=True)
    for each, place in zip(found.tolist(), places.tolist(), strict=True):
        kind, text = Kind(each >> 32), log.text(each & 0xFFFFFFFF)
        if kind not in _TEXTS or not (text or kind in _NEEDED):
            continue
        what = f"a text that is invalid for {kind.name.lower()}"
        try:
            if _ENDLESS.search(text):
                raise ValueError("a number has 300 digits")
            value = _adapter(kind).validate_json(text, strict=True)
            if kind in (Kind.PUSH, Kind.REPORT):
                _check_chunk(value)
            if kind is Kind.MIX:
                _check_mixed(value, num_workers)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(map(str, first["loc"]))
            yield place, f"{what}: {path}: {problem(first)}" if path else f"{what}: {problem(first)}"
        except ValueError as error:
            yield place, f"{what}: {error}"


def _wrong_mixing(log: EventLog, rows: Any, num_workers: int) -> Iterator[tuple[int, str]]:
    """Yield a mixing of a model that was never sent, or of an absent worker; texts are checked before."""
    versions: dict[int, int] = {}
    there = set[int]()
    sent = set[tuple[int, int, bool]]()  # worker, its version, and whether its step came first
    if not (rows["kind"] == Kind.MIX).any():
        return
    kinds = (Kind.JOIN, Kind.LEAVE, Kind.PUSH, Kind.MIX)
    for place in np.flatnonzero(np.isin(rows["kind"], kinds)).tolist():
        kind, worker, push, version, text = rows[["kind", "worker", "id", "version", "text"]][place].tolist()
        if kind == Kind.JOIN:
            versions[worker] = max((versions[other] for other in there), default=0)
            there.add(worker)
            sent.add((worker, versions[worker], False))
        elif kind == Kind.LEAVE:
            there.discard(worker)
        elif kind == Kind.PUSH:
            sent.add((worker, version, True))
        else:
            mixing = _Mixing.model_validate_json(log.text(text))
            weights = {int(name): [*map(int, row)] for name, row in mixing.rows.items()}
            if not there.issuperset([*weights, *(other for row in weights.values() for other in row)]):
                yield place, "a mixing with an absent worker"
            for to, others in weights.items():
                wanted = {(other, versions[to], mixing.steps_first) for other in others}
                if mixing.sent and not wanted <= sent:
                    yield place, "a mixing of a model that was not sent"
                versions[to] += push >= 0
                sent.add((to, versions[to], False))
