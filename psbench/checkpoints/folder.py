"""The folder that a run writes its checkpoints to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from psbench.checkpoints.chain import prune
from psbench.checkpoints.file import Checkpoint
from psbench.core.log import EventLog
from psbench.errors import PsbenchError, SpecError

logger = logging.getLogger(__name__)


class CheckpointFolder:
    """Writes the checkpoints of one run, each with the log since the one before.

    Parameters
    ----------
    folder : Path
        Of the run; checkpoints go into `checkpoints` in it.
    run_id : str or None
        Identity of the run, which every checkpoint carries; None for a run of a version that gave it none.
    log : EventLog
        The run's log, as far as it has come.
    keep : int or None
        How many are kept; None for all.
    fence : callable
        Called before each is written; raises if this process may not write any more.

    Attributes
    ----------
    paths : list of str
        The files that are there, in order.
    incidents : list of str
        What could not be written or removed, in words.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str | None,
        log: EventLog,
        keep: int | None = None,
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder, self._run_id, self._log, self._keep = folder / "checkpoints", run_id, log, keep
        self._fence = fence
        self._rows, self._texts, self._before = 0, 0, ""
        self.paths: list[str] = []
        self.incidents: list[str] = []

    def write(self, label: str, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; `logged` in its state, if present, is its number of rows and texts.

        If that fails, because the disk is full or the folder read-only, training goes on: the next one is
        tried as if this one had not been due.
        """
        self._fence()
        path = self._path(label)
        rows, texts = checkpoint.state.pop("logged", (len(self._log), len(self._log.texts)))
        self._add_log(checkpoint, rows, texts)
        checkpoint.state["run_id"] = self._run_id
        try:
            checkpoint.save(path)
        except SpecError as error:
            self.note(f"checkpoint {label!r} was not written; training continues: {error}")
            return
        self._rows, self._texts, self._before = rows, texts, path.name
        self.paths.append(str(path))
        if self._keep is not None:
            self._prune(self._keep)

    def _prune(self, keep: int) -> None:
        try:
            gone = {str(path) for path in prune(self._folder, keep)}
        except (PsbenchError, OSError) as error:
            self.note(f"old checkpoints were not removed: {error}")
        else:
            self.paths[:] = [path for path in self.paths if path not in gone]

    def note(self, incident: str) -> None:
        """Log an incident as a warning, and add it to the run's warnings."""
        self.incidents.append(incident)
        logger.warning("%s", incident)

    def _path(self, label: str) -> Path:
        """Return a file that this run has not written: epochs far apart may have one label."""
        path, again = self._folder / f"{label}.npz", 1
        while str(path) in self.paths:
            again += 1
            path = self._folder / f"{label}-{again}.npz"
        return path

    def _add_log(self, checkpoint: Checkpoint, rows: int, texts: int) -> None:
        new = self._log.rows(self._rows, rows).tobytes()
        checkpoint.tensors["log"] = torch.from_numpy(np.frombuffer(new, np.uint8).copy())
        checkpoint.state["log"] = {
            "after": self._before,
            "rows": rows,
            "texts": list(self._log.texts[self._texts : texts]),
        }
