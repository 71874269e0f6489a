"""Loss, accuracy and throughput along a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.arrays import Array
from psbench.core.log import EventLog, Kind
from psbench.core.target import Target
from psbench.metrics.axes import Axes, AxisValues
from psbench.metrics.rows import Rows, end_of, pick, positions, trained
from psbench.metrics.table import table

if TYPE_CHECKING:
    import pandas as pd

_EVALUATED_AT = ("epoch", "time_s", "updates", "bytes")


def evaluations(log: EventLog) -> pd.DataFrame:
    """Return the evaluations of the model.

    Returns
    -------
    DataFrame
        `epoch`, `time_s`, `updates` (the version evaluated), `bytes` (up and down, sent until that version
        was made) and a column for each evaluated value, such as `train_loss`, `val_loss`, `val_accuracy` (0
        to 1).
    """
    rows = log.rows()
    found = evaluated(log, rows, Axes().read(rows))
    names = dict.fromkeys([*_EVALUATED_AT, *(name for row in found for name in row)])
    return table(found, columns=list(names))


def evaluated(log: EventLog, rows: Rows, at: AxisValues) -> list[dict[str, Any]]:
    """Return the evaluations among the rows of a log: axis positions and values."""
    found = []
    evaluations = pick(rows, Kind.EVALUATED)
    for row, sent in zip(evaluations, at.evaluated_bytes.tolist(), strict=True):
        facts = int(row["id"]), float(row["time_s"]), int(row["version"]), sent
        found.append(dict(zip(_EVALUATED_AT, facts, strict=True)) | _values(log, row))
    return found


def evaluated_values(log: EventLog, rows: Rows) -> list[tuple[float, dict[str, float]]]:
    """Return the time and the values of each evaluation among the rows of a log."""
    return [(float(row["time_s"]), _values(log, row)) for row in pick(rows, Kind.EVALUATED)]


def _values(log: EventLog, row: np.void) -> dict[str, float]:
    # a whole number of a file may be larger than any integer of numpy
    found: dict[str, float] = json.loads(log.text(int(row["text"])), parse_int=float)
    return found


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
    return table(TrainingLoss(dataset_size, smooth_epochs).read(rows, Axes().read(rows)))


def last_training_loss(rows: Rows, dataset_size: int) -> float | None:
    """Return the last value of `training_loss`; None if no push has a finite loss."""
    push = pick(rows, Kind.PUSH)
    found = TrainingLoss(dataset_size).smoothed(push[np.isfinite(push["loss"])])
    return float(found[-1]) if len(found) else None


class TrainingLoss:
    """The smoothed training loss along a growing log; see `training_loss`."""

    def __init__(self, dataset_size: int, smooth_epochs: float = 0.25) -> None:
        self._size, self._window = dataset_size, smooth_epochs * dataset_size
        # of the pushes in the window: samples before each, with it, and loss by samples
        self._known = np.array([[-np.inf], [0.0], [0.0]])

    def read(self, rows: Rows, at: AxisValues) -> dict[str, Array]:
        """Return the columns for new rows of a log."""
        place = positions(rows, Kind.PUSH)
        place = place[np.isfinite(rows["loss"][place])]
        push = rows[place]
        return {
            "time_s": push["time_s"],
            "epoch": at.samples[place] / self._size,
            "updates": at.version[place],
            "bytes": at.bytes[place],
            "train_loss": self.smoothed(push),
        }

    def smoothed(self, pushes: Rows) -> Array:
        """Return for each new push the mean over the pushes before it in the window; all have a loss."""
        if not len(pushes):
            return np.zeros(0)
        values, samples = pushes["loss"], pushes["samples"].astype(np.float64)
        begin, until, total = self._known
        known = len(until)
        until = np.append(until, np.cumsum(np.append(until[-1], samples))[1:])
        total = np.append(total, np.cumsum(np.append(total[-1], values.astype(np.float64) * samples))[1:])
        begin = np.append(begin, until[known:] - samples)
        first = np.searchsorted(begin, until[known:] - self._window)
        before = np.minimum(first, np.arange(known, len(until))) - 1
        self._known = np.array([begin, until, total])[:, before[-1] :]
        mean: Array = (total[known:] - total[before]) / np.maximum(until[known:] - until[before], 1.0)
        return mean


def throughput(log: EventLog, bins: int = 50) -> pd.DataFrame:
    """Return the samples applied per second, in `bins` equal intervals of the run.

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


def time_to_target(log: EventLog, target: float | Target, value: str = "val_accuracy") -> float | None:
    """Return the time in seconds of the first evaluation that reaches `target`; None if none does.

    A number is one of `value`: a loss reaches it from above, anything else from below.
    """
    if not isinstance(target, Target):
        bound = float(target)
        lower, higher = (bound, None) if value.endswith("loss") else (None, bound)
        target = Target.model_construct(metric=value, at_least=higher, at_most=lower)
    found = evaluated_values(log, log.rows())
    return next((time_s for time_s, values in found if target.reached(values.get(target.column))), None)
