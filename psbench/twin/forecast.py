"""Predictions for strategies on measured machines: bands over seeds, a ranking, a curve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.runs.execution import run as run_experiment
from psbench.twin.calibration import Calibration
from psbench.twin.measures import Band, measures_of
from psbench.twin.predictions import Predicted, Predictions
from psbench.twin.replayed import without_gradients

if TYPE_CHECKING:
    from psbench.charts.display import Sheet

#: global batches that a prediction without a target plays
_BATCHES = 400


@dataclass(frozen=True, repr=False)
class Ranking(Predictions):
    """Predictions that can draw and write themselves."""

    def chart(self, width: int = 640) -> Sheet:
        """Return the predicted seconds with their bands, by setting or by strategy."""
        from psbench.charts.display import stack
        from psbench.twin.prediction_page import prediction_figure

        return stack([prediction_figure(self).chart], width)

    def write(self, path: str | Path) -> Path:
        """Write the table and the chart as a page (.html), or only the chart (.svg, .png, .pdf).

        Raises
        ------
        ParameterError
            If the name ends otherwise.
        SpecError
            If nothing can be written there.
        """
        from psbench.twin.prediction_page import write_prediction

        return write_prediction(self, Path(path))


def predict(
    profile: Calibration | str | Path,
    strategies: Sequence[Any],
    *,
    seeds: int = 5,
    target: float | None = None,
    over: tuple[str, Sequence[Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    batches: int = _BATCHES,
) -> Ranking:
    """Predict the performance of strategies on machines measured by `psbench calibrate`.

    Parameters
    ----------
    profile : Calibration or path
    strategies : list of strategies, names or mappings
    seeds : int, >= 2
        Runs of each, in virtual time.
    target : float, 0 to 1, or None
        Validation accuracy; with one, gradients are computed and strategies ranked by the time to it.
    over : (path, values) or None
        A curve: each strategy with each value there, as ("strategy.staleness_bound", [0, 1, 2]).
    settings : mapping of dotted path to value, or None
        As `{"cluster.workers": 3}`: of the workers that were measured, so many.
    batches : int
        Global batches that are played where there is no target. A short run differs from a long one: under
        SSP, for example, no worker waits at the beginning.

    Raises
    ------
    ParameterError
        With the reason, if something is outside of what was measured, or the profile does not reproduce the
        runs that it was fitted to.
    SpecError, DataError
        If a strategy cannot be, or the file is no profile. Nothing is run before all are checked.

    Examples
    --------
    >>> ps.predict("profile.yaml", ["bsp", "ssp"], over=("cluster.workers", [2, 4]))  # doctest: +SKIP
    """
    found = profile if isinstance(profile, Calibration) else Calibration.read(profile)
    if seeds < 2:
        raise ParameterError(f"predict: a band needs at least two seeds, got {seeds}")
    if found.not_reproduced:
        raise ParameterError(f"predict: {found.not_reproduced}; calibrate again")
    if not strategies:
        raise ParameterError("predict: give at least one strategy")
    planned = list(_planned(found, strategies, over, settings, target, batches))
    rows = [_predicted(found, *each, seeds, target) for each in planned]
    if over is None:
        rows.sort(key=lambda row: (target is not None and row.target_s is None, row.judged_by.mean))
    return Ranking(rows, target, seeds, "" if over is None else over[0])


def _planned(
    found: Calibration,
    strategies: Sequence[Any],
    over: tuple[str, Sequence[Any]] | None,
    settings: Mapping[str, Any] | None,
    target: float | None,
    batches: int,
) -> Iterator[tuple[Experiment, str, Any]]:
    path, values = over or ("", [None])
    for strategy in strategies:
        for value in values:
            own = {**(settings or {}), **({path: value} if path else {})}
            experiment = found.experiment_of(strategy, own)
            epochs = max(2.0, batches * experiment.batch_size / found.dataset_size)
            if target is not None:
                experiment = experiment.but(
                    stop={"epochs": experiment.stop.epochs, "target_accuracy": target}
                )
            elif not experiment.rules:
                experiment = without_gradients(experiment.but(stop={"epochs": epochs}))
            yield experiment, f"{path.rpartition('.')[2]}={value}" if path else "", value


def _predicted(
    found: Calibration, experiment: Experiment, setting: str, value: Any, seeds: int, target: float | None
) -> Predicted:
    own = found.of_workers(experiment.num_workers)
    drawn = [own.drawn(seed).cluster_for(experiment) for seed in range(seeds)]
    runs = [
        run_experiment(experiment.but(cluster=cluster, seed=experiment.seed + extra))
        for extra, cluster in enumerate(drawn)
    ]
    measured = [measures_of(run, target) for run in runs]
    size = runs[0].meta["dataset_size"]
    reached = [each.target_s for each in measured if each.target_s is not None]
    return Predicted(
        name=experiment.title,
        setting=setting,
        runs=measured,
        update_s=Band.of([each.update_s for each in measured]),
        epoch_s=Band.of([size * each.sample_s for each in measured]),
        target_s=Band.of(reached) if len(reached) == seeds else None,
        value=value,
        epoch_joules=_epoch_band(size, [each.joules for each in measured]),
        epoch_cost=_epoch_band(size, [each.cost for each in measured]),
    )


def _epoch_band(size: int, of_a_sample: list[float | None]) -> Band | None:
    known = [size * each for each in of_a_sample if each is not None]
    return Band.of(known) if known else None
