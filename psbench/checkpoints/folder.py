"""The folder that a run writes its checkpoints to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from psbench.checkpoints.file import Checkpoint
from psbench.core.log import EventLog


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

    Attributes
    ----------
    paths : list of str
        The files written, in order.
    """

    def __init__(self, folder: Path, run_id: str | None, log: EventLog) -> None:
        self._folder, self._run_id, self._log = folder / "checkpoints", run_id, log
        self._rows, self._texts, self._before = 0, 0, ""
        self.paths: list[str] = []

    def write(self, label: str, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint; its state's `logged`, if there, says how many rows and texts belong to it."""
        path = self._path(label)
        self._add_log(checkpoint)
        checkpoint.state["run_id"] = self._run_id
        checkpoint.save(path)
        self._before = path.name
        self.paths.append(str(path))
        return path

    def _path(self, label: str) -> Path:
        """Return a file that this run has not written: epochs far apart may have one label."""
        path, again = self._folder / f"{label}.npz", 1
        while str(path) in self.paths:
            again += 1
            path = self._folder / f"{label}-{again}.npz"
        return path

    def _add_log(self, checkpoint: Checkpoint) -> None:
        rows, texts = checkpoint.state.pop("logged", (len(self._log), len(self._log.texts)))
        new = self._log.rows(self._rows, rows).tobytes()
        checkpoint.tensors["log"] = torch.from_numpy(np.frombuffer(new, np.uint8).copy())
        checkpoint.state["log"] = {
            "after": self._before,
            "rows": rows,
            "texts": list(self._log.texts[self._texts : texts]),
        }
        self._rows, self._texts = rows, texts
