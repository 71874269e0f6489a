"""What strategies would do on machines that were measured: bands over seeds, a ranking, a curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.runs.execution import run as run_experiment
from psbench.twin.calibration import Calibration
from psbench.twin.measures import Band, Measures, measures_of
from psbench.twin.replayed import without_gradients

if TYPE_CHECKING:
    from psbench.charts.display import Sheet

#: global batches that a prediction without a target plays
_BATCHES = 400


@dataclass(frozen=True)
class Predicted:
    """One strategy: what it is called, its runs' measures, and bands of seconds.

    Attributes
    ----------
    update_s, epoch_s : Band
        Seconds of an update, and of as many samples as there are data.
    target_s : Band or None
        Seconds to the target; None without one, or if a seed does not reach it.
    value : anything
        Along a curve, what `setting` was set to.
    """

    name: str
    setting: str
    runs: Sequence[Measures]
    update_s: Band
    epoch_s: Band
    target_s: Band | None
    value: Any = None

    @property
    def title(self) -> str:
        """What it is called, with its setting."""
        return f"{self.name} {self.setting}".strip()

    @property
    def idle(self) -> float:
        """Mean share of their time that workers waited, over the runs; 0 to 1."""
        return math.fsum(each.idle for each in self.runs) / len(self.runs)

    @property
    def judged_by(self) -> Band:
        """What it is ranked by: time to the target, or else an epoch's."""
        return self.target_s or self.epoch_s


@dataclass(frozen=True, repr=False)
class Ranking:
    """Strategies on one profile, the quickest first (along a curve: in its order)."""

    rows: Sequence[Predicted]
    target: float | None
    seeds: int
    over: str = ""

    @property
    def is_curve(self) -> bool:
        """Whether the rows are values of a setting, `over`, and not strategies alone."""
        return bool(self.over)

    def chart(self, width: int = 640) -> Sheet:
        """Return the seconds that are compared with their bands, against what was varied or by strategy."""
        from psbench.charts.display import stack
        from psbench.twin.prediction_page import prediction_figure

        return stack([prediction_figure(self).chart], width)

    def write(self, path: str | Path) -> Path:
        """Write the table and the chart as a page (.html), or the chart alone (.svg, .png, .pdf).

        Raises
        ------
        ParameterError
            If the name ends otherwise.
        SpecError
            If nothing can be written there.
        """
        from psbench.twin.prediction_page import write_prediction

        return write_prediction(self, Path(path))

    def ties(self) -> list[tuple[str, str]]:
        """Return neighbours of the ranking that cannot be told apart: their bands overlap."""
        ranked = sorted(self.rows, key=lambda row: row.judged_by.mean)
        pairs = pairwise(ranked)
        return [(a.title, b.title) for a, b in pairs if a.judged_by.overlaps(b.judged_by)]

    def best(self) -> tuple[str, list[str]]:
        """Return the quickest row of all, and those that cannot be told apart from it."""
        reached = [row for row in self.rows if self.target is None or row.target_s is not None] or self.rows
        first = min(reached, key=lambda row: row.judged_by.mean)
        same = [each for each in reached if each is not first and each.judged_by.overlaps(first.judged_by)]
        return first.title, [each.title for each in same]

    def plain(self) -> list[dict[str, Any]]:
        """Return a row for each strategy as plain data."""
        return [
            {
                **{"strategy": row.name, "setting": row.setting, "idle": row.idle},
                **{name: _band(getattr(row, name)) for name in ("update_s", "epoch_s", "target_s")},
                "staleness_mean": sum(float(each.staleness.mean()) for each in row.runs) / len(row.runs),
            }
            for row in self.rows
        ]

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """Return a table, and which of its rows cannot be told apart."""
        asked = self.target is not None
        head = f"{'strategy':<34}{'s an update':>26}{'s an epoch':>26}{'idle':>8}"
        lines = [head + (f"{f's to {self.target:g}':>26}" if asked else "")]
        for row in self.rows:
            cells = [row.update_s, row.epoch_s]
            line = f"{row.title:<34}" + "".join(f"{cell!s:>26}" for cell in cells)
            line += f"{row.idle:>8.1%}"
            lines.append(line + (f"{_shown(row.target_s):>26}" if asked else ""))
        lines.append(f"in brackets: where another run lies with 90 %, over {self.seeds} seeds")
        if self.is_curve:
            best, same = self.best()
            return "\n".join([*lines, f"quickest: {best}", f"not told apart: {', '.join(same) or 'none'}"])
        lines += [f"cannot be told apart: {first} and {second}" for first, second in self.ties()]
        return "\n".join(lines)


def predict(
    profile: Calibration | str | Path,
    strategies: Sequence[Any],
    *,
    seeds: int = 5,
    target: float | None = None,
    over: tuple[str, Sequence[Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Ranking:
    """Predict what strategies do on machines that `psbench calibrate` has measured.

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

    Raises
    ------
    ParameterError
        With the reason, if something is outside of what was measured.
    SpecError, DataError
        If a strategy cannot be, or the file is no profile. Nothing is run before all are checked.

    Examples
    --------
    >>> ps.predict("profile.yaml", ["bsp", "ssp"], over=("cluster.workers", [2, 4]))  # doctest: +SKIP
    """
    found = profile if isinstance(profile, Calibration) else Calibration.read(profile)
    if seeds < 2:
        raise ParameterError(f"predict: a band needs at least two seeds, got {seeds}")
    if not strategies:
        raise ParameterError("predict: give at least one strategy")
    planned = list(_planned(found, strategies, over, settings, target))
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
) -> Iterator[tuple[Experiment, str, Any]]:
    path, values = over or ("", [None])
    for strategy in strategies:
        for value in values:
            own = {**(settings or {}), **({path: value} if path else {})}
            experiment = found.experiment_of(strategy, own)
            epochs = max(2.0, _BATCHES * experiment.batch_size / found.dataset_size)
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
    )


def _shown(band: Band | None) -> str:
    return "not reached" if band is None else str(band)


def _band(band: Band | None) -> dict[str, float] | None:
    return None if band is None else {"mean": band.mean, "low": band.low, "high": band.high}
