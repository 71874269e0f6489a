"""A run as tables from which the panel shows the state at any time.

The tables hold intervals and instants, so that the state at a time is a search in sorted columns, which the
page makes (`js/recording.js`). They are plain arrays, and travel to a page or into a file as such.
`recording_reader.recording` makes them from a log.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from psbench.arrays import Array, Booleans
from psbench.metrics.spans import PHASES

#: what workers wait for while a switch is under way is drawn as a phase of its own; its place follows theirs
SWITCHING = "switching"
STAGES = (*PHASES, SWITCHING)
Table = dict[str, Array]


@dataclass(frozen=True)
class Recording:
    """A run's activities, as tables of equally long columns.

    Attributes
    ----------
    end_s : float, seconds
    workers : list of int
        All that ever joined.
    spans : Table
        `worker`, `phase` (place in `STAGES`), `start_s`, `end_s`, `why` (place in `whys`, 0 for none),
        `waited_for` (worker, -1 for none); by worker, then by time.
    whys : list of str
        Why workers waited, in words.
    clocks : Table
        `time_s`, `worker`, `clock`: each worker's clock from then on.
    models : Table
        `time_s`, `worker`, `version`: the model that a worker was sent.
    pushes : Table
        `worker`, `sent_s`, `arrived_s`, `left_s` (when it was applied or discarded; infinite if neither),
        `base_version`, `version` (that it made; -1 for none).
    versions : Table
        `time_s`, `version`, `pushes` (that made it), `barrier` (1 if they were all workers').
    epochs : Table
        `time_s`, `epoch` of each evaluation.
    compositions : Table
        `time_s`, `index`: which composition is in force from then on.
    presence : Table
        `time_s`, `worker`, `here`: who comes (1) and goes (0).
    """

    end_s: float
    workers: list[int]
    spans: Table
    whys: list[str]
    clocks: Table
    models: Table
    pushes: Table
    versions: Table
    epochs: Table
    compositions: Table
    presence: Table

    @property
    def tables(self) -> dict[str, Table]:
        names = ("spans", "clocks", "models", "pushes", "versions", "epochs", "compositions", "presence")
        return {name: getattr(self, name) for name in names}

    def plain(self) -> dict[str, Any]:
        """Return the recording as plain data for a page; columns are base64 of little-endian numbers."""
        tables = {
            name: {column: packed(values) for column, values in table.items()}
            for name, table in self.tables.items()
        }
        named = {"end_s": self.end_s, "workers": self.workers, "phases": list(STAGES), "whys": self.whys}
        return named | {"tables": tables}

    def between(self, from_s: float, to_s: float) -> Recording:
        """Return the part of the recording between two times, with the state at its beginning.

        What is under way at its edges is there whole: a wait is as long as it was, and ends with its push,
        and with what its worker does then.
        """
        cut: dict[str, Table] = {}
        spans = self.spans
        here = (spans["start_s"] <= to_s) & (spans["end_s"] > from_s)
        ends_s = spans["end_s"][here & (spans["waited_for"] >= 0)]
        ended_s = max(to_s, float(ends_s.max(initial=0.0)))
        waited = (here & (spans["waited_for"] >= 0))[:-1] & (spans["worker"][1:] == spans["worker"][:-1])
        follows = np.append(np.zeros(min(1, len(here)), dtype=bool), waited)
        for name, table in self.tables.items():
            if name == "spans":
                keep = here | follows
            elif name == "pushes":
                keep = (table["sent_s"] <= ended_s) & (table["left_s"] >= from_s)
            else:
                last_s = ended_s if name == "clocks" else to_s
                keep = (table["time_s"] <= last_s) & ((table["time_s"] >= from_s) | newest(table, from_s))
            cut[name] = {column: values[keep] for column, values in table.items()}
        return Recording(end_s=min(to_s, self.end_s), workers=self.workers, whys=self.whys, **cut)

    def around(self, at_s: float, limit: int) -> tuple[Recording, float]:
        """Return a part with at most about `limit` spans around a time, and its beginning."""
        starts = self._starts
        if len(starts) <= limit:
            return self, 0.0
        first = int(np.clip(np.searchsorted(starts, at_s) - limit // 2, 0, len(starts) - limit))
        # the time asked for is in it however many spans begin at one time
        begin, end = min(at_s, float(starts[first])), max(at_s, float(starts[first + limit - 1]))
        begin, end = max(0.0, begin), self.end_s if first + limit >= len(starts) else end
        return self.between(begin, end), begin

    @property
    def step_s(self) -> Array:
        """Mean duration of each worker's steps (s), in the order of `workers`; 0 for one without a step.

        A step that is cut off by the end of the log counts only for a worker that has no other.
        """
        spans = self.spans
        computes = spans["phase"] == PHASES.index("compute")
        place = np.searchsorted(self.workers, spans["worker"])
        lasts, is_whole = spans["end_s"] - spans["start_s"], spans["end_s"] < self.end_s
        cut, whole = (
            _means(place[chosen], lasts[chosen], len(self.workers))
            for chosen in (computes & ~is_whole, computes & is_whole)
        )
        return np.where(whole > 0, whole, cut)

    @property
    def waiting(self) -> Array:
        """Share of its time that each worker waits, 0 to 1, in the order of `workers`."""
        spans = self.spans
        place, lasts = np.searchsorted(self.workers, spans["worker"]), spans["end_s"] - spans["start_s"]
        waits = np.isin(spans["phase"], (PHASES.index("wait"), STAGES.index(SWITCHING)))
        of_each = [np.bincount(place, weights, len(self.workers)) for weights in (lasts * waits, lasts)]
        shares: Array = of_each[0] / np.maximum(of_each[1], np.finfo(float).tiny)
        return shares

    def waiting_along(self, parts: int) -> Array:
        """Share of waiting workers, 0 to 1, in each of that many equal parts of the run."""
        spans = self.spans
        waits = np.isin(spans["phase"], (PHASES.index("wait"), STAGES.index(SWITCHING)))
        edges = np.linspace(0.0, self.end_s, parts + 1)
        waited, present = (
            np.diff(_elapsed(spans["start_s"][chosen], spans["end_s"][chosen], edges))
            for chosen in (waits, slice(None))
        )
        shares: Array = np.clip(waited / np.maximum(present, np.finfo(float).tiny), 0.0, 1.0)
        return shares

    @cached_property
    def _starts(self) -> Array:
        return np.sort(self.spans["start_s"])

    @cached_property
    def settled_s(self) -> float:
        """Time before which the recording is final, if the log continues; later spans may still grow."""
        spans = self.spans
        under_way = spans["start_s"][spans["end_s"] >= self.end_s]
        return float(under_way.min()) if len(under_way) else self.end_s

    @cached_property
    def instants(self) -> dict[str, Array]:
        """The times that a viewer can step to, in order, by kind: event, update, barrier, epoch, wait."""
        spans, versions = self.spans, self.versions
        for_somebody = (spans["phase"] == PHASES.index("wait")) & (spans["waited_for"] >= 0)
        return {
            "event": np.unique(
                np.concatenate([spans["start_s"], versions["time_s"], self.pushes["arrived_s"]])
            ),
            "update": np.unique(versions["time_s"]),
            "barrier": np.unique(versions["time_s"][versions["barrier"] > 0]),
            "epoch": np.unique(self.epochs["time_s"]),
            "wait": np.unique(spans["start_s"][for_somebody]),
        }

    def next(self, kind: str, at_s: float, back: bool = False) -> float | None:
        """Return the next instant of a kind after a time, or the previous one; None if there is none."""
        times = self.instants[kind]
        place = int(np.searchsorted(times, at_s, side="left" if back else "right")) - back
        return float(times[place]) if 0 <= place < len(times) else None


def _elapsed(start_s: Array, end_s: Array, times: Array) -> Array:
    """Return the summed seconds of all spans before each of the times."""

    def since(begin_s: Array) -> Array:
        begin_s = np.sort(begin_s)
        count = np.searchsorted(begin_s, times)
        sums: Array = count * times - np.concatenate([[0.0], np.cumsum(begin_s)])[count]
        return sums

    return since(start_s) - since(end_s)


def newest(table: Table, at_s: float) -> Booleans:
    """Return which rows are in force at a time: the newest before it, of each worker if it has workers."""
    before = int(np.searchsorted(table["time_s"], at_s))
    kept = np.zeros(len(table["time_s"]), dtype=bool)
    if "worker" not in table:
        kept[max(0, before - 1) : before] = True
    else:
        _, from_behind = np.unique(table["worker"][:before][::-1], return_index=True)
        kept[before - 1 - from_behind] = True
    return kept


def _means(place: Array, values: Array, count: int) -> Array:
    """Return the mean of the values at each index, 0 without values."""
    sums = np.bincount(place, weights=values, minlength=count)
    means: Array = sums / np.maximum(np.bincount(place, minlength=count), 1)
    return means


def packed(values: Array) -> dict[str, str]:
    """Return a column as `{"as": type, "data": base64}`, in the smallest exact type."""
    if values.dtype.kind == "f":
        kind = "f8"
    else:
        held = (small for small in ("u1", "u2") if np.array_equal(values.astype(small), values))
        kind = next(held, "i4")
    small = values.astype(f"<{kind}")
    return {"as": kind, "data": base64.b64encode(small.tobytes()).decode("ascii")}
