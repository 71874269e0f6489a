"""Spread of gradients among workers that exchange models without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.arrays import Array
from psbench.core.log import EventLog, Kind
from psbench.metrics.rows import pick
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd


def gradient_spread(log: EventLog, until_s: float = np.inf) -> pd.DataFrame:
    """Return the number of gradients of each worker in each worker's model.

    A worker's own gradients enter its model when it steps. Gradients of others enter with a model that it
    mixes into its own: all that this model contained when it was sent.

    Parameters
    ----------
    log : EventLog
    until_s : float, seconds
        The moment; by default the end.

    Returns
    -------
    DataFrame
        A row for each pair of workers: `worker`, `of`, `made` (gradients of `of`), `received`, `missing`.
        Empty for a run with a server.
    """
    rows = [
        (worker, of, known.made[of], int(own[of]), known.made[of] - int(own[of]))
        for _, known in [*_history(log, until_s)][-1:]
        for worker, own in sorted(known.received.items())
        for of in sorted(known.made)
    ]
    return table(rows, columns=("worker", "of", "made", "received", "missing"))


def lags(log: EventLog, points: int = 400) -> pd.DataFrame:
    """Return the number of other workers' gradients that a model lacks, along a run.

    Returns
    -------
    DataFrame
        `time_s`, `mean` and `most` (gradients, over all pairs of different workers that are present); at most
        about `points` rows.
    """
    rows = []
    step = max(1, int(np.count_nonzero(log.rows()["kind"] == Kind.MIX)) // points)
    for place, (time_s, known) in enumerate(_history(log)):
        if place % step == 0:
            missing = known.missing()
            rows.append((time_s, float(np.mean(missing or 0)), max(missing, default=0)))
    return table(rows, columns=("time_s", "mean", "most"))


def _history(log: EventLog, until_s: float = np.inf) -> Iterator[tuple[float, _Knowledge]]:
    """Yield the time of each exchange, and the spread of gradients after it."""
    rows = pick(log.rows(), Kind.JOIN, Kind.LEAVE, Kind.PUSH, Kind.MIX)
    if not (rows["kind"] == Kind.MIX).any():
        return
    known = _Knowledge(int(rows["worker"].max()) + 1)
    columns = ["time_s", "kind", "worker", "id", "version", "text"]
    for time_s, kind, worker, push, version, text in rows[columns].tolist():
        if time_s > until_s:
            return
        if kind == Kind.MIX:
            known.mix(worker if push >= 0 else None, _mixing(log, text))
            yield time_s, known
        elif kind == Kind.PUSH:
            known.push(worker, version)
        elif kind == Kind.JOIN:
            known.join(worker)
        else:
            known.leave(worker)


class _Knowledge:
    """Spread of gradients along a log: the number of gradients of each worker in each worker's model.

    Attributes
    ----------
    received : dict of worker to int64 array, (workers,)
        Of the present workers.
    made : dict of worker to int
    """

    def __init__(self, workers: int) -> None:
        self._nothing = np.zeros(workers, dtype=np.int64)
        self.received: dict[int, Array] = {}
        self.made: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        self._sent: dict[tuple[int, int, bool], Array] = {}  # with the model that a worker sent at a version
        self._waiting = set[int]()  # those whose last push has not been mixed

    def join(self, worker: int) -> None:
        others = [version for other, version in self._versions.items() if other in self.received]
        self._versions[worker] = max(others, default=0)
        self.received[worker] = self._nothing
        self.made.setdefault(worker, 0)
        self._sent[worker, self._versions[worker], False] = self._nothing

    def leave(self, worker: int) -> None:
        self.received.pop(worker, None)
        self._waiting.discard(worker)

    def push(self, worker: int, version: int) -> None:
        self.made[worker] += 1
        self._waiting.add(worker)
        self._sent[worker, version, True] = self._with_own(worker, self.received[worker])

    def _with_own(self, worker: int, received: Array) -> Array:
        found = received.copy()
        found[worker] = self.made[worker]
        return found

    def mix(self, pusher: int | None, mixing: Mapping[str, Any]) -> None:
        """Merge the gradients known to the mixed models; after a pairwise exchange both have the union."""
        first = mixing["steps_first"]
        before = dict(self.received)
        # all of a group have stepped, and of a pair the one that asked for the exchange
        pushers: set[int] = set() if pusher is None else {pusher, *(self._waiting & mixing["rows"].keys())}
        self._waiting -= pushers
        for each in pushers if first else ():
            before[each] = self._with_own(each, before[each])
        for worker, weights in mixing["rows"].items():
            version = self._versions[worker]
            sources = [
                self._sent[other, version, first] if mixing["sent"] else before[other] for other in weights
            ]
            found = np.maximum.reduce(sources)
            if worker in pushers:
                found = self._with_own(worker, found)
            self.received[worker] = found
            if pusher is not None:
                self._versions[worker] += 1
            self._sent[worker, self._versions[worker], False] = found
        oldest = min(self._versions[worker] for worker in self.received)
        if len(self._sent) > 16 * len(self._nothing):
            self._sent = {key: value for key, value in self._sent.items() if key[1] >= oldest}

    def missing(self) -> list[int]:
        """Return for each pair of workers the number of one's gradients that the other lacks."""
        return [
            self.made[of] - int(own[of])
            for worker, own in self.received.items()
            for of in self.received
            if of != worker
        ]


def _mixing(log: EventLog, text: int) -> dict[str, Any]:
    """Return the mixing matrix from a row's text, with worker numbers as keys."""
    mixing: dict[str, Any] = json.loads(log.text(int(text)))
    rows = mixing["rows"]
    mixing["rows"] = {int(w): {int(other): x for other, x in row.items()} for w, row in rows.items()}
    return mixing
