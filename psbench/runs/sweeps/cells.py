"""One run of many: its specification before it is run, and its outcome."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psbench.errors import DamagedFile, DataError, SpecError
from psbench.results.record_file import read_summary

if TYPE_CHECKING:
    from psbench.experiment import Experiment
    from psbench.results.run import Run

#: hexadecimal digits of a digest in the name of a folder: enough for any number of cells
_DIGITS = 16
#: how a run may have ended that is not done again
_COMPLETE = ("finished", "diverged")


@dataclass(frozen=True, eq=False)
class Cell:
    """One run that is to be made.

    Attributes
    ----------
    experiment : Experiment
    parameters : mapping of str to plain value
        What tells the cell apart from others, for tables; an object is named by its label.
    """

    experiment: Experiment
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """The cell's identity: the SHA-256 of its specification."""
        text = json.dumps(self.experiment.spec(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def setting(self) -> str:
        """The parameters in words, such as "strategy=ssp, optimizer.lr=0.1"."""
        return ", ".join(f"{name}={value}" for name, value in self.parameters.items())

    @property
    def label(self) -> str:
        """The title of the cell in progress bars and errors."""
        return f"{self.setting or self.experiment.title}, seed {self.experiment.seed}"

    @property
    def folder_name(self) -> str:
        return f"{self.experiment.strategy.name}-seed{self.experiment.seed}-{self.digest[:_DIGITS]}"

    def find(self, folder: Path) -> Path | None:
        """Return the folder of the cell's run if it has been saved there, whole; else None.

        A run that is damaged is none, which a warning (`DamagedFile`) says.
        """
        own = folder / self.folder_name
        if not (own / "run.json").is_file() or not (own / "log.parquet").is_file():
            return None
        from psbench.results.run import Run

        try:
            if read_summary(own / "run.json")["status"] not in _COMPLETE:
                return None
            if Run.load(own).experiment.spec() != self.experiment.spec():
                raise DataError(f"{own / 'experiment.yaml'}: is a different experiment from {self.label}")
        except (DataError, SpecError) as error:
            warnings.warn(DamagedFile(f"{error}; the run is repeated"), stacklevel=2)
            return None
        return own


@dataclass(frozen=True, eq=False)
class CellOutcome:
    """Outcome of a cell: a run, in memory or in its folder, or an error.

    Attributes
    ----------
    cell : Cell
    error : str
        One line; empty if there is a run.
    traceback : str
        Of an error that is not one of psbench's own.
    was_run : bool
        False if the sweep was stopped before the cell's turn.
    """

    cell: Cell
    error: str = ""
    traceback: str = ""
    was_run: bool = True
    _run: Run | None = None
    _folder: Path | None = None
    _evaluated: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """The status: "finished", "diverged", "failed" or "not run"."""
        if not self.was_run:
            return "not run"
        return "failed" if self.error else str(self.summary["status"])

    @property
    def run(self) -> Run:
        """The run.

        Raises
        ------
        SpecError
            If the cell has none.
        """
        from psbench.results.run import Run

        if self._run is not None:
            return self._run
        if self._folder is None:
            raise SpecError(f"sweep: {self.cell.label} has no run: {self.error or self.status}")
        found = Run.load(self._folder)
        # the cell's own experiment has the objects that a file cannot hold
        found.experiment = self.cell.experiment
        return found

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The run's summary (`Run.summary`), read from its record if there is one."""
        if self._run is None and self._folder is not None:
            return read_summary(self._folder / "run.json")
        return self.run.summary()

    def evaluated(self, name: str) -> list[tuple[float, float]]:
        """Return time and value of each evaluation that has such a value."""
        if name not in self._evaluated:
            found = [(row["time_s"], row.get(name)) for row in self.run.log.evaluations()]
            self._evaluated[name] = [(time_s, value) for time_s, value in found if value is not None]
        return self._evaluated[name]
