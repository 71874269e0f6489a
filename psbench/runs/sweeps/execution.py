"""Execution of cells in processes or on a Dask cluster; saved cells are skipped."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psbench.errors import ParameterError
from psbench.runs.sweeps.cells import Cell, CellOutcome
from psbench.system.cores import cores


@dataclass(frozen=True)
class Progress:
    """Progress of many runs.

    Attributes
    ----------
    done, total : int
        Runs that have ended, well or not, and all; those found in the folder count as done.
    failed : int
        Of those that have ended.
    fraction : float, 0 to 1
        Share of the work of this call, runs under way counted by how far they have come.
    running : tuple of str
        Labels of the runs under way.
    spent_s : float, seconds
    """

    done: int
    total: int
    failed: int
    fraction: float
    running: tuple[str, ...]
    spent_s: float


def run_cells(
    cells: Sequence[Cell],
    *,
    processes: int | None = None,
    client: Any = None,
    folder: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[CellOutcome]:
    """Run cells, and return their outcomes in order.

    A cell that fails ends no other. Ctrl-C ends what is under way and keeps what is done; the other cells
    are "not run". Live runs (`backend: dask`) go one after another in this process, when the others have
    ended: side by side they would slow each other down, and their seconds would mean nothing.

    Parameters
    ----------
    cells : sequence of Cell
    processes : int, >= 1, optional
        How many run at a time; by default one a core. With 1 they run in this process.
    client : distributed.Client, optional
        Of a Dask cluster that the runs are tasks of, in the place of processes.
    folder : Path, optional
        A folder for each run is made in it, named by the digest of the cell's specification. A cell that is
        found there, whole, is not run again.
    on_progress : callable, optional
        Called when a run has come further or ended, from this thread.

    Raises
    ------
    ParameterError, SpecError
        Before any cell is run.
    """
    _check(cells, processes, client)
    found = [None if folder is None else cell.find(folder) for cell in cells]
    outcomes = [
        None if own is None else CellOutcome(cell, _folder=own)
        for cell, own in zip(cells, found, strict=True)
    ]
    missing = [place for place, outcome in enumerate(outcomes) if outcome is None]
    watch = _Watch(cells, outcomes, missing, on_progress)
    try:
        with closing(_answers(cells, missing, processes, client, folder)) as answers:
            watch.show()
            for place, (kind, content) in answers:
                if kind == "progress":
                    watch.moved(place, content)
                else:
                    watch.ended(place, _outcome(cells[place], content, folder))
    except KeyboardInterrupt:
        pass  # what is done is kept, and the rest is said not to have been run
    return [
        CellOutcome(cell, error="not run: stopped before its turn", was_run=False)
        if outcome is None
        else outcome
        for cell, outcome in zip(cells, outcomes, strict=True)
    ]


def _check(cells: Sequence[Cell], processes: Any, client: Any) -> None:
    if processes is not None and (type(processes) is not int or processes < 1):
        raise ParameterError(f"sweep: processes: expected a number of at least 1, got {processes!r}")
    if client is None:
        return
    if not all(callable(getattr(client, name, None)) for name in ("submit", "cancel")):
        raise ParameterError(f"sweep: client: expected a distributed.Client, got {client!r}")
    if processes is not None:
        raise ParameterError("sweep: give processes or a client, not both")
    if any(cell.experiment.backend == "dask" for cell in cells):
        raise ParameterError(
            "sweep: client: a live run needs Dask workers of its own, and cannot be a Dask task; "
            "remove client, and give scheduler"
        )


def _answers(
    cells: Sequence[Cell], missing: Sequence[int], processes: int | None, client: Any, folder: Path | None
) -> Generator[tuple[int, Any], None, None]:
    """Yield answers about the missing cells: the index of a cell, and an answer as in `worker`."""
    from psbench.runs.sweeps.pool import in_processes
    from psbench.runs.sweeps.worker import packed

    live = [place for place in missing if cells[place].experiment.backend == "dask"]
    others = [place for place in missing if place not in set(live)]
    at_once = min(processes or cores(), len(others))
    answers: Iterable[tuple[int, Any]] = ()
    if client is not None:
        from psbench.runs.sweeps.tasks import on_cluster

        contents = [packed(cells[place], None, by_value=True) for place in others]
        answers = on_cluster(contents, client)
    elif at_once > 1:
        answers = in_processes([packed(cells[place], folder) for place in others], at_once)
    else:
        live = [*others, *live]
    for number, answer in answers:
        yield others[number], answer
    yield from _here(cells, live, folder)


def _here(
    cells: Sequence[Cell], places: Sequence[int], folder: Path | None
) -> Generator[tuple[int, tuple[str, Any]], None, None]:
    """Run cells in this process, one after another."""
    from psbench.backends.control import Control
    from psbench.runs.sweeps.worker import run_plain

    for place in places:
        yield place, ("progress", 0.0)
        control = Control()
        own = None if folder is None else folder / cells[place].folder_name
        found = run_plain(cells[place].experiment, own, control=control)
        if control.stopping:  # Ctrl-C: half a run is no result
            raise KeyboardInterrupt
        yield place, ("done", found)


def _outcome(cell: Cell, content: dict[str, Any], folder: Path | None) -> CellOutcome:
    """Return the outcome of a cell; save a run from another machine."""
    from psbench.runs.sweeps.worker import outcome_of

    outcome = outcome_of(cell, content)
    if folder is None or outcome.error or "folder" in content:
        return outcome
    return CellOutcome(cell, _folder=outcome.run.save(folder / cell.folder_name, overwrite=True))


class _Watch:
    """Collects outcomes, and reports the progress of all cells."""

    def __init__(
        self,
        cells: Sequence[Cell],
        outcomes: list[CellOutcome | None],
        missing: Sequence[int],
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._cells, self._outcomes, self._tell = cells, outcomes, on_progress
        self._missing = len(missing)
        self._under_way: dict[int, float] = {}
        self._began = time.monotonic()

    def moved(self, place: int, done: float) -> None:
        """Record the progress of a cell."""
        self._under_way[place] = done
        self.show()

    def ended(self, place: int, outcome: CellOutcome) -> None:
        self._under_way.pop(place, None)
        self._outcomes[place] = outcome
        self.show()

    def show(self) -> None:
        """Report to the callback, if there is one."""
        if self._tell is None:
            return
        ended = [outcome for outcome in self._outcomes if outcome is not None]
        new = len(ended) - (len(self._outcomes) - self._missing)
        self._tell(
            Progress(
                done=len(ended),
                total=len(self._outcomes),
                failed=sum(bool(outcome.error) for outcome in ended),
                fraction=(new + sum(self._under_way.values())) / self._missing if self._missing else 1.0,
                running=tuple(self._cells[place].label for place in sorted(self._under_way)),
                spent_s=time.monotonic() - self._began,
            )
        )
