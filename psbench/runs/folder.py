"""The folder of a run: claimed before the run begins, and written to when it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from psbench.checkpoints.chain import remove_later
from psbench.checkpoints.folder import CheckpointFolder
from psbench.checkpoints.validation import FREE
from psbench.core.ending import STOPPED
from psbench.core.log import EventLog
from psbench.errors import NotSaved, SpecError
from psbench.experiment import Experiment
from psbench.results.identity import check_folder, remove_files_of_others
from psbench.results.run import Run
from psbench.runs.start import Start
from psbench.system.claims import Writer, claimed

#: seconds between two looks at a folder that another process writes to
_LOOK_S = 0.2


class RunFolder:
    """A folder that belongs to one run.

    Parameters
    ----------
    path : Path
    run_id : str or None
    start : Start or None
        Where the run goes on from.
    fence : callable
        Called before each file is written; raises if this process may not write any more.
    """

    def __init__(
        self, path: Path, run_id: str | None, start: Start | None, fence: Callable[[], None]
    ) -> None:
        self._path, self._run_id, self._start, self._fence = path, run_id, start, fence

    @classmethod
    @contextmanager
    def claim(
        cls,
        path: Path | None,
        run_id: str | None,
        start: Start | None,
        *,
        overwrite: bool,
        writer: Writer,
    ) -> Iterator[RunFolder | None]:
        """Keep other runs out of the folder for as long as this one needs it.

        Raises
        ------
        SpecError
            If another run is in it or is writing to it, or it cannot be written to.
        """
        if path is None:
            yield None
            return
        with claimed(path, writer.owner) as check_claim:

            def fence() -> None:
                check_claim()
                writer.check()

            Run.prepare_to_save()
            own = () if start is None else start.redone
            check_folder(path, run_id, overwrite=overwrite, own=own)
            yield cls(path, run_id, start, fence)

    def checkpoints(self, log: EventLog, keep: int | None) -> CheckpointFolder:
        """Remove files that the run writes again, and return the folder of its checkpoints."""
        made, start = CheckpointFolder(self._path, self._run_id, log, keep, self._fence), self._start
        self._fence()
        remove_files_of_others(self._path, self._run_id, () if start is None else start.redone)
        if start is not None:
            remove_later(start.path, self._path / "checkpoints")
            if start.redone and start.chosen:
                names = ", ".join(each.name for each in start.redone)
                made.note(f"{names}: cannot be read; the run resumes from {start.path.name}")
        return made

    def save(self, done: Run) -> None:
        """Save a run that has ended.

        Raises
        ------
        NotSaved
            With the run, which can be saved elsewhere.
        """
        self._fence()
        try:
            done.save(self._path)
        except SpecError as error:
            raise NotSaved(done, str(error)) from error


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run in the folder has left a checkpoint."""
    return any((folder / "checkpoints").glob("*.npz"))


def ended_run(folder: Path, experiment: Experiment) -> Run | None:
    """Return the run of this experiment that has ended in the folder, unless its user stopped it.

    Raises
    ------
    DataError
        If its files are damaged.
    """
    if not (folder / "run.json").is_file():
        return None
    found, free = Run.load(folder), {*FREE} - {"stop", "timing_only"}
    before, now = found.experiment.spec(), experiment.spec()
    same = all(before.get(field) == now.get(field) for field in {*before, *now} - free)
    return found if same and found.meta["status"] != STOPPED else None


def await_folder(folder: Path, within_s: float) -> None:
    """Wait until no process writes a run to the folder.

    Raises
    ------
    SpecError
        If one still does after `within_s` seconds, or the folder cannot be written.
    """
    until = time.monotonic() + within_s
    while True:
        try:
            with claimed(folder):
                return
        except SpecError:
            if time.monotonic() > until:
                raise
        time.sleep(_LOOK_S)
