"""Running cells in parallel with `psbench.runs.sweeps`; stored runs are reused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence

from psbench.errors import Cancelled, DoubtfulComposition
from psbench.experiment import Experiment
from psbench.runs.sweeps.cells import Cell
from psbench.runs.sweeps.execution import Progress
from psbench.runs.sweeps.execution import run_cells as run_side_by_side
from psbench_papers.cells import PaperCell
from psbench_papers.records import PaperRecord, Store, record_of


def run_cells(
    cells: Sequence[PaperCell],
    store: Store,
    processes: int | None,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[dict[str, PaperRecord], dict[str, str]]:
    """Return the records of cells by key, and reasons for missing ones, such as missing data.

    Longer runs begin first. Each run is saved as soon as it has ended, so that a command that is stopped
    goes on from where it was.

    Parameters
    ----------
    cells : sequence of PaperCell
    store : Store
    processes : int or None
        How many at a time; None is one a core.
    on_progress : callable, optional
        Called when a run has come further or ended.

    Raises
    ------
    Cancelled
        After Ctrl-C; what is done is kept.
    """
    records = {cell.key: found for cell in cells if (found := store.find(cell)) is not None}
    todo = sorted((cell for cell in cells if cell.key not in records), key=lambda cell: -cell.seconds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulComposition)  # what is printed is run, doubtful or not
        planned = [Cell(Experiment.from_spec(json.loads(cell.spec))) for cell in todo]
        outcomes = run_side_by_side(planned, processes=processes, folder=store.runs, on_progress=on_progress)
    missing = {}
    for cell, outcome in zip(todo, outcomes, strict=True):
        if not outcome.error:
            records[cell.key] = record_of(cell, outcome.run, outcome.summary)
            store.save(records[cell.key])
        elif outcome.was_run:
            missing[cell.experiment] = outcome.error
    if not all(outcome.was_run for outcome in outcomes):
        raise Cancelled("stopped; what was run is kept, and the same command goes on from there")
    return records, missing
