"""Grid search for AdaComm's initial number of local steps, tau_0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from psbench.core.strategy import Strategy
from psbench.errors import Diverged, ParameterError
from psbench.metrics import evaluations, interval
from psbench.strategies.communication import AdaComm

if TYPE_CHECKING:
    from psbench.experiment import Experiment
    from psbench.results.run import Run

#: periods that are tried: those the paper compares (1, 5, 20, 100), and what lies between
CANDIDATES = (1, 2, 5, 10, 20, 50, 100)
#: evaluations in a run; the loss between two of them is interpolated
_EVALUATIONS = 20


@dataclass(frozen=True)
class StepsSearch:
    """Result of a search for the initial period.

    Attributes
    ----------
    losses : dict of int to list of float
        By period, the training loss of each run `time_s` seconds after its beginning; NaN if it diverged.
    time_s : float, seconds
        When the losses are compared: the time in which the quickest period is done.
    """

    losses: dict[int, list[float]]
    time_s: float

    @property
    def initial_steps(self) -> int:
        """The period with the lowest mean loss; the shortest of equal ones."""
        means = {steps: float(np.mean(found)) for steps, found in self.losses.items()}
        return min((steps for steps in means if np.isfinite(means[steps])), key=lambda s: (means[s], s))

    def table(self) -> pd.DataFrame:
        """Return a row for each period: `local_steps`, `n` (runs), `train_loss` and `train_loss_ci`."""
        rows = []
        for steps, found in self.losses.items():
            mean, half = interval(found)
            rows.append({"local_steps": steps, "n": len(found), "train_loss": mean, "train_loss_ci": half})
        return pd.DataFrame(rows)


def find_initial_steps(
    experiment: Experiment,
    *,
    candidates: Sequence[int] = CANDIDATES,
    epochs: float = 1.0,
    runs: int = 3,
    **options: Any,
) -> StepsSearch:
    """Try fixed periods for an epoch or two each, and compare their training losses after equal time.

    Parameters
    ----------
    experiment : Experiment
        Its strategy's communication is `adacomm`; the periods are tried with the same other parts.
    candidates : sequence of int, steps, >= 1
    epochs : float, epochs, > 0
        Length of each run.
    runs : int, >= 1
        Runs of each period, with seeds that follow the experiment's.
    **options
        `processes`, `client`, `folder` as of `psbench.sweep`, and `progress`, off by default.

    Raises
    ------
    ParameterError
        Before the first run.
    Diverged
        If every period diverged.

    Notes
    -----
    Our reading: the paper says "a simple grid search over different tau run for one or two epochs each", and
    not what is compared. After equally many epochs a period of 1 would nearly always be best, as the time
    that it takes would not count; so losses are compared after the time of the quickest run. tau_0 is to
    make the loss fall quickly at first, and AdaComm sees to the rest.

    Source
    ------
    Wang and Joshi (2019), AdaComm, sec. 4.

    Examples
    --------
    >>> from psbench.testing import toy_experiment
    >>> experiment = toy_experiment("adacomm")
    >>> found = find_initial_steps(experiment, candidates=(1, 4), runs=1, processes=1)
    >>> sorted(found.losses), found.initial_steps in (1, 4)
    ([1, 4], True)
    """
    from psbench.runs.sweeps.cells import Cell
    from psbench.runs.sweeps.sweep import runs_of

    _check(experiment, candidates, epochs, runs)
    periods = sorted(set(candidates))
    cells = [
        Cell(_with_period(experiment, steps, epochs, extra), {"local_steps": steps})
        for steps in periods
        for extra in range(runs)
    ]
    found = iter(runs_of(cells, **options))
    done = {steps: [next(found) for _ in range(runs)] for steps in periods}
    ends = [one.summary()["time_s"] for own in done.values() for one in own if not _diverged(one)]
    if not ends:
        raise Diverged("search: all periods diverged: lower the learning rate")
    losses = {steps: [_loss_at(one, min(ends)) for one in own] for steps, own in done.items()}
    if all(np.isnan(np.mean(found)) for found in losses.values()):
        raise Diverged("search: every period diverged with some seed: lower the learning rate")
    return StepsSearch(losses, min(ends))


def _check(experiment: Experiment, candidates: Sequence[int], epochs: float, runs: int) -> None:
    strategy = experiment.strategy
    if not (isinstance(strategy, Strategy) and isinstance(strategy.communication, AdaComm)):
        raise ParameterError(f"search: strategy {strategy.name!r} has no initial period; use adacomm")
    if not candidates or min(candidates) < 1 or not epochs > 0 or runs < 1:
        raise ParameterError(
            f"search: candidates = {list(candidates)}, epochs = {epochs}, runs = {runs}; give periods of at "
            "least 1, epochs above 0 and at least 1 run"
        )


def _with_period(experiment: Experiment, steps: int, epochs: float, extra: int) -> Experiment:
    communication = experiment.strategy.communication
    fixed = {name: getattr(communication, name) for name in ("local_momentum", "codec", "codec_down")}
    spec = {
        "name": f"{steps} local steps",
        "communication": {"name": "local_sgd", "local_steps": steps} | fixed,
    }
    return experiment.but(
        strategy=experiment.strategy.spec() | spec,
        stop={"epochs": epochs},
        evaluate_every=epochs / _EVALUATIONS,
        seed=experiment.seed + extra,
    )


def _diverged(run: Run) -> bool:
    return bool(run.meta["status"] == "diverged")


def _loss_at(run: Run, time_s: float) -> float:
    """Return the training loss at a time, interpolated between evaluations; NaN if the run diverged."""
    seen = evaluations(run.log)
    return float("nan") if _diverged(run) else float(np.interp(time_s, seen["time_s"], seen["train_loss"]))
