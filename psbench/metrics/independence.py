"""Independence of workers: their work between two requests for the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.arrays import Array
from psbench.core.log import EventLog, Kind
from psbench.metrics.rows import Rows, pick, workers_of
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd


def independence(log: EventLog) -> pd.DataFrame:
    """Return each worker's iterations per request for the model: worker independence, WI.

    An iteration is a step or, for a worker that trains on chunks of data, a chunk: the reports and pushes
    at whose end it takes stock. A push is the request.

    Returns
    -------
    DataFrame
        One row for each worker that ever joined: `worker`, `iterations`, `requests`, `independence` (NaN if
        it never asked). 1 where every step is pushed.

    Notes
    -----
    What a worker has done since its last request counts: one that goes on and on without asking becomes
    ever more independent. Steps that are in no push yet, and of which nothing was reported, do not.

    Source
    ------
    Hermes, eq. (7).
    """
    return table(_columns(log))


def _columns(log: EventLog) -> dict[str, Any]:
    rows = log.rows()
    workers = workers_of(rows)
    push, release, chunk = pick(rows, Kind.PUSH), pick(rows, Kind.RELEASE), _chunks(log, rows)
    kept = release[release["samples"] > 0]  # a step after a vote
    requests = _count(push, workers)
    steps = _count(push, workers, push["steps"]) + _count(kept, workers)
    chunks = _count(chunk, workers)
    iterations = chunks + requests if len(chunk) else steps
    with np.errstate(divide="ignore", invalid="ignore"):
        independence = np.where(requests > 0, iterations / requests, np.nan)
    columns = {"iterations": iterations, "requests": requests, "independence": independence}
    return {"worker": workers} | columns


def mean_independence(log: EventLog) -> float | None:
    """Return the mean WI of workers that requested the model; None if all of them have 1.

    Examples
    --------
    >>> mean_independence(EventLog()) is None
    True
    """
    found = _columns(log)["independence"]
    found = found[~np.isnan(found)]
    return None if (found == 1.0).all() else float(found.mean())


def _chunks(log: EventLog, rows: Rows) -> Rows:
    """Return the reports at the end of a chunk of data."""
    report = pick(rows, Kind.REPORT)
    ends = [log.text(number).find('"chunk_steps"') >= 0 for number in report["text"].tolist()]
    found: Rows = report[np.array(ends, dtype=bool)]
    return found


def _count(rows: Rows, workers: list[int], weights: Array | None = None) -> Array:
    counts = np.bincount(rows["worker"], weights=weights, minlength=max(workers, default=0) + 1)
    return counts[workers].astype(np.int64)
