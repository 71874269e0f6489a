"""What a student hands in: an experiment of their own, predictions that are kept, runs and answers."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.errors import DataError, ParameterError

if TYPE_CHECKING:
    from psbench.experiment import Experiment
    from psbench.results.run import Run

#: of a student's name, which is also the name of a folder
_STUDENT = re.compile(r"[\w.@+-]{1,64}")
_WORKERS = 4


def draws_of(student: str) -> np.random.Generator:
    """Return the generator of a student's own numbers: the same on every machine.

    Raises
    ------
    ParameterError
        If the name cannot be that of a folder.
    """
    if not isinstance(student, str) or not _STUDENT.fullmatch(student) or student == "your-id":
        raise ParameterError(
            f"student: {student!r} is not a valid id; give letters, digits, and any of . @ + - _"
        )
    digest = hashlib.sha256(f"psbench assignment {student}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8]))


def own_of(student: str) -> dict[str, Any]:
    """Return what is the student's own: the seed, the slow worker, its speed, and a budget of staleness.

    >>> sorted(own_of("ada"))
    ['budget', 'seed', 'slow', 'speed']
    """
    rng = draws_of(student)
    return {
        "seed": int(rng.integers(1, 10_000)),
        "slow": int(rng.integers(_WORKERS)),
        "speed": float(rng.choice([0.3, 0.35, 0.4, 0.45, 0.55, 0.6])),
        "budget": int(rng.integers(9, 16)),
    }


def experiment_of(student: str) -> Experiment:
    """Return the student's experiment: four workers, one of which is slow, on the digits."""
    from psbench.experiment import Experiment

    own = own_of(student)
    speed = [own["speed"] if worker == own["slow"] else 1.0 for worker in range(_WORKERS)]
    return Experiment(
        data="digits",
        model="mlp",
        cluster={"workers": _WORKERS, "speed": speed},
        strategy="bsp",
        optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9},
        batch_size=64,
        stop={"epochs": 4},
        seed=own["seed"],
    )


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
        """What is the student's own; see `own_of`."""
        return own_of(self.student)

    @cached_property
    def experiment(self) -> Experiment:
        """The student's experiment, to be changed with `but`."""
        return experiment_of(self.student)

    def predict(self, **values: float) -> None:
        """Write down what is expected, once, before anything is run.

        Raises
        ------
        ParameterError
            If other predictions are there already: a guess afterwards is none.
        """
        given = _answered(values)
        before = self.read("predictions")
        if before and before != given:
            raise ParameterError(f"predictions are kept, and yours were {before}; runs have not changed them")
        if given:
            self._write("predictions", given)

    def run(self, name: str, **changes: Any) -> Run:
        """Run the experiment with some changes, and keep the run under a name; `predict` first.

        Raises
        ------
        ParameterError
            If nothing was predicted.
        """
        from psbench.runs.execution import run

        if not self.read("predictions"):
            raise ParameterError("say what you expect first: mine.predict(...)")
        found = run(self.experiment.but(**changes))
        found.save(self.folder / name, overwrite=True)
        return found

    def answer(self, **values: Any) -> None:
        """Write the answers; those that are still `...` are left out, and the last ones count."""
        self._write("answers", _answered(values))

    def read(self, name: str) -> dict[str, Any]:
        """Return the "predictions" or "answers", as they were handed in; empty if there are none.

        Raises
        ------
        DataError
            If the file is damaged.
        """
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path}: is damaged ({error})") from None
        return found if isinstance(found, dict) else {}

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
