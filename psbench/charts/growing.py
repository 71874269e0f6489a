"""The tables of a run's charts while it goes on, kept up to date from its new rows alone.

They are those of `tables` for the whole log, as columns of plain values; a curve is thinned as it grows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from psbench.charts.curves import AXES
from psbench.charts.distributions import bars
from psbench.charts.source import POINTS, plain
from psbench.charts.tables import EVALUATED
from psbench.core.log import EventLog, Kind
from psbench.metrics.growing import PushTotals, SpanTotals
from psbench.metrics.rows import Array, Rows, pick, positions
from psbench.metrics.switches import rule_values

Columns: TypeAlias = dict[str, list[Any]]

#: points of a curve beyond which it is thinned to a quarter
LONGEST = 4 * POINTS
#: of the training loss, in epochs: see `metrics.training_loss`
_SMOOTH = 0.25


class Line:
    """The points of a curve: all of them, or every 4th, 16th, ... so that at most `LONGEST` are kept.

    Which ones are kept depends on how many there are, not on how they came.

    Examples
    --------
    >>> line = Line(longest=4)
    >>> line.add({"x": [0, 1, 2]}); line.news()
    (False, {'x': [0, 1, 2]})
    >>> line.add({"x": [3, 4, 5]}); line.news()
    (True, {'x': [0, 4]})
    >>> line.end(); line.news()
    (False, {'x': [5]})
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest, self._every, self._count, self._taken = longest, 1, 0, 0
        self._thinned = False
        self._last: Columns = {}
        self.columns: Columns = {}

    def add(self, columns: Mapping[str, Sequence[Any] | Array]) -> None:
        """Add points."""
        new = len(next(iter(columns.values())))
        if not new:
            return
        begin = -self._count % self._every
        for name, values in columns.items():
            self.columns.setdefault(name, []).extend(plain(values[begin :: self._every]))
        self._count += new
        self._last = {name: plain(values[-1:]) for name, values in columns.items()}
        while len(self) > self._longest:
            self._every *= 4
            self._thinned, self._taken = True, 0
            self.columns = {name: values[::4] for name, values in self.columns.items()}

    def end(self) -> None:
        """Keep the last point, whichever it is: no more are added."""
        if self._count and (self._count - 1) % self._every:
            for name, values in self._last.items():
                self.columns[name] += values
            self._last = {}
            self._every = 1
            self._count = len(self)

    def news(self) -> tuple[bool, Columns]:
        """Return whether all points are new, and the points since the last call (all, in that case)."""
        thinned, first = self._thinned, self._taken
        self._thinned, self._taken = False, len(self)
        return thinned, {name: values[first:] for name, values in self.columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0


class Curves:
    """The curves of a run that goes on, and the switches that are marked in them.

    Parameters
    ----------
    label : str
        What the run is called.
    meta : mapping
        `dataset_size` and `compositions` of the run.

    Attributes
    ----------
    lines : dict of name to Line
        Columns `label`, the axes, and the value.
    marks : list of dict
        `label`, the axes, and `event`.
    """

    def __init__(self, label: str, meta: Mapping[str, Any]) -> None:
        self._label, self._size = label, int(meta["dataset_size"])
        self._names: Sequence[str] = meta.get("compositions", ())
        self.lines = {name: Line() for name in EVALUATED}
        self.marks: list[dict[str, Any]] = []
        self._late: list[dict[str, Any]] = []  # marks at the time of the newest row: more may be sent then
        self._samples = self._bytes = self._version = 0
        # of the pushes in the window of the running mean: samples before each, with it, and loss by samples
        self._window = np.array([[-np.inf], [0.0], [0.0]])

    def read(self, log: EventLog, rows: Rows) -> None:
        """Read new rows of a log."""
        kind = rows["kind"]
        sent = self._bytes + np.cumsum(rows["bytes"], dtype=np.int64)
        self._settle(rows["time_s"], sent)
        progress = (kind == Kind.APPLY) | (kind == Kind.RELEASE)
        samples = self._samples + np.cumsum(np.where(progress, rows["samples"], 0), dtype=np.int64)
        versions = np.where(kind == Kind.APPLY, rows["version"], self._version)
        version = np.maximum.accumulate(np.maximum(versions, self._version))
        self._add_training(rows, samples, version, sent)
        self._add_evaluations(rows, log, sent)
        for place in positions(rows, Kind.HANDOVER).tolist():
            self._late.append(self._mark(rows[place], int(samples[place])))
        self._samples, self._bytes, self._version = int(samples[-1]), int(sent[-1]), int(version[-1])
        self._settle(rows["time_s"], sent)

    def end(self) -> None:
        """Keep the last points: no more rows come."""
        self._settle(np.zeros(0), np.zeros(0), is_end=True)
        for line in self.lines.values():
            line.end()

    def _add_training(self, rows: Rows, samples: Array, version: Array, sent: Array) -> None:
        place = positions(rows, Kind.PUSH)
        place = place[np.isfinite(rows["loss"][place])]
        if not len(place):
            return
        axes = rows["time_s"][place], samples[place] / self._size, version[place], sent[place]
        mean = self._running_mean(rows["loss"][place], rows["samples"][place])
        self._add("train_loss", axes, mean)

    def _running_mean(self, values: Array, samples: Array) -> Array:
        """Return the mean at each of these pushes over the window of samples that ends there."""
        samples = samples.astype(np.float64)
        begin, until, total = self._window
        known = len(until)
        until = np.append(until, np.cumsum(np.append(until[-1], samples))[1:])
        total = np.append(total, np.cumsum(np.append(total[-1], values.astype(np.float64) * samples))[1:])
        begin = np.append(begin, until[known:] - samples)
        first = np.searchsorted(begin, until[known:] - _SMOOTH * self._size)
        before = np.minimum(first, np.arange(known, len(until))) - 1
        self._window = np.array([begin, until, total])[:, before[-1] :]
        mean: Array = (total[known:] - total[before]) / np.maximum(until[known:] - until[before], 1.0)
        return mean

    def _add_evaluations(self, rows: Rows, log: EventLog, sent: Array) -> None:
        place = positions(rows, Kind.EVALUATED)
        found = [json.loads(log.text(number)) for number in rows["text"][place].tolist()]
        for name in self.lines:
            which = [i for i, values in enumerate(found) if name in values and name != "train_loss"]
            if not which:
                continue
            at = place[which]
            ids = rows["id"][at].tolist()
            epochs = [found[i].get("epoch", number) for i, number in zip(which, ids, strict=True)]
            axes = rows["time_s"][at], np.array(epochs), rows["version"][at], sent[at]
            self._add(name, axes, np.array([found[i][name] for i in which], dtype=float))

    def _add(self, name: str, axes: Sequence[Array], values: Array) -> None:
        columns: dict[str, Array] = {"label": np.full(len(values), self._label)}
        self.lines[name].add(columns | dict(zip(AXES, axes, strict=True)) | {name: values})

    def _mark(self, row: np.void, samples: int) -> dict[str, Any]:
        to = int(row["id"])
        name = self._names[to] if to < len(self._names) else f"composition {to}"
        axes = float(row["time_s"]), samples / self._size, int(row["version"]), self._bytes
        return {"label": self._label, **dict(zip(AXES, axes, strict=True)), "event": f"switch to {name}"}

    def _settle(self, times: Array, sent: Array, is_end: bool = False) -> None:
        """Say of a switch how many bytes were sent until then, when nothing more is sent at that moment."""
        while self._late:
            mark = self._late[0]
            until = int(np.searchsorted(times, mark["time_s"], side="right"))
            mark["bytes"] = int(sent[until - 1]) if until else self._bytes
            if until == len(times) and not is_end:
                return
            self.marks.append(self._late.pop(0))


class GrowingTables:
    """The tables of all live charts of one run, by the charts' names.

    Parameters
    ----------
    label, meta
        See `Curves`.
    """

    def __init__(self, label: str, meta: Mapping[str, Any]) -> None:
        self._label = label
        self.curves = Curves(label, meta)
        self._spans, self._pushes = SpanTotals(), PushTotals()
        self._rule: Columns = {"epoch": [], "value": [], "threshold": []}
        self._log: EventLog | None = None
        self.has_pushes = False

    def read(self, log: EventLog, start: int, stop: int) -> None:
        """Read rows `start` to `stop` of a log."""
        rows = log.rows(start, stop)
        if not len(rows):
            return
        self._log = log
        self.has_pushes = self.has_pushes or bool((rows["kind"] == Kind.PUSH).any())
        self.curves.read(log, rows)
        self._spans.read(log, rows)
        self._pushes.read(rows)
        if len(notes := pick(rows, Kind.NOTE)):
            seen = rule_values(log.excerpt(notes))
            for name, column in self._rule.items():
                column += plain(seen[name].to_numpy())

    def end(self) -> None:
        """Keep what is last: no more rows come."""
        self.curves.end()

    def count_from(self, earlier: GrowingTables) -> None:
        """Have sums and counts begin where an earlier state of the same log was: both are read no further."""
        self._spans.count_from(earlier._spans)
        self._pushes.count_from(earlier._pushes)

    def totals(self, name: str) -> Columns:
        """Return the table of a chart of sums or counts; empty if there is nothing to show yet."""
        return _TOTALS[name](self) if self.has_pushes else {}

    def _time_use(self) -> Columns:
        return _columns(("worker", "phase", "fraction"), self._spans.phases())

    def _idle(self) -> Columns:
        """Return the waits; a worker that never waited has a row with 0, so that it is seen not to."""
        waits = {} if self._log is None else self._spans.waits(self._log)
        if not waits:
            return {}
        waited, reason = {worker for worker, _ in waits}, next(iter(waits))[1]
        never = {(worker, reason): 0.0 for worker in self._spans.workers if worker not in waited}
        return _columns(("worker", "reason", "fraction"), dict(sorted({**waits, **never}.items())))

    def _share(self) -> Columns:
        workers = self._spans.workers
        applied = [self._pushes.applied.get(worker, 0) for worker in workers]
        whole, count = sum(applied), len(workers)
        shares = plain([each / whole if whole else None for each in applied])
        named: Columns = {"label": [self._label] * count, "worker": workers}
        return named | {"applied": applied, "share": shares, "equal": plain([1 / max(count, 1)] * count)}

    def _bytes(self) -> Columns:
        sent = self._pushes.bytes
        return {"label": [self._label] * 2, "direction": list(sent), "bytes": list(sent.values())}

    def _batch_size(self) -> Columns:
        rows = sorted({*_thinned(self._pushes.batches), *self._pushes.last_batches()})
        names = "worker", "time_s", "batch_size"
        return {name: plain(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}

    def _rule_values(self) -> Columns:
        if not self._rule["epoch"]:
            return {}
        marks = self.curves.marks
        seen, missing = len(self._rule["epoch"]), [None] * len(marks)
        return {
            "epoch": [*self._rule["epoch"], *plain([mark["epoch"] for mark in marks])],
            "value": [*self._rule["value"], *missing],
            "threshold": [*self._rule["threshold"], *missing],
            "event": [*[None] * seen, *(mark["event"] for mark in marks)],
        }

    def _counts(self, counts: Array) -> Columns:
        columns = {name: plain(values) for name, values in bars(counts).items()}
        return {"label": [self._label] * len(columns["count"]), **columns}


_TOTALS = {
    "time_use": GrowingTables._time_use,
    "idle": GrowingTables._idle,
    "share": GrowingTables._share,
    "staleness": lambda own: own._counts(own._pushes.staleness),
    "lead": lambda own: own._counts(own._pushes.lead),
    "bytes": GrowingTables._bytes,
    "batch_size": GrowingTables._batch_size,
    "rule": GrowingTables._rule_values,
}


def _columns(names: tuple[str, str, str], shares: Mapping[tuple[Any, Any], float]) -> Columns:
    first, second, share = names
    keys = list(shares)
    values = {first: [key[0] for key in keys], second: [key[1] for key in keys]}
    return values | {share: plain(list(shares.values()))}


def _thinned(rows: Sequence[Any]) -> Sequence[Any]:
    return rows[:: len(rows) // LONGEST + 1]
