"""The exchanges in a run's log: from a release through the step to the push, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

import numpy as np

from psbench.arrays import Booleans, Doubles, Integers
from psbench.core.events import COLLECTIVE
from psbench.core.log import EventLog, Kind
from psbench.errors import DataError

#: of a worker's exchanges, the quickest share that its clock is set by
_QUICKEST = 0.05
#: shortest time of a message, seconds: clocks are not better
SHORTEST_S = 1e-6


@dataclass(frozen=True)
class Exchanges:
    """A row for each push of a run, in the order of arrival; times in seconds.

    Attributes
    ----------
    worker, samples, steps, bytes_up, bytes_down : (n,)
        `samples` of one step, `bytes_down` of the model or aggregate that came before, 0 for none.
    released_s, arrived_s : (n,)
        By the coordinator's clock.
    compute_s : (n,)
        Of one step.
    up_s, down_s : (n,), >= SHORTEST_S
        From the end of the steps to the arrival, less a collective; and from the release to the first step.
        The clocks' differences are taken out: of each worker, its quickest messages take as long both ways.
    collective_s : (n,)
        Of the collective that this push ended, 0 for none.
    place : (n,)
        How many workers were released in the same answer before this one.
    push : (n,)
        Which of the log's pushes it is, from 0.
    """

    worker: Integers
    samples: Integers
    steps: Integers
    bytes_up: Integers
    bytes_down: Integers
    released_s: Doubles
    arrived_s: Doubles
    compute_s: Doubles
    up_s: Doubles
    down_s: Doubles
    collective_s: Doubles
    place: Integers
    push: Integers

    def __len__(self) -> int:
        return len(self.worker)

    def where(self, chosen: Booleans) -> Exchanges:
        return Exchanges(**{each.name: getattr(self, each.name)[chosen] for each in fields(self)})

    def settled(self, first: int = 2) -> Exchanges:
        """Return the exchanges without each worker's first, in which processes warm up."""
        order = np.zeros(len(self), dtype=np.int64)
        for worker in np.unique(self.worker):
            order[self.worker == worker] = np.arange((self.worker == worker).sum())
        return self.where(order >= first)


def exchanges_of(log: EventLog) -> Exchanges:
    """Return a run's exchanges.

    Raises
    ------
    DataError
        If the log begins in the middle of a run, goes back in time, or has workers that compute while they
        send: their exchanges overlap.
    """
    rows = list(_rows(log))
    if not rows:
        raise DataError("the run has no push that follows a release: there is nothing to measure")
    columns = np.array(rows, dtype=np.float64).T
    whole = {"worker": 0, "samples": 1, "steps": 2, "bytes_up": 3, "bytes_down": 4, "place": 10, "push": 11}
    found = {name: columns[at].astype(np.int64) for name, at in whole.items()}
    worker, released, arrived, compute, up, collective = columns[[0, 5, 6, 7, 8, 9]]
    steps = np.maximum(found["steps"], 1)
    down = arrived - released - compute - up
    up = up - collective
    for each in np.unique(worker):
        own = worker == each
        up[own], down[own] = as_quick_both_ways(up[own], down[own])
    up, down = np.maximum(up, SHORTEST_S), np.maximum(down, SHORTEST_S)
    times = {"released_s": released, "arrived_s": arrived, "compute_s": compute / steps}
    return Exchanges(**found, **times, up_s=up, down_s=down, collective_s=collective)


def relative_error(part: str, live: Sequence[EventLog], twins: Sequence[EventLog]) -> float | None:
    """Return the error of the twins' mean time of a part: twin over live, less 1.

    `part` is "steps", or "messages": a push and its answer. None if workers compute while they send, so
    that neither is known.
    """
    means = []
    try:
        for logs in (live, twins):
            found = [exchanges_of(log).settled() for log in logs]
            of = [each.compute_s if part == "steps" else each.up_s + each.down_s for each in found]
            means.append(fmean(float(each.mean()) for each in of if len(each)))
    except DataError:
        return None
    return means[1] / means[0] - 1.0


def as_quick_both_ways(up_s: Doubles, down_s: Doubles) -> tuple[Doubles, Doubles]:
    """Return message times to the servers and back, with clocks set so that the fastest of both are equal."""
    ahead = (np.quantile(down_s, _QUICKEST) - np.quantile(up_s, _QUICKEST)) / 2
    return up_s + ahead, down_s - ahead


def _rows(log: EventLog) -> Iterator[tuple[float, ...]]:
    """Yield the log columns of each push that follows a release."""
    released: dict[int, tuple[float, int, int]] = {}
    last_s, answer_s, place, push = 0.0, -1.0, 0, -1
    for row in log.rows():
        kind, worker, now = row["kind"], int(row["worker"]), float(row["time_s"])
        if now < last_s:
            raise DataError(f"the log goes back in time, from {last_s:.6g} to {now:.6g} s; was it truncated?")
        last_s = now
        if kind == Kind.RELEASE:
            place = place + 1 if now == answer_s else 0
            answer_s = now
            if row["id"] != 1:  # else it is an order to push what is there
                released[worker] = now, int(row["bytes"]), place
        elif kind == Kind.PUSH:
            push += 1
            text = log.text(row["text"])
            if '"goes_on"' in text:
                raise DataError("workers compute while they send, so message times cannot be determined")
            if worker in released:
                begun, down, place_of = released.pop(worker)
                collective = json.loads(text or "{}").get(COLLECTIVE, 0.0)
                steps = max(1, int(row["steps"]))
                facts = worker, int(row["samples"]) // steps, steps, int(row["bytes"]), down
                times = begun, now, float(row["compute_s"]), float(row["send_s"]), collective
                yield *facts, *times, place_of, push


def last_version(log: EventLog) -> tuple[int, float]:
    """Return the number of versions, and the seconds from the first release to the last version.

    Raises
    ------
    DataError
        If it made none.
    """
    made, released = log.of_kind(Kind.APPLY), log.of_kind(Kind.RELEASE)
    if not len(made["version"]) or not len(released["time_s"]):
        raise DataError("the run made no version")
    first = np.argmax(made["version"] == made["version"].max())
    return int(made["version"].max()), float(made["time_s"][first] - released["time_s"][0])
