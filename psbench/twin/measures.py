"""Measures for comparing a run with its twin, derived from a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from psbench.arrays import Integers
from psbench.core.log import EventLog, Kind
from psbench.errors import DataError
from psbench.metrics import energy_totals, idle_fraction, time_to_target
from psbench.metrics.contributions import counted, starved_workers, totals, unused_share
from psbench.metrics.pushes import Staleness
from psbench.metrics.rows import trained, workers_of
from psbench.results.run import Run

#: share of the versions that are passed over, in which processes warm up
_FIRST = 0.05
#: width of a band that begins at 0, as a share of its mean
NO_PREDICTION = 2.0


@dataclass(frozen=True)
class Measures:
    """Measures of one run.

    Attributes
    ----------
    update_s, sample_s : float, seconds
        For an update, and for a sample that was trained on, after the first versions.
    idle : float, 0 to 1
        Mean share of their time that workers waited.
    staleness : int64 array
        Of every push that was applied.
    bytes_up, bytes_down : int
        Of a push, and of a release that brought something; the largest.
    unused : float, 0 to 1
        Share of the finished gradients that were never used.
    starved : list of str
        A line for each worker of whose gradients none, or few, were used.
    target_s : float or None, seconds
        Until the target was reached; None if it was not, or none was given.
    joules, cost : float or None
        For a sample that was trained on, of all machines; None if their watts or prices are not known.
    """

    update_s: float
    sample_s: float
    idle: float
    staleness: Integers
    bytes_up: int
    bytes_down: int
    unused: float = 0.0
    starved: Sequence[str] = ()
    target_s: float | None = None
    joules: float | None = None
    cost: float | None = None


def measures_of(run: Run, target: float | None = None) -> Measures:
    """Return the measures of a run.

    Raises
    ------
    DataError
        If it made too few versions.
    """
    update_s, sample_s = steady_s(run.log)
    spent = energy_totals(run.log, run.meta)
    rows, counts = run.log.rows(), counted(run.log)
    trained_on = max(1, int(trained(rows)["samples"].sum(dtype=np.int64)))
    sent = run.log.of_kind(Kind.RELEASE)["bytes"], run.log.of_kind(Kind.PUSH)["bytes"]
    return Measures(
        update_s=update_s,
        sample_s=sample_s,
        idle=float(np.mean(list(idle_fraction(run.log).values()))),
        staleness=Staleness().read(rows).astype(np.int64),
        bytes_up=int(sent[1].max(initial=0)),
        bytes_down=int(sent[0].max(initial=0)),
        unused=unused_share(totals(counts)) or 0.0,
        starved=starved_workers(counts, workers_of(rows)),
        target_s=None if target is None else time_to_target(run.log, target),
        **{name: spent[name] / trained_on for name in ("joules", "cost") if name in spent},
    )


def steady_s(log: EventLog) -> tuple[float, float]:
    """Return the seconds of an update, and of a sample that was trained on, after the first versions.

    Raises
    ------
    DataError
        If it made too few versions.
    """
    made = log.of_kind(Kind.APPLY)
    versions, first = np.unique(made["version"], return_index=True)
    if len(versions) < 3:
        raise DataError(f"{len(versions)} versions are too few to measure; let the run last longer")
    start = max(1, int(_FIRST * len(versions)))
    times = made["time_s"][first]
    seconds = float(times[-1] - times[start])
    samples = int(made["samples"][first[start + 1] :].sum())  # of the versions made in these seconds
    return seconds / (len(versions) - 1 - start), seconds / max(1, samples)


@dataclass(frozen=True)
class Band:
    """A mean, and a 90 % prediction interval for another run, if runs are normally distributed.

    Times, joules and prices are not negative, so the interval begins at 0 at the lowest. Such a band says
    nothing that was not known before: it is no prediction.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Band:
        """Return the mean and the prediction interval of another value.

        >>> band = Band.of([1.0, 2.0, 3.0])
        >>> band.low, band.mean, round(band.high, 2), band.is_prediction
        (0.0, 2.0, 5.37, False)
        """
        n, mean = len(values), float(np.mean(values))
        if n < 2:
            return cls(mean, mean, mean)
        wide = float(stats.t.ppf(0.95, n - 1) * np.std(values, ddof=1) * (1 + 1 / n) ** 0.5)
        return cls(mean, max(0.0, mean - wide), mean + wide)

    @property
    def is_prediction(self) -> bool:
        """Return True if the band does not begin at 0."""
        return self.width < NO_PREDICTION

    @property
    def width(self) -> float:
        """The width as a share of the mean."""
        return (self.high - self.low) / self.mean if self.mean else 0.0

    def __str__(self) -> str:
        """Return the band as text."""
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def overlaps(self, other: Band) -> bool:
        """Return whether the bands overlap."""
        return self.low <= other.high and other.low <= self.high

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high
