"""How well a twin predicts: live runs beside what was predicted, and their own noise."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from psbench.errors import DataError
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.twin.calibration import Calibration
from psbench.twin.exchanges import last_version
from psbench.twin.measures import Band, Measures, measures_of
from psbench.twin.probe import probes_of
from psbench.twin.replayed import played_again, without_gradients

#: machines that are emulated by waiting, so that cores that others use matter less: seconds at speed 1
SLOW_MACHINES: Mapping[str, Any] = {
    **{"name": "custom", "seconds_per_step": 0.04, "seconds_per_sample": 1.5e-3, "paces_live_runs": True},
    "step_time": {"name": "lognormal", "sigma": 0.25, "correlation": 0.3},
}
#: speeds of up to eight of them
_SPEEDS = (1.0, 1.0, 0.9, 0.6, 1.0, 0.9, 1.0, 0.7)
#: what is fitted, and what is predicted without having been fitted
FITTED = ("bsp", "asp")
LEFT_OUT: Mapping[str, Any] = {
    "ssp": {"name": "ssp", "staleness_bound": 3},
    "k-sync": {"name": "k_bsp"},
    "backup workers": {"name": "backup_workers"},
    "local SGD": {"name": "local_sgd", "local_steps": 4},
    "All-Reduce": {"name": "all_reduce"},
    "Strategy-Switch": {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}},
    "DBS-SGD": {"name": "dbs_sgd"},
}
#: a row is right if its error is below this share, or below this many times the noise
_ALLOWED, _NOISES = 0.05, 2.0


@dataclass(frozen=True)
class Sizes:
    """How much is run: global batches of a run, live repeats in turns, seeds of a prediction, workers."""

    batches: int = 50
    repeats: int = 2
    seeds: int = 5
    workers: int = 4
    scaled: tuple[int, ...] = (2, 8)


class LiveAndTwin(NamedTuple):
    """A strategy live and predicted.

    Attributes
    ----------
    error : float
        Of seconds per update: predicted over live, less 1.
    noise : float
        Standard deviation of the live runs' seconds per update, as a share of their mean.
    idle_points : float
        Predicted less live, in points of a hundred.
    staleness_distance, staleness_max : float, int
        Wasserstein distance of the distributions, in versions; predicted largest less live largest.
    bytes_equal : bool
        Whether a push and an answer have the same bytes.
    covered : float
        Share of the live runs inside of the 90 % band.
    """

    part: str
    name: str
    live_s: float
    predicted_s: float
    error: float
    noise: float
    idle_points: float
    staleness_distance: float
    staleness_max: int
    bytes_equal: bool
    covered: float
    live_epoch_s: float
    predicted_epoch_s: float


@dataclass
class Validation:
    """The table of `psbench twin`.

    Attributes
    ----------
    replays : dict of name to float
        (a): error of a run that is played again with its own times.
    cells : list of LiveAndTwin
        (b) to (d).
    load : float
        The machine's load before, by `os.getloadavg` over its cores.
    """

    replays: dict[str, float] = field(default_factory=dict)
    cells: list[LiveAndTwin] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    load: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return the table in words and numbers, errors as they were obtained."""
        lines = [f"load before: {self.load:.2f} a core; it took {self.seconds:.0f} s", ""]
        lines += [f"(a) {name}: with its own times {error:+.3%}" for name, error in self.replays.items()]
        lines += ["", _HEAD, *map(_line, self.cells), ""]
        lines += [f"not obtained: {name}: {why}" for name, why in self.failed.items()]
        return "\n".join([*lines, *self._verdicts()])

    def plain(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        cells = [each._asdict() for each in self.cells]
        return {"load": self.load, "seconds": self.seconds, "replays": self.replays, "cells": cells} | {
            "failed": self.failed,
            "winner": self.winners(),
        }

    def winners(self) -> tuple[str, str] | None:
        """Return who takes the fewest seconds an epoch of (c): live, and as predicted."""
        rows = [each for each in self.cells if each.part == "c"]
        if not rows:
            return None
        live, predicted = (min(rows, key=lambda c: getattr(c, f"{w}_epoch_s")) for w in ("live", "predicted"))
        return live.name, predicted.name

    def _verdicts(self) -> Iterator[str]:
        if worst := max(map(abs, self.replays.values()), default=0.0):
            yield f"(a) {'is' if worst < 0.01 else 'IS NOT'} within 1 % (worst {worst:.3%})"
        for part, what in _PARTS.items():
            rows = [each for each in self.cells if each.part == part]
            if rows:
                held = sum(abs(c.error) <= max(_ALLOWED, _NOISES * c.noise) for c in rows)
                covered = statistics.fmean(c.covered for c in rows)
                within = f"{held} of {len(rows)} within 5 % or twice the noise"
                yield f"({part}) {what}: {within}; {covered:.0%} of live runs in bands"
        if winners := self.winners():
            yield f"(c) quickest an epoch: {winners[0]} live, {winners[1]} predicted"


_PARTS = {"b": "another seed", "c": "strategies left out", "d": "more workers than were fitted"}
_HEAD = (
    f"{'':3}{'strategy':<22}{'live s':>9}{'twin s':>9}{'error':>8}{'noise':>7}{'idle':>7}"
    f"{'W1':>7}{'max':>5}{'bytes':>7}{'in band':>8}"
)


def _line(cell: LiveAndTwin) -> str:
    times = f"{cell.live_s:>9.4f}{cell.predicted_s:>9.4f}{cell.error:>+8.1%}{cell.noise:>7.1%}"
    stale = f"{cell.staleness_distance:>7.2f}{cell.staleness_max:>+5d}"
    same = "exact" if cell.bytes_equal else "DIFFER"
    return (
        f"({cell.part}) {cell.name:<21}{times}{cell.idle_points:>+7.1f}{stale}{same:>7}{cell.covered:>8.0%}"
    )


def validate(
    experiment: Experiment | None = None,
    sizes: Sizes | None = None,
    on_step: Callable[[str], None] = lambda text: None,
) -> Validation:
    """Compare predictions with live runs on this machine, or on the cluster of an experiment.

    Parameters
    ----------
    experiment : Experiment or None
        Whose model, data and machines; without one, machines that are emulated (`SLOW_MACHINES`).
    sizes : Sizes or None
    on_step : callable
        Called with what begins, in words.

    Raises
    ------
    ParameterError, BackendError
    """
    return _Validator(experiment, sizes or Sizes(), on_step).validate()


def emulated(workers: int) -> Experiment:
    """Return digits and a small network on machines that are emulated by waiting."""
    cluster = {**SLOW_MACHINES, "workers": workers, "speed": list(_SPEEDS[:workers])}
    return Experiment(strategy="bsp", cluster=cluster, data="digits", batch_size=32 * workers, backend="dask")


class _Validator:
    def __init__(self, experiment: Experiment | None, sizes: Sizes, on_step: Callable[[str], None]) -> None:
        self._given, self._sizes, self._say = experiment, sizes, on_step
        self._found = Validation(load=os.getloadavg()[0] / (os.cpu_count() or 1))

    def validate(self) -> Validation:
        """Run everything, in turns: what disturbs the machine for a while disturbs all strategies."""
        began, sizes, found = time.monotonic(), self._sizes, self._found
        experiment = self._given or emulated(sizes.workers)
        probes = probes_of(experiment, sizes.batches)
        fitted = [self._live(probe) for probe in probes]
        live: dict[str, list[Run]] = {name: [] for name in (*FITTED, *LEFT_OUT)}
        for repeat in range(sizes.repeats):
            for name in live:
                planned = self._planned(experiment, name).but(seed=experiment.seed + 1 + repeat)
                try:
                    live[name].append(self._live(planned))
                except DataError as error:
                    found.failed[name] = str(error)
        # and after them once more: a machine whose load changes is measured as it was on average
        fitted += [self._live(probe.but(seed=probe.seed + 1000)) for probe in probes]
        calibration = Calibration.of(fitted)
        for name, runs in live.items():
            self._replay(name, runs)
            if runs:
                part = "b" if name in FITTED else "c"
                found.cells.append(self._cell(part, name, runs, calibration))
        if self._given is None:
            self._scale(calibration)
        found.seconds = time.monotonic() - began
        return found

    def _scale(self, calibration: Calibration) -> None:
        """Fit on few workers, and predict more of the same kinds."""
        few, *many = self._sizes.scaled
        fitted = [self._live(probe) for probe in probes_of(emulated(few), self._sizes.batches)]
        both = {few: Calibration.of(fitted), self._sizes.workers: calibration}
        for workers in many:
            for name in ("bsp", "ssp"):
                planned = self._planned(emulated(workers), name)
                runs = [self._live(planned.but(seed=1 + repeat)) for repeat in range(self._sizes.repeats)]
                for fewer, each in both.items():
                    more = each.of_workers(workers)
                    self._found.cells.append(self._cell("d", f"{name}, {fewer} to {workers}", runs, more))

    def _planned(self, experiment: Experiment, name: str) -> Experiment:
        batches = self._sizes.batches
        epochs = max(4.0, batches * experiment.batch_size / _DIGITS)
        strategy = LEFT_OUT.get(name, {"name": name})
        common: dict[str, Any] = {"backend": "dask", "evaluate_every": 1.0 if "rule" in strategy else 1e6}
        return experiment.but(strategy=strategy, stop={"epochs": epochs}, **common)

    def _live(self, experiment: Experiment) -> Run:
        self._say(f"live: {experiment.title}, {experiment.num_workers} workers, seed {experiment.seed}")
        return run_experiment(experiment)

    def _replay(self, name: str, runs: Sequence[Run]) -> None:
        try:
            for run in runs[:1]:
                took, again = (last_version(each.log)[1] for each in (run, played_again(run)))
                self._found.replays[name] = again / took - 1.0
        except DataError as error:
            self._found.failed[f"(a) {name}"] = str(error)

    def _cell(self, part: str, name: str, runs: Sequence[Run], calibration: Calibration) -> LiveAndTwin:
        live = [measures_of(run) for run in runs]
        twins = [
            measures_of(run_experiment(self._twin(runs[0].experiment, calibration.drawn(seed), seed)))
            for seed in range(self._sizes.seeds)
        ]
        seconds, predicted = [each.update_s for each in live], [each.update_s for each in twins]
        mean, band = statistics.fmean(seconds), Band.of(predicted)
        stale = [np.concatenate([each.staleness for each in some]) for some in (live, twins)]
        return LiveAndTwin(
            part=part,
            name=name,
            live_s=mean,
            predicted_s=band.mean,
            error=band.mean / mean - 1.0,
            noise=statistics.stdev(seconds) / mean if len(seconds) > 1 else float("nan"),
            idle_points=100 * (_mean(twins, "idle") - _mean(live, "idle")),
            staleness_distance=float(stats.wasserstein_distance(*stale)),
            staleness_max=int(stale[1].max()) - int(stale[0].max()),
            bytes_equal={(e.bytes_up, e.bytes_down) for e in live}
            == {(e.bytes_up, e.bytes_down) for e in twins},
            covered=statistics.fmean(each in band for each in seconds),
            live_epoch_s=_mean(live, "sample_s") * _DIGITS,
            predicted_epoch_s=_mean(twins, "sample_s") * _DIGITS,
        )

    def _twin(self, live: Experiment, calibration: Calibration, seed: int) -> Experiment:
        """Return a live run's experiment in virtual time, on what was fitted, with a seed of its own."""
        changes: dict[str, Any] = {"backend": "simulated", "scheduler": None, "seed": 1000 + seed}
        return without_gradients(live.but(cluster=dict(calibration.cluster), **changes))


#: training samples of digits
_DIGITS = 1438


def _mean(measured: Sequence[Measures], name: str) -> float:
    return statistics.fmean(getattr(each, name) for each in measured)
