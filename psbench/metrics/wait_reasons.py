"""Reasons for waits, in words for the panel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from psbench.arrays import Array
from psbench.core.log import EventLog
from psbench.metrics.recording import Table
from psbench.metrics.spans import PHASES, Spans, reason_text

#: why a worker waits, by the reason that the strategy gave; other reasons are said as they are
WHY: Mapping[str, str] = {
    "barrier": "no worker continues before all have pushed",
    "k pushes": "the next version is not complete",
    "neighbours": "a neighbour has not sent its model of the same step",
    "vote": "no worker continues before all have voted",
    "switch": "a switch is under way, and all work ends first",
    "hand-over": "the model is being handed over",
    "end of the epoch": "it has done its share of the epoch",
    "answer": "its answer is on the way, or the server is busy",
}
STALENESS = "staleness bound"
#: why, where the strategy gave another reason before the switch was asked for
DRAINS = "the strategies are being switched, and all work under way ends first"


def explanations(log: EventLog, spans: Spans, leads: Table) -> tuple[list[str], Array]:
    """Return the explanations that occur, the empty one first, and each span's place among them."""
    places: dict[str, int] = {"": 0}
    codes = np.zeros(len(spans.worker), dtype=np.uint16)
    waits = np.flatnonzero(spans.phase == PHASES.index("wait"))
    reason = spans.reason[waits]
    for number in np.unique(reason).tolist():
        own, name = waits[reason == number], reason_text(log, number)
        if name != STALENESS:
            codes[own] = places.setdefault(WHY.get(name, name), len(places))
            continue
        for text, which in _by_lead(spans.worker[own].astype(np.int64), spans.start_s[own], leads):
            codes[own[which]] = places.setdefault(text, len(places))
    return list(places), codes


def _by_lead(worker: Array, start: Array, leads: Table) -> Iterator[tuple[str, Array]]:
    """Yield each explanation of waits by the staleness bound, and the waits it explains."""
    times = np.unique(leads["time_s"])
    keys = leads["worker"].astype(np.int64) * (len(times) + 1) + np.searchsorted(times, leads["time_s"])
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(times, start)
    wanted = worker * (len(times) + 1) + place
    at = np.searchsorted(keys[order], wanted, side="right") - 1  # of two at one time, the later
    known = (at >= 0) & np.isin(start, times)
    known &= keys[order[at]] == wanted if len(keys) else False
    found = order[at] if len(keys) else np.zeros(len(start), dtype=np.int64)
    said = np.full((len(start), 2), -1)
    said[known] = np.stack([leads["lead"], leads["bound"]], axis=1)[found[known]]
    pairs, place = np.unique(said, axis=0, return_inverse=True)
    for number, (lead, bound) in enumerate(pairs.tolist()):
        yield (_ahead(lead, bound) if lead >= 0 else STALENESS), place.reshape(-1) == number


def _ahead(lead: int, bound: int) -> str:
    steps = f"it is {lead} step{'s' if lead != 1 else ''} ahead of the slowest"
    if bound < 0:
        return steps
    more = {1: "one"}.get(lead - bound, str(lead - bound))
    return f"{steps}, {more} more than its bound of {bound} allows"
