"""Running cells side by side; what was run before is not run again."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass

from psbench.errors import DataError
from psbench.papers.cells import Cell
from psbench.papers.records import Record, Store, run_cell


@dataclass(frozen=True)
class Missing:
    """A cell that could not be run because its data are not there."""

    cell: Cell
    reason: str


@dataclass(frozen=True)
class Progress:
    """How far the runs have come: counts, and the seconds that are expected to be left."""

    done: int
    total: int
    last: Cell
    left_s: float


def run_cells(
    cells: Sequence[Cell], store: Store, processes: int, on_progress: Callable[[Progress], None]
) -> tuple[dict[str, Record], list[Missing]]:
    """Return the record of every cell, by key: those that are stored, and the others after running them.

    Longer runs begin first. Each record is stored as soon as it is there, so that a command that is stopped
    goes on from where it was.

    Parameters
    ----------
    cells : sequence of Cell
    store : Store
    processes : int, >= 1
        With 1, runs take place in this process.
    on_progress : callable
        Called after each run.

    Raises
    ------
    DataError
        If a stored record is damaged.
    """
    records = {cell.key: found for cell in cells if (found := store.find(cell)) is not None}
    todo = sorted((cell for cell in cells if cell.key not in records), key=lambda cell: -cell.seconds)
    watch = _Watch(todo, processes, on_progress)
    missing: list[Missing] = []
    for cell, outcome in _outcomes(todo, processes):
        if isinstance(outcome, Missing):
            missing.append(outcome)
        else:
            store.save(outcome)
            records[cell.key] = outcome
        watch.note(cell)
    return records, missing


def _outcomes(todo: Sequence[Cell], processes: int):  # type: ignore[no-untyped-def]
    """Yield each cell with its record, or with why it has none, as they end."""
    if processes == 1:
        yield from ((cell, _attempt(cell)) for cell in todo)
        return
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        running: dict[Future[Record | Missing], Cell] = {pool.submit(_attempt, cell): cell for cell in todo}
        try:
            while running:
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield running.pop(future), future.result()
        finally:
            for future in running:
                future.cancel()


def _attempt(cell: Cell) -> Record | Missing:
    import torch

    torch.set_num_threads(1)
    try:
        return run_cell(cell)
    except DataError as error:
        return Missing(cell, str(error))


class _Watch:
    """Tells how far the runs have come: what is left takes as much longer as what is done has taken."""

    def __init__(self, todo: Sequence[Cell], processes: int, on_progress: Callable[[Progress], None]) -> None:
        self._total, self._done = len(todo), 0
        self._expected_s, self._spent_s = sum(cell.seconds for cell in todo), 0.0
        self._processes, self._tell = processes, on_progress
        self._began = time.monotonic()

    def note(self, cell: Cell) -> None:
        self._done += 1
        self._spent_s += cell.seconds
        share = self._spent_s / self._expected_s if self._expected_s else 1.0
        left = (time.monotonic() - self._began) * (1 - share) / share if share else 0.0
        self._tell(Progress(self._done, self._total, cell, left))
