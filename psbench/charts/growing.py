"""The tables of a run's charts, updated from the new rows of its log.

A whole log is read at once; a curve is thinned as it grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, TypeAlias

import numpy as np

from psbench.arrays import Array
from psbench.charts.contributions import age_group, in_order
from psbench.charts.curves import AXES
from psbench.charts.distributions import bars
from psbench.charts.source import POINTS, plain
from psbench.charts.tables import EVALUATED, mark_of
from psbench.charts.utilisation import TRAFFIC, WORK
from psbench.core.log import EventLog, Kind
from psbench.metrics.axes import Axes
from psbench.metrics.contributions import Work
from psbench.metrics.curves import TrainingLoss, evaluated
from psbench.metrics.record import RunRecord
from psbench.metrics.rows import Rows, pick
from psbench.metrics.switches import rule_values, switched
from psbench.metrics.totals import PushTotals, SpanTotals
from psbench.metrics.trained_groups import TrainedGroups, groups_of
from psbench.metrics.utilisation import Utilisation

Columns: TypeAlias = dict[str, Any]

#: the curve of how far the classes trained on are from the data
DISTANCE = "class_distance"
#: points of a curve beyond which it is thinned to a quarter
LONGEST = 4 * POINTS


class Line:
    """The points of a curve: all, or every 4th, 16th, ..., at most `LONGEST`.

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
        """Keep the last point; no more points follow."""
        if self._count and (self._count - 1) % self._every:
            for name, values in self._last.items():
                self.columns[name] += values
            self._last = {}

    def news(self) -> tuple[bool, Columns]:
        """Return whether all points are new, and the new points since the last call."""
        thinned, first = self._thinned, self._taken
        self._thinned, self._taken = False, len(self)
        return thinned, {name: values[first:] for name, values in self.columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0


class Curves:
    """The curves of a running run, with its switches.

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
        self._axes, self._training = Axes(), TrainingLoss(self._size)
        self.lines = {name: Line() for name in (*EVALUATED, DISTANCE)}
        groups = groups_of(meta)
        #: of the classes, if the run's facts describe them
        self.trained = None if groups is None else TrainedGroups(groups)
        own = groups_of(meta, "neighbourhood")
        #: of the selection's neighbourhoods, if it has some
        self.neighbourhoods = None if own is None else TrainedGroups(own)
        self.marks: list[dict[str, Any]] = []

    def read(self, log: EventLog, rows: Rows) -> None:
        """Read new rows of a log."""
        at = self._axes.read(rows)
        training = self._training.read(rows, at)
        self._add("train_loss", training, training.pop("train_loss"))
        if self.neighbourhoods is not None:
            self.neighbourhoods.read(log, rows, None)
        if self.trained is not None:
            far = self.trained.read(log, rows, at)
            distances = far.pop("distance")
            self._add(DISTANCE, far | {"epoch": far["epoch"] / self._size}, distances)
        found = evaluated(log, rows, at)
        for name in EVALUATED:
            own = [row for row in found if name in row and name != "train_loss"]
            axes = {axis: np.array([row[axis] for row in own]) for axis in AXES}
            self._add(name, axes, np.array([row[name] for row in own], dtype=float))
        switches = switched(log, rows, at, self._size, self._names)
        self.marks += [mark_of(switch, self._label) for switch in switches]

    def end(self) -> None:
        """Keep the last points; no more rows follow."""
        for line in self.lines.values():
            line.end()

    def _add(self, name: str, axes: Mapping[str, Array], values: Array) -> None:
        self.lines[name].add({"label": np.full(len(values), self._label), **axes, name: values})


def tables_of(run: RunRecord, label: str) -> GrowingTables:
    """Return the tables of a whole run."""
    found = GrowingTables(label, run.meta)
    found.read(run.log, 0, len(run.log))
    found.end()
    return found


class GrowingTables:
    """The tables of the charts of one run, by the charts' names.

    Parameters
    ----------
    label, meta
        See `Curves`; and `unanswered`, if the run is over (`metrics.total_bytes`).
    """

    def __init__(self, label: str, meta: Mapping[str, Any]) -> None:
        self._label, self._meta = label, meta
        self.curves = Curves(label, meta)
        self._spans, self._pushes, self._work = SpanTotals(), PushTotals(), Work()
        self._utilisation = Utilisation()
        self._over: Columns | None = None  # its columns, which two charts share
        self._rule: Columns = {"epoch": [], "value": [], "threshold": []}
        self._log: EventLog | None = None
        self.has_pushes = False
        self._between_s = 0.0, 0.0
        self._has_ended = False

    def read(self, log: EventLog, start: int, stop: int) -> None:
        """Read rows `start` to `stop` of a log."""
        rows = log.rows(start, stop)
        if not len(rows):
            return
        self._log, self._over = log, None
        self._between_s = self._between_s[0], float(rows["time_s"][-1])
        self.has_pushes = self.has_pushes or bool((rows["kind"] == Kind.PUSH).any())
        self.curves.read(log, rows)
        self._spans.read(log, rows)
        self._utilisation.read(rows, *self._spans.new_spans)
        self._pushes.read(rows)
        self._work.read(rows)
        if len(notes := pick(rows, Kind.NOTE)):
            seen = rule_values(log.excerpt(notes))
            for name, column in self._rule.items():
                column += seen[name].tolist()

    def end(self) -> None:
        """Finish the tables: no more rows follow."""
        self.curves.end()
        self._has_ended, self._over = True, None

    def count_from(self, earlier: GrowingTables) -> None:
        """Start sums and counts at an earlier state of the same log; neither is read further."""
        self._between_s = earlier._between_s[1], self._between_s[1]
        self._spans.count_from(earlier._spans)
        self._pushes.count_from(earlier._pushes)
        self._work.count_from(earlier._work)
        for name in ("trained", "neighbourhoods"):
            own, before = getattr(self.curves, name), getattr(earlier.curves, name)
            if own is not None and before is not None:
                own.count_from(before)

    def totals(self, name: str) -> Columns:
        """Return a table of sums or counts as columns; empty if it has no content."""
        return _TOTALS[name](self) if self.has_pushes else {}

    def _time_use(self) -> Columns:
        return _columns(("worker", "phase", "fraction"), self._spans.phases())

    def _idle(self) -> Columns:
        """Return the waits by worker, with a row of 0 for a worker that never waited."""
        waits = {} if self._log is None else self._spans.waits(self._log)
        if not waits:
            return {}
        waited, reason = {worker for worker, _ in waits}, next(iter(waits))[1]
        never = {(worker, reason): 0.0 for worker in self._spans.workers if worker not in waited}
        return _columns(("worker", "reason", "fraction"), dict(sorted({**waits, **never}.items())))

    def _share(self) -> Columns:
        workers = self._spans.workers
        found = self._pushes.counts.columns(workers)
        columns = {"label": [self._label] * len(workers), **found}
        return {**columns, "equal": [1 / max(len(workers), 1)] * len(workers)}

    def _contributions(self) -> Columns:
        """Return the fates of each worker's gradients; used ones in groups of ages."""
        found: dict[tuple[int, str], int] = {}
        for worker, fate, age, gradients, _ in [] if self._log is None else self._work.rows(self._log):
            key = worker, fate if age is None else age_group(age)
            found[key] = found.get(key, 0) + gradients
        order = in_order([fate for _, fate in found])
        keys = sorted(found, key=lambda key: (key[0], order.index(key[1])))
        counts, total = [found[key] for key in keys], max(sum(found.values()), 1)
        columns = {"worker": [key[0] for key in keys], "fate": [key[1] for key in keys]}
        return columns | {"gradients": counts, "share": [count / total for count in counts]} if keys else {}

    def _over_time(self, *series: str) -> Columns:
        found = self._over = self._over or self._utilisation.columns(self._meta)
        kept = [name in series for name in found["series"]]
        return {name: list(compress(column, kept)) for name, column in found.items()}

    def _bytes(self) -> Columns:
        sent = self._pushes.bytes(self._has_ended and bool(self._meta.get("unanswered")))
        return {"label": [self._label] * 2, "direction": list(sent), "bytes": list(sent.values())}

    def _trade(self) -> Columns:
        """Return the costs and benefits of waiting: seconds per 100 applied gradients, and mean staleness."""
        counts, (begin, end) = self._pushes.staleness, self._between_s
        applied = int(counts.sum())
        if not applied:
            return {}
        mean = float(counts @ np.arange(len(counts))) / applied
        return {"label": [self._label], "per_100_s": [100 * (end - begin) / applied], "staleness": [mean]}

    def _batch_size(self) -> Columns:
        columns = zip(*self._pushes.batches.seen(LONGEST), strict=True)
        return dict(zip(("time_s", "worker", "batch_size"), map(list, columns), strict=True))

    def _rule_values(self) -> Columns:
        if not self._rule["epoch"]:
            return {}
        marks = self.curves.marks
        seen, missing = len(self._rule["epoch"]), [None] * len(marks)
        return {
            "epoch": [*self._rule["epoch"], *(mark["epoch"] for mark in marks)],
            "value": [*self._rule["value"], *missing],
            "threshold": [*self._rule["threshold"], *missing],
            "event": [*[None] * seen, *(mark["event"] for mark in marks)],
        }

    def _counts(self, counts: Array) -> Columns:
        columns = bars(counts)
        return {"label": [self._label] * len(columns["count"]), **columns}


def _columns_of(trained: TrainedGroups | None) -> Columns:
    return {} if trained is None or trained.shares is None else trained.columns()


_TOTALS = {
    "time_use": GrowingTables._time_use,
    "idle": GrowingTables._idle,
    "share": GrowingTables._share,
    "contributions": GrowingTables._contributions,
    "trained": lambda own: _columns_of(own.curves.trained),
    "neighbourhoods": lambda own: _columns_of(own.curves.neighbourhoods),
    "utilisation": lambda own: own._over_time(*WORK),
    "traffic": lambda own: own._over_time(*TRAFFIC),
    "staleness": lambda own: own._counts(own._pushes.staleness),
    "lead": lambda own: own._counts(own._pushes.lead),
    "bytes": GrowingTables._bytes,
    "trade": GrowingTables._trade,
    "batch_size": GrowingTables._batch_size,
    "rule": GrowingTables._rule_values,
}


def _columns(names: tuple[str, str, str], shares: Mapping[tuple[Any, Any], float]) -> Columns:
    first, second, share = names
    keys = list(shares)
    values = {first: [key[0] for key in keys], second: [key[1] for key in keys]}
    return values | {share: list(shares.values())}
