"""Chunks of data: their durations, and whether they were used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from psbench.core.log import EventLog, Kind
from psbench.metrics.rows import pick, sent
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd

_ASKED = ("time_s", "worker", "samples")
_COLUMNS = ("time_s", "worker", "steps", "compute_s", "test_loss", "pushed")
#: rows after which a worker's steps since its last push are lost, and it counts from 0 again
_LOST = (Kind.JOIN, Kind.LEAVE, Kind.DROP, Kind.CANCEL)


def chunks(log: EventLog) -> pd.DataFrame:
    """Return one row for each chunk of data that a worker trained on, in the order in which they ended.

    Returns
    -------
    DataFrame
        `time_s` (when the report or push arrived), `worker`, `steps` and `compute_s` of the chunk alone,
        `test_loss` of the worker's model after it, and `pushed`, whether that was pushed or only reported.
        Empty where workers do not train on chunks.
    """
    reported: dict[int, tuple[float, int]] = {}  # seconds and steps since each worker's last push
    found = []
    for row in pick(log.rows(), Kind.PUSH, Kind.REPORT, *_LOST):
        worker = int(row["worker"])
        if row["kind"] in _LOST:
            reported.pop(worker, None)
            continue
        stats = json.loads(log.text(row["text"]) or "{}")
        pushed = row["kind"] == Kind.PUSH
        if ("test_loss" if pushed else "chunk_steps") not in stats:
            continue
        seconds, steps = reported.pop(worker, (0.0, 0))
        own = int(row["steps"]) - steps if pushed else stats["chunk_steps"]
        if not pushed:
            reported[worker] = stats["compute_s"], steps + own
        found.append(
            (row["time_s"], worker, own, stats["compute_s"] - seconds, stats["test_loss"], bool(pushed))
        )
    return table(found, columns=_COLUMNS)


def chunks_sent(log: EventLog, unanswered: bool = False) -> pd.DataFrame:
    """Return one row for each chunk of data that a worker was sent, in the order in which they began.

    What other workers share for a step (SelSync's data injection) is a chunk, too.

    A worker begins one with every release and after every report; each is a message to the worker. One that
    travels while the chunk before is trained on (prefetching) is counted when it is begun, so that the last
    of each worker, which never is, does not count.

    Parameters
    ----------
    log : EventLog
    unanswered : bool
        See `total_bytes`.

    Returns
    -------
    DataFrame
        `time_s`, `worker` and `samples`. Empty where workers do not train on chunks.
    """
    return table(sent_chunks(log, unanswered), columns=_ASKED)


def sent_chunks(log: EventLog, unanswered: bool = False) -> list[tuple[float, int, int]]:
    """Return the rows of `chunks_sent`."""
    found = []
    rows = pick(sent(log.rows(), unanswered), Kind.RELEASE, Kind.REPORT)
    for row in rows[rows["text"] != 0]:  # most releases order nothing
        said = json.loads(log.text(row["text"]))
        samples = said.get("samples" if row["kind"] == Kind.RELEASE else "next_samples")
        if injection := said.get("injection"):
            samples = len(injection["workers"]) * injection["each"] or None
        if samples is not None and not (row["kind"] == Kind.RELEASE and row["id"]):
            found.append((row["time_s"], int(row["worker"]), samples))
    return found
