"""Progress of a run as a number and as a sentence, read from its growing log."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from psbench.core.log import EventLog, Kind
from psbench.core.stop import Stop
from psbench.metrics.clocks import Clocks
from psbench.metrics.rows import Rows, pick, positions, trained
from psbench.metrics.timebase import clock_of
from psbench.percents import percent

#: rows that say whether a worker waits
_STATES = (
    *(Kind.JOIN, Kind.LEAVE, Kind.DROP, Kind.READMIT),
    *(Kind.PUSH, Kind.VOTE, Kind.RELEASE, Kind.HOLD, Kind.CANCEL),
)
#: more waiting workers than this are counted, not listed
_LISTED = 6


class RunProgress:
    """Progress of a run: counts, and each worker's activity.

    Parameters
    ----------
    stop : Stop
    meta : dict
        `dataset_size`, `num_workers`, `compositions` and `backend` of the run.
    """

    def __init__(self, stop: Stop, meta: dict[str, Any]) -> None:
        self._stop = stop
        self._size = max(int(meta.get("dataset_size", 1)), 1)
        self._names: Sequence[str] = meta.get("compositions", ())
        self.samples = 0
        self.updates = 0
        self.now = 0.0
        self.composition = 0
        self._clocks = Clocks()
        self._holds: dict[int, str] = {}  # worker -> why it waits
        #: what was evaluated last, in words; empty before
        self._quality = ""

    @property
    def epoch(self) -> float:
        """Samples applied over the size of the data."""
        return self.samples / self._size

    def read(self, log: EventLog, start: int, stop: int) -> None:
        """Read rows `start` to `stop`; the result does not depend on the division of the log."""
        rows = log.rows(start, stop)
        if not len(rows):
            return
        applied = pick(rows, Kind.APPLY)
        self.samples += int(trained(rows)["samples"].sum(dtype=np.int64))
        if len(applied):
            self.updates = int(applied["version"][-1])
        self.now = float(rows["time_s"][-1])
        self._count_pushes(rows)
        self._note_holds(log, pick(rows, *_STATES))
        if len(evaluated := pick(rows, Kind.EVALUATED)):
            self._quality = _quality(json.loads(log.text(int(evaluated["text"][-1]))))

    def _count_pushes(self, rows: Rows) -> None:
        """Update the clocks in log order; a joining worker starts at the slowest clock."""
        for part in np.split(rows, positions(rows, *Clocks.BREAKS)):
            if len(part) and part["kind"][0] in Clocks.BREAKS:
                self._clocks.change(part[0])
                if part["kind"][0] == Kind.HANDOVER:
                    self.composition = int(part["id"][0])
            if len(part) == 1 and part["kind"][0] != Kind.PUSH:  # as when thousands of workers join
                continue
            pushed, counts = np.unique(pick(part, Kind.PUSH)["worker"], return_counts=True)
            for worker, count in zip(pushed.tolist(), counts.tolist(), strict=True):
                self._clocks.rise(worker, count)

    def _note_holds(self, log: EventLog, rows: Rows) -> None:
        """Record the waiting workers with their reasons; only the last row of each worker matters."""
        workers, places = np.unique(rows["worker"][::-1], return_index=True)
        for worker, place in zip(workers.tolist(), places.tolist(), strict=True):
            self._holds.pop(worker, None)
            row = rows[len(rows) - 1 - place]
            if row["kind"] == Kind.HOLD:
                self._holds[worker] = log.text(int(row["text"]))

    def fraction(self) -> float | None:
        """Return the share done, 0 to 1, by the nearest stop rule; None if no rule has a known end."""
        stop = self._stop
        pairs = ((self.epoch, stop.epochs), (self.now, stop.seconds), (self.updates, stop.updates))
        known = [done / most for done, most in pairs if most]
        return min(max(known), 1.0) if known else None

    def words(self, backend: str) -> str:
        """Return the state as a sentence.

        Such as "epoch 7 of 20, accuracy 91.3 %, virtual 03:12, ssp: workers 2 and 5 wait for worker 8
        (staleness bound)".
        """
        return f"{self.reached(backend)}: {self._waiting()}"

    def reached(self, backend: str) -> str:
        """Return the state as a phrase without the waiting workers, which the panel draws.

        Such as "epoch 7 of 20, accuracy 91.3 %, virtual 03:12, ssp".
        """
        stop = self._stop
        most = f" of {stop.epochs:g}" if stop.epochs else ""
        # an epoch counts from its first sample on, and the last one until the end
        epoch = (
            min(math.floor(self.epoch) + 1, math.ceil(stop.epochs))
            if stop.epochs
            else math.floor(self.epoch) + 1
        )
        clock = clock_of({"backend": backend})
        name = self._names[self.composition] if self.composition < len(self._names) else ""
        quality = f"{self._quality}, " if self._quality else ""
        return f"epoch {epoch}{most}, {quality}{clock} {clock_time(self.now)}, {name}"

    def _waiting(self) -> str:
        if not self._holds:
            return "no worker waits"
        waiting = sorted(self._holds)
        clocks = self._clocks.of
        under_way = sorted(clocks.keys() - self._holds.keys())
        reasons = set(self._holds.values())
        reason = f" ({next(iter(reasons))})" if len(reasons) == 1 else ""
        if reasons == {"staleness bound"}:
            slowest = min((clocks[w] for w in under_way), default=0)
            under_way = [w for w in under_way if clocks[w] == slowest]
        verb = "waits" if len(waiting) == 1 else "wait"
        whom = f" for {_workers(under_way)}" if under_way else ""
        return f"{_workers(waiting)} {verb}{whom}{reason}"


class LogProgress:
    """Progress of a run whose log grows, and is cut when the run returns to a checkpoint.

    Parameters
    ----------
    stop : Stop
    meta : dict
        See `RunProgress`.
    """

    def __init__(self, stop: Stop, meta: dict[str, Any]) -> None:
        self._of = stop, meta
        self._progress, self._read = RunProgress(stop, meta), 0

    def read(self, log: EventLog) -> RunProgress:
        """Read the new rows, or all rows of a log that was cut, and return the progress."""
        end = len(log)
        if end < self._read:
            self._progress, self._read = RunProgress(*self._of), 0
        self._progress.read(log, self._read, end)
        self._read = end
        return self._progress


def _quality(evaluated: Mapping[str, float | None]) -> str:
    r"""Return the model's quality as text: its accuracy if evaluated, else a loss.

    >>> _quality({"val_accuracy": 0.913, "val_loss": 0.25}), _quality({"train_loss": 0.25})
    ('accuracy 91.3\xa0%', 'loss 0.25')
    """
    for name in ("val_accuracy", "val_loss", "train_loss"):
        if (value := evaluated.get(name)) is not None:
            return f"accuracy {percent(value, 1)}" if name == "val_accuracy" else f"loss {value:.4g}"
    return ""


def _workers(ids: Sequence[int]) -> str:
    return (
        f"worker {ids[0]}"
        if len(ids) == 1
        else f"{len(ids)} workers"
        if len(ids) > _LISTED
        else f"workers {_list(ids)}"
    )


def _list(ids: Sequence[int]) -> str:
    texts = [str(i) for i in ids]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def clock_time(seconds: float) -> str:
    """Return seconds as a clock shows them.

    >>> clock_time(192), clock_time(3725), clock_time(4.25)
    ('03:12', '1:02:05', '00:04')
    """
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    tail = f"{minutes:02d}:{whole % 60:02d}"
    return f"{hours}:{tail}" if hours else tail


def time_left(fraction: float | None, spent_s: float) -> str:
    """Return the remaining time in words; empty while too little is done for an estimate.

    >>> time_left(0.25, 10.0), time_left(0.001, 10.0)
    ('about 30 s left', '')
    """
    if fraction is None or fraction < 0.02 or spent_s < 0.3:
        return ""
    left = spent_s * (1 - fraction) / fraction
    if left < 1:
        return "nearly done"
    return f"about {left:.0f} s left" if left < 120 else f"about {left / 60:.0f} min left"
