"""Loss, accuracy and throughput along a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from psbench.core.log import EventLog, Kind
from psbench.metrics.rows import Array, Rows, end_of, positions, trained
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd


def evaluations(log: EventLog) -> pd.DataFrame:
    """Return the evaluations of the model.

    Returns
    -------
    DataFrame
        `epoch`, `time_s`, `updates` (the version evaluated), `bytes` (up and down, sent until then) and a
        column for each evaluated value, such as `train_loss`, `val_loss`, `val_accuracy` (0 to 1).
    """
    rows = log.rows()
    frame = table(log.evaluations(), columns=_evaluated(log))
    frame = frame.rename(columns={"version": "updates"})
    frame.insert(3, "bytes", _sent_until(rows)[positions(rows, Kind.EVALUATED)])
    return frame


def training_loss(log: EventLog, dataset_size: int, smooth_epochs: float = 0.25) -> pd.DataFrame:
    """Return the training loss along the run, smoothed.

    Parameters
    ----------
    log : EventLog
    dataset_size : int, samples
    smooth_epochs : float
        The loss shown is the mean over the samples pushed last, this many epochs of them (at least one
        push). Measured in samples, it smooths every strategy alike, whatever its batches.

    Returns
    -------
    DataFrame
        One row per push that has a finite loss: `time_s`, `epoch` (samples applied until then over the size
        of the data), `updates`, `bytes` (sent until then), `train_loss`.

    Notes
    -----
    The loss of a push is that of the version it was computed on, so it is older than the push itself.
    """
    rows = log.rows()
    place = positions(rows, Kind.PUSH)
    place = place[np.isfinite(rows["loss"][place])]
    progress = (rows["kind"] == Kind.APPLY) | (rows["kind"] == Kind.RELEASE)
    applied = np.where(progress, rows["samples"], 0)
    version = np.maximum.accumulate(np.where(rows["kind"] == Kind.APPLY, rows["version"], 0))
    push = rows[place]
    return table(
        {
            "time_s": push["time_s"],
            "epoch": np.cumsum(applied, dtype=np.int64)[place] / dataset_size,
            "updates": version[place],
            "bytes": _sent_until(rows)[place],
            "train_loss": _running_mean(push["loss"], push["samples"], smooth_epochs * dataset_size),
        }
    )


def throughput(log: EventLog, bins: int = 50) -> pd.DataFrame:
    """Return the samples applied per second, in `bins` equal stretches of the run.

    Returns
    -------
    DataFrame
        `time_s` (middle of the stretch), `samples_per_s`.
    """
    rows = log.rows()
    end = end_of(rows)
    apply = trained(rows)
    if end <= 0:
        return table({"time_s": np.zeros(0), "samples_per_s": np.zeros(0)})
    counted, edges = np.histogram(apply["time_s"], bins, (0.0, end), weights=apply["samples"])
    return table({"time_s": (edges[:-1] + edges[1:]) / 2, "samples_per_s": counted / (end / bins)})


def time_to_target(log: EventLog, target: float, value: str = "val_accuracy") -> float | None:
    """Return the time, in seconds, of the first evaluation that reaches `target`; None if none does.

    A loss reaches its target from above, anything else from below.
    """
    frame = evaluations(log)
    if value not in frame:
        return None
    reached = frame[value] <= target if value.endswith("loss") else frame[value] >= target
    return float(frame.loc[reached, "time_s"].iloc[0]) if reached.any() else None


def _evaluated(log: EventLog) -> list[str]:
    values = {name: None for row in log.evaluations() for name in row}
    return list(dict.fromkeys(["epoch", "time_s", "version", *values]))


def _sent_until(rows: Rows) -> Array:
    """Return the bytes sent up and down until and including each row (other kinds have none)."""
    return np.cumsum(rows["bytes"], dtype=np.int64)


def _running_mean(values: Array, samples: Array, window: float) -> Array:
    """Return for each push the mean over it and those before it that fit into a window of samples."""
    samples = samples.astype(np.float64)
    until = np.cumsum(samples)
    total = np.cumsum(values.astype(np.float64) * samples)
    first = np.minimum(np.searchsorted(until - samples, until - window), np.arange(len(until)))
    before = np.where(first > 0, first - 1, 0)
    since = np.where(first > 0, total[before], 0.0), np.where(first > 0, until[before], 0.0)
    mean: Array = (total - since[0]) / np.maximum(until - since[1], 1.0)
    return mean
