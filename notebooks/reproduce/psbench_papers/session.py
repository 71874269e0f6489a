"""Reproduction of a paper: plan, cost, runs and results."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psbench.errors import DataError
from psbench.experiment import Experiment
from psbench.runs.execution import run
from psbench.runs.sweeps.execution import Progress
from psbench_papers import cells as planning
from psbench_papers.cells import PaperCell, duration
from psbench_papers.claim import Scale
from psbench_papers.library import load, stored
from psbench_papers.outcome import Reproduction, best_rates
from psbench_papers.records import PaperRecord, Store, read_records
from psbench_papers.running import run_cells
from psbench_papers.schema import Paper


@dataclass(frozen=True)
class Plan:
    """The planned runs of a paper, fixed before the first run.

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
        if not self.cells:
            return [f"{self.paper.name}, scale {self.scale}: there is nothing to run"]
        least = "" if all(cell.seconds for cell in self.cells) else "at least "
        lines = [
            f"{self.paper.name}, scale {self.scale}: "
            + ", ".join(planning.lines(self.cells))
            + (f", up to {len(more)} results at the best rates" if more else ""),
            f"expected: {least}{duration(least_s)}{f' to {duration(most_s)}' if more else ''} with "
            f"{processes} processes, {memory:.0f} MB",
        ]
        if computed := [*planning.sources([*self.cells, *more])]:
            lines += ["computed, a run, on one core (other runs were measured):", *computed]
        if trials:
            lines.append(
                f"each experiment that is tuned gets {len(self.paper.rates)} trials: rates x {rates}"
            )
        return lines


def plan(paper: Paper, scale: Scale, seeds: int | None = None, table: str | None = None) -> Plan:
    """Return the planned runs.

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
    """Execute the planned runs that are not stored yet, and return the reproduction.

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
        planned.paper, planned.scale, planned.seeds, records | more, planned.table, missing | gone
    )


def stored_records(name: str, scale: Scale = "quick") -> list[PaperRecord]:
    """Return a paper's stored runs that come with psbench.

    Raises
    ------
    UnknownName
    DataError
        If there are none.
    """
    load(name)  # refuses what is none
    path = stored(name, scale)
    if not path.is_file():
        raise DataError(
            f"paper {name!r}: no runs of scale {scale} come with psbench; "
            f"run `psbench reproduce {name} --scale {scale}`, give --out"
        )
    return read_records(path)


def stored_reproduction(name: str, scale: Scale = "quick") -> Reproduction:
    """Return the reproduction from the stored runs that come with psbench.

    Raises
    ------
    UnknownName
    DataError
        If none come with it.
    """
    records = {record.key: record for record in stored_records(name, scale)}
    return Reproduction(load(name), scale, None, records)


def draw(records: Sequence[PaperRecord], seed: int, without: Collection[str] = ()) -> PaperRecord:
    """Return a random record, of no data set in `without`.

    Raises
    ------
    DataError
        If there is none.
    """
    left = [record for record in records if data_of(record) not in without]
    if not left:
        raise DataError(
            f"verify: all stored runs are of {', '.join(without)}; give --data DIR"
            if records
            else "verify: there is no stored run; reproduce the paper first"
        )
    return random.Random(seed).choice(sorted(left, key=lambda record: record.key))


def data_of(record: PaperRecord) -> str:
    return str(json.loads(record.spec)["data"]["name"])


def again(record: PaperRecord) -> dict[str, Any]:
    """Run a record's experiment again, and return its summary."""
    return run(Experiment.from_spec(json.loads(record.spec))).summary()


def difference(record: PaperRecord, summary: Mapping[str, Any]) -> str:
    """Return how a repeated run differs; empty if log and model are bit-identical."""
    from torch.backends import cpu

    if (summary["digest"], summary["params_digest"]) == (record.digest, record.params_digest):
        return ""
    numbers = {"time_s": summary["time_s"]} | summary["final"]
    said = (f"{name} {record.measures.get(name)} and now {value}" for name, value in numbers.items())
    return (
        f"stored: {', '.join(said)}. The same bits are promised with the same versions, on processors with "
        f"the same arithmetic (torch here: {cpu.get_cpu_capability()}); elsewhere gradients are rounded "
        "otherwise, and only runs without gradients are the same"
    )
