"""The checkpoints of a run: each file holds the log since the one before it, which it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from psbench.checkpoints.file import Checkpoint
from psbench.core.log import ROW, EventLog
from psbench.errors import DataError


def log_of(path: Path, checkpoint: Checkpoint) -> EventLog:
    """Return the log of a run up to a checkpoint, from it and those before it.

    Raises
    ------
    DataError
        If one of those is missing.
    """
    parts = [checkpoint]
    while before := parts[-1].state["log"]["after"]:
        if not (path.parent / before).is_file():
            raise DataError(
                f"{path}: the run's log begins in {before}, which is not beside it; keep the checkpoints of "
                "a run together"
            )
        parts.append(Checkpoint.load(path.parent / before))
    log = EventLog()
    for part in reversed(parts):
        texts = part.state["log"]["texts"]
        log.extend(np.frombuffer(part.tensors["log"].numpy().tobytes(), dtype=ROW), texts)
    return log


def find(source: str | Path) -> Path:
    """Return the last checkpoint of a run's folder, or the file itself.

    Raises
    ------
    DataError
        If there is none.
    """
    path = Path(source)
    if path.is_file():
        return path
    inside = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    found = sorted(inside.glob("*.npz"))
    if not found:
        raise DataError(
            f"{path}: has no checkpoint to go on from; a run writes them into its output folder at switches "
            "and every `checkpoint_every` epochs"
        )
    return max(found, key=lambda each: _progress(Checkpoint.state_of(each)))


def _progress(state: Mapping[str, Any]) -> tuple[int, float]:
    return state.get("log", {}).get("rows", -1), state.get("time_s", 0.0)


def remove_later(path: Path, folder: Path) -> None:
    """Remove from a folder that a checkpoint is in those that came after it: they will be made again."""
    if folder.is_dir() and path.resolve().parent == folder.resolve():
        progress = _progress(Checkpoint.state_of(path))
        for each in folder.glob("*.npz"):
            if _progress(Checkpoint.state_of(each)) > progress:
                each.unlink()


def home_of(path: Path) -> Path:
    """Return the folder of the run that a checkpoint is of."""
    return path.parent.parent if path.parent.name == "checkpoints" else path.parent


def resume_spec(path: Path) -> dict[str, Any]:
    """Return the specification of a checkpoint's run.

    Raises
    ------
    DataError
        If it has none.
    """
    spec = Checkpoint.state_of(path).get("spec")
    if not isinstance(spec, dict):
        raise DataError(f"{path}: holds a model, and not what a run needs to go on from it")
    return spec
