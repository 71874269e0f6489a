"""A student's submission: an experiment of their own, fixed predictions, runs and answers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.errors import DataError, ParameterError
from psbench_course.draws import draws_of
from psbench_course.quiz import shown

if TYPE_CHECKING:
    from IPython.display import Markdown

    from psbench.experiment import Experiment
    from psbench.results.run import Run

_WORKERS = 4
#: of the runs that switch
EPOCHS = 10
#: of a file of predictions or answers: a dozen numbers
_MOST_BYTES = 100_000
#: of the clusters that a strategy is designed for
_DESIGN_WORKERS, _UNSEEN = 6, 3


def own_of(student: str) -> dict[str, Any]:
    """Return the student's own parameters: seed, slow worker and its speed, budgets of staleness and time.

    >>> sorted(own_of("ada"))
    ['budget', 'seed', 'share', 'slow', 'speed']
    """
    rng = draws_of(student)
    own = {
        "seed": int(rng.integers(1, 10_000)),
        "slow": int(rng.integers(_WORKERS)),
        "speed": float(rng.choice([0.3, 0.35, 0.4, 0.45, 0.55, 0.6])),
        "budget": int(rng.integers(9, 16)),
    }
    # ASP alone takes about this share of the time of a barrier, so that there is something to find between
    least = _WORKERS * own["speed"] / (_WORKERS - 1 + own["speed"])
    return own | {"share": round(float(least + (1 - least) * rng.uniform(0.3, 0.75)), 2)}


def experiment_of(student: str) -> Experiment:
    """Return the student's experiment: four workers, one of them slow, on the digits."""
    own = own_of(student)
    speed = [own["speed"] if worker == own["slow"] else 1.0 for worker in range(_WORKERS)]
    return _on_digits(speed, lr=0.05, batch_size=64, stop={"epochs": 4}, seed=own["seed"])


def _on_digits(speed: list[float], lr: float, **fields: Any) -> Experiment:
    """Return an experiment under BSP with workers of these speeds."""
    from psbench.experiment import Experiment

    return Experiment(
        data="digits",
        model="mlp",
        cluster={"workers": len(speed), "speed": speed},
        strategy="bsp",
        optimizer={"name": "sgd", "lr": lr, "momentum": 0.9},
        **fields,
    )


def bounded(bound: Any) -> dict[str, Any]:
    """Return the change of an experiment to SSP with that bound."""
    return {"strategy": {"name": "ssp", "staleness_bound": bound}}


def switching(epochs: Any) -> dict[str, Any]:
    """Return the change of an experiment to All-Reduce for `epochs` of 10 epochs, then ASP.

    Raises
    ------
    ParameterError
        If it is no number of whole epochs, 0 to 10.
    """
    if not isinstance(epochs, int) or not 0 <= epochs <= EPOCHS:
        raise ParameterError(f"epochs: {epochs!r} is not a number of epochs; give one of 0 to {EPOCHS}")
    rule = {"name": "after", "fraction": epochs / EPOCHS}
    return {"strategy": {"name": "strategy_switch", "rule": rule}, "stop": {"epochs": EPOCHS}}


def _design_for(rng: np.random.Generator) -> Experiment:
    """Return an experiment on a random cluster: six workers, two of them far slower."""
    speed = rng.uniform(0.5, 1.0, _DESIGN_WORKERS)
    speed[rng.choice(_DESIGN_WORKERS, 2, replace=False)] = rng.uniform(0.15, 0.35, 2)
    stop = {"epochs": 12, "target_accuracy": 0.93}
    speeds = [round(each, 2) for each in speed.tolist()]
    return _on_digits(speeds, lr=0.1, batch_size=96, stop=stop, seed=int(rng.integers(1, 10_000)))


def time_to_target(experiment: Experiment) -> float | None:
    """Run an experiment, and return the seconds until it reached its target; None if it did not."""
    from psbench.runs.execution import run

    done = run(experiment)
    reached = done.summary()["best_val_accuracy"] >= (experiment.stop.target_accuracy or 0)
    return float(done.summary()["time_s"]) if reached else None


@dataclass(frozen=True)
class Submission:
    """A folder that is handed in.

    Parameters
    ----------
    assignment : int
    student : str
        Whoever has another id has another cluster, so that answers cannot be copied.
    root : path
        Where the folder lies.
    """

    assignment: int
    student: str
    root: Path = Path()

    @property
    def folder(self) -> Path:
        """The folder, which is zipped and handed in."""
        return self.root / f"assignment-{self.assignment}-{self.student}"

    @cached_property
    def own(self) -> dict[str, Any]:
        """The student's own parameters; see `own_of`."""
        return own_of(self.student)

    @cached_property
    def experiment(self) -> Experiment:
        """The student's experiment, to be changed with `but`."""
        return experiment_of(self.student)

    @cached_property
    def practice(self) -> Experiment:
        """Training to a target on a cluster of the student's own, to design a strategy with."""
        return _design_for(draws_of(self.student))

    def unseen(self, secret: str) -> list[Experiment]:
        """Return the same on clusters that the student has not seen, from the lecturer's secret."""
        return [_design_for(draws_of(self.student, secret, number)) for number in range(_UNSEEN)]

    def quiz(self) -> Markdown:
        """Show the questions, with the options in an order of the student's own."""
        from IPython.display import Markdown

        return Markdown(shown(self.student))

    def predict(self, **values: Any) -> None:
        """Store the predictions, once, before anything is run.

        Raises
        ------
        ParameterError
            If other predictions are there already: a guess afterwards is none.
        """
        given = _answered(values)
        before = self.read("predictions")
        if before and before != given:
            raise ParameterError(f"predictions cannot be changed; yours are {before}")
        if given:
            self._write("predictions", given)

    def run(self, name: str, experiment: Experiment | None = None, **changes: Any) -> Run:
        """Run the experiment (or another) with some changes, and keep the run under a name; `predict` first.

        Raises
        ------
        ParameterError
            If there is no prediction.
        """
        from psbench.runs.execution import run

        if not self.read("predictions"):
            raise ParameterError("enter your predictions first: mine.predict(...)")
        found = run((experiment or self.experiment).but(**changes))
        found.meta["predictions"] = self.predictions_digest()
        found.save(self.folder / name, overwrite=True)
        return found

    def predictions_digest(self) -> str:
        """Return a digest of the predictions, which each run records: later changes are detected."""
        text = json.dumps(self.read("predictions"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def answer(self, **values: Any) -> None:
        """Write the answers, without those that are still `...`; the last ones count."""
        self._write("answers", _answered(values))

    def read(self, name: str) -> dict[str, Any]:
        """Return the submitted "predictions" or "answers"; empty if there are none.

        Raises
        ------
        DataError
            If the file is damaged.
        """
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return {}
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path}: has more than {_MOST_BYTES} bytes")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: is damaged ({error})") from None
        if not isinstance(found, dict):
            raise DataError(f"{path}: holds a {type(found).__name__}, not names and values")
        return found

    def _write(self, name: str, values: dict[str, Any]) -> None:
        draws_of(self.student)  # refuses a name that is none
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{name}.json").write_text(json.dumps(values, indent=1), encoding="utf-8")


def _answered(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in values.items()
        if value is not ...
    }
