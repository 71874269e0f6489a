"""Deviation of runs from their twins beyond the variation over seeds, which bands must include."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from psbench.arrays import Doubles
from psbench.experiment import Experiment
from psbench.percents import percent
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.twin.exchanges import last_version, relative_error
from psbench.twin.fitted import Fitted, latency_of, rate_of
from psbench.twin.measures import steady_s
from psbench.twin.replayed import without_gradients

ClusterOf = Callable[[Experiment, int], Mapping[str, Any]]
#: twins of each probe, and by what their seeds begin
_TWINS, _FEW_TWINS, _SEED = 6, 2, 9000
#: quantile of a two-sided 90 % interval
_END = 0.95
#: error of a probe's twins up to which a profile is used; ratio of latencies from which links are unequal
_REPRODUCED, _UNEQUAL = 0.25, 3.0


class Kind(NamedTuple):
    """A kind of probe."""

    strategy: str
    workers: int
    batch_size: int
    updates: float


class BesideTwins(NamedTuple):
    """The runs of one probe beside its twins on the fitted cluster.

    Attributes
    ----------
    runs : sequence of Run
    apart : float64 array
        Of each run: the logarithm of an update's seconds less the mean logarithm of the twins'.
    variance : float
        Of those of the twins.
    twin : Run
        The first twin.
    """

    runs: Sequence[Run]
    apart: Doubles
    variance: float
    twin: Run

    @property
    def error(self) -> float:
        """Seconds of the twins over those of the runs, less 1."""
        return math.exp(-float(self.apart.mean())) - 1.0

    @property
    def is_reproduced(self) -> bool:
        """Return True if twins and runs take the same time within 25 % plus the standard error of repeats."""
        count = len(self.apart)
        luck = float(self.apart.std(ddof=1)) / math.sqrt(count) if count > 1 else 0.0
        return abs(float(self.apart.mean())) <= math.log1p(_REPRODUCED) + luck


def beside_twins(runs: Sequence[Run], cluster_of: ClusterOf) -> list[BesideTwins]:
    """Return the runs of each probe beside its twins; `cluster_of` gives a drawn cluster for a seed."""
    kinds = kinds_of(runs)
    # without repeats nothing is estimated, and the level of a few twins tells whether the fit is right
    twins = _TWINS if len(kinds) < len(runs) else _FEW_TWINS
    return [_beside_twins(same, cluster_of, twins) for same in kinds]


def between_runs(probes: Sequence[BesideTwins], left_out: Sequence[BesideTwins] = ()) -> tuple[float, int]:
    """Return the standard deviation of the logarithm of a run's seconds that its twin does not explain.

    Each probe is compared with its twins. Two things are left over, each known of few values and made larger
    by Student's factor. One is what differs from one run to the next of a kind of probe (who else used the
    machine, where processes were put): of n runs of k kinds n - k values are free. The other is the fit's
    lack: by how much the mean of each kind is off, k values. Probes that their twins' messages were fitted
    without (`left_out`) tell that better, as strategies that are predicted were not fitted either. What the
    twins have of their own is taken off.

    Returns
    -------
    (float, int)
        The deviation, and how many runs were free; 0 of both if each probe was run once.
    """
    count, kinds = sum(len(each.runs) for each in probes), len(probes)
    free = count - kinds
    if not free:
        return 0.0, 0
    within = sum(float(((each.apart - each.apart.mean()) ** 2).sum()) for each in probes) / free
    means = [float(each.apart.mean()) for each in left_out or probes]
    lack = sum(each**2 for each in means) / len(means)
    luck = sum(len(each.runs) * each.variance for each in probes) / count
    beyond = _student(free) ** 2 * within + _student(len(means)) ** 2 * lack - luck
    return math.sqrt(max(0.0, beyond)), free


def _student(free: int) -> float:
    """Return the factor by which few values make a deviation larger in a 90 % interval."""
    return float(stats.t.ppf(_END, free) / stats.norm.ppf(_END))


def not_reproduced(probes: Sequence[BesideTwins], fitted: Mapping[str, Fitted]) -> str:
    """Return which probe the fitted cluster reproduces worst, with the likely reason; empty if it does.

    Parameters
    ----------
    probes : sequence of BesideTwins
    fitted : mapping of name to Fitted
        Latencies by their names (`latency_of`), which tell unequal links.
    """
    failed = [each for each in probes if not each.is_reproduced]
    if not failed:
        return ""
    worst = max(failed, key=lambda each: abs(float(each.apart.mean())))
    experiment = worst.runs[0].experiment
    what = f"{experiment.strategy.name} with batches of {experiment.batch_size} samples"
    return (
        f"the profile does not reproduce its own probes: {what} takes {percent(worst.error, 0, '+')} on the "
        f"fitted cluster; likely reason: {_reason(worst, fitted)}"
    )


def _reason(worst: BesideTwins, fitted: Mapping[str, Fitted]) -> str:
    """Return the likely reason why a probe is not reproduced."""
    spread = math.exp(float(np.ptp(worst.apart))) - 1.0
    if spread > abs(worst.error):
        return f"other work on the machines, as its repeats differ by {percent(spread)}"
    workers = worst.runs[0].experiment.num_workers
    ends = [fitted.get(latency_of(end, workers)) for end in range(2 * workers)]
    known = {end % workers: each.value for end, each in enumerate(ends) if each is not None}
    is_untimed = rate_of(0, "up") not in fitted
    if is_untimed and known and max(known.values()) > _UNEQUAL * min(known.values()):
        slow, quick = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
        times = max(known.values()) / min(known.values())
        return (
            f"unequal links: messages of worker {slow} take {times:.2g} times those of worker {quick}, "
            "but one rate is fitted to all links, which were not timed"
        )
    live = [run.log for run in worst.runs]
    parts = [relative_error(part, live, [worst.twin.log]) for part in ("steps", "messages")]
    if any(each is None for each in parts):
        return "unknown; workers compute while they send, so steps and messages cannot be compared"
    steps, messages = (percent(each or 0.0, 0, "+") for each in parts)
    return f"the fitted steps are {steps} and the fitted messages {messages} off the measured ones"


def between_sizes(runs: Sequence[Run], workers: int, cluster_of: ClusterOf) -> float:
    """Return the error of a fit per doubling of its workers, as a deviation of the logarithm.

    `runs` are of other numbers of workers than were fitted to: by how much their twins err, beside the luck
    of seeds, over the doublings between. What it holds needs no model: cores, sockets, and what else more
    processes share. Each kind of run tells one error.
    """
    squares = list[float]()
    for same in kinds_of(runs):
        each = _beside_twins(same, cluster_of, _TWINS)
        doublings = math.log2(same[0].experiment.num_workers / workers)
        squares.append((float(each.apart.mean()) ** 2 - each.variance / len(same)) / doublings**2)
    return math.sqrt(max(0.0, sum(squares) / len(squares))) if squares else 0.0


def kind_of(run: Run) -> Kind:
    """Return what repeats of a probe have in common."""
    own = run.experiment
    return Kind(str(own.strategy.name), own.num_workers, own.batch_size, float(last_version(run.log)[0]))


def kinds_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs grouped by probe."""
    kinds: dict[Kind, list[Run]] = {}
    for run in runs:
        kinds.setdefault(kind_of(run), []).append(run)
    return list(kinds.values())


def _beside_twins(same: Sequence[Run], cluster_of: ClusterOf, count: int) -> BesideTwins:
    # of an update, as is predicted: without the first ones, in which processes warm up
    live = np.log([steady_s(run.log)[0] for run in same])
    experiment = same[0].experiment
    twins = [_twin(experiment, cluster_of(experiment, each), each) for each in range(count)]
    logs = np.log([steady_s(twin.log)[0] for twin in twins])
    return BesideTwins(same, live - logs.mean(), float(logs.var(ddof=1)), twins[0])


def _twin(experiment: Experiment, cluster: Mapping[str, Any], number: int) -> Run:
    changes = {"backend": "simulated", "scheduler": None, "seed": _SEED + number, "evaluate_every": 1e6}
    return run_experiment(without_gradients(experiment.but(cluster=dict(cluster), **changes)))
