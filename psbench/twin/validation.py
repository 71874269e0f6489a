"""Accuracy of a twin: live runs, predictions, and the noise of live runs."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from psbench.errors import DataError
from psbench.experiment import Experiment
from psbench.metrics import idle
from psbench.percents import exact_percent, percent
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.twin.calibration import Calibration
from psbench.twin.exchanges import last_version, relative_error
from psbench.twin.measures import NO_PREDICTION, Band, Measures, measures_of
from psbench.twin.peer_fit import adds_up
from psbench.twin.recording import DIGITS, Recorded
from psbench.twin.replayed import played_again, without_gradients

#: a row is right if its error is below this share, or below this many times the noise
_ALLOWED, _NOISES = 0.05, 2.0
#: from so many repeats on, a cell's own noise counts, and not that of all cells together
_ENOUGH = 5
#: validation accuracy that the time to is compared by
TARGET = 0.9


class LiveAndTwin(NamedTuple):
    """A strategy's live runs and predictions.

    Attributes
    ----------
    error : float
        Of seconds per update: predicted over live, less 1.
    noise : float
        Standard deviation of the live runs' seconds per update, as a share of their mean.
    target_error : float or None
        Of the seconds to `TARGET`; None if a run did not reach it.
    idle_points : float
        Predicted less live, in points of a hundred.
    idle_by_reason : dict of str to float
        The same for each reason that workers waited for.
    staleness_distance, staleness_max : float, int
        Wasserstein distance of the distributions, in versions; predicted largest less live largest.
    bytes_equal : bool
        Whether a push and an answer have the same bytes.
    covered : float
        Share of the live runs inside of the 90 % band; 0 of a band that begins at 0, which is no prediction.
    band_width, live_width : float
        Of the band, and from the quickest to the slowest live run; as shares of the means.
    live_epoch_s, predicted_epoch_s : float
        Seconds of as many samples as there are data.
    step_error, message_error : float or None
        Of the mean seconds of a step, and of a push and an answer together: predicted over live, less 1. They
        tell where an error is from. None if workers compute while they send.
    """

    part: str
    name: str
    live_s: float
    predicted_s: float
    error: float
    noise: float
    repeats: int
    target_error: float | None
    idle_points: float
    idle_by_reason: Mapping[str, float]
    staleness_distance: float
    staleness_max: int
    bytes_equal: bool
    covered: float
    band_width: float
    live_width: float
    live_epoch_s: float
    predicted_epoch_s: float
    step_error: float | None = None
    message_error: float | None = None


@dataclass
class Validation:
    """The table of `psbench twin`.

    Attributes
    ----------
    fitted : dict of strategy to int
        How many of its runs the cluster was fitted to.
    replays : dict of name to float
        (a): error of a run that is played again with its own times.
    cells : list of LiveAndTwin
        (b) to (d).
    pairs : dict of name to (Run, Run)
        A live run and its twin, for pictures.
    """

    fitted: dict[str, int] = field(default_factory=dict)
    replays: dict[str, float] = field(default_factory=dict)
    cells: list[LiveAndTwin] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    load: float = 0.0
    seconds: float = 0.0
    pairs: dict[str, tuple[Run, Run]] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        """Return the table and its conclusions as text."""
        lines = [f"load before: {self.load:.2f} a core; it took {self.seconds:.0f} s", self.fit_in_words, ""]
        lines += [
            f"(a) {name}: with its own times {percent(error, 3, '+')}" for name, error in self.replays.items()
        ]
        lines += ["", _HEAD, *(self._line(cell) for cell in self.cells), ""]
        lines += [f"not obtained: {name}: {why}" for name, why in self.failed.items()]
        return "\n".join([*lines, *self.verdicts()])

    def plain(self) -> dict[str, Any]:
        """Return the validation as plain data."""
        cells = [each._asdict() | {"allowed": self.allowed(each)} for each in self.cells]
        facts = {"load": self.load, "seconds": self.seconds, "fitted": self.fitted, "replays": self.replays}
        return facts | {
            "cells": cells,
            "failed": self.failed,
            "noise_floor": self.noise_floor,
            "winner": self.winners(),
            "verdicts": [*self.verdicts()],
        }

    @property
    def fit_in_words(self) -> str:
        """The runs that the cluster was fitted to."""
        return f"fitted to runs of: {', '.join(f'{name} ({n})' for name, n in self.fitted.items())}"

    @property
    def noise_floor(self) -> float:
        """Relative standard deviation of a live run's seconds per update, pooled over all cells."""
        known = [each.noise**2 for each in self.cells if math.isfinite(each.noise)]
        return math.sqrt(statistics.fmean(known)) if known else float("nan")

    def allowed(self, cell: LiveAndTwin) -> float:
        """Return the error below which a cell is right: 5 %, or twice the noise.

        Of few repeats a standard deviation is hardly known (of two, up to 16 times too small in one of 20
        cases): then the noise is that of all cells together.
        """
        own = cell.repeats >= _ENOUGH and math.isfinite(cell.noise)
        noise = cell.noise if own else self.noise_floor
        return max(_ALLOWED, _NOISES * (noise if math.isfinite(noise) else 0.0))

    def winners(self) -> dict[str, Any] | None:
        """Return the fastest strategy per epoch in (c), live and predicted, and whether they agree.

        A different predicted winner is wrong only if it is slower live by more than twice the noise.
        """
        rows = [each for each in self.cells if each.part == "c"]
        if not rows:
            return None
        live, predicted = (min(rows, key=lambda c: getattr(c, f"{w}_epoch_s")) for w in ("live", "predicted"))
        behind = predicted.live_epoch_s / live.live_epoch_s - 1.0
        floor = self.noise_floor
        right = behind <= _NOISES * (floor if math.isfinite(floor) else 0.0)
        return {"live": live.name, "predicted": predicted.name, "behind": behind, "right": right}

    def verdicts(self) -> Iterator[str]:
        """Yield the conclusions."""
        noise = percent(self.noise_floor, 1)
        yield f"noise floor: the seconds per update of single live runs deviate by {noise} over all cells"
        if worst := max(map(abs, self.replays.values()), default=0.0):
            within = "within" if worst < 0.01 else "NOT within"
            yield f"(a) replays with measured times: {within} 1 % (worst {percent(worst, 3)})"
        for part, what in _PARTS.items():
            rows = [each for each in self.cells if each.part == part]
            if rows:
                wrong = [c.name for c in rows if abs(c.error) > self.allowed(c)]
                covered = statistics.fmean(c.covered for c in rows)
                within = f"{len(rows) - len(wrong)} of {len(rows)} within 5 % or twice the noise"
                beyond = f" (not {', '.join(wrong)})" if wrong else ""
                wide = percent(statistics.median(c.band_width for c in rows))
                yield (
                    f"({part}) {what}: {within}{beyond}; {percent(covered)} of live runs in bands, "
                    f"whose median width is {wide} of the mean"
                )
                if vague := [c.name for c in rows if c.band_width >= NO_PREDICTION]:
                    yield f"no prediction: {', '.join(vague)}; their bands begin at 0"
                counted = sum(each.repeats for each in rows)
                if counted >= _TO_TELL and not _COVERED[0] <= covered <= _COVERED[1]:
                    yield f"not reached: {percent(covered)} in 90 % bands, not 85 to 95 %: {_widths(rows)}"
        for cell in self.cells:
            if abs(cell.error) > self.allowed(cell):
                yield f"not reached: {cell.name}, {percent(cell.error, 1, '+')}: {self._cause(cell)}"
        if found := self.winners():
            verdict = "right" if found["right"] else "WRONG"
            yield (
                f"(c) fastest per epoch: {found['live']} live, {found['predicted']} predicted; the "
                f"predicted one takes {percent(found['behind'], 1)} longer live: {verdict}"
            )

    def _cause(self, cell: LiveAndTwin) -> str:
        """Return the likely cause of a cell's deviation from its twin."""
        replay = self.replays.get(cell.name)
        said = "" if replay is None else f"with its own times {percent(replay, 2, '+')}, so "
        if cell.step_error is None or cell.message_error is None:
            return f"{said}its workers compute while they send, so the cause cannot be determined"
        return (
            f"{said}the twin's steps are {percent(cell.step_error, 1, '+')} and its messages "
            f"{percent(cell.message_error, 1, '+')} off those of the live runs"
        )

    def _line(self, cell: LiveAndTwin) -> str:
        mark = " " if abs(cell.error) <= self.allowed(cell) else "!"
        error, noise = percent(cell.error, 1, "+"), percent(cell.noise, 1)
        times = f"{cell.live_s:>9.4f}{cell.predicted_s:>9.4f}{error:>8}{mark}{noise:>6}"
        target = f"{'':>8}" if cell.target_error is None else f"{percent(cell.target_error, 1, '+'):>8}"
        stale = f"{cell.staleness_distance:>7.2f}{cell.staleness_max:>+5d}"
        same = "exact" if cell.bytes_equal else "DIFFER"
        return (
            f"({cell.part}) {cell.name:<21}{times}{target}{cell.idle_points:>+9.1f}{stale}{same:>7}"
            f"{percent(cell.covered):>8}"
        )


def _widths(cells: Sequence[LiveAndTwin]) -> str:
    """Return the likely cause of bands that contain too few or too many live runs."""
    band, live = (
        statistics.median(getattr(c, f"{which}_width") for c in cells) for which in ("band", "live")
    )
    return (
        f"median width of the bands {percent(band, 1)} (from the seeds, and from the uncertainty of the fit, "
        f"which all live runs of a cell share), of the live runs of a cell {percent(live, 1)}"
    )


#: range of shares of live runs in 90 % bands, and the number of runs from which the share is judged
_COVERED, _TO_TELL = (0.85, 0.95), 20
_PARTS = {"b": "another seed", "c": "strategies left out", "d": "more workers than were fitted"}
_HEAD = (
    f"{'':3}{'strategy':<22}{'live s':>9}{'twin s':>9}{'error':>8}{'noise':>7}"
    f"{'to ' + exact_percent(TARGET):>8}{'waiting':>9}{'W1':>7}{'max':>5}{'bytes':>7}{'in band':>8}"
)


def validate(recorded: Recorded, seeds: int = 10) -> Validation:
    """Compare predictions, each with `seeds` seeds, with live runs.

    Raises
    ------
    ParameterError, DataError
    """
    return _Validator(recorded, seeds).validate()


class _Validator:
    def __init__(self, recorded: Recorded, seeds: int) -> None:
        self._recorded, self._seeds = recorded, seeds
        self._found = Validation(failed=dict(recorded.failed), load=recorded.load, seconds=recorded.seconds)

    def validate(self) -> Validation:
        found, runs = self._found, self._recorded.runs
        fitted, repeats = self._fitted()
        calibration = Calibration.of(fitted, self._recorded.links)
        found.fitted = Counter(str(run.experiment.strategy.name) for run in fitted)
        for name, live in repeats.items():
            self._replay(name, live)
            part = "b" if live[0].experiment.strategy.name in found.fitted else "c"
            found.cells.append(self._cell(part, name, live, calibration))
        fits = {key: own for key, own in runs.items() if key.startswith("fit of ")}
        few = [
            Calibration.of(own, others=[run for each in fits if each != key for run in fits[each]])
            for key, own in fits.items()
        ]
        for key, live in runs.items():
            kind, _, name = key.partition("/")
            if kind.startswith("of "):
                workers = live[0].experiment.num_workers
                for fewer in few:
                    label = f"{name}, {fewer.workers} to {workers}"
                    more = fewer.of_workers(workers)
                    found.cells.append(self._cell("d", label, live, more))
        return found

    def _fitted(self) -> tuple[list[Run], dict[str, list[Run]]]:
        """Return the runs to fit, and the live repeats to predict.

        Where no probe was an All-Reduce, the first live repeat of one is fitted, if others are left.
        """
        runs = self._recorded.runs
        fitted = list(runs["fit"])
        live = {key.removeprefix("live/"): own for key, own in runs.items() if key.startswith("live/")}
        summed = [name for name, own in live.items() if len(own) > 1 and adds_up(own[0])]
        if summed and not any(map(adds_up, fitted)):
            first, *live[summed[0]] = live[summed[0]]
            fitted.append(first)
        return fitted, live

    def _replay(self, name: str, runs: Sequence[Run]) -> None:
        try:
            for run in runs[:1]:
                took, again = (last_version(each.log)[1] for each in (run, played_again(run)))
                self._found.replays[name] = again / took - 1.0
        except DataError as error:
            self._found.failed[f"(a) {name}"] = str(error)

    def _cell(self, part: str, name: str, runs: Sequence[Run], calibration: Calibration) -> LiveAndTwin:
        live = [measures_of(run, TARGET) for run in runs]
        played = [
            run_experiment(self._twin(runs[0].experiment, calibration.drawn(seed), seed))
            for seed in range(self._seeds)
        ]
        twins = [measures_of(run, TARGET) for run in played]
        self._found.pairs[name] = runs[0], played[0]
        seconds, predicted = [each.update_s for each in live], [each.update_s for each in twins]
        mean, band = statistics.fmean(seconds), Band.of(predicted)
        logs = [run.log for run in runs], [run.log for run in played]
        stale = [np.concatenate([each.staleness for each in some]) for some in (live, twins)]
        return LiveAndTwin(
            part=part,
            name=name,
            live_s=mean,
            predicted_s=band.mean,
            error=band.mean / mean - 1.0,
            noise=statistics.stdev(seconds) / mean if len(seconds) > 1 else float("nan"),
            repeats=len(runs),
            target_error=_error_to_target(live, twins),
            idle_points=100 * (_mean(twins, "idle") - _mean(live, "idle")),
            idle_by_reason=_less(_idle_by_reason(played), _idle_by_reason(runs)),
            staleness_distance=float(stats.wasserstein_distance(*stale)),
            staleness_max=int(stale[1].max()) - int(stale[0].max()),
            bytes_equal={(e.bytes_up, e.bytes_down) for e in live}
            == {(e.bytes_up, e.bytes_down) for e in twins},
            covered=statistics.fmean(band.is_prediction and each in band for each in seconds),
            band_width=band.width,
            live_width=(max(seconds) - min(seconds)) / mean,
            live_epoch_s=_mean(live, "sample_s") * DIGITS,
            predicted_epoch_s=_mean(twins, "sample_s") * DIGITS,
            step_error=relative_error("steps", *logs),
            message_error=relative_error("messages", *logs),
        )

    def _twin(self, live: Experiment, calibration: Calibration, seed: int) -> Experiment:
        """Return a live run's experiment in virtual time, on the fitted cluster, with another seed.

        Gradients are computed for the first few seeds, which tell the time to the target.
        """
        changes: dict[str, Any] = {"backend": "simulated", "scheduler": None, "seed": 1000 + seed}
        twin = live.but(cluster=calibration.cluster_for(live), **changes)
        return twin if seed < _TRAINED else without_gradients(twin.but(evaluate_every=1e6))


#: seeds of a prediction that are trained, so that they reach a target
_TRAINED = 3


def _error_to_target(live: Sequence[Measures], twins: Sequence[Measures]) -> float | None:
    ends = [[each.target_s for each in some] for some in (live, twins[:_TRAINED])]
    if any(each is None for some in ends for each in some):
        return None
    mean = [statistics.fmean(each for each in some if each is not None) for some in ends]
    return mean[1] / mean[0] - 1.0


def _idle_by_reason(runs: Sequence[Run]) -> dict[str, float]:
    """Return the mean share of time that workers waited, by reason, in percent."""
    found: dict[str, float] = {}
    for run in runs:
        shares = idle(run.log).groupby("reason", observed=True)["fraction"].sum()
        for reason, share in shares.items():
            each = 100 * float(share) / run.experiment.num_workers / len(runs)
            found[str(reason)] = found.get(str(reason), 0.0) + each
    return found


def _less(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    names = sorted({*first, *second})
    return {name: round(first.get(name, 0.0) - second.get(name, 0.0), 3) for name in names}


def _mean(measured: Sequence[Measures], name: str) -> float:
    return statistics.fmean(getattr(each, name) for each in measured)
