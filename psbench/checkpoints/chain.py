"""The checkpoints of a run: each file holds the log since the one before it; old files are removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.validation import ONLY_A_MODEL, check_state
from psbench.core.log import ROW, EventLog
from psbench.errors import DataError
from psbench.system.files import why_missing


def log_of(path: Path, checkpoint: Checkpoint) -> EventLog:
    """Return the log of a run up to a checkpoint, from this and earlier checkpoints.

    Raises
    ------
    DataError
        If one of those is missing, of another run, or names itself, so that the chain has no beginning.
    """
    parts = {path.name: checkpoint}
    at, part = path, checkpoint
    while before := part.state["log"]["after"]:
        if before in parts:
            raise DataError(f"{at}: the checkpoints form a circle: {before} comes both before and after it")
        at = path.parent / before
        part = parts[before] = _earlier(path, at, checkpoint)
    log = EventLog()
    for name, part in reversed(parts.items()):
        rows = _rows(path.parent / name, part)
        log.extend(rows, part.state["log"]["texts"])
        if len(log) != part.state["log"]["rows"]:
            raise DataError(
                f"{path.parent / name}: expects a log of {part.state['log']['rows']} rows, but with its "
                f"predecessors there are {len(log)}: one of them belongs to another run"
            )
    return log


def _rows(path: Path, checkpoint: Checkpoint) -> npt.NDArray[np.void]:
    """Return the rows of the log in a checkpoint."""
    packed = checkpoint.tensors.get("log")
    if packed is None or packed.dtype != torch.uint8 or packed.numel() % ROW.itemsize:
        raise DataError(f"{path}: its log is missing or has incomplete rows")
    return np.frombuffer(packed.numpy().tobytes(), dtype=ROW)


def _earlier(path: Path, at: Path, checkpoint: Checkpoint) -> Checkpoint:
    """Read a checkpoint that the log of `path` begins in."""
    if not at.is_file():
        raise DataError(
            f"{path}: the run's log begins in {at.name}, which is missing; keep the checkpoints of a "
            "run together"
        )
    found = Checkpoint.load(at)
    check_state(at, found.state)
    if found.state.get("run_id") != checkpoint.state.get("run_id"):
        raise DataError(f"{at}: belongs to a different run from {path.name}, whose log begins in it")
    return found


def find(source: str | Path) -> Path:
    """Return the last checkpoint of a run's folder that can be read with its log, or the file itself.

    Raises
    ------
    DataError
        If there is none, or there are some of several runs.
    """
    path = Path(source)
    if path.is_file():
        return path
    if problem := why_missing(path):
        raise DataError(problem)
    inside = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    found = sorted(inside.glob("*.npz"))
    if not found:
        raise DataError(
            f"{path}: has no checkpoint to resume from; runs write checkpoints to their output folder "
            "at switches and every `checkpoint_every` epochs"
        )
    states, damaged = _states_of(found)
    _check_one_run(states)
    for last in sorted(states, key=lambda each: _progress(states[each]), reverse=True):
        if _is_whole(last, states, damaged):
            return last
    first, *others = damaged.values()
    more = f"; nor can {', '.join(each.name for each in [*damaged][1:])}" if others else ""
    raise DataError(f"{first}{more}: no checkpoint of this run can be read")


def _is_whole(path: Path, states: Mapping[Path, Mapping[str, Any]], damaged: dict[Path, DataError]) -> bool:
    """Return whether a checkpoint and its predecessors in the log can be read; record unreadable ones."""
    at, seen = path, set[Path]()
    while at in states and at not in seen:
        seen.add(at)
        try:
            Checkpoint.load(at)
        except DataError as error:
            damaged[at] = error
            return False
        log = states[at].get("log")
        before = log.get("after") if isinstance(log, Mapping) else None
        if not isinstance(before, str) or not before:
            return True
        at = path.parent / before
    return at not in damaged  # one that is missing, or goes in a circle, is refused when the log is read


def _states_of(paths: Iterable[Path]) -> tuple[dict[Path, dict[str, Any]], dict[Path, DataError]]:
    """Return the plain data of readable checkpoints, and the errors of unreadable ones."""
    states: dict[Path, dict[str, Any]] = {}
    damaged: dict[Path, DataError] = {}
    for path in paths:
        try:
            states[path] = Checkpoint.state_of(path)
        except DataError as error:
            damaged[path] = error
    return states, damaged


def _check_one_run(states: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raise if a folder has checkpoints of several runs: the last file may belong to an earlier run."""
    for first, other in zip(states, [*states][1:], strict=False):
        if states[other].get("run_id") != states[first].get("run_id"):
            raise DataError(
                f"{other}: belongs to a different run from {first.name} beside it; name the checkpoint to "
                "resume "
                "from, or keep each run in a folder of its own"
            )


def _progress(state: Mapping[str, Any]) -> tuple[int, float]:
    """Return the progress of a run; 0 for a file without a run's state."""
    log, time_s = state.get("log"), state.get("time_s")
    rows = log.get("rows") if isinstance(log, Mapping) else None
    return rows if isinstance(rows, int) else -1, time_s if isinstance(time_s, (int, float)) else 0.0


def prune(folder: Path, keep: int) -> list[Path]:
    """Remove all but the last checkpoints of a run's folder, and return the files that are gone.

    The oldest one that is kept takes over the log of those before it, and is replaced as a whole before they
    are removed: whenever this is broken off, every file that is there can be resumed from.

    Raises
    ------
    SpecError, DataError, OSError
        If a file cannot be read, written or removed.
    """
    states = {path: Checkpoint.state_of(path) for path in folder.glob("*.npz")}
    ordered = sorted(states, key=lambda path: _progress(states[path]))
    old, kept = ordered[:-keep], ordered[-keep:]
    names = {path.name for path in old}
    for path in kept:
        if states[path].get("log", {}).get("after") in names:
            _take_over_log(path)
    for path in old:
        path.unlink()
    return old


def _take_over_log(path: Path) -> None:
    """Store the complete log in a checkpoint."""
    checkpoint = Checkpoint.load(path)
    log = log_of(path, checkpoint)
    packed = np.frombuffer(log.rows().tobytes(), np.uint8).copy()
    checkpoint.tensors["log"] = torch.from_numpy(packed)
    checkpoint.state["log"] = {"after": "", "rows": len(log), "texts": list(log.texts)}
    checkpoint.save(path)


def passed_over(path: Path) -> list[Path]:
    """Return the checkpoints beside this one that are later or unreadable."""
    states, damaged = _states_of({path, *path.parent.glob("*.npz")})
    progress = _progress(states[path])
    return sorted([*damaged, *(each for each, state in states.items() if _progress(state) > progress)])


def remove_later(path: Path, folder: Path) -> None:
    """Remove the checkpoints that a resumed run skipped; the run writes them again."""
    if folder.is_dir() and path.resolve().parent == folder.resolve():
        for each in passed_over(path):
            each.unlink()


def home_of(path: Path) -> Path:
    """Return the folder of a checkpoint's run."""
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
        raise DataError(f"{path}: {ONLY_A_MODEL}")
    return spec
