"""The folder of a run: claimed before the run begins, and written to when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psbench.checkpoints.chain import remove_later
from psbench.checkpoints.folder import CheckpointFolder
from psbench.core.log import EventLog
from psbench.errors import NotSaved, SpecError
from psbench.results.identity import check_folder, remove_files_of_others
from psbench.results.run import Run
from psbench.runs.start import Start
from psbench.system.files import claimed


class RunFolder:
    """A folder that belongs to one run.

    Parameters
    ----------
    path : Path
    run_id : str or None
    start : Start or None
        Where the run goes on from.
    """

    def __init__(self, path: Path, run_id: str | None, start: Start | None) -> None:
        self._path, self._run_id, self._start = path, run_id, start

    @classmethod
    @contextmanager
    def claim(
        cls, path: Path | None, run_id: str | None, start: Start | None, *, overwrite: bool
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
        with claimed(path):
            Run.prepare_to_save()
            own = () if start is None else start.redone
            check_folder(path, run_id, overwrite=overwrite, own=own)
            yield cls(path, run_id, start)

    def checkpoints(self, log: EventLog, keep: int | None) -> CheckpointFolder:
        """Remove files that the run writes again, and return the folder of its checkpoints."""
        made, start = CheckpointFolder(self._path, self._run_id, log, keep), self._start
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
        try:
            done.save(self._path)
        except SpecError as error:
            raise NotSaved(done, str(error)) from error
