"""Repeating a paper: plan, cost, runs, and what follows from them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from psbench.errors import DataError
from psbench.experiment import Experiment
from psbench.papers import cells as planning
from psbench.papers.cells import PaperCell
from psbench.papers.library import load, stored
from psbench.papers.outcome import Reproduction, best_rates
from psbench.papers.records import PaperRecord, Store, read_records
from psbench.papers.running import Missing, run_cells
from psbench.papers.schema import Paper, Scale
from psbench.runs.execution import run
from psbench.runs.sweeps.execution import Progress


@dataclass(frozen=True)
class Plan:
    """What is to be run of a paper, fixed before the first run.

    Attributes
    ----------
    cells : list of PaperCell
        All runs that are known beforehand; which rates are best is known after the trials.
    """

    paper: Paper
    scale: Scale
    seeds: int | None
    table: str | None
    cells: list[PaperCell]

    @property
    def most_best(self) -> list[PaperCell]:
        """The largest possible number of runs at best rates, for the forecast."""
        tuned = {cell.experiment for cell in self.cells if cell.role == "tuning"}
        return planning.best(self.paper, self.scale, self.seeds, dict.fromkeys(tuned, self._other_rate))

    @property
    def _other_rate(self) -> float:
        return next((rate for rate in self.paper.rates if rate != 1), 1.0)

    def words(self, processes: int) -> list[str]:
        """Return the forecast of time, processes and disk, in words."""
        more = self.most_best
        least_s, memory = planning.forecast(self.cells, processes)
        most_s, _ = planning.forecast([*self.cells, *more], processes)
        rates = ", ".join(f"{rate:g}" for rate in self.paper.rates)
        trials = sum(cell.role == "tuning" for cell in self.cells)
        lines = [
            f"{self.paper.name}, scale {self.scale}: "
            + ", ".join(planning.lines(self.cells))
            + (f", up to {len(more)} results at the best rates" if more else ""),
            f"expected: {_duration(least_s)}{f' to {_duration(most_s)}' if more else ''} with {processes} "
            f"processes, {memory:.0f} MB",
        ]
        if trials:
            lines.append(
                f"each experiment that is tuned gets {len(self.paper.rates)} trials: rates x {rates}"
            )
        return lines


def plan(paper: Paper, scale: Scale, seeds: int | None = None, table: str | None = None) -> Plan:
    """Return what is to be run.

    Raises
    ------
    UnknownName, SpecError
    """
    cells = planning.results(paper, scale, seeds, table)
    if scale != "smoke":
        cells += planning.tuning(paper, scale, table) + planning.sensitivity(paper, scale, table)
    return Plan(paper, scale, seeds, table, cells)


def reproduce(
    planned: Plan,
    folder: Path,
    processes: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Reproduction:
    """Run what is planned and not stored yet, and return the reproduction.

    Parameters
    ----------
    planned : Plan
    folder : Path
        Where runs are stored.
    processes : int, optional
        How many runs at a time; by default one a core.
    on_progress : callable, optional
    """
    store = Store(folder)
    records, missing = run_cells(planned.cells, store, processes, on_progress)
    rates = best_rates(records.values())
    again = planning.best(planned.paper, planned.scale, planned.seeds, rates)
    more, gone = run_cells(again, store, processes, on_progress)
    return Reproduction(
        planned.paper, planned.scale, planned.seeds, records | more, planned.table, _reasons(missing + gone)
    )


def from_records(paper: Paper, scale: Scale, records: Sequence[PaperRecord]) -> Reproduction:
    """Return the reproduction of stored records."""
    return Reproduction(paper, scale, None, {record.key: record for record in records})


def stored_records(name: str) -> list[PaperRecord]:
    """Return the quick runs of a paper that come with psbench.

    Raises
    ------
    UnknownName
    DataError
        If there are none.
    """
    load(name)  # refuses what is none
    path = stored(name)
    if not path.is_file():
        raise DataError(
            f"paper {name!r}: no runs come with psbench; run `psbench reproduce {name}`, give --out"
        )
    return read_records(path)


def stored_reproduction(name: str) -> Reproduction:
    """Return what the quick runs of a paper came to that come with psbench.

    Raises
    ------
    UnknownName
    DataError
        If none come with it.
    """
    return from_records(load(name), "quick", stored_records(name))


def draw(records: Sequence[PaperRecord], seed: int) -> PaperRecord:
    """Return one of the records by chance.

    Raises
    ------
    DataError
        If there is none.
    """
    if not records:
        raise DataError("verify: there is no stored run; reproduce the paper first")
    return random.Random(seed).choice(sorted(records, key=lambda record: record.key))


def again(record: PaperRecord) -> tuple[str, str | None]:
    """Run a record's experiment again, and return the digests of its log and of its model."""
    summary = run(Experiment.from_spec(json.loads(record.spec))).summary()
    return summary["digest"], summary["params_digest"]


def _reasons(missing: Sequence[Missing]) -> dict[str, str]:
    return {each.cell.experiment: each.reason for each in missing}


def _duration(seconds: float) -> str:
    """Return seconds in words.

    >>> _duration(40), _duration(150), _duration(9000), _duration(468000)
    ('40 s', '2.5 min', '2.5 h', '130 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    value, unit = (seconds / 60, "min") if seconds < 5400 else (seconds / 3600, "h")
    return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
