"""Utilisation over time: computing and sending workers, CPU use of live processes, bytes per second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.arrays import Array
from psbench.core.log import EventLog, Kind
from psbench.metrics.rows import Rows, end_of, pick, sent
from psbench.metrics.spans import PHASES, Spans
from psbench.metrics.table import table
from psbench.metrics.totals import SpanTotals

if TYPE_CHECKING:
    import pandas as pd

#: intervals that a run is divided into at most, and half of them at least; an even number
MOST = 200
#: width of the first intervals, which double as a run grows; seconds
_FIRST_S = 2.0**-20
#: what is counted of a log: by phase how many workers, and bytes
_OF_LOG = ("computing", "sending", "up", "down")
_OF_PHASES = {"computing": ("compute",), "sending": ("send", "pull")}


def utilisation(log: EventLog, meta: Mapping[str, Any]) -> pd.DataFrame:
    """Return the activity of a run's workers, servers and links in equal intervals of time.

    Parameters
    ----------
    log : EventLog
    meta : mapping
        `usage` and `server_usage`, the CPU seconds that live processes sampled; and `unanswered`.

    Returns
    -------
    DataFrame
        `time_s` (the middle of the interval), `width_s`, `series`, `value`: how many workers were `computing`
        and `sending` (or receiving), `cpu_workers` and `cpu_servers` (cores that their processes used; live
        only), and bytes a second `up` and `down`.

    Notes
    -----
    Values times widths sum to the totals: seconds of `metrics.time_use`, CPU seconds of `usage`, and
    `metrics.total_bytes`. The bytes of a push are spread over the seconds that it was under way, those of a
    release are counted where it is sent. Between two samples of CPU seconds the use is taken for constant.
    """
    totals, found = SpanTotals(), Utilisation()
    rows = log.rows()
    totals.read(log, rows)
    found.read(sent(rows, bool(meta.get("unanswered"))), *totals.new_spans)
    return table(found.columns(meta))


class Intervals:
    """Sums in equal intervals of time from 0 on, doubled in width when there are too many."""

    def __init__(self, width_s: float = _FIRST_S) -> None:
        self.width_s, self.sums = width_s, np.zeros(MOST)
        self.end_s = 0.0  # of the last amount: sums cannot tell, as they are rounded

    def reach(self, end_s: float) -> None:
        """Widen the intervals until they reach that far."""
        while end_s > MOST * self.width_s:
            self.width_s *= 2
            self.sums = np.append(self.sums.reshape(-1, 2).sum(axis=1), np.zeros(MOST // 2))

    def add(self, start_s: Array, end_s: Array, amounts: Array) -> None:
        """Add amounts, each spread evenly from its start to its end."""
        self.end_s = float(end_s.max(initial=self.end_s))
        self.reach(self.end_s)
        lasts = end_s > start_s
        places = np.minimum((end_s[~lasts] / self.width_s).astype(np.int64), MOST - 1)
        self.sums += np.bincount(places, weights=amounts[~lasts], minlength=MOST)
        begin, stop = start_s[lasts].astype(float), end_s[lasts].astype(float)
        first = np.minimum((begin / self.width_s).astype(np.int64), MOST - 1)
        last = np.minimum((stop / self.width_s).astype(np.int64), MOST - 1)
        rates = amounts[lasts] / (stop - begin)
        inside = first == last
        self.sums += np.bincount(first[inside], (rates * (stop - begin))[inside], MOST)
        begin, stop, rates, first, last = (column[~inside] for column in (begin, stop, rates, first, last))
        self.sums += np.bincount(first, rates * ((first + 1) * self.width_s - begin), MOST)
        self.sums += np.bincount(last, rates * (stop - last * self.width_s), MOST)
        # those in between are full: rates begin behind the first interval, and end with the last
        change = np.bincount(first + 1, rates, MOST + 1) - np.bincount(last, rates, MOST + 1)
        lasting = np.cumsum(
            np.bincount(first + 1, minlength=MOST + 1) - np.bincount(last, minlength=MOST + 1)
        )
        # rates that went on and off leave a rest of rounding where there are none
        self.sums += (np.where(lasting > 0, np.cumsum(change), 0.0) * self.width_s)[:MOST]

    def copy(self) -> Intervals:
        """Return a copy that may be added to."""
        found = Intervals(self.width_s)
        found.sums, found.end_s = self.sums.copy(), self.end_s
        return found


class Utilisation:
    """The curves of `utilisation` along a growing log."""

    def __init__(self) -> None:
        self._over = {name: Intervals() for name in _OF_LOG}
        self._now: Spans | None = None  # what is under way
        self._end_s = 0.0

    def read(self, rows: Rows, over: Spans, now: Spans) -> None:
        """Read new rows of a log, with the spans that they end and the open spans."""
        self._end_s, self._now = max(self._end_s, end_of(rows)), now
        _add_spans(self._over, over)
        push, mix, release = (pick(rows, kind) for kind in (Kind.PUSH, Kind.MIX, Kind.RELEASE))
        begun = np.maximum(push["time_s"] - push["send_s"], 0.0)
        self._over["up"].add(begun, push["time_s"], push["bytes"])
        self._over["up"].add(mix["time_s"], mix["time_s"], mix["bytes"])
        self._over["down"].add(release["time_s"], release["time_s"], release["bytes"])

    def columns(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of `utilisation`."""
        found = {name: intervals.copy() for name, intervals in self._over.items()}
        if self._now is not None:
            _add_spans(found, self._now)
        for name, facts in (("cpu_workers", "usage"), ("cpu_servers", "server_usage")):
            if any(used.get("samples") for used in meta.get(facts, ())):
                found[name] = _cpu(meta[facts])
        end_s = max(self._end_s, *(intervals.end_s for intervals in found.values()))
        for intervals in found.values():
            intervals.reach(end_s)
        width_s = max(intervals.width_s for intervals in found.values())
        parts: dict[str, list[Any]] = {"time_s": [], "width_s": [], "series": [], "value": []}
        for name, intervals in found.items():
            intervals.reach(MOST * width_s)
            count = max(1, int(np.ceil(end_s / width_s)))
            widths = np.minimum(width_s * np.arange(1, count + 1), end_s) - width_s * np.arange(count)
            widths = np.maximum(widths, 1e-12)
            parts["time_s"] += (width_s * np.arange(count) + widths / 2).tolist()
            parts["width_s"] += widths.tolist()
            parts["series"] += [name] * count
            sums = intervals.sums[:count].copy()
            sums[-1] += intervals.sums[count:].sum()  # what is at the very end of the last interval
            parts["value"] += (sums / widths).tolist()
        return parts


def _add_spans(into: Mapping[str, Intervals], spans: Spans) -> None:
    for name, phases in _OF_PHASES.items():
        own = np.isin(spans.phase, [PHASES.index(phase) for phase in phases])
        start, end = spans.start_s[own], spans.end_s[own]
        into[name].add(start, end, end - start)


def _cpu(usage: Any) -> Intervals:
    """Return the CPU seconds of processes, at an even rate between two samples."""
    found = Intervals()
    for used in usage:
        at, cpu_s = np.array(used.get("samples") or [(0.0, 0.0)], dtype=float).T
        found.add(at[:-1], at[1:], np.diff(cpu_s))
    return found
